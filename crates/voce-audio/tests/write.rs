//! What the sinks write: lengths, headers, atomic files, and errors from full disks and closed pipes.

mod common;

use std::io::{self, Write};

use common::*;
use voce_audio::encode::{Mp3Writer, OpusOptions, OpusWriter, sink_to};
use voce_audio::output::{AtomicFile, Output, Pipe};
use voce_audio::wav::{WavSample, WavWriter, wav_header};
use voce_audio::*;

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const FORMATS: [AudioFormat; 8] = [
    AudioFormat::Wav(WavSample::S16),
    AudioFormat::Wav(WavSample::F32),
    AudioFormat::Flac,
    AudioFormat::OggOpus,
    AudioFormat::Mp3,
    AudioFormat::Raw(RawEncoding::S16le),
    AudioFormat::Raw(RawEncoding::Mulaw),
    AudioFormat::Raw(RawEncoding::F32le),
];

#[test]
fn a_file_appears_only_when_finished() {
    for format in FORMATS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.out");
        std::fs::write(&path, "old").unwrap();
        let mut sink = open_sink(&path, format, 24000).unwrap();
        sink.write(&noise(30_000, 1)).unwrap();
        sink.flush().unwrap();
        assert_eq!(names(dir.path()).len(), 2, "a temporary file beside the old one");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(sink);
        assert_eq!(names(dir.path()), ["a.out"]);
        assert_eq!(std::fs::read(&path).unwrap(), b"old", "{format:?}");
        let mut sink = open_sink(&path, format, 24000).unwrap();
        sink.write(&noise(30_000, 1)).unwrap();
        sink.finish().unwrap();
        drop(sink);
        assert_eq!(names(dir.path()), ["a.out"]);
        assert!(std::fs::read(&path).unwrap().len() > 3000, "{format:?}");
    }
}

#[test]
fn unwritable_places() {
    let dir = tempfile::tempdir().unwrap();
    let code = |path: &std::path::Path| open_sink(path, AudioFormat::Flac, 24000).err().map(|e| e.code());
    assert_eq!(code(&dir.path().join("none/a.wav")), Some("not_found"));
    assert_eq!(code(dir.path()), Some("io"));
    assert!(names(dir.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn links_and_devices() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real.wav"), dir.path().join("link.wav"));
    std::fs::write(&real, "old").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let mut file = AtomicFile::create(&link).unwrap();
    file.put(b"new").unwrap();
    file.commit().unwrap();
    drop(file);
    assert_eq!(std::fs::read(&real).unwrap(), b"new");
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    let mut sink = open_sink("/dev/null".as_ref(), AudioFormat::Wav(WavSample::S16), 24000).unwrap();
    sink.write(&[0.0; 100]).unwrap();
    sink.finish().unwrap();
    assert!(!std::path::Path::new("/dev/null").is_file());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_named() {
    for format in FORMATS {
        let result = open_sink("/dev/full".as_ref(), format, 24000).and_then(|mut sink| {
            sink.write(&noise(30_000, 1))?;
            sink.finish()
        });
        assert_eq!(result.unwrap_err().code(), "disk_full", "{format:?}");
    }
}

/// A pipe whose reader leaves after some bytes.
struct Leaving(usize);

impl Write for Leaving {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let n = buf.len().min(self.0);
        self.0 -= n;
        Ok(n)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_is_named() {
    for format in FORMATS {
        for room in [0, 10, 1000] {
            let result = sink_to(Pipe::new(Leaving(room)), format, 24000).and_then(|mut sink| {
                sink.write(&noise(30_000, 1))?;
                sink.finish()
            });
            assert_eq!(result.unwrap_err().code(), "closed_pipe", "{format:?} after {room}");
        }
    }
}

#[test]
fn wav_headers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.wav");
    let mut wav = WavWriter::create(&path, 24000, WavSample::S16).unwrap();
    wav.write(&[0.5, -0.5, 2.0]).unwrap();
    wav.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes[..44], wav_header(24000, WavSample::S16, Some(3)));
    assert_eq!(u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize, bytes.len() - 8);
    assert_eq!(bytes[44..], [0xff, 0x3f, 0x01, 0xc0, 0xff, 0x7f]);

    let mut stream = WavWriter::stream(Vec::new(), 24000, WavSample::F32).unwrap();
    stream.write(&[0.5]).unwrap();
    stream.finish().unwrap();
    let bytes = stream.into_output().into_inner();
    assert_eq!(bytes[4..8], [0xff; 4]);
    let audio = decode_bytes(&bytes, None, &DecodeLimits::default()).unwrap();
    assert_eq!(audio.samples, [0.5]);
}

#[test]
fn flac_is_lossless_and_smaller() {
    let speechlike: Vec<f32> =
        sine(200.0, 16000, 20_000).iter().zip(noise(20_000, 1)).map(|(s, n)| s * 0.5 + n * 0.01).collect();
    let square: Vec<f32> = (0..9000).map(|i| if i / 50 % 2 == 0 { 1.0 } else { -1.0 }).collect();
    let full_scale: Vec<f32> = noise(9000, 3).iter().map(|s| s * 2.0).collect();
    for (x, most) in [(speechlike, 0.75), (square, 0.9), (full_scale, 1.02), (vec![0.25; 5000], 0.02)] {
        let bytes = encode(&x, 16000, AudioFormat::Flac);
        let audio = decode_bytes(&bytes, None, &DecodeLimits::default()).unwrap();
        let want: Vec<f32> = x.iter().map(|&s| f32::from(wav::f32_to_i16(s)) / 32768.0).collect();
        assert_eq!(audio.samples, want);
        assert!((bytes.len() as f64) < most * 2.0 * x.len() as f64, "{} for {}", bytes.len(), x.len());
    }
}

#[test]
fn flac_frame_numbers_grow_past_one_byte() {
    let x = vec![0.1; 4096 * 200 + 5];
    let mut sink = Vec::new();
    {
        let mut flac = encode::FlacWriter::new(Pipe::new(&mut sink), 16000).unwrap();
        flac.write(&x).unwrap();
        flac.finish().unwrap();
    }
    let audio = decode_bytes(&sink, None, &DecodeLimits::default()).unwrap();
    assert_eq!(audio.samples.len(), x.len());
    assert_eq!(audio.report, DecodeReport::default());
}

#[test]
fn opus_keeps_length_and_time() {
    for rate in [8000u32, 12000, 16000, 22050, 24000, 44100, 48000, 96000] {
        for n in [0, 1, rate as usize / 50, rate as usize / 2 + 7] {
            let x = sine(440.0, rate, n);
            let audio = decode_bytes(&encode(&x, rate, AudioFormat::OggOpus), None, &DecodeLimits::default())
                .unwrap();
            let want = (n as f64 * 48000.0 / f64::from(rate)).round() as usize;
            // Rates that must be resampled round up to whole samples of the encoder's rate.
            assert!(
                (want..want + 7).contains(&audio.samples.len()),
                "{rate}: {} for {want}",
                audio.samples.len()
            );
            assert_eq!(audio.report, DecodeReport::default());
            if n > rate as usize / 4 {
                let (a, b) = (want / 4, want * 3 / 4);
                // The codec's inner resampling moves the signal by a few samples at most.
                let at =
                    |delay: usize| snr(&sine(440.0, 48000, want)[a..b], &audio.samples[a - delay..b - delay]);
                let best = (0..=8).map(at).fold(0.0, f64::max);
                assert!(best > 20.0, "{rate}: {best} dB against the input at the same time");
            }
        }
    }
}

#[test]
fn opus_streams_as_it_goes() {
    let options = OpusOptions { packets_per_page: 1, ..OpusOptions::default() };
    let mut bytes = Vec::new();
    let mut sizes = Vec::new();
    for seconds in [1usize, 2] {
        let mut opus = OpusWriter::new(Pipe::new(Vec::new()), 24000, options).unwrap();
        opus.write(&sine(440.0, 24000, 24000 * seconds)).unwrap();
        bytes = opus.into_output().into_inner();
        sizes.push(bytes.len());
    }
    assert!(sizes[1] > sizes[0] * 3 / 2, "bytes come out before the end: {sizes:?}");
    // A stream that was never finished still plays, all but its last packet.
    let audio = decode_bytes(&bytes, None, &DecodeLimits::default()).unwrap();
    assert!(audio.samples.len() > 48000 * 19 / 10);
}

#[test]
fn mp3_files_have_their_length_and_pipes_play_as_they_come() {
    for rate in [8_000, 22_050, 24_000, 48_000] {
        let tone = sine(440.0, rate, rate as usize * 3 / 2);
        let file = encode(&tone, rate, AudioFormat::Mp3);
        assert!(file.windows(4).take(64).any(|tag| tag == b"Info"), "{rate} Hz: a file has the tag");
        let audio = decode_bytes(&file, None, &DecodeLimits::default()).unwrap();
        assert_eq!(
            (audio.sample_rate, audio.samples.len()),
            (rate, tone.len()),
            "the tag tells the exact length"
        );
        let middle = rate as usize / 4..rate as usize;
        let (amplitude, db) = fit_sine(&audio.samples[middle], 440.0, rate);
        assert!((amplitude - 0.5).abs() < 0.02 && db > 25.0, "{rate} Hz: {amplitude} {db} dB");
    }
    // A pipe cannot be patched: no tag with a wrong length, and the frames begin before the end.
    let mut bytes = Vec::new();
    let mut sink = Mp3Writer::new(Pipe::new(&mut bytes), 24000).unwrap();
    sink.write(&sine(440.0, 24000, 24000)).unwrap();
    drop(sink);
    assert!(bytes.len() > 6000, "{} bytes of a second came before its end", bytes.len());
    assert!(!bytes.windows(4).take(64).any(|tag| tag == b"Info"));
    let audio = decode_bytes(&bytes, None, &DecodeLimits::default()).unwrap();
    assert!(audio.samples.len() > 24000 * 9 / 10, "{}", audio.samples.len());
    // Nothing said is still a file; no rate is refused.
    assert!(decode_bytes(&encode(&[], 24000, AudioFormat::Mp3), None, &DecodeLimits::default()).is_ok());
    assert_eq!(Mp3Writer::new(Pipe::new(Vec::new()), 0).err().map(|e| e.code()), Some("encode_failed"));
}

#[test]
fn format_names() {
    for (name, want) in [
        ("WAV", "audio/wav"),
        ("flac", "audio/flac"),
        ("opus", "audio/ogg"),
        ("MP3", "audio/mpeg"),
        ("pcm", "audio/pcm"),
    ] {
        assert_eq!(AudioFormat::from_name(name).unwrap().media_type(), want);
    }
    assert_eq!(AudioFormat::from_path("a/b.ogg".as_ref()), Some(AudioFormat::OggOpus));
    assert_eq!(AudioFormat::from_path("a/b.mp3".as_ref()), Some(AudioFormat::Mp3));
    assert_eq!(AudioFormat::from_path("a/b.m4a".as_ref()), None);
    // Every name that an error offers is one that works.
    for name in voce_audio::encode::FORMATS.split([',', ' ']).map(|name| name.trim_matches(['(', ')'])) {
        assert!(name.is_empty() || name == "or" || AudioFormat::from_name(name).is_some(), "{name}");
    }
}
