//! Int8 and int4 products of x86, one pair for each instruction set; those without VNNI take split rows.

use std::mem::MaybeUninit;

use super::gemm::Gemm;
use super::integer::{STEP, ask_for_outputs, int4, int8, int8_sums, weights};
use super::lanes::LANES;
use super::split::SplitRow;
use super::x86_dots::{Madd256, Madd512, SplitDots, Vnni256, Vnni512};

/// Outputs whose sums wait for what was taken out of their rows.
const WAITING: usize = 4 * LANES;
/// Rows that they wait in.
const WAITING_ROWS: usize = 64;
/// Rows below which weights come from memory more slowly than they are multiplied, so that double steps gain nothing.
const SEVERAL_ROWS: usize = 4;

/// Sums of bytes alone, `WAITING` for each row.
#[repr(align(64))]
struct Sums([MaybeUninit<i32>; WAITING * WAITING_ROWS]);

/// Writes the sums of a block to their places in `to`, which is where those of `row` and `output` go; weights are made unsigned
/// as they are read.
#[inline(always)]
unsafe fn block<V: SplitDots, const MR: usize, const NR: usize, const AT_ONCE: bool>(
    g: &Gemm,
    row: usize,
    output: usize,
    to: *mut i32,
) {
    // SAFETY: as for `int8_sums`; `to` has room for the block.
    unsafe {
        for m in 0..MR {
            ask_for_outputs::<V>(g, row + m, (output, NR * V::OUTPUTS));
        }
        let acc = int8_sums::<V, MR, NR, AT_ONCE, true>(g, row, output);
        for m in 0..MR {
            for n in 0..NR {
                acc[m][n].store(to.add(m * WAITING + n * V::OUTPUTS));
            }
        }
    }
}

/// Adds what was taken out of a row to its sums and makes outputs of them.
#[inline(always)]
unsafe fn finish_split<V: SplitDots, const NR: usize>(g: &Gemm, row: usize, output: usize, from: *const i32) {
    // SAFETY: row and `NR` registers of outputs from `output` on are inside the operands; `from` has their sums.
    unsafe {
        let split = SplitRow { at: g.a.add(row * g.lda), k: g.k };
        let rest = split.rest();
        let mut acc = [V::splat(0); NR];
        let mut b = [g.b; NR];
        for n in 0..NR {
            acc[n] = V::load(from.add(n * V::OUTPUTS).cast()).sub(V::splat(rest.sum));
            b[n] = weights(g, output + n * V::OUTPUTS);
        }
        for e in 0..rest.taken as usize {
            let taken = split.taken(e);
            let (magnitudes, signs) = (V::splat(taken.magnitudes), V::splat(taken.signs));
            for n in 0..NR {
                let w = V::load(b[n].add(taken.step * STEP));
                acc[n] = acc[n].dot_signed(magnitudes, w, signs);
            }
        }
        for n in 0..NR {
            let o = output + n * V::OUTPUTS;
            let c = g.c.add(row * g.ldc + o);
            acc[n].store_scaled(g.b_scale.cast::<f32>().add(o), *g.a_scale.add(row), c);
        }
    }
}

/// The sums of the bytes of rows `first..first + rows` by `width` outputs from `o` on, in blocks of rows.
#[inline(always)]
unsafe fn byte_sums<V: SplitDots, const AT_ONCE: bool>(
    g: &Gemm,
    (first, rows): (usize, usize),
    (o, width): (usize, usize),
    sums: *mut i32,
) {
    // SAFETY: blocks stay inside the operands and the sums.
    unsafe {
        let mut at = 0;
        while at < width {
            let nr = match rows {
                1 if width == WAITING && !AT_ONCE => WAITING / V::OUTPUTS,
                _ if V::OUTPUTS < LANES || width - at > LANES => 2,
                _ => 1,
            };
            let mut r = 0;
            while r < rows {
                let (to, row, output) = (sums.add(r * WAITING + at), first + r, o + at);
                let mr = match rows - r {
                    8.. if nr * V::OUTPUTS == 2 * LANES => 8,
                    4.. => 4,
                    2.. => 2,
                    _ => 1,
                };
                match (mr, nr) {
                    (8, _) => block::<V, 8, 2, AT_ONCE>(g, row, output, to),
                    (4, 1) => block::<V, 4, 1, AT_ONCE>(g, row, output, to),
                    (4, _) => block::<V, 4, 2, AT_ONCE>(g, row, output, to),
                    (2, 1) => block::<V, 2, 1, AT_ONCE>(g, row, output, to),
                    (2, _) => block::<V, 2, 2, AT_ONCE>(g, row, output, to),
                    (_, 8) => block::<V, 1, 8, AT_ONCE>(g, row, output, to),
                    (_, 4) => block::<V, 1, 4, AT_ONCE>(g, row, output, to),
                    (_, 2) => block::<V, 1, 2, AT_ONCE>(g, row, output, to),
                    _ => block::<V, 1, 1, AT_ONCE>(g, row, output, to),
                }
                r += mr;
            }
            at += nr * V::OUTPUTS;
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
            let width = (end - o).min(WAITING);
            let mut first = 0;
            while first < g.m {
                // Half of the rows' sums lie in the first-level cache beside weights in blocks.
                let most = if V::OUTPUTS == LANES { WAITING_ROWS / 2 } else { WAITING_ROWS };
                let rows = (g.m - first).min(most);
                if g.m < SEVERAL_ROWS {
                    byte_sums::<V, false>(g, (first, rows), (o, width), sums);
                } else {
                    byte_sums::<V, true>(g, (first, rows), (o, width), sums);
                }
                for r in 0..rows {
                    let (row, from) = (first + r, sums.add(r * WAITING).cast_const());
                    match width / V::OUTPUTS {
                        8 => finish_split::<V, 8>(g, row, o, from),
                        4 => finish_split::<V, 4>(g, row, o, from),
                        2 => finish_split::<V, 2>(g, row, o, from),
                        _ => {
                            for at in (0..width).step_by(V::OUTPUTS) {
                                finish_split::<V, 1>(g, row, o + at, from.add(at));
                            }
                        }
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
