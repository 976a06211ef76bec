//! Int8 rows for `vpmaddubsw`, which adds two products in 16 bits and saturates there.
//!
//! With weights as unsigned bytes, two inputs of one sign whose sum exceeds 128 could pass 16 bits. Each such pair is halved
//! and the other half written to a list behind the row, to be multiplied by itself: every sum is then exact. Few pairs of
//! a row are that large, because its largest value alone is 127.
//!
//! A row of `k` inputs is `k` signed bytes, 128 times their sum, the number of entries, and the entries: each the index of
//! four inputs and what was taken from them, which is small enough to be multiplied by signed weights.

use std::arch::x86_64::*;

use super::vector::quantize_u8;
use super::x86::{Avx2, Avx512};

/// The largest sum of two inputs of one sign that unsigned weights can multiply in 16 bits: 128 * 255 < 2^15.
const LARGEST_PAIR: i16 = 128;

/// Bytes of a row of `k` inputs.
pub fn row_bytes(k: usize) -> usize {
    k + size_of::<Rest>() + k / 4 * size_of::<Entry>()
}

/// What stands behind the bytes of a row, before its entries.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Rest {
    /// 128 times the sum of the bytes.
    pub sum: i32,
    /// Entries that follow.
    pub entries: u32,
}

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

/// The end of a row.
///
/// # Safety
/// `row` is a split row of `k` inputs.
#[inline(always)]
pub unsafe fn rest(row: *const u8, k: usize) -> (Rest, *const Entry) {
    // SAFETY: both lie inside the row.
    unsafe {
        let rest = row.add(k).cast::<Rest>();
        (rest.read_unaligned(), rest.add(1).cast())
    }
}

/// Turns `k` biased bytes, a multiple of 64 of them, into a split row in place.
///
/// # Safety
/// AVX2; `row` has room for [`row_bytes`].
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn split(row: *mut u8, k: usize) {
    // SAFETY: blocks of 32 bytes stay inside the `k` of the row, entries inside the room behind them.
    unsafe {
        let (flip, limit) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(LARGEST_PAIR));
        let (bytes, ones) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
        let head = row.add(k).cast::<Rest>();
        let list = head.add(1).cast::<Entry>();
        let mut sums = _mm256_setzero_si256();
        let mut entries = 0;
        let mut at = 0;
        while at < k {
            let biased = _mm256_loadu_si256(row.add(at).cast());
            let whole = _mm256_xor_si256(biased, flip);
            let pairs = _mm256_maddubs_epi16(bytes, whole);
            let large = _mm256_cmpgt_epi16(_mm256_abs_epi16(pairs), limit);
            // The average of biased bytes and 128 is half of each, rounded up.
            let half = _mm256_xor_si256(_mm256_avg_epu8(biased, flip), flip);
            let kept = _mm256_blendv_epi8(whole, half, large);
            _mm256_storeu_si256(row.add(at).cast(), kept);
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, kept), ones));
            let taken = _mm256_sub_epi8(whole, kept);
            let none = _mm256_cmpeq_epi32(taken, _mm256_setzero_si256());
            let mut some = !_mm256_movemask_ps(_mm256_castsi256_ps(none)) as u32 & 0xff;
            if some != 0 {
                let (mut parts, mut signs) = ([0i32; 8], [0i32; 8]);
                _mm256_storeu_si256(parts.as_mut_ptr().cast(), _mm256_abs_epi8(taken));
                _mm256_storeu_si256(signs.as_mut_ptr().cast(), _mm256_sign_epi16(ones, pairs));
                while some != 0 {
                    let i = some.trailing_zeros() as usize;
                    let entry = Entry { index: (at / 4 + i) as u32, parts: parts[i], signs: signs[i] };
                    list.add(entries).write_unaligned(entry);
                    entries += 1;
                    some &= some - 1;
                }
            }
            at += 32;
        }
        let mut lanes = [0i32; 8];
        _mm256_storeu_si256(lanes.as_mut_ptr().cast(), sums);
        let sum = 128 * lanes.iter().sum::<i32>();
        head.write_unaligned(Rest { sum, entries: entries as u32 });
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
        split(out, k);
        scale
    }
}

/// As [`quantize_avx2`], in 512 bit.
///
/// # Safety
/// AVX-512 F, BW, DQ and VL; else as [`quantize_avx2`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub unsafe fn quantize_avx512(x: *const f32, n: usize, k: usize, out: *mut u8) -> f32 {
    // SAFETY: as the caller vouches.
    unsafe {
        let scale = quantize_u8::<Avx512>(x, n, k, out);
        split(out, k);
        scale
    }
}
