//! Naive forms of every op, in f64 where it matters: what the op suite compares kernels with.

use crate::{Activation, Format};

/// Activation of one value.
pub fn activate(act: Activation, x: f64) -> f64 {
    match act {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Elu => {
            if x > 0.0 {
                x
            } else {
                x.exp_m1()
            }
        }
        Activation::GeluTanh => {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + u.tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
    }
}

/// Log-mel rows of windows that begin every `hop` values: the transform as a sum, each band its first frequency and
/// the weights from there on.
pub fn log_mel(
    samples: &[f32],
    window: &[f32],
    hop: usize,
    fft: usize,
    guard: f64,
    bands: &[(usize, Vec<f32>)],
) -> Vec<f64> {
    let edge = (fft - window.len()) / 2;
    let mut out = Vec::new();
    for frame in samples.windows(window.len()).step_by(hop) {
        let power: Vec<f64> = (0..=fft / 2)
            .map(|k| {
                let (mut re, mut im) = (0.0, 0.0);
                for (i, (s, w)) in frame.iter().zip(window).enumerate() {
                    let turn = (k * (i + edge) % fft) as f64 / fft as f64 * std::f64::consts::TAU;
                    let v = f64::from(*s) * f64::from(*w);
                    re += v * turn.cos();
                    im -= v * turn.sin();
                }
                re * re + im * im
            })
            .collect();
        out.extend(bands.iter().map(|(first, weights)| {
            let sum: f64 = power[*first..].iter().zip(weights).map(|(p, w)| p * f64::from(*w)).sum();
            (sum + guard).ln()
        }));
    }
    out
}

/// Columns of `rows` brought to mean 0 and deviation 1.
pub fn standardise(x: &[f64], columns: usize, guard: f64) -> Vec<f64> {
    let rows = x.len() / columns;
    let mut out = x.to_vec();
    for c in 0..columns {
        let column = || x.iter().skip(c).step_by(columns);
        let mean = column().sum::<f64>() / rows as f64;
        let variance = column().map(|v| (v - mean).powi(2)).sum::<f64>() / (rows.max(2) - 1) as f64;
        out.iter_mut().skip(c).step_by(columns).for_each(|v| *v = (*v - mean) / (variance.sqrt() + guard));
    }
    out
}

/// Error function by its Taylor series (small x) or continued fraction (large x).
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let v = if a < 3.0 {
        let (mut term, mut sum) = (a, a);
        for n in 1..100 {
            term *= -a * a / n as f64;
            sum += term / (2 * n + 1) as f64;
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let mut f = 0.0;
        for n in (1..60).rev() {
            f = n as f64 / 2.0 / (a + f);
        }
        1.0 - (-a * a).exp() / std::f64::consts::PI.sqrt() / (a + f)
    };
    v.copysign(x)
}

/// `x + gain * sin(rate * x)^2`, with the product under the sine rounded as f32 has it.
pub fn snake(x: f32, rate: f32, gain: f32) -> f64 {
    f64::from(x) + f64::from(gain) * f64::from(x * rate).sin().powi(2)
}

/// Layer norm (`centred`) or RMS norm of a row, without parameters.
pub fn norm(x: &[f64], eps: f64, centred: bool) -> Vec<f64> {
    let n = x.len() as f64;
    let mean = if centred { x.iter().sum::<f64>() / n } else { 0.0 };
    let var = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    x.iter().map(|v| (v - mean) / (var + eps).sqrt()).collect()
}

/// `x W^T` for row-major `w [n][k]`.
pub fn product(x: &[f64], w: &[f32], n: usize) -> Vec<f64> {
    let k = x.len();
    (0..n).map(|i| x.iter().zip(&w[i * k..(i + 1) * k]).map(|(a, &b)| a * b as f64).sum()).collect()
}

/// Causal attention with a window over whole sequences: `q [t][dim]`, `k`, `v [t][dim]`.
pub fn attention(q: &[Vec<f64>], k: &[Vec<f64>], v: &[Vec<f64>], window: Option<usize>) -> Vec<Vec<f64>> {
    let dim = q[0].len() as f64;
    q.iter()
        .enumerate()
        .map(|(t, q)| {
            let from = window.map_or(0, |w| (t + 1).saturating_sub(w));
            let s: Vec<f64> = (from..=t)
                .map(|j| q.iter().zip(&k[j]).map(|(a, b)| a * b).sum::<f64>() / dim.sqrt())
                .collect();
            let max = s.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x));
            let e: Vec<f64> = s.iter().map(|x| (x - max).exp()).collect();
            let total: f64 = e.iter().sum();
            let mut out = vec![0.0; q.len()];
            for (j, e) in (from..=t).zip(&e) {
                out.iter_mut().zip(&v[j]).for_each(|(o, v)| *o += e / total * v);
            }
            out
        })
        .collect()
}

/// Causal convolution over a whole sequence: `x [t][cin]`, `w [n][taps][cin]`, zeros before the start.
pub fn conv(
    x: &[Vec<f64>],
    w: &[f32],
    n: usize,
    taps: usize,
    stride: usize,
    dilation: usize,
) -> Vec<Vec<f64>> {
    let cin = x[0].len();
    let hist = ((taps - 1) * dilation + 1).saturating_sub(stride);
    (0..x.len() / stride)
        .map(|t| {
            (0..n)
                .map(|o| {
                    let mut sum = 0.0;
                    for tap in 0..taps {
                        let r = (t * stride + tap * dilation) as isize - hist as isize;
                        if r >= 0 {
                            for c in 0..cin {
                                sum += x[r as usize][c] * w[(o * taps + tap) * cin + c] as f64;
                            }
                        }
                    }
                    sum
                })
                .collect()
        })
        .collect()
}

/// Relative error (of the largest value) that a format's product may show against exact arithmetic on
/// the packed weights: what quantising or rounding the activations costs.
pub fn tolerance(format: Format) -> f64 {
    match format {
        Format::F32 => 1e-5,
        Format::Bf16 => 1e-2,
        Format::Int8 | Format::Int4 => 3e-2,
        Format::Fp8 => 6e-2,
    }
}

/// LSTM cell from gates `[4][hidden]` (input, forget, cell, output) and a cell state: output and new state.
pub fn lstm_cell(gates: &[f64], c: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let n = c.len();
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let next: Vec<f64> =
        (0..n).map(|i| sigmoid(gates[n + i]) * c[i] + sigmoid(gates[i]) * gates[2 * n + i].tanh()).collect();
    ((0..n).map(|i| sigmoid(gates[3 * n + i]) * next[i].tanh()).collect(), next)
}

/// Indices of the numbers of a row, best first, equal ones by index; what is not a number is left out.
pub fn ranked(x: &[f32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..x.len()).filter(|&i| x[i] > f32::NEG_INFINITY).collect();
    order.sort_by(|&a, &b| x[b].partial_cmp(&x[a]).unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(&b)));
    order
}

/// Logarithm of the sum of a row's exponentials, without what is not a number.
pub fn log_sum_exp(x: &[f32]) -> f64 {
    let max = x.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(v as f64));
    max + x.iter().filter(|v| !v.is_nan()).map(|&v| (v as f64 - max).exp()).sum::<f64>().ln()
}
