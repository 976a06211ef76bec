//! Int8 and int4 products by the integer multiply-adds of x86, written once over a register of sums.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
use std::mem::MaybeUninit;

use super::dots::{Dots, Madd256, Madd512, Vnni256, Vnni512};
use super::gemm::Gemm;
use super::lanes::LANES;
use super::quant::GROUP;
use super::split;

/// Bytes of a panel per step of four inputs.
const STEP: usize = 4 * LANES;

/// Output `o`'s place in the packed weights, at the first input.
#[inline(always)]
unsafe fn weights(g: &Gemm, o: usize) -> *const u8 {
    // SAFETY: output `o` lies in one of the panels.
    unsafe { g.b.add(o / LANES * g.panel + o % LANES * 4) }
}

/// The sums of `MR` rows by `NR` registers of outputs, of the bytes as they stand in both.
#[inline(always)]
unsafe fn int8_sums<V: Dots, const MR: usize, const NR: usize>(
    g: &Gemm,
    row: usize,
    output: usize,
) -> [[V; NR]; MR] {
    // SAFETY: rows `row..row + MR` and `NR` registers of outputs from `output` on are inside the operands.
    unsafe {
        let mut acc = [[V::splat(0); NR]; MR];
        let mut a = [g.a; MR];
        let mut b = [g.b; NR];
        for m in 0..MR {
            a[m] = g.a.add((row + m) * g.lda);
        }
        for n in 0..NR {
            b[n] = weights(g, output + n * V::OUTPUTS);
        }
        // Rows are multiples of 64 inputs long: two steps at once leave the ports of products to them.
        for pair in 0..g.k / 8 {
            for k in [2 * pair, 2 * pair + 1] {
                let mut w = [acc[0][0]; NR];
                for n in 0..NR {
                    if MR == 1 && k % 16 == 0 {
                        // A panel tile is 1 KiB: fetch the one eight tiles ahead.
                        _mm_prefetch::<_MM_HINT_T0>(b[n].wrapping_add(k * STEP + 8192).cast());
                    }
                    w[n] = V::load(b[n].add(k * STEP));
                    if V::SPLIT {
                        w[n] = w[n].biased();
                    }
                }
                for m in 0..MR {
                    let x = V::splat(a[m].add(4 * k).cast::<i32>().read_unaligned());
                    for n in 0..NR {
                        acc[m][n] = if V::SPLIT { acc[m][n].dot(w[n], x) } else { acc[m][n].dot(x, w[n]) };
                    }
                }
            }
        }
        acc
    }
}

/// A block of outputs from biased rows.
#[inline(always)]
unsafe fn int8_block<V: Dots, const MR: usize, const NR: usize>(g: &Gemm, row: usize, output: usize) {
    // SAFETY: rows `row..row + MR` and `NR` registers of outputs from `output` on are inside the operands.
    unsafe {
        let acc = int8_sums::<V, MR, NR>(g, row, output);
        for m in 0..MR {
            for n in 0..NR {
                let o = output + n * V::OUTPUTS;
                let sum = acc[m][n].sub(V::load(g.b_sum.add(o).cast()));
                let c = g.c.add((row + m) * g.ldc + o);
                sum.store_scaled(g.b_scale.cast::<f32>().add(o), *g.a_scale.add(row + m), c);
            }
        }
    }
}

/// The product of biased rows.
#[inline(always)]
unsafe fn int8_biased<V: Dots>(g: &Gemm) {
    // SAFETY: blocks stay inside the operands.
    unsafe {
        let narrow = V::OUTPUTS < LANES;
        let end = g.panels * LANES;
        let mut o = 0;
        while o < end {
            let nr = match (end - o) / V::OUTPUTS {
                8.. if narrow && g.m == 1 => 8,
                4.. if !narrow || g.m == 1 => 4,
                2.. if narrow => 2,
                _ => 1,
            };
            let mut r = 0;
            while r < g.m {
                let mr = match g.m - r {
                    6.. if narrow => 6,
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                match (mr, nr) {
                    (6, _) => int8_block::<V, 6, 2>(g, r, o),
                    (4, 4) => int8_block::<V, 4, 4>(g, r, o),
                    (4, 2) => int8_block::<V, 4, 2>(g, r, o),
                    (4, _) => int8_block::<V, 4, 1>(g, r, o),
                    (2, 4) => int8_block::<V, 2, 4>(g, r, o),
                    (2, 2) => int8_block::<V, 2, 2>(g, r, o),
                    (2, _) => int8_block::<V, 2, 1>(g, r, o),
                    (_, 8) => int8_block::<V, 1, 8>(g, r, o),
                    (_, 4) => int8_block::<V, 1, 4>(g, r, o),
                    (_, 2) => int8_block::<V, 1, 2>(g, r, o),
                    _ => int8_block::<V, 1, 1>(g, r, o),
                }
                r += mr;
            }
            o += nr * V::OUTPUTS;
        }
    }
}

/// Outputs whose sums wait for the entries of split rows.
const WAITING: usize = 4 * LANES;
/// Rows that they wait in.
const WAITING_ROWS: usize = 32;

/// Sums of bytes alone, `WAITING` for each row.
#[repr(align(64))]
struct Sums([MaybeUninit<i32>; WAITING * WAITING_ROWS]);

/// Writes the sums of a block to their places in `to`, which is where those of `row` and `output` go.
#[inline(always)]
unsafe fn split_block<V: Dots, const MR: usize, const NR: usize>(
    g: &Gemm,
    row: usize,
    output: usize,
    to: *mut i32,
) {
    // SAFETY: as for `int8_sums`; `to` has room for the block.
    unsafe {
        let acc = int8_sums::<V, MR, NR>(g, row, output);
        for m in 0..MR {
            for n in 0..NR {
                acc[m][n].store(to.add(m * WAITING + n * V::OUTPUTS));
            }
        }
    }
}

/// Adds a row's entries to its sums and makes outputs of them.
#[inline(always)]
unsafe fn finish_split<V: Dots, const NR: usize>(g: &Gemm, row: usize, output: usize, from: *const i32) {
    // SAFETY: row and `NR` registers of outputs from `output` on are inside the operands; `from` has their sums.
    unsafe {
        let (rest, list) = split::rest(g.a.add(row * g.lda), g.k);
        let mut acc = [V::splat(0); NR];
        let mut b = [g.b; NR];
        for n in 0..NR {
            acc[n] = V::load(from.add(n * V::OUTPUTS).cast()).sub(V::splat(rest.sum));
            b[n] = weights(g, output + n * V::OUTPUTS);
        }
        for e in 0..rest.entries as usize {
            let entry = list.add(e).read_unaligned();
            let (parts, signs) = (V::splat(entry.parts), V::splat(entry.signs));
            for n in 0..NR {
                let w = V::load(b[n].add(entry.index as usize * STEP));
                acc[n] = acc[n].dot_signed(parts, w, signs);
            }
        }
        for n in 0..NR {
            let o = output + n * V::OUTPUTS;
            let c = g.c.add(row * g.ldc + o);
            acc[n].store_scaled(g.b_scale.cast::<f32>().add(o), *g.a_scale.add(row), c);
        }
    }
}

/// The product of split rows: by blocks of bytes, then row by row what was split off, while the weights are in the cache.
#[inline(always)]
unsafe fn int8_split<V: Dots>(g: &Gemm) {
    // SAFETY: blocks stay inside the operands, and their sums inside `sums`.
    unsafe {
        let mut sums = Sums([MaybeUninit::uninit(); WAITING * WAITING_ROWS]);
        let sums = sums.0.as_mut_ptr().cast::<i32>();
        let end = g.panels * LANES;
        let mut o = 0;
        while o < end {
            let width = if end - o >= WAITING { WAITING } else { LANES };
            let mut first = 0;
            while first < g.m {
                let rows = (g.m - first).min(WAITING_ROWS);
                let mut at = 0;
                while at < width {
                    let mut r = 0;
                    let nr = match rows {
                        1 if width == WAITING => WAITING / V::OUTPUTS / 2,
                        _ if V::OUTPUTS < LANES || width == WAITING => 2,
                        _ => 1,
                    };
                    while r < rows {
                        let to = sums.add(r * WAITING + at);
                        let (row, output) = (first + r, o + at);
                        let mr = match rows - r {
                            8.. if V::OUTPUTS == LANES && nr == 2 => 8,
                            4.. => 4,
                            2.. => 2,
                            _ => 1,
                        };
                        match (mr, nr) {
                            (8, 1) => split_block::<V, 8, 1>(g, row, output, to),
                            (8, _) => split_block::<V, 8, 2>(g, row, output, to),
                            (4, 1) => split_block::<V, 4, 1>(g, row, output, to),
                            (4, _) => split_block::<V, 4, 2>(g, row, output, to),
                            (2, 1) => split_block::<V, 2, 1>(g, row, output, to),
                            (2, _) => split_block::<V, 2, 2>(g, row, output, to),
                            (_, 4) => split_block::<V, 1, 4>(g, row, output, to),
                            (_, 2) => split_block::<V, 1, 2>(g, row, output, to),
                            _ => split_block::<V, 1, 1>(g, row, output, to),
                        }
                        r += mr;
                    }
                    at += nr * V::OUTPUTS;
                }
                for r in 0..rows {
                    let (row, from) = (first + r, sums.add(r * WAITING).cast_const());
                    match width / V::OUTPUTS {
                        8 => finish_split::<V, 8>(g, row, o, from),
                        4 => finish_split::<V, 4>(g, row, o, from),
                        2 => finish_split::<V, 2>(g, row, o, from),
                        _ => finish_split::<V, 1>(g, row, o, from),
                    }
                }
                first += rows;
            }
            o += width;
        }
    }
}

#[inline(always)]
unsafe fn int4_block<V: Dots, const MR: usize, const NR: usize>(g: &Gemm, row: usize, output: usize) {
    // SAFETY: rows `row..row + MR` and `NR` registers of outputs from `output` on are inside the operands.
    unsafe {
        let groups = g.k / GROUP;
        let mut sum = [[V::zeros(); MR]; NR];
        for grp in 0..groups {
            for n in 0..NR {
                let o = output + n * V::OUTPUTS;
                let b = weights(g, o).add(grp * GROUP * LANES / 2);
                let mut part = [V::splat(0); MR];
                for block in 0..GROUP / 8 {
                    if MR == 1 {
                        _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(4096 + block * STEP).cast());
                    }
                    let (low, high) = V::load(b.add(block * STEP)).nibbles();
                    for m in 0..MR {
                        let a = g.a.add((row + m) * g.lda + grp * GROUP + block * 8).cast::<i32>();
                        part[m] = part[m].dot_small(low, V::splat(a.read_unaligned()));
                        part[m] = part[m].dot_small(high, V::splat(a.add(1).read_unaligned()));
                    }
                }
                let scale =
                    V::load_bf16(g.b_scale.cast::<u16>().add((o / LANES * groups + grp) * LANES + o % LANES));
                for m in 0..MR {
                    let less = V::splat(*g.a_sums.add((row + m) * groups + grp));
                    sum[n][m] = part[m].total().sub(less).add_scaled(scale, sum[n][m]);
                }
            }
        }
        for n in 0..NR {
            for m in 0..MR {
                let c = g.c.add((row + m) * g.ldc + output + n * V::OUTPUTS);
                V::store_floats(sum[n][m], *g.a_scale.add(row + m), c);
            }
        }
    }
}

#[inline(always)]
unsafe fn int4<V: Dots>(g: &Gemm) {
    // SAFETY: blocks stay inside the operands.
    unsafe {
        let end = g.panels * LANES;
        let mut o = 0;
        while o < end {
            let nr = if (end - o) / V::OUTPUTS >= 2 { 2 } else { 1 };
            let mut r = 0;
            while r < g.m {
                let mr = match g.m - r {
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                match (mr, nr) {
                    (4, 2) => int4_block::<V, 4, 2>(g, r, o),
                    (4, _) => int4_block::<V, 4, 1>(g, r, o),
                    (2, 2) => int4_block::<V, 2, 2>(g, r, o),
                    (2, _) => int4_block::<V, 2, 1>(g, r, o),
                    (_, 2) => int4_block::<V, 1, 2>(g, r, o),
                    _ => int4_block::<V, 1, 1>(g, r, o),
                }
                r += mr;
            }
            o += nr * V::OUTPUTS;
        }
    }
}

macro_rules! products {
    ($int8:ident, $int4:ident, $dots:ty, $features:literal, $what:literal) => {
        #[doc = concat!("Int8 product by ", $what, ".")]
        ///
        /// # Safety
        /// The CPU has these instructions; pointers of `g` valid for its sizes, rows as [`Dots::SPLIT`] says.
        #[target_feature(enable = $features)]
        pub unsafe fn $int8(g: &Gemm) {
            // SAFETY: as the caller vouches.
            unsafe { if <$dots>::SPLIT { int8_split::<$dots>(g) } else { int8_biased::<$dots>(g) } }
        }
        #[doc = concat!("Int4 product by ", $what, ".")]
        ///
        /// # Safety
        /// The CPU has these instructions; pointers of `g` valid for its sizes.
        #[target_feature(enable = $features)]
        pub unsafe fn $int4(g: &Gemm) {
            // SAFETY: as the caller vouches.
            unsafe { int4::<$dots>(g) }
        }
    };
}

products!(int8_avx2, int4_avx2, Madd256, "avx2,fma", "`vpmaddubsw` in 256 bit");
products!(int8_avx_vnni, int4_avx_vnni, Vnni256, "avx2,fma,avxvnni", "`vpdpbusd` in 256 bit");
products!(
    int8_avx512bw,
    int4_avx512bw,
    Madd512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    "`vpmaddubsw` in 512 bit"
);
products!(
    int8_avx512,
    int4_avx512,
    Vnni512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    "`vpdpbusd` in 512 bit"
);
