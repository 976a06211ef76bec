//! Kernels that sum a few taps per channel: depthwise convolutions in one and two dimensions, the first
//! convolution of a spectrogram, and gated linear units.

use super::lanes::{F32s, LANES};
use super::vector::{activate, load, sigmoid, store};
use super::{Activation, Taps, Taps2d};

/// One output row of a depthwise convolution: `out[c] = act(bias[c] + sum_t rows[t][c] w[t][c])`.
///
/// # Safety
/// Pointers of `t` and `out` hold `n` values (weights `taps * n`); the CPU has V's instructions.
#[inline(always)]
pub unsafe fn depthwise_row<V: F32s>(t: &Taps<'_>, n: usize, act: Activation, out: *mut f32) {
    // SAFETY: chunks stay in 0..n.
    unsafe {
        let mut at = 0;
        while at < n {
            let len = LANES.min(n - at);
            let mut acc = if t.bias.is_null() { V::splat(0.0) } else { load::<V>(t.bias.add(at), len) };
            for (i, row) in t.rows.iter().enumerate() {
                if !row.is_null() {
                    let w = load::<V>(t.weights.add(i * n + at), len);
                    acc = load::<V>(row.add(at), len).fma(w, acc);
                }
            }
            store(activate(act, acc), out.add(at), len);
            at += LANES;
        }
    }
}

/// One output time row of a 3 x 3 convolution with stride 2 over frequency: either each channel by itself
/// (`spread` false) or from one channel to all (`spread` true).
///
/// # Safety
/// Rows hold `bins * channels` values (`bins` when spread), weights `9 * channels`, `out` has room for
/// `out_bins * channels`; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn taps_2d<V: F32s>(t: &Taps2d, spread: bool, act: Activation, out: *mut f32) {
    // SAFETY: bins and channels are checked against their counts.
    unsafe {
        let mut c = 0;
        while c < t.channels {
            let len = LANES.min(t.channels - c);
            let mut w = [V::splat(0.0); 9];
            for (i, w) in w.iter_mut().enumerate() {
                *w = load::<V>(t.weights.add(i * t.channels + c), len);
            }
            let bias = if t.bias.is_null() { V::splat(0.0) } else { load::<V>(t.bias.add(c), len) };
            for f in 0..t.out_bins {
                let mut acc = bias;
                for dt in 0..3 {
                    let row = t.rows[dt];
                    if row.is_null() {
                        continue;
                    }
                    for df in 0..3 {
                        let bin = (2 * f + df).wrapping_sub(t.left);
                        if bin < t.bins {
                            let x = if spread {
                                V::splat(*row.add(bin))
                            } else {
                                load::<V>(row.add(bin * t.channels + c), len)
                            };
                            acc = x.fma(w[3 * dt + df], acc);
                        }
                    }
                }
                store(activate(act, acc), out.add(f * t.channels + c), len);
            }
            c += LANES;
        }
    }
}

/// `out[i] = x[i] * sigmoid(x[n + i])`.
///
/// # Safety
/// `x` holds `2 n` values, `out` has room for `n`; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn glu_row<V: F32s>(x: *const f32, n: usize, out: *mut f32) {
    // SAFETY: chunks stay in 0..n.
    unsafe {
        let mut at = 0;
        while at < n {
            let len = LANES.min(n - at);
            let gate = sigmoid(load::<V>(x.add(n + at), len));
            store(load::<V>(x.add(at), len).mul(gate), out.add(at), len);
            at += LANES;
        }
    }
}
