//! AVX2 and AVX-512 implementations of the sixteen lanes.
#![allow(clippy::undocumented_unsafe_blocks)] // every block: intrinsics under the trait's own contract

use std::arch::x86_64::*;

use super::lanes::{Block, F32s};

/// Two AVX2 registers.
#[derive(Clone, Copy)]
pub struct Avx2(__m256, __m256);

macro_rules! both {
    ($f:ident, $a:expr $(, $b:expr)*) => { Avx2(unsafe { $f($a.0 $(, $b.0)*) }, unsafe { $f($a.1 $(, $b.1)*) }) };
}

impl F32s for Avx2 {
    const BLOCK: Block = Block::Tall;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Avx2(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Avx2(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe {
            _mm256_storeu_ps(p, self.0);
            _mm256_storeu_ps(p.add(8), self.1);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let half = |p: *const u16| {
                let raw = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(raw))
            };
            Avx2(half(p), half(p.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16) {
        unsafe {
            let round = |v: __m256| {
                let bits = _mm256_castps_si256(v);
                let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
                let sum = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
                let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x40_0000));
                let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
                _mm256_srli_epi32::<16>(_mm256_blendv_epi8(sum, quiet, nan))
            };
            let packed = _mm256_packus_epi32(round(self.0), round(self.1));
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self) {
        unsafe {
            let a = _mm256_loadu_si256(p.cast());
            let b = _mm256_loadu_si256(p.add(16).cast());
            let mask = _mm256_set1_epi32(0xffff_0000u32 as i32);
            let even = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v));
            let odd = |v| _mm256_castsi256_ps(_mm256_and_si256(v, mask));
            (Avx2(even(a), even(b)), Avx2(odd(a), odd(b)))
        }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        both!(_mm256_fmadd_ps, self, b, c)
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        both!(_mm256_add_ps, self, b)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        both!(_mm256_sub_ps, self, b)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        both!(_mm256_mul_ps, self, b)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        both!(_mm256_div_ps, self, b)
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        both!(_mm256_max_ps, self, b)
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        both!(_mm256_min_ps, self, b)
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            Avx2(_mm256_andnot_ps(sign, self.0), _mm256_andnot_ps(sign, self.1))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            Avx2(_mm256_round_ps::<NEAREST>(self.0), _mm256_round_ps::<NEAREST>(self.1))
        }
    }
    #[inline(always)]
    unsafe fn exp2_int(self) -> Self {
        unsafe {
            let half = |v| {
                let n = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(n))
            };
            Avx2(half(self.0), half(self.1))
        }
    }
    #[inline(always)]
    unsafe fn positive(self, a: Self, b: Self) -> Self {
        unsafe {
            let zero = _mm256_setzero_ps();
            Avx2(
                _mm256_blendv_ps(b.0, a.0, _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, zero)),
                _mm256_blendv_ps(b.1, a.1, _mm256_cmp_ps::<_CMP_GT_OQ>(self.1, zero)),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let v = _mm256_add_ps(self.0, self.1);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }
    #[inline(always)]
    unsafe fn hmax(self) -> f32 {
        unsafe {
            let v = _mm256_max_ps(self.0, self.1);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }
    #[inline(always)]
    unsafe fn store_u8_biased(self, p: *mut u8) {
        unsafe {
            let bias = _mm256_set1_epi32(128);
            let a = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), bias);
            let b = _mm256_add_epi32(_mm256_cvtps_epi32(self.1), bias);
            let w = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(a, b));
            let w = _mm_packus_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256::<1>(w));
            _mm_storeu_si128(p.cast(), w);
        }
    }
}

/// One AVX-512 register.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

impl F32s for Avx512 {
    const BLOCK: Block = Block::Wide;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Avx512(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Avx512(_mm512_loadu_ps(p)) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe { _mm512_storeu_ps(p, self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe {
            let raw = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(raw)))
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16) {
        unsafe {
            let bits = _mm512_castps_si512(self.0);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let sum = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(self.0, self.0);
            let out = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, sum, quiet));
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(out));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self) {
        unsafe {
            let raw = _mm512_loadu_si512(p.cast());
            let even = _mm512_slli_epi32::<16>(raw);
            let odd = _mm512_and_si512(raw, _mm512_set1_epi32(0xffff_0000u32 as i32));
            (Avx512(_mm512_castsi512_ps(even)), Avx512(_mm512_castsi512_ps(odd)))
        }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Avx512(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        unsafe { Avx512(_mm512_add_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        unsafe { Avx512(_mm512_sub_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        unsafe { Avx512(_mm512_mul_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        unsafe { Avx512(_mm512_div_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn reciprocal(self) -> Self {
        // An estimate of 14 bits and a Newton step: a division has a tenth of the throughput.
        unsafe {
            let r = _mm512_rcp14_ps(self.0);
            let e = _mm512_fnmadd_ps(self.0, r, _mm512_set1_ps(1.0));
            Avx512(_mm512_fmadd_ps(r, e, r))
        }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        unsafe { Avx512(_mm512_max_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        unsafe { Avx512(_mm512_min_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { Avx512(_mm512_abs_ps(self.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            Avx512(_mm512_roundscale_ps::<NEAREST>(self.0))
        }
    }
    #[inline(always)]
    unsafe fn exp2_int(self) -> Self {
        unsafe { Avx512(_mm512_scalef_ps(_mm512_set1_ps(1.0), self.0)) }
    }
    #[inline(always)]
    unsafe fn positive(self, a: Self, b: Self) -> Self {
        unsafe {
            let mask = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_setzero_ps());
            Avx512(_mm512_mask_blend_ps(mask, b.0, a.0))
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let hi = _mm512_extractf32x8_ps::<1>(self.0);
            let v = _mm256_add_ps(_mm512_castps512_ps256(self.0), hi);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }
    #[inline(always)]
    unsafe fn hmax(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn store_u8_biased(self, p: *mut u8) {
        unsafe {
            let q = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(128));
            _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(q));
        }
    }
}
