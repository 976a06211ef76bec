//! Bombs, forged headers, cut files and junk: each is a clear error or a short, honest result; never a panic.

mod common;

use std::io::{Cursor, Read};

use common::*;
use ogg::writing::{PacketWriteEndInfo, PacketWriter};
use proptest::prelude::*;
use voce_audio::wav::WavSample;
use voce_audio::*;

const FIXTURES: [&str; 13] = [
    "tone_16k_mono.mp3",
    "tone_44k_stereo.mp3",
    "tone_24k_mono.m4a",
    "tone_24k_faststart.m4a",
    "tone_16k_mono.aac",
    "tone_24k_vorbis.ogg",
    "tone_48k_opus.opus",
    "tone_48k_opus.webm",
    "tone_24k_vorbis.webm",
    "tone_8k.aiff",
    "tone_16k.flac",
    "tone_8k_mulaw.wav",
    "tone_8k_alaw.wav",
];

fn limits() -> DecodeLimits {
    DecodeLimits::default()
}

fn code(bytes: &[u8], limits: &DecodeLimits) -> &'static str {
    match decode_bytes(bytes, None, limits) {
        Ok(_) => "ok",
        Err(e) => e.code(),
    }
}

/// An Ogg Opus file of `packets` two-byte packets of 120 ms each.
fn opus_bomb(packets: usize) -> Vec<u8> {
    let mut writer = PacketWriter::new(Vec::new());
    let head = b"OpusHead\x01\x01\x00\x00\x80\xbb\x00\x00\x00\x00\x00".to_vec();
    let tags = b"OpusTags\x00\x00\x00\x00\x00\x00\x00\x00".to_vec();
    writer.write_packet(head, 1, PacketWriteEndInfo::EndPage, 0).unwrap();
    writer.write_packet(tags, 1, PacketWriteEndInfo::EndPage, 0).unwrap();
    for i in 0..packets {
        let end = match i {
            _ if i + 1 == packets => PacketWriteEndInfo::EndStream,
            _ if i % 200 == 199 => PacketWriteEndInfo::EndPage,
            _ => PacketWriteEndInfo::NormalPacket,
        };
        // 60 ms frames, two of them, no bytes each.
        writer.write_packet(vec![0x1b, 0x02], 1, end, (i as u64 + 1) * 5760).unwrap();
    }
    writer.into_inner()
}

#[test]
fn the_opus_bomb_is_stopped_while_decoding() {
    // 700 s in 12 kB: over the limit of seconds, far under the limit of bytes.
    let bomb = opus_bomb(700 * 100 / 12 + 1);
    assert!(bomb.len() < 40_000, "{}", bomb.len());
    assert_eq!(code(&bomb, &limits()), "too_long");
    let small = DecodeLimits { max_pcm_bytes: 1 << 20, ..limits() };
    assert_eq!(code(&bomb, &small), "too_many_samples");
    let audio = decode_bytes(&opus_bomb(100), None, &limits()).unwrap();
    assert_eq!(audio.samples.len(), 100 * 5760);
}

#[test]
fn the_flac_bomb_is_stopped_while_decoding() {
    let silence = vec![0.0; 8000 * 90];
    let bomb = encode(&silence, 8000, AudioFormat::Flac);
    assert!(bomb.len() < 4000, "{}", bomb.len());
    assert_eq!(code(&bomb, &DecodeLimits { max_seconds: 89, ..limits() }), "too_long");
    assert_eq!(
        code(&bomb, &DecodeLimits { max_pcm_bytes: 8000 * 90 * 4 - 1, ..limits() }),
        "too_many_samples"
    );
    assert_eq!(
        code(&bomb, &DecodeLimits { max_seconds: 90, max_pcm_bytes: 8000 * 90 * 4, ..limits() }),
        "ok"
    );
}

#[test]
fn limits_hold_exactly() {
    let wav = encode(&noise(8000, 1), 8000, AudioFormat::Wav(WavSample::S16));
    let size = wav.len() as u64;
    assert_eq!(code(&wav, &DecodeLimits { max_input_bytes: size, ..limits() }), "ok");
    assert_eq!(code(&wav, &DecodeLimits { max_input_bytes: size - 1, ..limits() }), "too_large");
    assert_eq!(code(&wav, &DecodeLimits { max_seconds: 1, ..limits() }), "ok");
    let more = encode(&noise(8001, 1), 8000, AudioFormat::Wav(WavSample::S16));
    assert_eq!(code(&more, &DecodeLimits { max_seconds: 1, ..limits() }), "too_long");
    let frame = |channels: u16| wav_bytes(1, 16, channels, 8000, &vec![0; usize::from(channels) * 200]);
    assert_eq!(code(&frame(8), &limits()), "ok");
    assert_eq!(code(&frame(9), &limits()), "unsupported_channels");
    for (rate, want) in
        [(3999, "unsupported_rate"), (4000, "ok"), (192_000, "ok"), (192_001, "unsupported_rate")]
    {
        assert_eq!(code(&wav_bytes(1, 16, 1, rate, &[0; 400]), &limits()), want, "{rate}");
    }
}

#[test]
fn a_pipe_without_an_end_is_cut_at_the_byte_limit() {
    let header = wav::wav_header(16000, WavSample::S16, None);
    let endless = Cursor::new(header).chain(std::io::repeat(0));
    let small = DecodeLimits { max_input_bytes: 1 << 20, ..limits() };
    let error = decode(Source::reader(endless), Some("wav"), &small).unwrap_err();
    assert_eq!(error.code(), "too_large");
    // Seconds run out first when they are fewer.
    let endless = Cursor::new(wav::wav_header(16000, WavSample::S16, None)).chain(std::io::repeat(0));
    let error = decode(Source::reader(endless), Some("wav"), &limits()).unwrap_err();
    assert_eq!(error.code(), "too_long");
    // And so does junk, also while it is still being probed.
    let error =
        decode(Source::reader(std::io::repeat(7)), None, &DecodeLimits { max_input_bytes: 1000, ..limits() });
    assert_eq!(error.unwrap_err().code(), "too_large");
}

/// A source that fails after some bytes.
struct Failing(Cursor<Vec<u8>>);

impl Read for Failing {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(buf) {
            Ok(0) => Err(std::io::ErrorKind::ConnectionReset.into()),
            other => other,
        }
    }
}

#[test]
fn a_failing_source_is_named_whatever_the_format() {
    for name in FIXTURES {
        let bytes = fixture(name);
        for keep in [10, 300, bytes.len() - 10] {
            let source = Source::reader(Failing(Cursor::new(bytes[..keep].to_vec())));
            let error = decode(source, None, &limits()).unwrap_err();
            // An index at the end of the file is out of a pipe's reach before the failure is.
            let want = if name == "tone_24k_mono.m4a" { error.code() } else { "io" };
            assert_eq!(error.code(), want, "{name} cut at {keep}");
        }
    }
}

#[test]
fn an_index_at_the_end_needs_a_file() {
    let source = Source::reader(Cursor::new(fixture("tone_24k_mono.m4a")));
    let error = decode(source, Some("m4a"), &limits()).unwrap_err();
    assert_eq!(error.code(), "unsupported_format", "{error}");
}

#[test]
fn forged_headers() {
    // FLAC that claims 655,350 Hz, with its one channel and with 8.
    let mut flac = encode(&noise(5000, 1), 16000, AudioFormat::Flac);
    flac[18..21].copy_from_slice(&[0x9f, 0xff, 0x60]);
    assert_eq!(code(&flac, &limits()), "unsupported_rate");
    flac[20] = 0x6e;
    assert_ne!(code(&flac, &limits()), "ok");
    // WAV whose data chunk claims 4 GiB or a little too much: what is there is given.
    let mut wav = encode(&noise(5000, 1), 16000, AudioFormat::Wav(WavSample::S16));
    wav[40..44].copy_from_slice(&0xffff_fff0u32.to_le_bytes());
    assert_eq!(decode_bytes(&wav, None, &limits()).unwrap().samples.len(), 5000);
    wav[40..44].copy_from_slice(&10_002u32.to_le_bytes());
    let audio = decode_bytes(&wav, None, &limits()).unwrap();
    assert_eq!((audio.samples.len(), audio.report.truncated), (5000, true));
    // Writers that never came back to fill in their lengths leave zeros.
    wav[40..44].fill(0);
    assert_eq!(decode_bytes(&wav, None, &limits()).unwrap().samples.len(), 0);
    wav[4..8].fill(0);
    assert_eq!(decode_bytes(&wav, None, &limits()).unwrap().samples.len(), 5000);
    // A format that no one decodes, and data before any format.
    assert_eq!(code(&wav_bytes(2, 4, 1, 16000, &[0; 100]), &limits()), "unsupported_format");
    assert_eq!(code(b"RIFF\xff\xff\xff\xffWAVEdata\x10\x00\x00\x00aaaaaaaaaaaaaaaa", &limits()), "corrupt");
    // A chunk that claims more than there is.
    assert_eq!(code(b"RIFF\xff\xff\xff\xffWAVEjunk\xff\xff\xff\xffaaaa", &limits()), "truncated");
    // WAV with a rate of 0, and one with no channels.
    assert_ne!(code(&wav_bytes(1, 16, 1, 0, &[0; 100]), &limits()), "ok");
    assert_ne!(code(&wav_bytes(1, 16, 0, 16000, &[0; 100]), &limits()), "ok");
    // Opus with more streams than one decoder takes.
    let mut opus = opus_bomb(10);
    let family = 28 + 18;
    opus[family] = 1;
    let error = decode_bytes(&opus, None, &limits()).unwrap_err();
    // The checksum is wrong now as well, so the header page may be refused as a whole.
    assert!(matches!(error.code(), "unsupported_format" | "truncated" | "corrupt"), "{error}");
}

#[test]
fn multistream_opus_is_refused_by_name() {
    let mut writer = PacketWriter::new(Vec::new());
    let head =
        b"OpusHead\x01\x06\x38\x01\x80\xbb\x00\x00\x00\x00\x01\x04\x02\x00\x04\x01\x02\x03\x05".to_vec();
    writer.write_packet(head, 1, PacketWriteEndInfo::EndPage, 0).unwrap();
    let error = decode_bytes(&writer.into_inner(), None, &limits()).unwrap_err();
    assert_eq!(error.code(), "unsupported_format");
    assert!(error.to_string().contains("multistream"), "{error}");
}

#[test]
fn empty_and_tiny_inputs() {
    assert_eq!(code(&[], &limits()), "empty_audio");
    assert_eq!(decode(Source::reader(std::io::empty()), None, &limits()).unwrap_err().code(), "empty_audio");
    // An ID3 tag and nothing after it, once with a size that lies.
    let mut id3 = b"ID3\x04\x00\x00\x00\x00\x00\x17".to_vec();
    id3.resize(33, 0);
    assert_eq!(code(&id3, &limits()), "empty_audio");
    id3[6] = 0x7f;
    assert_eq!(code(&id3, &limits()), "empty_audio");
    // Half an mp3 frame.
    assert_ne!(code(&fixture("tone_16k_mono.mp3")[..33], &limits()), "ok");
    assert_eq!(code(b"hello, this is text and not sound at all", &limits()), "unsupported_format");
    assert_eq!(code(&[0; 5000], &limits()), "unsupported_format");
    let error = decode_bytes(b"not audio", Some("mp4"), &limits()).unwrap_err();
    assert!(error.to_string().contains(".mp4"), "{error}");
    // A sound file without samples is no error where the format allows one, and one sample is one sample.
    for format in [AudioFormat::Wav(WavSample::S16), AudioFormat::Wav(WavSample::F32), AudioFormat::Flac] {
        let decode = |n| decode_bytes(&encode(&vec![0.0; n], 16000, format), None, &limits());
        assert_eq!(decode(1).unwrap().samples, [0.0], "{format:?}");
        match decode(0) {
            Ok(audio) => assert_eq!((audio.samples.len(), audio.sample_rate), (0, 16000)),
            Err(e) => assert_eq!((e.code(), format), ("truncated", AudioFormat::Flac)),
        }
    }
}

#[test]
fn silence_and_nan() {
    let audio = decode_bytes(&encode(&[0.0; 16000], 16000, AudioFormat::OggOpus), None, &limits()).unwrap();
    assert_eq!(audio.samples.len(), 48000);
    assert!(audio.samples.iter().all(|s| s.abs() < 1e-3));
    let bad = [f32::NAN, 1.5, f32::INFINITY, -0.25, f32::NEG_INFINITY];
    let audio =
        decode_bytes(&encode(&bad, 16000, AudioFormat::Wav(WavSample::F32)), None, &limits()).unwrap();
    assert_eq!(audio.samples, [0.0, 1.5, 0.0, -0.25, 0.0]);
    assert_eq!(audio.report.non_finite, 3);
}

#[test]
fn files_cut_at_any_byte() {
    for name in FIXTURES {
        let bytes = fixture(name);
        let whole = decode_bytes(&bytes, None, &limits()).unwrap().samples.len();
        let step = if bytes.len() > 5000 { 17 } else { 1 };
        for end in (0..bytes.len()).step_by(step) {
            match decode_bytes(&bytes[..end], None, &limits()) {
                // A cut Vorbis or Opus stream has lost the page that trims its end.
                Ok(audio) => {
                    assert!(audio.samples.len() <= whole + 4096 * audio.channels, "{name} cut at {end}")
                }
                Err(e) => assert_ne!(e.code(), "decoder_fault", "{name} cut at {end}"),
            }
        }
    }
}

#[test]
fn a_cut_file_keeps_what_came_before() {
    let flac = encode(&noise(40_000, 1), 16000, AudioFormat::Flac);
    let audio = decode_bytes(&flac[..flac.len() / 2], None, &limits()).unwrap();
    assert!((8_000..32_000).contains(&audio.samples.len()), "{}", audio.samples.len());
    let opus = fixture("tone_48k_opus.opus");
    let audio = decode_bytes(&opus[..opus.len() - 100], None, &limits());
    assert!(audio.is_err() || audio.is_ok_and(|a| a.report.truncated));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn junk_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let result = decode_bytes(&bytes, None, &limits());
        prop_assert!(!matches!(result, Err(AudioError::DecoderFault)));
    }

    #[test]
    fn junk_behind_a_signature_never_panics(
        magic in prop::sample::select(vec![
            &b"RIFF\x00\x10\x00\x00WAVEfmt "[..], b"FORM\x00\x00\x10\x00AIFFCOMM", b"fLaC\x00\x00\x00\x22", b"OggS\x00\x02",
            b"\x1a\x45\xdf\xa3", b"\x00\x00\x00\x20ftypM4A ", b"ID3\x04\x00\x00\x00\x00\x00\x10", b"\xff\xfb\x90\x64",
        ]),
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let result = decode_bytes(&[magic, &bytes].concat(), None, &limits());
        prop_assert!(!matches!(result, Err(AudioError::DecoderFault)));
    }

    #[test]
    fn flipped_bytes_never_panic(
        name in prop::sample::select(FIXTURES.to_vec()),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut bytes = fixture(name);
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(audio) = decode_bytes(&bytes, None, &limits()) {
            prop_assert!(audio.samples.iter().all(|s| s.is_finite()));
        }
        let pipe = decode(Source::reader(Cursor::new(bytes)), None, &limits());
        prop_assert!(pipe.map_or(true, |audio| audio.channels > 0));
    }
}
