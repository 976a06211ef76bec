//! One register of integer sums: the multiply-adds of bytes that each instruction set has.
//!
//! Two ways: `vpdpbusd` (VNNI, 256 or 512 bit), or `vpmaddubsw` and `vpmaddwd` in turn. The second holds the sum of two
//! products in 16 bits and saturates there, so its operands must be such that no pair exceeds them: [`super::split`] sees
//! to that for int8, and four-bit weights are too small to.
#![allow(clippy::undocumented_unsafe_blocks)] // every block: intrinsics under the trait's own contract

use std::arch::x86_64::*;

/// A register of 32-bit sums, or of the bytes that go into them: 8 or 16 outputs by 4 inputs.
///
/// # Safety
/// Every method may use instructions of the implementation's instruction set: call them only on a CPU that has it, inside a
/// function with the matching `target_feature`. Pointers must be valid for a register; no alignment is needed.
#[allow(clippy::missing_safety_doc)] // the contract above holds for every method
pub trait Dots: Copy {
    /// Outputs in a register.
    const OUTPUTS: usize;
    /// Whether int8 takes rows of [`super::split`] and unsigned weights, instead of biased rows and signed weights.
    const SPLIT: bool;
    /// As many floats as sums.
    type Floats: Copy;
    /// All sums `x`, or `x`'s four bytes for every output.
    unsafe fn splat(x: i32) -> Self;
    /// Loads a register.
    unsafe fn load(p: *const u8) -> Self;
    /// Signed bytes, each plus 128.
    unsafe fn biased(self) -> Self;
    /// The low and the high half of every byte.
    unsafe fn nibbles(self) -> (Self, Self);
    /// Adds four products of unsigned by signed bytes to every sum.
    unsafe fn dot(self, u: Self, s: Self) -> Self;
    /// Adds products of bytes, no pair of which exceeds 16 bits, each pair times its 16 bits of `signs`.
    unsafe fn dot_signed(self, u: Self, s: Self, signs: Self) -> Self;
    /// Stores a register.
    unsafe fn store(self, p: *mut i32);
    /// As `dot` for bytes of four bits, at most eight times from zero; [`Dots::total`] makes sums of the result.
    unsafe fn dot_small(self, u: Self, s: Self) -> Self;
    /// The sums of what `dot_small` gathered.
    unsafe fn total(self) -> Self;
    /// Lane-wise difference.
    unsafe fn sub(self, b: Self) -> Self;
    /// Stores the sums as floats, each times `by * scale`.
    unsafe fn store_scaled(self, scale: *const f32, by: f32, out: *mut f32);
    /// Float zeros.
    unsafe fn zeros() -> Self::Floats;
    /// Loads bf16 values.
    unsafe fn load_bf16(p: *const u16) -> Self::Floats;
    /// `to + self * scale`, rounded twice, to give the bits of the portable form.
    unsafe fn add_scaled(self, scale: Self::Floats, to: Self::Floats) -> Self::Floats;
    /// Stores floats, each times `by`.
    unsafe fn store_floats(v: Self::Floats, by: f32, out: *mut f32);
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
    ($name:ident, $split:literal) => {
        const OUTPUTS: usize = 8;
        const SPLIT: bool = $split;
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
        unsafe fn store(self, p: *mut i32) {
            unsafe { _mm256_storeu_si256(p.cast(), self.0) }
        }
        #[inline(always)]
        unsafe fn dot_signed(self, u: Self, s: Self, signs: Self) -> Self {
            unsafe {
                let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(u.0, s.0), signs.0);
                $name(_mm256_add_epi32(self.0, pairs))
            }
        }
        #[inline(always)]
        unsafe fn biased(self) -> Self {
            unsafe { $name(_mm256_xor_si256(self.0, _mm256_set1_epi8(-128))) }
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
    ($name:ident, $split:literal) => {
        const OUTPUTS: usize = 16;
        const SPLIT: bool = $split;
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
        unsafe fn store(self, p: *mut i32) {
            unsafe { _mm512_storeu_si512(p.cast(), self.0) }
        }
        #[inline(always)]
        unsafe fn dot_signed(self, u: Self, s: Self, signs: Self) -> Self {
            unsafe {
                let pairs = _mm512_madd_epi16(_mm512_maddubs_epi16(u.0, s.0), signs.0);
                $name(_mm512_add_epi32(self.0, pairs))
            }
        }
        #[inline(always)]
        unsafe fn biased(self) -> Self {
            unsafe { $name(_mm512_xor_si512(self.0, _mm512_set1_epi8(-128))) }
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

impl Dots for Madd256 {
    common_256!(Madd256, true);
    #[inline(always)]
    unsafe fn dot(self, u: Self, s: Self) -> Self {
        unsafe {
            let pairs = _mm256_maddubs_epi16(u.0, s.0);
            Madd256(_mm256_add_epi32(self.0, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))))
        }
    }
    #[inline(always)]
    unsafe fn dot_small(self, u: Self, s: Self) -> Self {
        // Eight pairs of at most 2 * 15 * 128 fit in 16 bits.
        unsafe { Madd256(_mm256_add_epi16(self.0, _mm256_maddubs_epi16(u.0, s.0))) }
    }
    #[inline(always)]
    unsafe fn total(self) -> Self {
        unsafe { Madd256(_mm256_madd_epi16(self.0, _mm256_set1_epi16(1))) }
    }
}

impl Dots for Madd512 {
    common_512!(Madd512, true);
    #[inline(always)]
    unsafe fn dot(self, u: Self, s: Self) -> Self {
        unsafe {
            let pairs = _mm512_maddubs_epi16(u.0, s.0);
            Madd512(_mm512_add_epi32(self.0, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))))
        }
    }
    #[inline(always)]
    unsafe fn dot_small(self, u: Self, s: Self) -> Self {
        // Eight pairs of at most 2 * 15 * 128 fit in 16 bits.
        unsafe { Madd512(_mm512_add_epi16(self.0, _mm512_maddubs_epi16(u.0, s.0))) }
    }
    #[inline(always)]
    unsafe fn total(self) -> Self {
        unsafe { Madd512(_mm512_madd_epi16(self.0, _mm512_set1_epi16(1))) }
    }
}

macro_rules! vnni {
    ($name:ident, $dpbusd:ident) => {
        #[inline(always)]
        unsafe fn dot(self, u: Self, s: Self) -> Self {
            unsafe { $name($dpbusd(self.0, u.0, s.0)) }
        }
        #[inline(always)]
        unsafe fn dot_small(self, u: Self, s: Self) -> Self {
            unsafe { $name($dpbusd(self.0, u.0, s.0)) }
        }
        #[inline(always)]
        unsafe fn total(self) -> Self {
            self
        }
    };
}

impl Dots for Vnni256 {
    common_256!(Vnni256, false);
    vnni!(Vnni256, _mm256_dpbusd_avx_epi32);
}

impl Dots for Vnni512 {
    common_512!(Vnni512, false);
    vnni!(Vnni512, _mm512_dpbusd_epi32);
}
