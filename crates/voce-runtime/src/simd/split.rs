//! Int8 rows for `vpmaddubsw`, which adds two products in 16 bits and saturates there.
//!
//! Weights are unsigned bytes there: `w + 128` in every even step of four inputs, `127 - w` in every odd one, whose inputs
//! change their sign. Two inputs of one sign whose sum exceeds 128 could pass 16 bits: they are taken out of the row into a
//! list behind it, to be multiplied by themselves, and every sum is then exact. Few pairs of a row are that large, because its
//! largest value alone is 127.
//!
//! Products of an even step and the odd one after it are added in 16 bits before they are widened, so the sum over the pairs of
//! both has to stay within 128 too: what exceeds it is taken out as well. Pairs of one sign, which is what an activation leaves,
//! cancel there, because inputs of odd steps are negated; and the bytes of a row are small on average (`vector::row_scale`), so
//! that something is taken out of few double steps.
//!
//! A row of `k` inputs is `k` signed bytes, a [`Rest`], and what was taken out: the numbers of the steps, the magnitudes, and the
//! signs, with room for all steps in each of the three.

use std::arch::x86_64::*;

use super::vector::row_scale;
use super::x86::Avx2;

/// The largest sum of inputs of one sign that unsigned weights can multiply in 16 bits: 128 * 255 < 2^15.
const LARGEST_SUM: i16 = 128;
/// Inputs that are split at once.
const BLOCK: usize = 32;

/// Bytes of a row of `k` inputs.
pub fn row_bytes(k: usize) -> usize {
    k + size_of::<Rest>() + 3 * k
}

/// What stands behind the bytes of a row.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Rest {
    /// What the weights' offsets add: 128 times the bytes of even steps and 127 times those of odd ones.
    pub sum: i32,
    /// Steps of which something was taken out.
    pub taken: u32,
}

/// The bits that are set in an index, a byte each.
const SET: [u64; 256] = {
    let mut set = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut bit, mut found) = (0, 0);
        while bit < 8 {
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

/// Four inputs of which a part is multiplied by itself.
#[derive(Clone, Copy)]
pub struct Taken {
    /// Which four.
    pub step: usize,
    /// The magnitudes, a byte each.
    pub magnitudes: i32,
    /// 1 or -1 for each pair of them, in 16 bits: two that were too large together have one sign.
    pub signs: i32,
}

/// A split row of `k` inputs.
#[derive(Clone, Copy)]
pub struct SplitRow {
    /// Its first byte.
    pub at: *const u8,
    /// Inputs.
    pub k: usize,
}

impl SplitRow {
    /// What stands behind the bytes.
    ///
    /// # Safety
    /// The row was split.
    #[inline(always)]
    pub unsafe fn rest(self) -> Rest {
        // SAFETY: behind the bytes.
        unsafe { self.at.add(self.k).cast::<Rest>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn list(self) -> *const i32 {
        // SAFETY: behind the rest.
        unsafe { self.at.add(self.k + size_of::<Rest>()).cast() }
    }

    /// Entry `e` of those that were taken out.
    ///
    /// # Safety
    /// The row was split and has more than `e` of them.
    #[inline(always)]
    pub unsafe fn taken(self, e: usize) -> Taken {
        // SAFETY: three lists of `k / 4` values stand behind the rest.
        unsafe {
            let (list, steps) = (self.list().add(e), self.k / 4);
            Taken {
                step: list.read_unaligned() as usize,
                magnitudes: list.add(steps).read_unaligned(),
                signs: list.add(2 * steps).read_unaligned(),
            }
        }
    }
}

/// A row that is being split, block by block.
struct Splitter {
    row: SplitRow,
    /// Offsets that weights will add, in eight sums.
    sums: __m256i,
    /// Entries so far.
    taken: usize,
}

impl Splitter {
    #[inline(always)]
    unsafe fn new(row: *mut u8, k: usize) -> Self {
        // SAFETY: AVX2, as for all of these.
        let sums = unsafe { _mm256_setzero_si256() };
        Self { row: SplitRow { at: row, k }, sums, taken: 0 }
    }

    /// Splits the block of signed bytes whose first is `at`; none is -128.
    #[inline(always)]
    unsafe fn block(&mut self, x: __m256i, at: usize) {
        // SAFETY: the block is inside the row. Before it there was no more than one entry a step: what is written whole
        // registers at a time stays inside the lists.
        unsafe {
            let (limit, zero) = (_mm256_set1_epi16(LARGEST_SUM), _mm256_setzero_si256());
            let (bytes, ones) = (_mm256_set1_epi8(1), _mm256_set1_epi16(1));
            let odd = _mm256_set1_epi64x(-1 << 32);
            let x = _mm256_sign_epi8(x, _mm256_or_si256(odd, bytes));
            let plus = _mm256_max_epi8(x, zero);
            let minus = _mm256_sub_epi8(plus, x);
            let (up, down) = (_mm256_maddubs_epi16(plus, bytes), _mm256_maddubs_epi16(minus, bytes));
            let (high, low) = (_mm256_cmpgt_epi16(up, limit), _mm256_cmpgt_epi16(down, limit));
            // A pair that is too large has one sign: the other's bytes are zero.
            let out = _mm256_or_si256(high, low);
            // What the pairs that stay have in both steps.
            let (up, down) = (_mm256_andnot_si256(high, up), _mm256_andnot_si256(low, down));
            let up = _mm256_add_epi16(up, _mm256_shuffle_epi32::<0b10_11_00_01>(up));
            let down = _mm256_add_epi16(down, _mm256_shuffle_epi32::<0b10_11_00_01>(down));
            // Too much on one side: an odd step gives what it has above zero, an even one what it has below.
            let above = _mm256_and_si256(_mm256_cmpgt_epi16(up, limit), odd);
            let below = _mm256_andnot_si256(odd, _mm256_cmpgt_epi16(down, limit));
            let above_bytes = _mm256_and_si256(above, _mm256_cmpgt_epi8(x, zero));
            let below_bytes = _mm256_and_si256(below, _mm256_cmpgt_epi8(zero, x));
            let out = _mm256_or_si256(out, _mm256_or_si256(above_bytes, below_bytes));
            let negative = _mm256_or_si256(low, below);
            let kept = _mm256_andnot_si256(out, x);
            _mm256_storeu_si256(self.row.at.add(at).cast_mut().cast(), kept);
            let offsets = _mm256_add_epi8(_mm256_set1_epi8(-128), odd);
            let sums = _mm256_madd_epi16(_mm256_maddubs_epi16(offsets, kept), ones);
            self.sums = _mm256_add_epi32(self.sums, sums);

            let whole = _mm256_cmpeq_epi32(out, zero);
            let some = !_mm256_movemask_ps(_mm256_castsi256_ps(whole)) as usize & 0xff;
            let steps = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(SET[some] as i64));
            let magnitudes = _mm256_and_si256(out, _mm256_or_si256(plus, minus));
            let signs = _mm256_sign_epi16(_mm256_or_si256(negative, ones), _mm256_or_si256(odd, ones));
            let (list, all) = (self.row.list().add(self.taken).cast_mut(), self.row.k / 4);
            let numbers = _mm256_add_epi32(steps, _mm256_set1_epi32((at / 4) as i32));
            _mm256_storeu_si256(list.cast(), numbers);
            _mm256_storeu_si256(list.add(all).cast(), _mm256_permutevar8x32_epi32(magnitudes, steps));
            _mm256_storeu_si256(list.add(2 * all).cast(), _mm256_permutevar8x32_epi32(signs, steps));
            self.taken += some.count_ones() as usize;
        }
    }

    #[inline(always)]
    unsafe fn finish(self) {
        // SAFETY: the rest stands behind the bytes.
        unsafe {
            let mut sums = [0i32; 8];
            _mm256_storeu_si256(sums.as_mut_ptr().cast(), self.sums);
            let rest = Rest { sum: sums.iter().sum(), taken: self.taken as u32 };
            self.row.at.add(self.row.k).cast_mut().cast::<Rest>().write_unaligned(rest);
        }
    }
}

/// The values from `x` on as signed bytes, by `scale`.
#[inline(always)]
unsafe fn bytes_of(x: *const f32, scale: __m256) -> __m256i {
    // SAFETY: a block of values.
    unsafe {
        let mut words = [_mm256_setzero_si256(); 4];
        for i in 0..4 {
            words[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.add(8 * i)), scale));
        }
        let bytes = _mm256_packs_epi16(
            _mm256_packs_epi32(words[0], words[1]),
            _mm256_packs_epi32(words[2], words[3]),
        );
        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }
}

/// Quantises a row and splits it; returns the scale.
///
/// # Safety
/// AVX2 and FMA; `x` holds `n` values, `out` has room for [`row_bytes`] of `kp >= n`, a multiple of 64.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn quantize(x: *const f32, n: usize, kp: usize, out: *mut u8) -> f32 {
    // SAFETY: blocks stay inside the row, and those that begin inside of `x` are read to its end.
    unsafe {
        let scale = row_scale::<Avx2>(x, n);
        let by = _mm256_set1_ps(if scale > 0.0 { 1.0 / scale } else { 0.0 });
        let mut splitter = Splitter::new(out, kp);
        for at in (0..kp).step_by(BLOCK) {
            let mut last = [0f32; BLOCK];
            let mut from = x.wrapping_add(at);
            if at + BLOCK > n {
                let left = n.saturating_sub(at);
                std::ptr::copy_nonoverlapping(from, last.as_mut_ptr(), left);
                from = last.as_ptr();
            }
            splitter.block(bytes_of(from, by), at);
        }
        splitter.finish();
        scale
    }
}

/// Splits signed bytes, a multiple of 64 of them and none -128.
///
/// # Safety
/// AVX2; `row` has room for [`row_bytes`].
#[cfg(test)]
#[target_feature(enable = "avx2")]
pub unsafe fn split(bytes: &[i8], row: *mut u8) {
    // SAFETY: blocks stay inside the bytes.
    unsafe {
        let mut splitter = Splitter::new(row, bytes.len());
        for at in (0..bytes.len()).step_by(BLOCK) {
            splitter.block(_mm256_loadu_si256(bytes.as_ptr().add(at).cast()), at);
        }
        splitter.finish();
    }
}
