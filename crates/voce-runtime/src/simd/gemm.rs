//! Matrix product over packed panels: `C[m][16 p + l] = sum_k A[m][k] B[p][k][l]`.
//!
//! Every output is one accumulator chain over k in ascending order, whatever the blocking, so a row's
//! result does not depend on how many rows or panels are computed beside it.

use super::lanes::{Block, F32s, LANES};

/// Arguments of a panel product. Which fields are read depends on the weight format.
#[derive(Clone, Copy)]
pub struct Gemm {
    /// First row of A: f32, bf16 or bytes, each row readable for `k` (padded) values.
    pub a: *const u8,
    /// Distance between rows of A, in bytes.
    pub lda: usize,
    /// Rows.
    pub m: usize,
    /// Padded inner dimension.
    pub k: usize,
    /// First panel.
    pub b: *const u8,
    /// Bytes per panel.
    pub panel: usize,
    /// Number of panels of 16 outputs.
    pub panels: usize,
    /// Output, row-major.
    pub c: *mut f32,
    /// Distance between rows of C, in values.
    pub ldc: usize,
    /// Quantised formats: scale of each row of A.
    pub a_scale: *const f32,
    /// Int8: scale of each output. Int4: bf16 scales `[panel][k / 32][16]`.
    pub b_scale: *const u8,
    /// Int8: 128 times the sum of each output's weights.
    pub b_sum: *const i32,
    /// Int4: for each row of A, eight times the sum of each group of 32.
    pub a_sums: *const i32,
    /// Float formats only: continue from what C holds instead of from zero.
    pub accumulate: bool,
    /// Where C goes from here, to be asked for ahead; null where that is not known.
    pub to: *const f32,
    /// Distance between its rows, in values.
    pub ldt: usize,
}

/// How weights of a panel are read.
pub trait PanelWeights {
    /// Values of k consumed per step.
    const STEP: usize;
    /// Adds one step of k: `acc += a[0..STEP] * b`.
    ///
    /// # Safety
    /// `b` points at a step of a packed panel, `a` at STEP readable values; the CPU has V's instructions.
    unsafe fn fold<V: F32s, const MR: usize>(b: *const u8, a: [*const f32; MR], acc: &mut [V; MR]);
    /// Bytes of a panel per step.
    const BYTES: usize;
    /// Whether there are registers for blocks of six rows, or of four.
    const SIX_ROWS: bool;
}

/// `[k][16]` f32.
pub struct F32Panels;
/// `[k / 2][16][2]` bf16.
pub struct Bf16Panels;

impl PanelWeights for F32Panels {
    const STEP: usize = 1;
    const BYTES: usize = 4 * LANES;
    const SIX_ROWS: bool = true;
    #[inline(always)]
    unsafe fn fold<V: F32s, const MR: usize>(b: *const u8, a: [*const f32; MR], acc: &mut [V; MR]) {
        // SAFETY: per the trait's contract.
        unsafe {
            let w = V::load(b.cast());
            for m in 0..MR {
                acc[m] = V::splat(*a[m]).fma(w, acc[m]);
            }
        }
    }
}

impl PanelWeights for Bf16Panels {
    const STEP: usize = 2;
    const BYTES: usize = 4 * LANES;
    const SIX_ROWS: bool = false;
    #[inline(always)]
    unsafe fn fold<V: F32s, const MR: usize>(b: *const u8, a: [*const f32; MR], acc: &mut [V; MR]) {
        // SAFETY: per the trait's contract.
        unsafe {
            let (even, odd) = V::load_bf16_pairs(b.cast());
            for m in 0..MR {
                acc[m] = V::splat(*a[m]).fma(even, acc[m]);
                acc[m] = V::splat(*a[m].add(1)).fma(odd, acc[m]);
            }
        }
    }
}

#[inline(always)]
unsafe fn block<V: F32s, W: PanelWeights, const MR: usize, const NR: usize>(
    g: &Gemm,
    row: usize,
    panel: usize,
) {
    // SAFETY: rows `row..row + MR` and panels `panel..panel + NR` are inside `g`'s operands.
    unsafe {
        let mut acc = [[V::splat(0.0); MR]; NR];
        if g.accumulate {
            for n in 0..NR {
                for m in 0..MR {
                    acc[n][m] = V::load(g.c.add((row + m) * g.ldc + (panel + n) * LANES));
                }
            }
        }
        let mut a = [g.a.cast::<f32>(); MR];
        let mut b = [g.b; NR];
        for (m, a) in a.iter_mut().enumerate() {
            *a = g.a.add((row + m) * g.lda).cast();
        }
        for (n, b) in b.iter_mut().enumerate() {
            *b = g.b.add((panel + n) * g.panel);
        }
        for _ in 0..g.k / W::STEP {
            for n in 0..NR {
                W::fold::<V, MR>(b[n], a, &mut acc[n]);
                b[n] = b[n].add(W::BYTES);
            }
            for p in &mut a {
                *p = p.add(W::STEP);
            }
        }
        for n in 0..NR {
            for m in 0..MR {
                acc[n][m].store(g.c.add((row + m) * g.ldc + (panel + n) * LANES));
            }
        }
    }
}

/// The product for f32 activations.
///
/// # Safety
/// Pointers of `g` are valid for its sizes; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn gemm<V: F32s, W: PanelWeights>(g: &Gemm) {
    // SAFETY: blocks stay inside the operands.
    unsafe {
        // Plain loops: closures would be compiled without the caller's target features.
        let (wide, tall) = (V::BLOCK == Block::Wide, V::BLOCK == Block::Tall);
        let mut p = 0;
        while p < g.panels {
            let np = match g.panels - p {
                8.. if wide && g.m == 1 => 8,
                4.. if wide || (tall && g.m == 1) => 4,
                2.. if !(wide || tall) || g.m < 4 => 2,
                _ => 1,
            };
            let mut r = 0;
            while r < g.m {
                let left = g.m - r;
                let nr = match left {
                    6.. if (wide || tall) && W::SIX_ROWS => 6,
                    4.. if wide || tall => 4,
                    2.. => 2,
                    _ => 1,
                };
                match (nr, np) {
                    (6, 4) => block::<V, W, 6, 4>(g, r, p),
                    (6, _) => block::<V, W, 6, 1>(g, r, p),
                    (4, 4) => block::<V, W, 4, 4>(g, r, p),
                    (4, _) => block::<V, W, 4, 1>(g, r, p),
                    (2, 4) => block::<V, W, 2, 4>(g, r, p),
                    (2, 2) => block::<V, W, 2, 2>(g, r, p),
                    (2, _) => block::<V, W, 2, 1>(g, r, p),
                    (_, 8) => block::<V, W, 1, 8>(g, r, p),
                    (_, 4) => block::<V, W, 1, 4>(g, r, p),
                    (_, 2) => block::<V, W, 1, 2>(g, r, p),
                    _ => block::<V, W, 1, 1>(g, r, p),
                }
                r += nr;
            }
            p += np;
        }
    }
}
