//! Registers of integer sums on x86.
//!
//! Two ways: `vpdpbusd` (VNNI, 256 or 512 bit), or `vpmaddubsw` and `vpmaddwd` in turn. The second holds the sum of two
//! products in 16 bits and saturates there, so its operands must be such that no pair exceeds them: [`super::split`] sees
//! to that for int8, with weights as unsigned bytes, and four-bit weights are too small to.
#![allow(clippy::undocumented_unsafe_blocks)] // every block: intrinsics under the trait's own contract

use std::arch::x86_64::*;

use super::dots::Dots;

/// Sums of the rows of [`super::split`].
///
/// # Safety
/// As for [`Dots`].
#[allow(clippy::missing_safety_doc)] // the contract above holds for every method
pub trait SplitDots: Dots<Sums = Self> {
    /// Adds products of bytes, no pair of which exceeds 16 bits, each pair times its 16 bits of `signs`.
    unsafe fn dot_signed(self, u: Self, s: Self, signs: Self) -> Self;
    /// Stores a register.
    unsafe fn store(self, p: *mut i32);
}

/// 256 bit, `vpmaddubsw` and `vpmaddwd`.
#[derive(Clone, Copy)]
pub struct Madd256(__m256i);
/// 256 bit, AVX-VNNI.
#[derive(Clone, Copy)]
pub struct Vnni256(__m256i);
/// 512 bit, `vpmaddubsw` and `vpmaddwd`.
#[derive(Clone, Copy)]
pub struct Madd512(__m512i);
/// 512 bit, AVX-512 VNNI.
#[derive(Clone, Copy)]
pub struct Vnni512(__m512i);

macro_rules! common_256 {
    ($name:ident) => {
        const OUTPUTS: usize = 8;
        const ROWS: usize = 6;
        type Sums = Self;
        type Small = Self;
        type Floats = __m256;
        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            unsafe { $name(_mm256_set1_epi32(x)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            unsafe { $name(_mm256_loadu_si256(p.cast())) }
        }
        #[inline(always)]
        unsafe fn spread(p: *const u8) -> Self {
            unsafe { Self::splat(p.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        unsafe fn prefetch(p: *const u8) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
        #[inline(always)]
        unsafe fn prefetch_near(p: *const u8) {
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        }
        #[inline(always)]
        unsafe fn none() -> Self {
            unsafe { Self::splat(0) }
        }
        #[inline(always)]
        unsafe fn sums(of: Self) -> Self {
            of
        }
        #[inline(always)]
        unsafe fn none_small() -> Self {
            unsafe { Self::splat(0) }
        }
        #[inline(always)]
        unsafe fn nibbles(self) -> (Self, Self) {
            unsafe {
                let low = _mm256_set1_epi8(15);
                let high = _mm256_and_si256(_mm256_srli_epi16::<4>(self.0), low);
                ($name(_mm256_and_si256(self.0, low)), $name(high))
            }
        }
        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            unsafe { $name(_mm256_sub_epi32(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn store_scaled(self, scale: *const f32, by: f32, out: *mut f32) {
            unsafe {
                let scale = _mm256_mul_ps(_mm256_loadu_ps(scale), _mm256_set1_ps(by));
                _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_cvtepi32_ps(self.0), scale));
            }
        }
        #[inline(always)]
        unsafe fn zeros() -> __m256 {
            unsafe { _mm256_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> __m256 {
            unsafe {
                let raw = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(raw))
            }
        }
        #[inline(always)]
        unsafe fn add_scaled(self, scale: __m256, to: __m256) -> __m256 {
            unsafe { _mm256_add_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(self.0), scale)) }
        }
        #[inline(always)]
        unsafe fn store_floats(v: __m256, by: f32, out: *mut f32) {
            unsafe { _mm256_storeu_ps(out, _mm256_mul_ps(v, _mm256_set1_ps(by))) }
        }
    };
}

macro_rules! common_512 {
    ($name:ident) => {
        const OUTPUTS: usize = 16;
        const ROWS: usize = 4;
        type Sums = Self;
        type Small = Self;
        type Floats = __m512;
        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            unsafe { $name(_mm512_set1_epi32(x)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            unsafe { $name(_mm512_loadu_si512(p.cast())) }
        }
        #[inline(always)]
        unsafe fn spread(p: *const u8) -> Self {
            unsafe { Self::splat(p.cast::<i32>().read_unaligned()) }
        }
        #[inline(always)]
        unsafe fn prefetch(p: *const u8) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
        }
        #[inline(always)]
        unsafe fn prefetch_near(p: *const u8) {
            unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
        }
        #[inline(always)]
        unsafe fn none() -> Self {
            unsafe { Self::splat(0) }
        }
        #[inline(always)]
        unsafe fn sums(of: Self) -> Self {
            of
        }
        #[inline(always)]
        unsafe fn none_small() -> Self {
            unsafe { Self::splat(0) }
        }
        #[inline(always)]
        unsafe fn nibbles(self) -> (Self, Self) {
            unsafe {
                let low = _mm512_set1_epi8(15);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(self.0), low);
                ($name(_mm512_and_si512(self.0, low)), $name(high))
            }
        }
        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            unsafe { $name(_mm512_sub_epi32(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn store_scaled(self, scale: *const f32, by: f32, out: *mut f32) {
            unsafe {
                let scale = _mm512_mul_ps(_mm512_loadu_ps(scale), _mm512_set1_ps(by));
                _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_cvtepi32_ps(self.0), scale));
            }
        }
        #[inline(always)]
        unsafe fn zeros() -> __m512 {
            unsafe { _mm512_setzero_ps() }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> __m512 {
            unsafe {
                let raw = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(raw))
            }
        }
        #[inline(always)]
        unsafe fn add_scaled(self, scale: __m512, to: __m512) -> __m512 {
            unsafe { _mm512_add_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(self.0), scale)) }
        }
        #[inline(always)]
        unsafe fn store_floats(v: __m512, by: f32, out: *mut f32) {
            unsafe { _mm512_storeu_ps(out, _mm512_mul_ps(v, _mm512_set1_ps(by))) }
        }
    };
}

macro_rules! madd {
    ($name:ident, $common:ident, $madd:ident, $maddubs:ident, $add32:ident, $add16:ident, $set1:ident, $xor:ident, $set8:ident, $store:ident) => {
        impl Dots for $name {
            $common!($name);
            const BIASED: bool = false;
            #[inline(always)]
            unsafe fn prepared(self, odd: bool) -> Self {
                unsafe { $name($xor(self.0, $set8(if odd { 127 } else { -128 }))) }
            }
            #[inline(always)]
            unsafe fn dot(to: Self, w: Self, x: Self) -> Self {
                unsafe { $name($add32(to.0, $madd($maddubs(w.0, x.0), $set1(1)))) }
            }
            #[inline(always)]
            unsafe fn dot_two(to: Self, w: [Self; 2], x: [Self; 2]) -> Self {
                unsafe {
                    let pairs = $add16($maddubs(w[0].0, x[0].0), $maddubs(w[1].0, x[1].0));
                    $name($add32(to.0, $madd(pairs, $set1(1))))
                }
            }
            #[inline(always)]
            unsafe fn dot_small(to: Self, w: Self, x: Self) -> Self {
                // Eight pairs of at most 2 * 15 * 128 fit in 16 bits.
                unsafe { $name($add16(to.0, $maddubs(w.0, x.0))) }
            }
            #[inline(always)]
            unsafe fn total(of: Self) -> Self {
                unsafe { $name($madd(of.0, $set1(1))) }
            }
        }

        impl SplitDots for $name {
            #[inline(always)]
            unsafe fn dot_signed(self, u: Self, s: Self, signs: Self) -> Self {
                unsafe { $name($add32(self.0, $madd($maddubs(u.0, s.0), signs.0))) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut i32) {
                unsafe { $store(p.cast(), self.0) }
            }
        }
    };
}

madd!(
    Madd256,
    common_256,
    _mm256_madd_epi16,
    _mm256_maddubs_epi16,
    _mm256_add_epi32,
    _mm256_add_epi16,
    _mm256_set1_epi16,
    _mm256_xor_si256,
    _mm256_set1_epi8,
    _mm256_storeu_si256
);
madd!(
    Madd512,
    common_512,
    _mm512_madd_epi16,
    _mm512_maddubs_epi16,
    _mm512_add_epi32,
    _mm512_add_epi16,
    _mm512_set1_epi16,
    _mm512_xor_si512,
    _mm512_set1_epi8,
    _mm512_storeu_si512
);

macro_rules! vnni {
    ($name:ident, $common:ident, $dpbusd:ident) => {
        impl Dots for $name {
            $common!($name);
            const BIASED: bool = true;
            #[inline(always)]
            unsafe fn prepared(self, _: bool) -> Self {
                self
            }
            #[inline(always)]
            unsafe fn dot(to: Self, w: Self, x: Self) -> Self {
                unsafe { $name($dpbusd(to.0, x.0, w.0)) }
            }
            #[inline(always)]
            unsafe fn dot_small(to: Self, w: Self, x: Self) -> Self {
                unsafe { $name($dpbusd(to.0, w.0, x.0)) }
            }
            #[inline(always)]
            unsafe fn total(of: Self) -> Self {
                of
            }
        }
    };
}

vnni!(Vnni256, common_256, _mm256_dpbusd_avx_epi32);
vnni!(Vnni512, common_512, _mm512_dpbusd_epi32);
