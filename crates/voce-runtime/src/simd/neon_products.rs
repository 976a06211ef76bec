//! Int8 and int4 products of NEON: by widening products, by `sdot`, and by `smmla` where the CPU has i8mm.
//!
//! All take signed rows. `smmla` multiplies two rows by two outputs over eight inputs, so that two registers of the packed
//! panels, each of four inputs of four outputs, are zipped into two of eight inputs of two outputs; a row that is left over
//! goes by `sdot`.

use std::arch::aarch64::*;

use super::gemm::Gemm;
use super::integer::{STEP, int4, int8, weights};
use super::lanes::LANES;
use super::neon::{Neon, widen_bf16};
use super::neon_dots::{Sdot, Widening, nibbles, smmla};
use super::quant::GROUP;
use super::vector::quantize_u8;

/// Registers of four outputs in a panel.
const QUARTERS: usize = LANES / 4;

/// Eight inputs of rows `row` and `row + 1`.
#[inline(always)]
unsafe fn two_rows(g: &Gemm, row: usize, input: usize) -> int8x16_t {
    // SAFETY: both rows and the inputs are inside the operand.
    unsafe {
        let a = g.a.add(row * g.lda + input).cast::<i8>();
        vcombine_s8(vld1_s8(a), vld1_s8(a.add(g.lda)))
    }
}

/// From four inputs of four outputs and the next four: eight of the first two outputs, and of the last two.
#[inline(always)]
unsafe fn by_two(first: int32x4_t, second: int32x4_t) -> (int8x16_t, int8x16_t) {
    // SAFETY: arithmetic only.
    unsafe {
        (vreinterpretq_s8_s32(vzip1q_s32(first, second)), vreinterpretq_s8_s32(vzip2q_s32(first, second)))
    }
}

/// From two rows by the first two outputs and by the last two: each row by four outputs.
#[inline(always)]
unsafe fn by_row(first: int32x4_t, last: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: arithmetic only.
    unsafe {
        let (first, last) = (vreinterpretq_s64_s32(first), vreinterpretq_s64_s32(last));
        [vreinterpretq_s32_s64(vzip1q_s64(first, last)), vreinterpretq_s32_s64(vzip2q_s64(first, last))]
    }
}

/// `PAIRS` pairs of rows by one panel.
#[inline(always)]
unsafe fn int8_pairs<const PAIRS: usize>(g: &Gemm, row: usize, panel: usize) {
    // SAFETY: the rows and the panel are inside the operands.
    unsafe {
        let zero = vdupq_n_s32(0);
        let mut acc = [[(zero, zero); QUARTERS]; PAIRS];
        let b = weights(g, panel * LANES);
        for step in 0..g.k / 8 {
            let mut x = [vdupq_n_s8(0); PAIRS];
            for p in 0..PAIRS {
                x[p] = two_rows(g, row + 2 * p, 8 * step);
            }
            for q in 0..QUARTERS {
                let at = b.add(2 * step * STEP + 16 * q);
                let first = vreinterpretq_s32_u8(vld1q_u8(at));
                let (w0, w1) = by_two(first, vreinterpretq_s32_u8(vld1q_u8(at.add(STEP))));
                for p in 0..PAIRS {
                    let (low, high) = acc[p][q];
                    acc[p][q] = (smmla(low, x[p], w0), smmla(high, x[p], w1));
                }
            }
        }
        for p in 0..PAIRS {
            for q in 0..QUARTERS {
                let o = panel * LANES + 4 * q;
                let scale = vld1q_f32(g.b_scale.cast::<f32>().add(o));
                let rows = by_row(acc[p][q].0, acc[p][q].1);
                for r in 0..2 {
                    let m = row + 2 * p + r;
                    let scale = vmulq_f32(scale, vdupq_n_f32(*g.a_scale.add(m)));
                    vst1q_f32(g.c.add(m * g.ldc + o), vmulq_f32(vcvtq_f32_s32(rows[r]), scale));
                }
            }
        }
    }
}

/// `PAIRS` pairs of rows by one panel of four-bit weights; sums of groups meet in the order of the portable form.
#[inline(always)]
unsafe fn int4_pairs<const PAIRS: usize>(g: &Gemm, row: usize, panel: usize) {
    // SAFETY: the rows and the panel are inside the operands.
    unsafe {
        let groups = g.k / GROUP;
        let mut sum = [[[vdupq_n_f32(0.0); 2]; QUARTERS]; PAIRS];
        for grp in 0..groups {
            let b = weights(g, panel * LANES).add(grp * GROUP * LANES / 2);
            let scales = g.b_scale.cast::<u16>().add((panel * groups + grp) * LANES);
            for q in 0..QUARTERS {
                let zero = vdupq_n_s32(0);
                let mut acc = [(zero, zero); PAIRS];
                for block in 0..GROUP / 8 {
                    let (low, high) = nibbles(vld1q_u8(b.add(block * STEP + 16 * q)));
                    let (w0, w1) = by_two(low, high);
                    for p in 0..PAIRS {
                        let x = two_rows(g, row + 2 * p, grp * GROUP + 8 * block);
                        acc[p] = (smmla(acc[p].0, x, w0), smmla(acc[p].1, x, w1));
                    }
                }
                let scale = widen_bf16(scales.add(4 * q));
                for p in 0..PAIRS {
                    let rows = by_row(acc[p].0, acc[p].1);
                    for r in 0..2 {
                        let less = vdupq_n_s32(*g.a_sums.add((row + 2 * p + r) * groups + grp));
                        let part = vmulq_f32(vcvtq_f32_s32(vsubq_s32(rows[r], less)), scale);
                        sum[p][q][r] = vaddq_f32(sum[p][q][r], part);
                    }
                }
            }
        }
        for p in 0..PAIRS {
            for q in 0..QUARTERS {
                for r in 0..2 {
                    let m = row + 2 * p + r;
                    let v = vmulq_f32(sum[p][q][r], vdupq_n_f32(*g.a_scale.add(m)));
                    vst1q_f32(g.c.add(m * g.ldc + panel * LANES + 4 * q), v);
                }
            }
        }
    }
}

/// The last row of `g` by itself.
#[inline(always)]
unsafe fn last_row(g: &Gemm) -> Gemm {
    // SAFETY: the row is inside the operands.
    unsafe {
        let r = g.m - 1;
        let a_sums = if g.a_sums.is_null() { g.a_sums } else { g.a_sums.add(r * (g.k / GROUP)) };
        Gemm { a: g.a.add(r * g.lda), m: 1, c: g.c.add(r * g.ldc), a_scale: g.a_scale.add(r), a_sums, ..*g }
    }
}

/// Int8 product by `smmla`.
///
/// # Safety
/// The CPU has dotprod and i8mm; pointers of `g` valid for its sizes, rows signed.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub unsafe fn int8_i8mm(g: &Gemm) {
    // SAFETY: pairs of rows and panels are in the operands; a last row goes by `sdot`.
    unsafe {
        let even = g.m / 2 * 2;
        for panel in 0..g.panels {
            let mut r = 0;
            while r < even {
                // Three pairs would need more registers than there are.
                if even - r >= 4 {
                    int8_pairs::<2>(g, r, panel)
                } else {
                    int8_pairs::<1>(g, r, panel)
                }
                r += (even - r).min(4);
            }
        }
        if even < g.m {
            int8::<Sdot>(&last_row(g));
        }
    }
}

/// Int4 product by `smmla`.
///
/// # Safety
/// The CPU has dotprod and i8mm; pointers of `g` valid for its sizes.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub unsafe fn int4_i8mm(g: &Gemm) {
    // SAFETY: pairs of rows and panels are in the operands; a last row goes by `sdot`.
    unsafe {
        let even = g.m / 2 * 2;
        for panel in 0..g.panels {
            let mut r = 0;
            while r < even {
                if even - r >= 4 {
                    int4_pairs::<2>(g, r, panel)
                } else {
                    int4_pairs::<1>(g, r, panel)
                }
                r += (even - r).min(4);
            }
        }
        if even < g.m {
            int4::<Sdot>(&last_row(g));
        }
    }
}

/// Int8 product by `sdot`.
///
/// # Safety
/// The CPU has dotprod; pointers of `g` valid for its sizes, rows signed.
#[target_feature(enable = "neon,dotprod")]
pub unsafe fn int8_dotprod(g: &Gemm) {
    // SAFETY: as the caller vouches.
    unsafe { int8::<Sdot>(g) }
}

/// Int4 product by `sdot`.
///
/// # Safety
/// The CPU has dotprod; pointers of `g` valid for its sizes.
#[target_feature(enable = "neon,dotprod")]
pub unsafe fn int4_dotprod(g: &Gemm) {
    // SAFETY: as the caller vouches.
    unsafe { int4::<Sdot>(g) }
}

/// Int8 product by widening products.
///
/// # Safety
/// Pointers of `g` valid for its sizes, rows signed.
#[target_feature(enable = "neon")]
pub unsafe fn int8_neon(g: &Gemm) {
    // SAFETY: as the caller vouches.
    unsafe { int8::<Widening>(g) }
}

/// Int4 product by widening products.
///
/// # Safety
/// Pointers of `g` valid for its sizes.
#[target_feature(enable = "neon")]
pub unsafe fn int4_neon(g: &Gemm) {
    // SAFETY: as the caller vouches.
    unsafe { int4::<Widening>(g) }
}

/// Quantises a row to signed bytes; returns the scale.
///
/// # Safety
/// `x` holds `n` values, `out` has room for `kp >= n`, a multiple of 64.
#[target_feature(enable = "neon")]
pub unsafe fn quantize_signed(x: *const f32, n: usize, kp: usize, out: *mut u8) -> f32 {
    // SAFETY: blocks of 16 bytes stay inside the `kp` of the row.
    unsafe {
        let scale = quantize_u8::<Neon>(x, n, kp, out);
        let mut at = 0;
        while at < kp {
            vst1q_u8(out.add(at), veorq_u8(vld1q_u8(out.add(at)), vdupq_n_u8(0x80)));
            at += 16;
        }
        scale
    }
}
