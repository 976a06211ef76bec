//! Row kernels over sixteen lanes: norms, activations, quantisation, epilogues.

use super::lanes::{F32s, LANES, exp};
use super::quant::GROUP;
use super::{Activation, Epilogue, NormRow, Rows, Store};

/// Runs the body for offsets 0, 16, 32, ... of 0..n, with how many of the 16 values are there. A macro,
/// because a closure would be compiled without the caller's target features.
macro_rules! chunks {
    ($n:expr, |$i:ident, $len:ident| $body:expr) => {{
        let (n, mut at) = ($n, 0);
        while at + LANES <= n {
            let ($i, $len) = (at, LANES);
            $body;
            at += LANES;
        }
        if at < n {
            let ($i, $len) = (at, n - at);
            $body;
        }
    }};
}

#[inline(always)]
pub(super) unsafe fn load<V: F32s>(p: *const f32, len: usize) -> V {
    // SAFETY: `len` values are readable; short reads go through a zeroed buffer.
    unsafe {
        if len == LANES {
            return V::load(p);
        }
        let mut tmp = [0f32; LANES];
        std::ptr::copy_nonoverlapping(p, tmp.as_mut_ptr(), len);
        V::load(tmp.as_ptr())
    }
}

#[inline(always)]
pub(super) unsafe fn store<V: F32s>(v: V, p: *mut f32, len: usize) {
    // SAFETY: `len` values are writable.
    unsafe {
        if len == LANES {
            return v.store(p);
        }
        let mut tmp = [0f32; LANES];
        v.store(tmp.as_mut_ptr());
        std::ptr::copy_nonoverlapping(tmp.as_ptr(), p, len);
    }
}

#[inline(always)]
pub(super) unsafe fn sigmoid<V: F32s>(x: V) -> V {
    // SAFETY: arithmetic only.
    unsafe {
        // Below e^-80 the result would be a denormal, which costs a hundred times a normal number.
        let e = exp(V::splat(0.0).sub(x).min(V::splat(80.0)));
        V::splat(1.0).add(e).reciprocal()
    }
}

/// Applies an activation to sixteen values.
///
/// # Safety
/// The CPU has V's instructions.
#[inline(always)]
pub unsafe fn activate<V: F32s>(act: Activation, x: V) -> V {
    // SAFETY: arithmetic only.
    unsafe {
        match act {
            Activation::None => x,
            Activation::Relu => x.max(V::splat(0.0)),
            Activation::Silu => x.mul(sigmoid(x)),
            Activation::Elu => x.positive(x, exp(x.min(V::splat(0.0))).sub(V::splat(1.0))),
            Activation::GeluTanh => {
                // x * sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3)
                let c = x.mul(x).fma(V::splat(2.0 * 0.797_884_6 * 0.044_715), V::splat(2.0 * 0.797_884_6));
                x.mul(sigmoid(x.mul(c)))
            }
            Activation::GeluErf => {
                // erf by Abramowitz and Stegun 7.1.26, error under 1.5e-7.
                let z = x.abs().mul(V::splat(std::f32::consts::FRAC_1_SQRT_2));
                let t = V::splat(1.0).div(z.fma(V::splat(0.327_591_1), V::splat(1.0)));
                let p = V::splat(1.061_405_4);
                let p = p.fma(t, V::splat(-1.453_152));
                let p = p.fma(t, V::splat(1.421_413_7));
                let p = p.fma(t, V::splat(-0.284_496_73));
                let p = p.fma(t, V::splat(0.254_829_6)).mul(t);
                let tail = p.mul(exp(V::splat(0.0).sub(z.mul(z))));
                let erf = V::splat(1.0).sub(tail);
                let signed = x.positive(erf, V::splat(0.0).sub(erf));
                x.mul(V::splat(0.5)).mul(signed.add(V::splat(1.0)))
            }
        }
    }
}

/// Normalises one row into `out`.
///
/// # Safety
/// Pointers hold `n` values where present; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn norm_row<V: F32s>(x: *const f32, n: usize, norm: &NormRow, out: *mut f32) {
    // SAFETY: chunks stay in 0..n.
    unsafe {
        let inv_n = 1.0 / n as f32;
        let mut mean = 0.0;
        if norm.centred {
            let mut sum = V::splat(0.0);
            chunks!(n, |i, len| sum = sum.add(load::<V>(x.add(i), len)));
            mean = sum.sum() * inv_n;
        }
        let centre = V::splat(mean);
        let mut sq = V::splat(0.0);
        chunks!(n, |i, len| {
            let d = load::<V>(x.add(i), len).sub(centre);
            // The padding of a short chunk must not count as (0 - mean)^2.
            let d = if len == LANES { d } else { mask_tail(d, len) };
            sq = d.fma(d, sq);
        });
        let scale = V::splat(1.0 / (sq.sum() * inv_n + norm.eps).sqrt());
        chunks!(n, |i, len| {
            let mut v = load::<V>(x.add(i), len).sub(centre).mul(scale);
            if !norm.weight.is_null() {
                v = v.mul(load::<V>(norm.weight.add(i), len));
            }
            if !norm.bias.is_null() {
                v = v.add(load::<V>(norm.bias.add(i), len));
            }
            if !norm.scale.is_null() {
                v = v.mul(load::<V>(norm.scale.add(i), len).add(V::splat(1.0)));
                v = v.add(load::<V>(norm.shift.add(i), len));
            }
            store(v, out.add(i), len);
        });
    }
}

#[inline(always)]
unsafe fn mask_tail<V: F32s>(v: V, len: usize) -> V {
    // SAFETY: works on a stack buffer.
    unsafe {
        let mut tmp = [0f32; LANES];
        v.store(tmp.as_mut_ptr());
        tmp[len..].fill(0.0);
        V::load(tmp.as_ptr())
    }
}

/// `out = act(x)` in f32.
///
/// # Safety
/// `x` and `out` hold `n` values; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn map_row<V: F32s>(x: *const f32, n: usize, act: Activation, out: *mut f32) {
    // SAFETY: chunks stay in 0..n.
    unsafe { chunks!(n, |i, len| store(activate(act, load::<V>(x.add(i), len)), out.add(i), len)) }
}

/// `out = act(x)` rounded to bf16.
///
/// # Safety
/// `x` and `out` hold `n` values; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn map_row_bf16<V: F32s>(x: *const f32, n: usize, act: Activation, out: *mut u16) {
    // SAFETY: chunks stay in 0..n.
    unsafe {
        chunks!(n, |i, len| {
            let v = activate(act, load::<V>(x.add(i), len));
            if len == LANES {
                v.store_bf16(out.add(i));
            } else {
                let mut tmp = [0u16; LANES];
                v.store_bf16(tmp.as_mut_ptr());
                std::ptr::copy_nonoverlapping(tmp.as_ptr(), out.add(i), len);
            }
        });
    }
}

/// Mean magnitude that a row's bytes have at most, as far as [`COARSEST`] allows.
///
/// A row of 1024 normal values would have 29: it is rounded more finely than the rows behind an activation, which sets no sound
/// apart, and many of its products by unsigned weights would be too large to be added in 16 bits. With 23 it is rounded to 40.0 dB
/// instead of 42, where one behind a SiLU has 38, and 8 % of its double steps are too large instead of 27 %.
const MEAN_BYTE: f32 = 23.0;

/// How many times as coarse a row may be as its largest value asks for, which costs 4 dB: only rows that are spread more evenly
/// than those of a model would be coarser by their mean, by up to 9 dB.
const COARSEST: f32 = 1.6;

/// What a byte of a row stands for: the largest magnitude becomes 127, or less where the mean one would exceed [`MEAN_BYTE`].
#[inline(always)]
pub(super) unsafe fn row_scale<V: F32s>(x: *const f32, n: usize) -> f32 {
    // SAFETY: chunks stay in 0..n.
    unsafe {
        let (mut largest, mut sum) = (V::splat(0.0), V::splat(0.0));
        chunks!(n, |i, len| {
            let magnitudes = load::<V>(x.add(i), len).abs();
            largest = largest.max(magnitudes);
            sum = sum.add(magnitudes);
        });
        let finest = largest.hmax() / 127.0;
        (sum.sum() / (n as f32 * MEAN_BYTE)).min(COARSEST * finest).max(finest)
    }
}

/// Quantises a row to biased bytes, pads to `kp` with the zero point, and returns the scale.
///
/// # Safety
/// `x` holds `n` values, `out` has room for `kp >= n` bytes; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn quantize_u8<V: F32s>(x: *const f32, n: usize, kp: usize, out: *mut u8) -> f32 {
    // SAFETY: chunks stay in 0..n, padding in n..kp.
    unsafe {
        let scale = row_scale::<V>(x, n);
        let inv = V::splat(if scale > 0.0 { 1.0 / scale } else { 0.0 });
        chunks!(n, |i, len| {
            let v = load::<V>(x.add(i), len).mul(inv);
            if len == LANES {
                v.store_u8_biased(out.add(i));
            } else {
                let mut tmp = [0u8; LANES];
                v.store_u8_biased(tmp.as_mut_ptr());
                std::ptr::copy_nonoverlapping(tmp.as_ptr(), out.add(i), len);
            }
        });
        std::slice::from_raw_parts_mut(out.add(n), kp - n).fill(128);
        scale
    }
}

/// Quantises a row to signed bytes with eight times each group's sum, and returns the scale.
///
/// # Safety
/// As [`quantize_u8`]; `sums` has room for `kp / 32` values.
#[inline(always)]
pub unsafe fn quantize_i8<V: F32s>(x: *const f32, n: usize, kp: usize, out: *mut u8, sums: *mut i32) -> f32 {
    // SAFETY: everything stays inside `kp` bytes and `kp / 32` sums.
    unsafe {
        let scale = quantize_u8::<V>(x, n, kp, out);
        for g in 0..kp / GROUP {
            let bytes = std::slice::from_raw_parts_mut(out.add(g * GROUP), GROUP);
            let mut sum = 0i32;
            for b in bytes {
                *b ^= 0x80;
                sum += *b as i8 as i32;
            }
            *sums.add(g) = 8 * sum;
        }
        scale
    }
}

/// Finishes a block of a product: bias, activation, and how each row meets the output.
///
/// # Safety
/// `m` rows of `n` values at `c` and `out` with their strides; the pointers of `e` hold `n` values (the
/// gate `m` rows of them) where present; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn epilogue<V: F32s>(c: Rows<*const f32>, m: usize, n: usize, e: &Epilogue, out: Rows<*mut f32>) {
    // SAFETY: rows are in 0..m and chunks in 0..n.
    unsafe {
        for r in 0..m {
            let (c, out) = (c.at.add(r * c.stride), out.at.add(r * out.stride));
            // The two forms that convolutions end in, without a choice per chunk.
            if e.act == Activation::None && !e.bias.is_null() && e.store != Store::AddGated {
                if e.store == Store::Set {
                    chunks!(n, |i, len| {
                        store(load::<V>(c.add(i), len).add(load::<V>(e.bias.add(i), len)), out.add(i), len)
                    });
                } else {
                    chunks!(n, |i, len| {
                        let v = load::<V>(c.add(i), len).add(load::<V>(e.bias.add(i), len));
                        store(v.add(load::<V>(out.add(i), len)), out.add(i), len)
                    });
                }
                continue;
            }
            chunks!(n, |i, len| {
                let mut v = load::<V>(c.add(i), len);
                if !e.bias.is_null() {
                    v = v.add(load::<V>(e.bias.add(i), len));
                }
                v = activate(e.act, v);
                match e.store {
                    Store::Set => {}
                    Store::Add => v = v.add(load::<V>(out.add(i), len)),
                    Store::AddGated => {
                        let gate = load::<V>(e.gate.at.add(r * e.gate.stride + i), len);
                        v = v.mul(gate).add(load::<V>(out.add(i), len));
                    }
                }
                store(v, out.add(i), len);
            });
        }
    }
}
