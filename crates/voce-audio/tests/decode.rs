//! Every input format decodes to what was put in, whole or in blocks, from memory, files and pipes.

mod common;

use std::io::Cursor;

use common::*;
use voce_audio::wav::WavSample;
use voce_audio::*;

fn decode_ok(bytes: &[u8]) -> Audio {
    decode_bytes(bytes, None, &DecodeLimits::default()).unwrap()
}

#[test]
fn wav_of_every_sample_type() {
    let x = sine(440.0, 16000, 1600);
    let int = |bits: u32| move |s: &f32| (f64::from(*s) * f64::from(2f32.powi(bits as i32 - 1))) as i32;
    let cases: Vec<(u16, u16, Vec<u8>, f64)> = vec![
        (1, 8, x.iter().map(|s| (int(8)(s) + 128) as u8).collect(), 35.0),
        (1, 16, x.iter().flat_map(|s| (int(16)(s) as i16).to_le_bytes()).collect(), 80.0),
        (1, 24, x.iter().flat_map(|s| int(24)(s).to_le_bytes()[..3].to_vec()).collect(), 120.0),
        (1, 32, x.iter().flat_map(|s| int(32)(s).to_le_bytes()).collect(), 130.0),
        (3, 32, x.iter().flat_map(|s| s.to_le_bytes()).collect(), 200.0),
        (3, 64, x.iter().flat_map(|s| f64::from(*s).to_le_bytes()).collect(), 200.0),
    ];
    for (tag, bits, data, want) in cases {
        let audio = decode_ok(&wav_bytes(tag, bits, 1, 16000, &data));
        assert_eq!((audio.sample_rate, audio.channels), (16000, 1));
        let got = snr(&x, &audio.samples);
        assert!(got > want, "tag {tag} bits {bits}: {got} dB");
        assert_eq!(audio.report, DecodeReport::default());
    }
}

#[test]
fn extensible_wav_with_chunks_around() {
    let x = sine(440.0, 16000, 160);
    let mut wav = b"RIFF\0\0\0\0WAVELIST\x03\0\0\0abc\0fmt \x28\0\0\0".to_vec();
    wav.extend(0xfffeu16.to_le_bytes());
    wav.extend([2, 0]);
    wav.extend(16000u32.to_le_bytes());
    wav.extend(128_000u32.to_le_bytes());
    wav.extend([8, 0, 32, 0, 22, 0, 32, 0, 3, 0, 0, 0]);
    wav.extend(*b"\x03\0\0\0\0\0\x10\0\x80\0\0\xaa\0\x38\x9b\x71");
    wav.extend(b"data");
    wav.extend((160 * 8u32).to_le_bytes());
    wav.extend(x.iter().flat_map(|s| [s.to_le_bytes(), s.to_le_bytes()].concat()));
    wav.extend(b"LIST\x04\0\0\0tail");
    let audio = decode_ok(&wav);
    assert_eq!((audio.sample_rate, audio.channels), (16000, 2));
    assert_eq!(audio.to_mono(), x);
}

#[test]
fn foreign_encoders_files() {
    // name, rate, channels, how far the tone must stand out, samples allowed beyond 0.4 s
    let cases = [
        ("tone_16k_mono.mp3", 16000, 1, 25.0, 1200),
        ("tone_44k_stereo.mp3", 44100, 2, 25.0, 2400),
        ("tone_24k_mono.m4a", 24000, 1, 25.0, 2100),
        ("tone_24k_faststart.m4a", 24000, 1, 25.0, 2100),
        ("tone_16k_mono.aac", 16000, 1, 18.0, 2100),
        ("tone_24k_vorbis.ogg", 24000, 1, 20.0, 0),
        ("tone_24k_vorbis.webm", 24000, 1, 20.0, 1100),
        ("tone_48k_opus.opus", 48000, 2, 20.0, 0),
        ("tone_48k_opus.webm", 48000, 1, 20.0, 1000),
        ("tone_8k.aiff", 8000, 1, 60.0, 0),
        ("tone_16k.flac", 16000, 1, 60.0, 0),
        ("tone_8k_mulaw.wav", 8000, 1, 30.0, 0),
        ("tone_8k_alaw.wav", 8000, 1, 30.0, 0),
    ];
    for (name, rate, channels, want, slack) in cases {
        let audio = decode_file(&fixture_path(name), &DecodeLimits::default()).unwrap();
        assert_eq!((audio.sample_rate, audio.channels), (rate, channels), "{name}");
        let mono = audio.to_mono();
        let exact = rate as usize * 4 / 10;
        assert!((exact..=exact + slack).contains(&mono.len()), "{name}: {} samples", mono.len());
        let (amplitude, above) = fit_sine(&mono[exact / 4..exact * 3 / 4], 440.0, rate);
        assert!(above > want, "{name}: tone only {above} dB above the rest");
        assert!((amplitude - 0.5).abs() < 0.05, "{name}: amplitude {amplitude}");
        assert_eq!(audio.report, DecodeReport::default(), "{name}");
    }
}

#[test]
fn blocks_and_pipes_give_what_the_whole_gives() {
    for name in [
        "tone_16k_mono.mp3",
        "tone_24k_vorbis.ogg",
        "tone_48k_opus.opus",
        "tone_16k.flac",
        "tone_24k_faststart.m4a",
        "tone_48k_opus.webm",
        "tone_8k_mulaw.wav",
        "tone_8k.aiff",
    ] {
        let bytes = fixture(name);
        let whole = decode_ok(&bytes);
        let pipe = Source::reader(Cursor::new(bytes.clone()));
        let mut decoder = Decoder::open(pipe, None, &DecodeLimits::default()).unwrap();
        assert_eq!(decoder.sample_rate(), whole.sample_rate, "{name}");
        let mut samples = Vec::new();
        while let Some(block) = decoder.next_block().unwrap() {
            assert!(!block.is_empty() && block.len() % whole.channels == 0);
            samples.extend_from_slice(block);
        }
        assert!(decoder.next_block().unwrap().is_none(), "the end stays the end");
        // A pipe cannot be looked at from the end, so its last page may be trimmed less.
        let common = samples.len().min(whole.samples.len());
        assert!(samples.len() >= whole.samples.len(), "{name}");
        assert_eq!(samples[..common], whole.samples[..common], "{name}");
    }
}

#[test]
fn our_own_encoders_round_trip() {
    let x = sine(440.0, 24000, 30_001);
    for (format, want) in [
        (AudioFormat::Wav(WavSample::S16), 80.0),
        (AudioFormat::Wav(WavSample::F32), 200.0),
        (AudioFormat::Flac, 80.0),
    ] {
        let audio = decode_ok(&encode(&x, 24000, format));
        assert_eq!((audio.sample_rate, audio.channels), (24000, 1));
        assert!(snr(&x, &audio.samples) > want, "{format:?}");
    }
}

#[test]
fn stereo_is_mixed_by_the_mean() {
    let data: Vec<u8> = [1000i16, 3000, -2000, 2000].iter().flat_map(|s| s.to_le_bytes()).collect();
    let audio = decode_ok(&wav_bytes(1, 16, 2, 8000, &data));
    assert_eq!(audio.to_mono(), [2000.0 / 32768.0, 0.0]);
}

/// A live source: gives a few bytes at a time, and fails the test if asked for more than it should be.
struct Trickle {
    bytes: Vec<u8>,
    at: usize,
    given: std::sync::Arc<std::sync::atomic::AtomicUsize>,
}

impl std::io::Read for Trickle {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = buf.len().min(37).min(self.bytes.len() - self.at);
        buf[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        self.given.store(self.at, std::sync::atomic::Ordering::Relaxed);
        Ok(n)
    }
}

#[test]
fn a_live_pipe_is_passed_on_as_it_comes() {
    let x = sine(440.0, 16000, 5000);
    let stereo: Vec<f32> = x.iter().flat_map(|&s| [s, -s]).collect();
    let data: Vec<u8> = stereo.iter().flat_map(|s| s.to_le_bytes()).collect();
    let raw = RawFormat { encoding: RawEncoding::F32le, sample_rate: 16000, channels: 2 };
    let wav = wav_bytes(3, 32, 2, 16000, &data);
    for (bytes, is_raw) in [(data, true), (wav, false)] {
        let given = std::sync::Arc::default();
        let source = Source::reader(Trickle { bytes, at: 0, given: std::sync::Arc::clone(&given) });
        let limits = DecodeLimits::default();
        let mut decoder = if is_raw {
            Decoder::open_raw(source, raw, &limits).unwrap()
        } else {
            Decoder::open(source, None, &limits).unwrap()
        };
        assert!(given.load(std::sync::atomic::Ordering::Relaxed) < 300, "opening reads ahead");
        let mut samples = Vec::new();
        while let Some(block) = decoder.next_block().unwrap() {
            assert!(block.len() < 40);
            samples.extend_from_slice(block);
        }
        assert_eq!(samples, stereo);
        assert_eq!(decoder.report(), DecodeReport::default());
    }
}

#[test]
fn raw_formats() {
    let x = sine(300.0, 8000, 4001);
    let limits = DecodeLimits::default();
    for (encoding, want) in [
        (RawEncoding::S16le, 80.0),
        (RawEncoding::F32le, 200.0),
        (RawEncoding::Mulaw, 33.0),
        (RawEncoding::Alaw, 33.0),
        (RawEncoding::S8, 35.0),
        (RawEncoding::S24le, 125.0),
        (RawEncoding::S32le, 140.0),
    ] {
        let bytes = encode(&x, 8000, AudioFormat::Raw(encoding));
        assert_eq!(bytes.len(), x.len() * encoding.bytes());
        let format = RawFormat { encoding, sample_rate: 8000, channels: 1 };
        let audio = decode_raw(Source::bytes(bytes), format, &limits).unwrap();
        assert!(snr(&x, &audio.samples) > want, "{encoding:?}: {}", snr(&x, &audio.samples));
    }
    let odd = RawFormat { encoding: RawEncoding::S16le, sample_rate: 8000, channels: 2 };
    let audio = decode_raw(Source::bytes(vec![0u8; 4003]), odd, &limits).unwrap();
    assert_eq!(audio.samples.len(), 2000);
    assert!(audio.report.truncated);
    let none = RawFormat { channels: 0, ..odd };
    assert_eq!(
        decode_raw(Source::bytes(vec![0u8; 8]), none, &limits).unwrap_err().code(),
        "unsupported_channels"
    );
}

#[test]
fn raw_encodings_match_a_wav_of_the_same_law() {
    let limits = DecodeLimits::default();
    for (name, encoding) in
        [("tone_8k_mulaw.wav", RawEncoding::Mulaw), ("tone_8k_alaw.wav", RawEncoding::Alaw)]
    {
        let wav = fixture(name);
        let format = RawFormat { encoding, sample_rate: 8000, channels: 1 };
        let data = wav[wav.len() - 3200..].to_vec();
        let raw = decode_raw(Source::bytes(data), format, &limits).unwrap();
        assert_eq!(raw.samples, decode_ok(&wav).samples, "{name}");
    }
}

#[test]
fn chained_opus() {
    let plain = fixture("tone_48k_opus.opus");
    let whole = decode_ok(&plain);
    let chained = decode_ok(&[plain.clone(), plain.clone()].concat());
    assert_eq!(chained.samples.len(), 2 * whole.samples.len());
    assert_eq!(chained.samples[whole.samples.len()..], whole.samples);
    let mono = encode(&sine(440.0, 24000, 9600), 24000, AudioFormat::OggOpus);
    let error = decode_bytes(&[plain, mono].concat(), None, &DecodeLimits::default()).unwrap_err();
    assert_eq!(error.code(), "format_changed");
}

/// Rewrites an Ogg file packet by packet.
fn remux(bytes: &[u8], mut edit: impl FnMut(usize, &mut Vec<u8>, &mut u64) -> bool) -> Vec<u8> {
    let mut reader = ogg::PacketReader::new(Cursor::new(bytes));
    let mut writer = ogg::PacketWriter::new(Vec::new());
    let mut index = 0;
    while let Some(packet) = reader.read_packet().unwrap() {
        let end = match (packet.last_in_stream(), packet.last_in_page()) {
            (true, _) => ogg::PacketWriteEndInfo::EndStream,
            (_, true) => ogg::PacketWriteEndInfo::EndPage,
            _ => ogg::PacketWriteEndInfo::NormalPacket,
        };
        let (serial, mut granule) = (packet.stream_serial(), packet.absgp_page());
        let mut data = packet.data;
        if edit(index, &mut data, &mut granule) {
            writer.write_packet(data, serial, end, granule).unwrap();
        }
        index += 1;
    }
    writer.into_inner()
}

#[test]
fn opus_gain_is_applied() {
    let plain = encode(&sine(440.0, 48000, 24000), 48000, AudioFormat::OggOpus);
    // 6.02 dB up, in 1/256 dB.
    let louder = remux(&plain, |i, data, _| {
        if i == 0 {
            data[16..18].copy_from_slice(&1541i16.to_le_bytes());
        }
        true
    });
    let (a, b) = (decode_ok(&plain), decode_ok(&louder));
    let twice: Vec<f32> = a.samples.iter().map(|s| s * 2.0).collect();
    assert!(snr(&twice, &b.samples) > 60.0);
}

#[test]
fn opus_cut_from_a_live_stream_keeps_its_length() {
    let plain = encode(&sine(440.0, 48000, 48000), 48000, AudioFormat::OggOpus);
    let whole = decode_ok(&plain).samples.len();
    // Every granule position an hour late, as in a recording of a running stream.
    let late = remux(&plain, |i, _, granule| {
        *granule += if i > 1 { 3600 * 48000 } else { 0 };
        true
    });
    assert_eq!(decode_ok(&late).samples.len(), whole);
}

#[test]
fn mono_at_any_rate() {
    let x = sine(440.0, 44100, 44100);
    let data: Vec<u8> = x.iter().flat_map(|s| [s.to_le_bytes(), s.to_le_bytes()].concat()).collect();
    let wav = wav_bytes(3, 32, 2, 44100, &data);
    let decoder = Decoder::open(Source::bytes(wav), None, &DecodeLimits::default()).unwrap();
    let mono = MonoStream::new(decoder, 16000).read_all().unwrap();
    assert_eq!(mono, resample(&x, 44100, 16000));
}

#[test]
fn a_missing_file_says_so() {
    let error = decode_file(&fixture_path("none.wav"), &DecodeLimits::default()).unwrap_err();
    assert_eq!(error.code(), "not_found");
    let error = decode_file(&fixture_path(""), &DecodeLimits::default()).unwrap_err();
    assert_eq!(error.code(), "io");
}
