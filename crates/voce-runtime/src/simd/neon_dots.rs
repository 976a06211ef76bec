//! Registers of integer sums on NEON: by `sdot`, or by widening products where the CPU has none.
#![allow(clippy::undocumented_unsafe_blocks)] // every block: intrinsics under the trait's own contract

use std::arch::aarch64::*;
use std::arch::asm;

use super::dots::Dots;
use super::neon::widen_bf16;

/// `sdot`: four products at once.
#[derive(Clone, Copy)]
pub struct Sdot(int32x4_t);
/// `smull` and a sum by pairs.
#[derive(Clone, Copy)]
pub struct Widening(int32x4_t);

/// Adds the sums of four products of signed bytes. Its intrinsic came later than the compilers that build this.
#[inline(always)]
pub(super) unsafe fn sdot(mut to: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) to, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    to
}

/// Adds the products of two rows by two columns of eight signed bytes each, row by row.
#[inline(always)]
pub(super) unsafe fn smmla(mut to: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) to, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    to
}

/// Asks for the line at `p`, which need not be valid.
#[inline(always)]
pub(super) unsafe fn prefetch(p: *const u8) {
    unsafe { asm!("prfm pldl1keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags)) }
}

/// As [`prefetch`], as far as the second-level cache.
#[inline(always)]
pub(super) unsafe fn prefetch_near(p: *const u8) {
    unsafe { asm!("prfm pldl2keep, [{0}]", in(reg) p, options(readonly, nostack, preserves_flags)) }
}

/// The low and the high half of every byte.
#[inline(always)]
pub(super) unsafe fn nibbles(v: uint8x16_t) -> (int32x4_t, int32x4_t) {
    unsafe {
        let low = vandq_u8(v, vdupq_n_u8(15));
        (vreinterpretq_s32_u8(low), vreinterpretq_s32_u8(vshrq_n_u8::<4>(v)))
    }
}

macro_rules! common {
    ($name:ident) => {
        const OUTPUTS: usize = 4;
        const BIASED: bool = false;
        type Floats = float32x4_t;
        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            unsafe { $name(vdupq_n_s32(x)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const u8) -> Self {
            unsafe { $name(vreinterpretq_s32_u8(vld1q_u8(p))) }
        }
        #[inline(always)]
        unsafe fn spread(p: *const u8) -> Self {
            unsafe { $name(vdupq_n_s32(p.cast::<i32>().read_unaligned())) }
        }
        #[inline(always)]
        unsafe fn prefetch(p: *const u8) {
            unsafe { prefetch(p) }
        }
        #[inline(always)]
        unsafe fn prefetch_near(p: *const u8) {
            unsafe { prefetch_near(p) }
        }
        #[inline(always)]
        unsafe fn prepared(self, _: bool) -> Self {
            self
        }
        #[inline(always)]
        unsafe fn nibbles(self) -> (Self, Self) {
            unsafe {
                let (low, high) = nibbles(vreinterpretq_u8_s32(self.0));
                ($name(low), $name(high))
            }
        }
        #[inline(always)]
        unsafe fn sub(self, b: Self) -> Self {
            unsafe { $name(vsubq_s32(self.0, b.0)) }
        }
        #[inline(always)]
        unsafe fn store_scaled(self, scale: *const f32, by: f32, out: *mut f32) {
            unsafe {
                let scale = vmulq_f32(vld1q_f32(scale), vdupq_n_f32(by));
                vst1q_f32(out, vmulq_f32(vcvtq_f32_s32(self.0), scale));
            }
        }
        #[inline(always)]
        unsafe fn zeros() -> float32x4_t {
            unsafe { vdupq_n_f32(0.0) }
        }
        #[inline(always)]
        unsafe fn load_bf16(p: *const u16) -> float32x4_t {
            unsafe { widen_bf16(p) }
        }
        #[inline(always)]
        unsafe fn add_scaled(self, scale: float32x4_t, to: float32x4_t) -> float32x4_t {
            unsafe { vaddq_f32(to, vmulq_f32(vcvtq_f32_s32(self.0), scale)) }
        }
        #[inline(always)]
        unsafe fn store_floats(v: float32x4_t, by: f32, out: *mut f32) {
            unsafe { vst1q_f32(out, vmulq_f32(v, vdupq_n_f32(by))) }
        }
    };
}

impl Dots for Sdot {
    common!(Sdot);
    const ROWS: usize = 6;
    type Sums = int32x4_t;
    type Small = int32x4_t;
    #[inline(always)]
    unsafe fn none() -> int32x4_t {
        unsafe { vdupq_n_s32(0) }
    }
    #[inline(always)]
    unsafe fn dot(to: int32x4_t, w: Self, x: Self) -> int32x4_t {
        unsafe { sdot(to, w.0, x.0) }
    }
    #[inline(always)]
    unsafe fn sums(of: int32x4_t) -> Self {
        Sdot(of)
    }
    #[inline(always)]
    unsafe fn none_small() -> int32x4_t {
        unsafe { vdupq_n_s32(0) }
    }
    #[inline(always)]
    unsafe fn dot_small(to: int32x4_t, w: Self, x: Self) -> int32x4_t {
        unsafe { sdot(to, w.0, x.0) }
    }
    #[inline(always)]
    unsafe fn total(of: int32x4_t) -> Self {
        Sdot(of)
    }
}

impl Dots for Widening {
    common!(Widening);
    const ROWS: usize = 2;
    /// Sums of two inputs each, for the first and the last two outputs.
    type Sums = (int32x4_t, int32x4_t);
    /// Sums of single inputs, in 16 bits.
    type Small = (int16x8_t, int16x8_t);
    #[inline(always)]
    unsafe fn none() -> Self::Sums {
        unsafe { (vdupq_n_s32(0), vdupq_n_s32(0)) }
    }
    #[inline(always)]
    unsafe fn dot(to: Self::Sums, w: Self, x: Self) -> Self::Sums {
        unsafe {
            let (w, x) = (vreinterpretq_s8_s32(w.0), vreinterpretq_s8_s32(x.0));
            let (low, high) = (vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));
            (vpadalq_s16(to.0, low), vpadalq_s16(to.1, high))
        }
    }
    #[inline(always)]
    unsafe fn sums(of: Self::Sums) -> Self {
        unsafe { Widening(vpaddq_s32(of.0, of.1)) }
    }
    #[inline(always)]
    unsafe fn none_small() -> Self::Small {
        unsafe { (vdupq_n_s16(0), vdupq_n_s16(0)) }
    }
    #[inline(always)]
    unsafe fn dot_small(to: Self::Small, w: Self, x: Self) -> Self::Small {
        // Eight products of at most 15 * 128 fit in 16 bits.
        unsafe {
            let (w, x) = (vreinterpretq_s8_s32(w.0), vreinterpretq_s8_s32(x.0));
            (vmlal_s8(to.0, vget_low_s8(w), vget_low_s8(x)), vmlal_high_s8(to.1, w, x))
        }
    }
    #[inline(always)]
    unsafe fn total(of: Self::Small) -> Self {
        unsafe { Widening(vpaddq_s32(vpaddlq_s16(of.0), vpaddlq_s16(of.1))) }
    }
}
