//! Log-mel features against the published feature extractors, and pieces against the whole.

mod common;

use common::*;
use proptest::prelude::*;
use voce_audio::mel::{MEL_HOP, MelStream, log_mel, normalise_per_feature};

/// The reference scripts' signal: noise of varying loudness, with a silent stretch and full-scale peaks.
fn signal() -> Vec<f32> {
    let mut x = noise(8123, 77);
    for (i, s) in x.iter_mut().enumerate() {
        *s *= match i {
            0..2000 => 0.1,
            2000..3500 => 0.0,
            3500..5000 => 0.001,
            _ => 2.0,
        };
    }
    x
}

fn worst(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max)
}

#[test]
fn the_published_extractors_agree() {
    let frames = signal().len() / MEL_HOP;
    for bins in [80, 128] {
        let got = log_mel(&signal(), bins);
        assert_eq!(got.len(), frames * bins);
        let error = worst(&got, &floats(&format!("mel{bins}.f32")));
        assert!(error < 2e-4, "{bins}: {error}");
    }
    let mut got = log_mel(&signal(), 80);
    normalise_per_feature(&mut got, 80);
    let error = worst(&got, &floats("mel80_normalised.f32"));
    assert!(error < 2e-4, "{error}");
}

#[test]
fn silence_and_nothing() {
    assert!(log_mel(&[], 80).is_empty());
    assert!(log_mel(&[0.5; 159], 80).is_empty());
    assert!(log_mel(&[0.0; 1600], 80).iter().all(|v| (v + 16.635_532).abs() < 1e-4));
    let mut one = log_mel(&[0.1; 160], 80);
    normalise_per_feature(&mut one, 80);
    assert!(one.iter().all(|v| v.is_finite()));
    normalise_per_feature(&mut [], 80);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn pieces_equal_the_whole(cuts in prop::collection::vec(0usize..900, 1..12), seed: u32) {
        let x = noise(cuts.iter().sum(), seed);
        let mut stream = MelStream::new(80);
        for _ in 0..2 {
            let (mut out, mut rest, mut frames) = (Vec::new(), &x[..], 0);
            for &n in &cuts {
                let (head, tail) = rest.split_at(n);
                frames += stream.process(head, &mut out);
                rest = tail;
            }
            frames += stream.finish(&mut out);
            prop_assert_eq!(frames, x.len() / MEL_HOP);
            prop_assert_eq!(&out, &log_mel(&x, 80));
        }
    }
}
