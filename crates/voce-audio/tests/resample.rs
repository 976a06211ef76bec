//! The resamplers: what passes, what is rejected, pieces against the whole, and agreement with scipy.

mod common;

use common::*;
use proptest::prelude::*;
use voce_audio::{Resampler, ResamplerState, resample, resample_poly_like_scipy};

const PAIRS: [(u32, u32); 12] = [
    (8000, 16000),
    (16000, 8000),
    (24000, 16000),
    (16000, 24000),
    (44100, 16000),
    (48000, 16000),
    (44100, 24000),
    (22050, 24000),
    (48000, 24000),
    (11025, 16000),
    (44101, 16000),
    (192000, 16000),
];

#[test]
fn the_passband_is_kept() {
    for (from, to) in PAIRS {
        let nyquist = f64::from(from.min(to)) / 2.0;
        for part in [0.01, 0.31, 0.6, 0.85] {
            let hz = nyquist * part;
            let x = sine(hz, from, from as usize / 2);
            let y = resample(&x, from, to);
            let want = sine(hz, to, y.len());
            // The ends see the zeros outside the signal.
            let edge = y.len() / 10;
            let got = snr(&want[edge..y.len() - edge], &y[edge..y.len() - edge]);
            assert!(got > 90.0, "{from} to {to}, {hz} Hz: {got} dB");
        }
    }
}

#[test]
fn what_would_alias_is_rejected() {
    for (from, to) in PAIRS.into_iter().filter(|(from, to)| to < from) {
        let nyquist = f64::from(to) / 2.0;
        for part in [1.0, 1.03, 1.2, f64::from(from) / f64::from(to) * 0.97] {
            let x = sine(nyquist * part + 1.0, from, from as usize / 2);
            let y = resample(&x, from, to);
            let edge = y.len() / 10;
            let power: f64 = y[edge..y.len() - edge].iter().map(|&v| f64::from(v).powi(2)).sum();
            let db = 10.0 * (power / (y.len() - 2 * edge) as f64 / 0.125).log10();
            assert!(db < -90.0, "{from} to {to}, {part} of Nyquist: {db} dB");
        }
    }
}

#[test]
fn lengths_and_trivial_inputs() {
    for (from, to) in PAIRS {
        for n in [0usize, 1, 2, 159, 1000] {
            let want = (n as u64 * u64::from(to)).div_ceil(u64::from(from)) as usize;
            assert_eq!(resample(&vec![0.1; n], from, to).len(), want, "{from} to {to} of {n}");
        }
    }
    let x = noise(50, 1);
    assert_eq!(resample(&x, 16000, 16000), x);
}

#[test]
fn a_constant_stays_constant() {
    let y = resample(&vec![0.25; 8000], 44100, 16000);
    assert!(y[300..y.len() - 300].iter().all(|v| (v - 0.25).abs() < 1e-6));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pieces_equal_the_whole(pair in 0..PAIRS.len(), cuts in prop::collection::vec(0usize..700, 1..12), seed: u32) {
        let (from, to) = PAIRS[pair];
        let x = noise(cuts.iter().sum(), seed);
        let mut resampler = Resampler::new(from, to);
        // Twice with one resampler: finishing must leave it as new.
        for _ in 0..2 {
            let (mut out, mut rest) = (Vec::new(), &x[..]);
            for &n in &cuts {
                let (head, tail) = rest.split_at(n);
                resampler.process(head, &mut out);
                rest = tail;
            }
            resampler.finish(&mut out);
            prop_assert_eq!(&out, &resample(&x, from, to));
        }
    }
}

#[test]
fn scipy_agrees() {
    for (from, to, n) in [
        (44100, 24000, 2000),
        (16000, 24000, 1500),
        (48000, 24000, 3001),
        (8000, 24000, 700),
        (22050, 24000, 900),
        (96000, 24000, 2500),
        (24000, 16000, 1000),
        (11025, 24000, 5),
    ] {
        let want = floats(&format!("scipy_{from}_{to}.f32"));
        let got = resample_poly_like_scipy(&noise(n, from), to, from);
        assert_eq!(got.len(), want.len(), "{from} to {to}");
        let worst = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "{from} to {to}: {worst}");
    }
}

#[test]
fn a_stream_goes_on_from_its_state() {
    let signal: Vec<f32> = (0..30_000).map(|i| (i as f32 * 0.07).sin() * 0.5).collect();
    for (from, to) in [(24_000, 16_000), (8_000, 16_000), (44_100, 16_000), (16_000, 16_000)] {
        let whole = resample(&signal, from, to);
        for cut in [0, 1, 77, 9_999, 29_999] {
            let (mut first, mut out) = (Resampler::new(from, to), Vec::new());
            signal[..cut].chunks(1_920).for_each(|piece| first.process(piece, &mut out));
            let mut second = Resampler::new(from, to);
            assert!(second.restore(first.state()), "{from} {to} {cut}");
            second.process(&signal[cut..], &mut out);
            second.finish(&mut out);
            assert!(out == whole, "{from} {to} {cut}");
        }
    }
}

#[test]
fn what_is_no_state_is_refused_and_changes_nothing() {
    let (mut good, mut out) = (Resampler::new(24_000, 16_000), Vec::new());
    good.process(&[0.25; 5_000], &mut out);
    let state = good.state();
    let mut other = Resampler::new(24_000, 16_000);
    let fresh = other.state();
    for bad in [
        ResamplerState { given: state.given + 1, ..state.clone() },
        ResamplerState { first: state.first - 1, ..state.clone() },
        ResamplerState { made: 0, ..state.clone() },
        ResamplerState { made: u64::MAX, ..state.clone() },
        ResamplerState { history: vec![f32::NAN; state.history.len()], ..state.clone() },
        ResamplerState { history: vec![0.0; 1 << 20], first: 0, given: 1 << 20, made: 0 },
        ResamplerState { first: i64::MAX, ..state.clone() },
    ] {
        assert!(!other.restore(bad.clone()), "{} {} {}", bad.first, bad.given, bad.made);
        assert_eq!(other.state(), fresh);
    }
    assert!(!Resampler::new(16_000, 16_000).restore(state));
}
