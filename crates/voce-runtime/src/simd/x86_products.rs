//! Int8 and int4 products of x86, one pair for each instruction set; those without VNNI take split rows.

use std::mem::MaybeUninit;

use super::gemm::Gemm;
use super::integer::{STEP, int4, int8, int8_sums, weights};
use super::lanes::LANES;
use super::split;
use super::x86_dots::{Madd256, Madd512, SplitDots, Vnni256, Vnni512};

/// Outputs whose sums wait for the entries of split rows.
const WAITING: usize = 4 * LANES;
/// Rows that they wait in.
const WAITING_ROWS: usize = 32;

/// Sums of bytes alone, `WAITING` for each row.
#[repr(align(64))]
struct Sums([MaybeUninit<i32>; WAITING * WAITING_ROWS]);

/// Writes the sums of a block to their places in `to`, which is where those of `row` and `output` go.
#[inline(always)]
unsafe fn split_block<V: SplitDots, const MR: usize, const NR: usize>(
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
unsafe fn finish_split<V: SplitDots, const NR: usize>(g: &Gemm, row: usize, output: usize, from: *const i32) {
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
///
/// # Safety
/// The CPU has V's instructions; pointers of `g` valid for its sizes, its rows split.
#[inline(always)]
unsafe fn int8_split<V: SplitDots>(g: &Gemm) {
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
                        1 if width == WAITING => WAITING / V::OUTPUTS,
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
                            (_, 8) => split_block::<V, 1, 8>(g, row, output, to),
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

macro_rules! products {
    ($int8:ident, $int4:ident, $by:ident, $dots:ty, $features:literal, $what:literal) => {
        #[doc = concat!("Int8 product by ", $what, ".")]
        ///
        /// # Safety
        /// The CPU has these instructions; pointers of `g` valid for its sizes, rows as `quantize_int8` of the set makes them.
        #[target_feature(enable = $features)]
        pub unsafe fn $int8(g: &Gemm) {
            // SAFETY: as the caller vouches.
            unsafe { $by::<$dots>(g) }
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

products!(int8_avx2, int4_avx2, int8_split, Madd256, "avx2,fma", "`vpmaddubsw` in 256 bit");
products!(int8_avx_vnni, int4_avx_vnni, int8, Vnni256, "avx2,fma,avxvnni", "`vpdpbusd` in 256 bit");
products!(
    int8_avx512bw,
    int4_avx512bw,
    int8_split,
    Madd512,
    "avx512f,avx512bw,avx512dq,avx512vl",
    "`vpmaddubsw` in 512 bit"
);
products!(
    int8_avx512,
    int4_avx512,
    int8,
    Vnni512,
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni",
    "`vpdpbusd` in 512 bit"
);
