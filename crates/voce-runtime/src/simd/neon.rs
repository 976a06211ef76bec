//! NEON implementation of the sixteen lanes. Comparisons, rounding and order of sums are those of the portable lanes, so
//! that both give the same bits, of NaN as well.
#![allow(clippy::undocumented_unsafe_blocks)] // every block: intrinsics under the trait's own contract

use std::arch::aarch64::*;

use super::lanes::{Block, F32s};

/// Four NEON registers.
#[derive(Clone, Copy)]
pub struct Neon(float32x4_t, float32x4_t, float32x4_t, float32x4_t);

macro_rules! all {
    ($f:ident, $a:expr $(, $b:expr)*) => {
        unsafe { Neon($f($a.0 $(, $b.0)*), $f($a.1 $(, $b.1)*), $f($a.2 $(, $b.2)*), $f($a.3 $(, $b.3)*)) }
    };
}

/// The larger of each pair, and `b` where either is NaN.
#[inline(always)]
unsafe fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

/// The smaller of each pair, and `b` where either is NaN.
#[inline(always)]
unsafe fn smaller(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

#[inline(always)]
unsafe fn fused(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
    unsafe { vfmaq_f32(c, a, b) }
}

#[inline(always)]
unsafe fn power(n: float32x4_t) -> float32x4_t {
    unsafe { vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)))) }
}

#[inline(always)]
unsafe fn where_positive(v: float32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
    unsafe { vbslq_f32(vcgtzq_f32(v), a, b) }
}

/// Four bf16 values, widened.
#[inline(always)]
pub(super) unsafe fn widen_bf16(p: *const u16) -> float32x4_t {
    unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
}

/// Four values rounded to the nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
unsafe fn narrow_bf16(v: float32x4_t) -> uint16x4_t {
    unsafe {
        let bits = vreinterpretq_u32_f32(v);
        let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
        let sum = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
        let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
        vshrn_n_u32::<16>(vbslq_u32(vceqq_f32(v, v), sum, quiet))
    }
}

/// From four pairs of bf16: the even and the odd ones.
#[inline(always)]
unsafe fn bf16_pairs(p: *const u16) -> (float32x4_t, float32x4_t) {
    unsafe {
        let raw = vreinterpretq_u32_u8(vld1q_u8(p.cast()));
        let odd = vandq_u32(raw, vdupq_n_u32(0xffff_0000));
        (vreinterpretq_f32_u32(vshlq_n_u32::<16>(raw)), vreinterpretq_f32_u32(odd))
    }
}

/// Eight values rounded to integers.
#[inline(always)]
unsafe fn integers(a: float32x4_t, b: float32x4_t) -> int16x8_t {
    unsafe { vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a)), vmovn_s32(vcvtnq_s32_f32(b))) }
}

impl F32s for Neon {
    // Six rows beside a panel are 24 of the 32 registers.
    const BLOCK: Block = Block::Tall;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        let v = unsafe { vdupq_n_f32(x) };
        Neon(v, v, v, v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        unsafe { Neon(vld1q_f32(p), vld1q_f32(p.add(4)), vld1q_f32(p.add(8)), vld1q_f32(p.add(12))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        unsafe {
            vst1q_f32(p, self.0);
            vst1q_f32(p.add(4), self.1);
            vst1q_f32(p.add(8), self.2);
            vst1q_f32(p.add(12), self.3);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        unsafe { Neon(widen_bf16(p), widen_bf16(p.add(4)), widen_bf16(p.add(8)), widen_bf16(p.add(12))) }
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16) {
        unsafe {
            vst1_u16(p, narrow_bf16(self.0));
            vst1_u16(p.add(4), narrow_bf16(self.1));
            vst1_u16(p.add(8), narrow_bf16(self.2));
            vst1_u16(p.add(12), narrow_bf16(self.3));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self) {
        unsafe {
            let (a, b) = (bf16_pairs(p), bf16_pairs(p.add(8)));
            let (c, d) = (bf16_pairs(p.add(16)), bf16_pairs(p.add(24)));
            (Neon(a.0, b.0, c.0, d.0), Neon(a.1, b.1, c.1, d.1))
        }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        all!(fused, self, b, c)
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        all!(vaddq_f32, self, b)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        all!(vsubq_f32, self, b)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        all!(vmulq_f32, self, b)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        all!(vdivq_f32, self, b)
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        all!(larger, self, b)
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        all!(smaller, self, b)
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        all!(vabsq_f32, self)
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        all!(vrndnq_f32, self)
    }
    #[inline(always)]
    unsafe fn exp2_int(self) -> Self {
        all!(power, self)
    }
    #[inline(always)]
    unsafe fn positive(self, a: Self, b: Self) -> Self {
        all!(where_positive, self, a, b)
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let v = vaddq_f32(vaddq_f32(self.0, self.2), vaddq_f32(self.1, self.3));
            vaddv_f32(vadd_f32(vget_low_f32(v), vget_high_f32(v)))
        }
    }
    #[inline(always)]
    unsafe fn hmax(self) -> f32 {
        // The maximum that passes over NaN, unless there is nothing else: then minus infinity.
        unsafe {
            let v = vmaxnmq_f32(vmaxnmq_f32(self.0, self.1), vmaxnmq_f32(self.2, self.3));
            vmaxnmvq_f32(vmaxnmq_f32(v, vdupq_n_f32(f32::NEG_INFINITY)))
        }
    }
    #[inline(always)]
    unsafe fn store_u8_biased(self, p: *mut u8) {
        unsafe {
            let bytes = vcombine_s8(vmovn_s16(integers(self.0, self.1)), vmovn_s16(integers(self.2, self.3)));
            vst1q_u8(p, veorq_u8(vreinterpretq_u8_s8(bytes), vdupq_n_u8(0x80)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{LANES, Portable, exp};
    use super::*;

    /// Numbers of every kind, each beside each other once.
    const VALUES: [f32; 13] = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        2.5,
        -126.0,
        126.5,
        1.1e-3,
        -3.7e-39,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        12_345.678,
    ];

    fn rows() -> impl Iterator<Item = ([f32; LANES], [f32; LANES])> {
        (0..VALUES.len()).map(|shift| {
            let row = |by: usize| std::array::from_fn(|i| VALUES[(i * by + shift) % VALUES.len()]);
            (row(1), row(5))
        })
    }

    fn bits<V: F32s>(v: V) -> [u32; LANES] {
        let mut out = [0f32; LANES];
        // SAFETY: room for sixteen values; every 64-bit ARM CPU has NEON.
        unsafe { v.store(out.as_mut_ptr()) };
        // The bits of a NaN that arithmetic made are the machine's own affair.
        out.map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() })
    }

    /// What every method makes of two rows, as bits.
    fn all<V: F32s>(a: &[f32; LANES], b: &[f32; LANES]) -> Vec<[u32; LANES]> {
        // SAFETY: sixteen values each; every 64-bit ARM CPU has NEON.
        unsafe {
            let (x, y) = (V::load(a.as_ptr()), V::load(b.as_ptr()));
            let mut narrow = [0u16; 2 * LANES];
            x.store_bf16(narrow.as_mut_ptr());
            y.store_bf16(narrow[LANES..].as_mut_ptr());
            let (even, odd) = V::load_bf16_pairs(narrow.as_ptr());
            let wide = V::load_bf16(narrow.as_ptr());
            let limited = x.max(V::splat(-127.0)).min(V::splat(127.0));
            let mut bytes = [0u8; LANES];
            limited.store_u8_biased(bytes.as_mut_ptr());
            let whole = limited.round();
            vec![
                bits(x.fma(y, V::splat(0.7))),
                bits(x.add(y)),
                bits(x.sub(y)),
                bits(x.mul(y)),
                bits(x.div(y)),
                bits(x.max(y)),
                bits(x.min(y)),
                bits(x.abs()),
                // Zeros of either sign are rounded to one of them here and to another there.
                bits(whole.add(V::splat(0.0))),
                bits(whole.max(V::splat(-126.0)).exp2_int()),
                bits(x.positive(y, V::splat(3.0))),
                bits(exp(limited)),
                bits(even),
                bits(odd),
                bits(wide),
                bits(V::splat(limited.sum())),
                bits(V::splat(x.hmax())),
                bytes.map(u32::from),
                std::array::from_fn(|i| narrow[i] as u32),
            ]
        }
    }

    #[test]
    fn neon_lanes_have_the_bits_of_the_portable_ones() {
        for (a, b) in rows() {
            assert_eq!(all::<Neon>(&a, &b), all::<Portable>(&a, &b), "{a:?} and {b:?}");
        }
        let none = [f32::NAN; LANES];
        assert_eq!(all::<Neon>(&none, &none), all::<Portable>(&none, &none));
    }
}
