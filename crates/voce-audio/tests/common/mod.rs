//! Signals and measures that the tests share.
#![allow(dead_code)]

use std::f64::consts::TAU;
use std::path::PathBuf;

/// A sine of half amplitude.
pub(crate) fn sine(hz: f64, rate: u32, samples: usize) -> Vec<f32> {
    (0..samples).map(|i| (0.5 * (TAU * hz * i as f64 / f64::from(rate)).sin()) as f32).collect()
}

/// The generator of the reference scripts, in -0.5..0.5.
pub(crate) fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 16) as f32 - 32768.0) / 65536.0
        })
        .collect()
}

/// Signal to noise ratio of `got` against `want`, in dB.
pub(crate) fn snr(want: &[f32], got: &[f32]) -> f64 {
    assert_eq!(want.len(), got.len(), "lengths differ");
    let signal: f64 = want.iter().map(|&w| f64::from(w).powi(2)).sum();
    let error: f64 = want.iter().zip(got).map(|(&w, &g)| (f64::from(w) - f64::from(g)).powi(2)).sum();
    10.0 * (signal / error.max(1e-30)).log10()
}

/// Amplitude of the best-fitting sine at `hz`, and how far it stands above all else, in dB.
pub(crate) fn fit_sine(x: &[f32], hz: f64, rate: u32) -> (f64, f64) {
    let (mut s, mut c) = (0.0, 0.0);
    let angle = |i: usize| TAU * hz * i as f64 / f64::from(rate);
    for (i, &v) in x.iter().enumerate() {
        s += f64::from(v) * angle(i).sin();
        c += f64::from(v) * angle(i).cos();
    }
    let n = x.len() as f64;
    let (s, c) = (2.0 * s / n, 2.0 * c / n);
    let fit: Vec<f32> = (0..x.len()).map(|i| (s * angle(i).sin() + c * angle(i).cos()) as f32).collect();
    (s.hypot(c), snr(&fit, x))
}

pub(crate) fn fixture_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

pub(crate) fn fixture(name: &str) -> Vec<u8> {
    std::fs::read(fixture_path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A fixture of little-endian floats.
pub(crate) fn floats(name: &str) -> Vec<f32> {
    fixture(name).chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// An encoded byte stream made by a sink.
pub(crate) fn encode(samples: &[f32], rate: u32, format: voce_audio::AudioFormat) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out");
    let mut sink = voce_audio::open_sink(&path, format, rate).unwrap();
    for chunk in samples.chunks(777) {
        sink.write(chunk).unwrap();
    }
    sink.finish().unwrap();
    std::fs::read(path).unwrap()
}

/// A WAV file of any format tag, for inputs the writer does not make.
pub(crate) fn wav_bytes(tag: u16, bits: u16, channels: u16, rate: u32, data: &[u8]) -> Vec<u8> {
    let align = channels * bits.div_ceil(8);
    let mut w = b"RIFF".to_vec();
    w.extend((36 + data.len() as u32).to_le_bytes());
    w.extend(b"WAVEfmt ");
    w.extend(16u32.to_le_bytes());
    w.extend(tag.to_le_bytes());
    w.extend(channels.to_le_bytes());
    w.extend(rate.to_le_bytes());
    w.extend((rate.wrapping_mul(u32::from(align))).to_le_bytes());
    w.extend(align.to_le_bytes());
    w.extend(bits.to_le_bytes());
    w.extend(b"data");
    w.extend((data.len() as u32).to_le_bytes());
    w.extend(data);
    w
}
