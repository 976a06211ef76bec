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
/// Rows hold `bins * channels` values (`bins` when spread) and one is there at least, weights `9 * channels`,
/// `out` has room for `out_bins * channels`; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn taps_2d<V: F32s>(t: &Taps2d, spread: bool, act: Activation, out: *mut f32) {
    // SAFETY: channels in 0..channels.
    unsafe {
        let mut c = 0;
        while c + LANES <= t.channels {
            match spread {
                true => taps_2d_lanes::<V, true, true>(t, c, LANES, act, out),
                false => taps_2d_lanes::<V, false, true>(t, c, LANES, act, out),
            }
            c += LANES;
        }
        if c < t.channels {
            match spread {
                true => taps_2d_lanes::<V, true, false>(t, c, t.channels - c, act, out),
                false => taps_2d_lanes::<V, false, false>(t, c, t.channels - c, act, out),
            }
        }
    }
}

/// Channels `c..c + len` of [`taps_2d`]; `FULL` when they fill the lanes.
#[inline(always)]
unsafe fn taps_2d_lanes<V: F32s, const SPREAD: bool, const FULL: bool>(
    t: &Taps2d,
    c: usize,
    len: usize,
    act: Activation,
    out: *mut f32,
) {
    // SAFETY: bins are in 0..bins, channels as in [`taps_2d`].
    unsafe {
        let len = if FULL { LANES } else { len };
        // A row that is not there counts as any other, with weights of zero.
        let some =
            if !t.rows[1].is_null() { t.rows[1] } else { t.rows[if t.rows[0].is_null() { 2 } else { 0 }] };
        let (mut w, mut rows) = ([V::splat(0.0); 9], [some; 3]);
        for dt in 0..3 {
            if !t.rows[dt].is_null() {
                rows[dt] = t.rows[dt];
                for df in 0..3 {
                    w[3 * dt + df] = load::<V>(t.weights.add((3 * dt + df) * t.channels + c), len);
                }
            }
        }
        let bias = if t.bias.is_null() { V::splat(0.0) } else { load::<V>(t.bias.add(c), len) };
        let mut f = 0;
        while f < t.out_bins {
            let first = (2 * f).wrapping_sub(t.left);
            let mut acc = bias;
            if first < t.bins && first + 2 < t.bins {
                for dt in 0..3 {
                    for df in 0..3 {
                        acc = tap::<V, SPREAD>(rows[dt], first + df, t.channels, c, len)
                            .fma(w[3 * dt + df], acc);
                    }
                }
            } else {
                for dt in 0..3 {
                    for df in 0..3 {
                        let bin = first.wrapping_add(df);
                        if bin < t.bins {
                            acc =
                                tap::<V, SPREAD>(rows[dt], bin, t.channels, c, len).fma(w[3 * dt + df], acc);
                        }
                    }
                }
            }
            // Rectified or not: the other activations would only be choices in the loop.
            let v = if act == Activation::Relu { acc.max(V::splat(0.0)) } else { activate(act, acc) };
            store(v, out.add(f * t.channels + c), len);
            f += 1;
        }
    }
}

#[inline(always)]
unsafe fn tap<V: F32s, const SPREAD: bool>(
    row: *const f32,
    bin: usize,
    channels: usize,
    c: usize,
    len: usize,
) -> V {
    // SAFETY: as in [`taps_2d`].
    unsafe { if SPREAD { V::splat(*row.add(bin)) } else { load::<V>(row.add(bin * channels + c), len) } }
}

/// `out[i] = x[i] * sigmoid(x[i]) * x[n + i]`.
///
/// # Safety
/// `x` holds `2 n` values, `out` has room for `n`; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn swiglu_row<V: F32s>(x: *const f32, n: usize, out: *mut f32) {
    // SAFETY: chunks stay in 0..n.
    unsafe {
        let mut at = 0;
        while at < n {
            let len = LANES.min(n - at);
            let gate = load::<V>(x.add(at), len);
            store(gate.mul(sigmoid(gate)).mul(load::<V>(x.add(n + at), len)), out.add(at), len);
            at += LANES;
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
