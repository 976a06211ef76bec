#!/bin/sh
# Writes the small encoded files under crates/voce-audio/tests/fixtures: a 440 Hz tone at half amplitude,
# 0.4 s, in the formats whose encoders are not part of the crate. Needs ffmpeg (libmp3lame, libopus, libvorbis).
set -eu
out="${1:-crates/voce-audio/tests/fixtures}"
mkdir -p "$out"
tone() { # tone RATE CHANNELS FILE [ffmpeg options]
    rate=$1 channels=$2 file=$3
    shift 3
    wave='0.5*sin(2*PI*440*t)'
    [ "$channels" = 1 ] || wave="$wave|$wave"
    ffmpeg -v error -y -f lavfi -i "aevalsrc=$wave:s=$rate:d=0.4" \
        -fflags +bitexact -flags:a +bitexact "$@" "$out/$file"
}
tone 16000 1 tone_16k_mono.mp3 -b:a 24k -metadata title=tone
tone 44100 2 tone_44k_stereo.mp3 -b:a 64k
tone 24000 1 tone_24k_mono.m4a -c:a aac -b:a 48k
tone 24000 1 tone_24k_faststart.m4a -c:a aac -b:a 48k -movflags +faststart
tone 16000 1 tone_16k_mono.aac -c:a aac -b:a 32k
tone 24000 1 tone_24k_vorbis.ogg -c:a libvorbis -b:a 40k
tone 48000 2 tone_48k_opus.opus -c:a libopus -b:a 32k
tone 48000 1 tone_48k_opus.webm -c:a libopus -b:a 24k
tone 24000 1 tone_24k_vorbis.webm -c:a libvorbis -b:a 40k
tone 8000 1 tone_8k.aiff -c:a pcm_s16be
tone 16000 1 tone_16k.flac -c:a flac -compression_level 8
tone 8000 1 tone_8k_mulaw.wav -c:a pcm_mulaw
tone 8000 1 tone_8k_alaw.wav -c:a pcm_alaw
