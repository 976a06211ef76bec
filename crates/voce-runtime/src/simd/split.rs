//! Int8 rows for `vpmaddubsw`, which adds two products in 16 bits and saturates there.
//!
//! Weights are unsigned bytes there: `w + 128` in every even step of four inputs, `127 - w` in every odd one, whose inputs
//! change their sign. Two inputs of one sign whose sum exceeds 128 could pass 16 bits: they are taken out of the row into a
//! list behind it, to be multiplied by themselves, and every sum is then exact. Few pairs of a row are that large, because its
//! largest value alone is 127.
//!
//! Products of an even step and the odd one after it may be added in 16 bits before they are widened, if the sum over the pairs
//! of both stays within 128 too. Most do; those of one sign, which is what an activation leaves, cancel there, because inputs of
//! odd steps are negated. Each row lists which of its double steps can be taken at once, and which step by step.
//!
//! A row of `k` inputs is `k` signed bytes, a [`Rest`], a [`Part`] for every 256 inputs, and its entries: each the index of a
//! step and what was taken from it.

use std::arch::x86_64::*;

use super::vector::quantize_u8;
use super::x86::{Avx2, Avx512};

/// The largest sum of inputs of one sign that unsigned weights can multiply in 16 bits: 128 * 255 < 2^15.
const LARGEST_SUM: i16 = 128;
/// Inputs of a [`Part`].
pub const PART: usize = 256;

/// Bytes of a row of `k` inputs.
pub fn row_bytes(k: usize) -> usize {
    k + size_of::<Rest>() + k.div_ceil(PART) * size_of::<Part>() + k / 4 * size_of::<Entry>()
}

/// What stands behind the bytes of a row, before its entries.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Rest {
    /// What the weights' offsets add: 128 times the bytes of even steps and 127 times those of odd ones.
    pub sum: i32,
    /// Entries behind the parts.
    pub entries: u32,
}

/// The double steps of up to 256 inputs, numbered from the first of them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Part {
    /// Those whose products can be added in 16 bits.
    pub at_once: [u8; PART / 8],
    /// Those that are taken step by step.
    pub by_step: [u8; PART / 8],
    /// How many are of the first kind.
    pub count: u32,
}

/// The numbers of the bits that are set in an index, a byte each.
const SET: [u32; 16] = {
    let mut set = [0; 16];
    let mut index = 0;
    while index < 16 {
        let (mut bit, mut found) = (0, 0);
        while bit < 4 {
            if index >> bit & 1 == 1 {
                set[index] |= bit << (8 * found);
                found += 1;
            }
            bit += 1;
        }
        index += 1;
    }
    set
};

/// How many bits are set in an index, four bits for each.
const COUNTS: u64 = 0x4332_3221_3221_2110;

/// Four inputs of which a part has to be multiplied once more.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Entry {
    /// Which four.
    pub index: u32,
    /// The magnitudes of the parts, a byte each.
    pub parts: i32,
    /// 1 or -1 for each pair of them, in 16 bits: two that were too large together have one sign.
    pub signs: i32,
}

/// The end of a row: its parts lie before the entries.
///
/// # Safety
/// `row` is a split row of `k` inputs.
#[inline(always)]
pub unsafe fn rest(row: *const u8, k: usize) -> (Rest, *const Part, *const Entry) {
    // SAFETY: all lie inside the row.
    unsafe {
        let rest = row.add(k).cast::<Rest>();
        let parts = rest.add(1).cast::<Part>();
        (rest.read_unaligned(), parts, parts.add(k.div_ceil(PART)).cast())
    }
}

/// Turns `k` biased bytes, a multiple of 64 of them and none zero, into a split row in place, with its parts if `LISTS`.
///
/// # Safety
/// AVX2; `row` has room for [`row_bytes`].
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn split<const LISTS: bool>(row: *mut u8, k: usize) {
    // SAFETY: blocks of 32 bytes stay inside the `k` of the row; behind them, a part for each 256 of them has as many double
    // steps, and there is one entry a step at most.
    unsafe {
        let (flip, limit) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(LARGEST_SUM));
        let (bytes, ones, zero) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1), _mm256_setzero_si256());
        let odd = _mm256_set1_epi64x(-1 << 32);
        let turn = _mm256_or_si256(odd, bytes);
        let offsets = _mm256_add_epi8(flip, odd);
        let head = row.add(k).cast::<Rest>();
        let parts = head.add(1).cast::<Part>();
        let list = parts.add(k.div_ceil(PART)).cast::<Entry>();
        let mut sums = zero;
        let mut entries = 0;
        for p in 0..k.div_ceil(PART) {
            let end = (k - p * PART).min(PART);
            let (at_once, by_step) =
                (parts.add(p).cast::<u8>(), (&raw mut (*parts.add(p)).by_step).cast::<u8>());
            let mut count = 0;
            let mut at = 0;
            while at < end {
                let place = row.add(p * PART + at).cast::<__m256i>();
                let x = _mm256_sign_epi8(_mm256_xor_si256(_mm256_loadu_si256(place), flip), turn);
                let plus = _mm256_max_epi8(x, zero);
                let minus = _mm256_sub_epi8(plus, x);
                let (up, down) = (_mm256_maddubs_epi16(plus, bytes), _mm256_maddubs_epi16(minus, bytes));
                let (high, low) = (_mm256_cmpgt_epi16(up, limit), _mm256_cmpgt_epi16(down, limit));
                let large = _mm256_or_si256(high, low);
                // A pair that is too large has one sign: the other's bytes are zero.
                let kept = _mm256_andnot_si256(large, x);
                _mm256_storeu_si256(place, kept);
                sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(offsets, kept), ones));

                if LISTS {
                    let (up, down) = (_mm256_andnot_si256(high, up), _mm256_andnot_si256(low, down));
                    let up = _mm256_add_epi16(up, _mm256_shuffle_epi32::<0b10_11_00_01>(up));
                    let down = _mm256_add_epi16(down, _mm256_shuffle_epi32::<0b10_11_00_01>(down));
                    let beyond = _mm256_cmpgt_epi16(_mm256_max_epi16(up, down), limit);
                    let within = _mm256_castsi256_pd(_mm256_cmpeq_epi64(beyond, zero));
                    let within = _mm256_movemask_pd(within) as usize;
                    let first = (at / 8) as u32 * 0x0101_0101;
                    // Four are written each time, of which the next time keeps those that are meant.
                    at_once.add(count).cast::<u32>().write_unaligned(first + SET[within]);
                    by_step.add(at / 8 - count).cast::<u32>().write_unaligned(first + SET[15 - within]);
                    count += (COUNTS >> (4 * within)) as usize & 15;
                }

                let whole = _mm256_cmpeq_epi32(large, zero);
                let mut some = !_mm256_movemask_ps(_mm256_castsi256_ps(whole)) as u32 & 0xff;
                if some != 0 {
                    let (mut taken, mut signs) = ([0i32; 8], [0i32; 8]);
                    let sign = _mm256_sign_epi16(_mm256_or_si256(low, ones), _mm256_or_si256(odd, ones));
                    _mm256_storeu_si256(
                        taken.as_mut_ptr().cast(),
                        _mm256_and_si256(large, _mm256_or_si256(plus, minus)),
                    );
                    _mm256_storeu_si256(signs.as_mut_ptr().cast(), sign);
                    while some != 0 {
                        let i = some.trailing_zeros() as usize;
                        let index = ((p * PART + at) / 4 + i) as u32;
                        let entry = Entry { index, parts: taken[i], signs: signs[i] };
                        list.add(entries).write_unaligned(entry);
                        entries += 1;
                        some &= some - 1;
                    }
                }
                at += 32;
            }
            (&raw mut (*parts.add(p)).count).write_unaligned(count as u32);
        }
        let mut lanes = [0i32; 8];
        _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums);
        head.write_unaligned(Rest { sum: lanes.iter().sum(), entries: entries as u32 });
    }
}

/// Quantises a row of `n` values and splits it, padded to `k`; returns the scale.
///
/// # Safety
/// AVX2; `x` holds `n` values, `out` has room for [`row_bytes`] of `k >= n`, a multiple of 64.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn quantize_avx2(x: *const f32, n: usize, k: usize, out: *mut u8) -> f32 {
    // SAFETY: as the caller vouches.
    unsafe {
        let scale = quantize_u8::<Avx2>(x, n, k, out);
        split::<true>(out, k);
        scale
    }
}

/// As [`quantize_avx2`], in 512 bit, without the parts, which products in 512 bit do not read.
///
/// # Safety
/// AVX-512 F, BW, DQ and VL; else as [`quantize_avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn quantize_avx512(x: *const f32, n: usize, k: usize, out: *mut u8) -> f32 {
    // SAFETY: as the caller vouches.
    unsafe {
        let scale = quantize_u8::<Avx512>(x, n, k, out);
        split::<false>(out, k);
        scale
    }
}
