//! Voice prompts against the Pocket TTS package, and the cut inside a pause.

mod common;

use std::io::{Cursor, Read};

use common::*;
use voce_audio::voice_prompt::{LongPrompt, end_on_pause, from_decoder, prepare};
use voce_audio::{DecodeLimits, Decoder, Source, wav};

#[test]
fn end_on_pause_agrees_with_the_package() {
    let loud = noise(9000, 1);
    let tail: Vec<f32> = noise(6000, 2).iter().map(|s| s * 0.001).collect();
    let mut click = tail.clone();
    for (s, n) in click[3000..3600].iter_mut().zip(noise(600, 3)) {
        *s += n * 0.2;
    }
    let cases = [
        ("tail", [loud.clone(), tail].concat()),
        ("click", [loud, click].concat()),
        ("silence", vec![0.0; 3000]),
        ("short", noise(300, 4)),
        ("odd", noise(5003, 5)),
    ];
    for (name, input) in cases {
        let want = floats(&format!("prompt_{name}.f32"));
        let got = end_on_pause(&input, 24000);
        assert_eq!(got.len(), want[0] as usize, "{name}");
        let end = &got[got.len() - (want.len() - 1)..];
        let worst = end.iter().zip(&want[1..]).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-7, "{name}: {worst}");
    }
}

#[test]
fn sixteen_bits_as_the_package_makes_them() {
    let want = floats("s16.f32");
    let got: Vec<f32> = noise(200, 6).iter().map(|s| f32::from(wav::f32_to_i16(s * 2.5))).collect();
    assert_eq!(got, want);
    assert_eq!([f32::NAN, f32::INFINITY, -1.0].map(wav::f32_to_i16), [0, 32767, -32767]);
}

#[test]
fn long_prompts() {
    let rate = 8000;
    let mut x = noise(40 * rate, 9);
    // A pause at 25.0 to 25.4 s, and one after 30 s that must not count.
    x[25 * rate..25 * rate + rate * 4 / 10].fill(0.0);
    x[35 * rate..36 * rate].fill(0.0);
    let seconds = |long| prepare(&x, rate as u32, 24000, long).len() as f64 / 24000.0;
    assert!((seconds(LongPrompt::Keep) - 40.08).abs() < 0.03);
    assert!((seconds(LongPrompt::Truncate) - 30.08).abs() < 0.001);
    assert!((seconds(LongPrompt::CutOnPause) - 25.08).abs() < 0.03, "{}", seconds(LongPrompt::CutOnPause));
    // Without any pause: somewhere in the last ten seconds.
    let y = noise(40 * rate, 9);
    let cut = prepare(&y, rate as u32, 24000, LongPrompt::CutOnPause).len() as f64 / 24000.0;
    assert!((20.0..=30.1).contains(&cut), "{cut}");
    // Short enough: nothing is cut.
    assert_eq!(prepare(&y[..rate], rate as u32, 24000, LongPrompt::CutOnPause).len(), 24000 + 1920);
}

#[test]
fn only_the_first_part_of_a_long_recording_is_read() {
    // A pipe that ends in an error after 33 s, which nobody may reach.
    let data: Vec<u8> = noise(33 * 8000, 3).iter().flat_map(|s| wav::f32_to_i16(*s).to_le_bytes()).collect();
    let header = wav::wav_header(8000, wav::WavSample::S16, None);
    let source = || Source::reader(Cursor::new([&header[..], &data].concat()).chain(Broken));
    let open = || Decoder::open(source(), None, &DecodeLimits::default()).unwrap();
    for long in [LongPrompt::CutOnPause, LongPrompt::Truncate] {
        let prompt = from_decoder(open(), 24000, long).unwrap();
        assert!((20 * 24000..=30 * 24000 + 1920).contains(&prompt.len()));
    }
    assert_eq!(from_decoder(open(), 24000, LongPrompt::Keep).unwrap_err().code(), "io");
}

struct Broken;

impl Read for Broken {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::ErrorKind::ConnectionReset.into())
    }
}

#[test]
fn a_stereo_file_agrees_with_the_package() {
    let s16: Vec<u8> = noise(6615 * 2, 8).iter().flat_map(|s| ((s * 32768.0) as i16).to_le_bytes()).collect();
    let wav = wav_bytes(1, 16, 2, 44100, &s16);
    let decoder = Decoder::open(Source::bytes(wav), None, &DecodeLimits::default()).unwrap();
    let got = from_decoder(decoder, 24000, LongPrompt::default()).unwrap();
    let want = floats("prompt_stereo_file.f32");
    assert_eq!(got.len(), want.len());
    let worst = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-6, "{worst}");
}

#[test]
fn nothing_and_silence_are_fine() {
    assert!(prepare(&[], 16000, 24000, LongPrompt::CutOnPause).is_empty());
    assert!(prepare(&[0.0; 48000], 48000, 24000, LongPrompt::CutOnPause).iter().all(|&s| s == 0.0));
}
