//! `scipy.signal.resample_poly` with its default filter, for bit-near agreement with Python packages that
//! prepare voice prompts with it. For anything else prefer [`crate::resample`], which filters better.

use std::f64::consts::PI;

use crate::resample::{bessel_i0, gcd};

const KAISER_BETA: f64 = 5.0;

/// Resamples by `up / down` as `scipy.signal.resample_poly(x, up, down)` does for float32 input.
pub fn resample_poly_like_scipy(x: &[f32], up: u32, down: u32) -> Vec<f32> {
    let (up, down) = (u64::from(up.max(1)), u64::from(down.max(1)));
    let g = gcd(up, down);
    let (up, down) = ((up / g) as usize, (down / g) as usize);
    if up == down || x.is_empty() {
        return x.to_vec();
    }
    let half = 10 * up.max(down);
    let filter = low_pass(half, up.max(down), up);
    // Taps regrouped by phase and reversed, so that each output is one run over the input.
    let per_phase = (2 * half + 1).div_ceil(up);
    let mut phases = vec![0.0f32; per_phase * up];
    for (i, &h) in filter.iter().enumerate() {
        phases[(i % up) * per_phase + per_phase - 1 - i / up] = h;
    }
    let frames = (x.len() * up).div_ceil(down);
    (0..frames)
        .map(|k| {
            let at = k * down + half;
            let taps = &phases[at % up * per_phase..][..per_phase];
            // The last tap meets input `at / up`, the first one `per_phase - 1` before it.
            let last = at / up;
            let skip_left = (per_phase - 1).saturating_sub(last);
            let from = (last + 1 + skip_left).saturating_sub(per_phase);
            let to = (last + 1).min(x.len());
            match x.get(from..to) {
                Some(run) => run.iter().zip(&taps[skip_left..]).fold(0.0, |acc, (a, b)| acc + a * b),
                None => 0.0,
            }
        })
        .collect()
}

/// The Kaiser-windowed low-pass of `2 * half + 1` taps with unit gain at 0 Hz, times `gain`.
fn low_pass(half: usize, max_rate: usize, gain: usize) -> Vec<f32> {
    let cutoff = 1.0 / max_rate as f64;
    let norm = bessel_i0(KAISER_BETA);
    let taps: Vec<f64> = (0..=2 * half)
        .map(|i| {
            let m = i as f64 - half as f64;
            let x = PI * cutoff * m;
            let sinc = if m == 0.0 { 1.0 } else { x.sin() / x };
            let w = m / half as f64;
            cutoff * sinc * bessel_i0(KAISER_BETA * (1.0 - w * w).max(0.0).sqrt()) / norm
        })
        .collect();
    let sum: f64 = taps.iter().sum();
    taps.iter().map(|h| (h / sum) as f32 * gain as f32).collect()
}
