//! Sixteen f32 lanes: the one vector type that every kernel is written over.
//!
//! Implementations: portable arrays (which compile to NEON or SSE2), two AVX2 registers, one AVX-512
//! register. Methods are `inline(always)` and meant to be called inside a function that has the
//! matching `target_feature`.

/// Lanes per vector.
pub const LANES: usize = 16;

/// A block of outputs that a product keeps in registers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// Two rows by two panels.
    Square,
    /// As many rows as fit beside one panel: sixteen registers of half a panel.
    Tall,
    /// Six rows by four panels: thirty-two registers of a panel.
    Wide,
}

/// Sixteen f32 lanes.
///
/// # Safety
/// Every method may use instructions of the implementation's instruction set: call them only on a CPU
/// that has it. Pointer arguments must be valid for 16 values (or as stated); no alignment is needed.
#[allow(clippy::missing_safety_doc)] // the contract above holds for every method
pub trait F32s: Copy {
    /// The block of outputs that this implementation has registers for.
    const BLOCK: Block;
    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self;
    /// Loads 16 values.
    unsafe fn load(p: *const f32) -> Self;
    /// Stores 16 values.
    unsafe fn store(self, p: *mut f32);
    /// Loads 16 bf16 values.
    unsafe fn load_bf16(p: *const u16) -> Self;
    /// Stores 16 values rounded to nearest-even bf16.
    unsafe fn store_bf16(self, p: *mut u16);
    /// From 16 pairs of bf16 (32 values): the even and the odd ones.
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self);
    /// `self * b + c`.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// Sum.
    unsafe fn add(self, b: Self) -> Self;
    /// Difference.
    unsafe fn sub(self, b: Self) -> Self;
    /// Product.
    unsafe fn mul(self, b: Self) -> Self;
    /// Quotient.
    unsafe fn div(self, b: Self) -> Self;
    /// One over a positive normal number, to two units in the last place.
    #[inline(always)]
    unsafe fn reciprocal(self) -> Self {
        // SAFETY: arithmetic only.
        unsafe { Self::splat(1.0).div(self) }
    }
    /// Lane-wise maximum.
    unsafe fn max(self, b: Self) -> Self;
    /// Lane-wise minimum.
    unsafe fn min(self, b: Self) -> Self;
    /// Magnitude.
    unsafe fn abs(self) -> Self;
    /// Nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// Two to the power of lanes that hold integers in -126..=127.
    unsafe fn exp2_int(self) -> Self;
    /// Lane-wise `if self > 0 { a } else { b }`.
    unsafe fn positive(self, a: Self, b: Self) -> Self;
    /// Sum of lanes.
    unsafe fn sum(self) -> f32;
    /// Largest lane.
    unsafe fn hmax(self) -> f32;
    /// Lanes rounded to integers and stored as unsigned bytes after adding 128.
    unsafe fn store_u8_biased(self, p: *mut u8);
}

/// e^x by range reduction and a degree-6 polynomial; relative error under 2e-7 for -87 < x < 88.
///
/// # Safety
/// As for [`F32s`].
#[inline(always)]
pub unsafe fn exp<V: F32s>(x: V) -> V {
    // SAFETY: the caller vouches for the instruction set.
    unsafe {
        let x = x.max(V::splat(-87.0)).min(V::splat(88.0));
        let n = x.mul(V::splat(std::f32::consts::LOG2_E)).round();
        let r = n.fma(V::splat(-0.693_359_4), x);
        let r = n.fma(V::splat(2.121_944_4e-4), r);
        let p = V::splat(1.388_888_9e-3);
        let p = p.fma(r, V::splat(8.333_334e-3));
        let p = p.fma(r, V::splat(4.166_666_8e-2));
        let p = p.fma(r, V::splat(0.166_666_67));
        let p = p.fma(r, V::splat(0.5));
        let p = p.fma(r, V::splat(1.0));
        let p = p.fma(r, V::splat(1.0));
        p.mul(n.exp2_int())
    }
}

/// Portable lanes.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub struct Portable([f32; LANES]);

macro_rules! lanewise {
    ($($a:ident = $v:expr),+; $e:expr) => {{
        let mut out = [0f32; LANES];
        for (i, o) in out.iter_mut().enumerate() {
            $(let $a = $v.0[i];)+
            *o = $e;
        }
        Portable(out)
    }};
}

impl F32s for Portable {
    const BLOCK: Block = Block::Square;
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Portable([x; LANES])
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller gives 16 readable values.
        Portable(unsafe { p.cast::<[f32; LANES]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller gives room for 16 values.
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self {
        // SAFETY: the caller gives 16 readable values.
        let raw = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        Portable(raw.map(|b| f32::from_bits((b as u32) << 16)))
    }
    #[inline(always)]
    unsafe fn store_bf16(self, p: *mut u16) {
        let raw = self.0.map(round_bf16);
        // SAFETY: the caller gives room for 16 values.
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(raw) }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(p: *const u16) -> (Self, Self) {
        // SAFETY: the caller gives 32 readable values.
        let raw = unsafe { p.cast::<[u16; 2 * LANES]>().read_unaligned() };
        let (mut even, mut odd) = ([0f32; LANES], [0f32; LANES]);
        for i in 0..LANES {
            even[i] = f32::from_bits((raw[2 * i] as u32) << 16);
            odd[i] = f32::from_bits((raw[2 * i + 1] as u32) << 16);
        }
        (Portable(even), Portable(odd))
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        // Without an FMA unit `mul_add` would call libm.
        if cfg!(target_arch = "aarch64") {
            lanewise!(x = self, b = b, c = c; x.mul_add(b, c))
        } else {
            lanewise!(x = self, b = b, c = c; x * b + c)
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        lanewise!(x = self, b = b; x + b)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        lanewise!(x = self, b = b; x - b)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        lanewise!(x = self, b = b; x * b)
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        lanewise!(x = self, b = b; x / b)
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        lanewise!(x = self, b = b; if x > b { x } else { b })
    }
    #[inline(always)]
    unsafe fn min(self, b: Self) -> Self {
        lanewise!(x = self, b = b; if x < b { x } else { b })
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        lanewise!(x = self; x.abs())
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        // Adding and subtracting 1.5 * 2^23 rounds to even in plain arithmetic, for |x| < 2^22.
        const MAGIC: f32 = 12_582_912.0;
        lanewise!(x = self; (x + MAGIC) - MAGIC)
    }
    #[inline(always)]
    unsafe fn exp2_int(self) -> Self {
        lanewise!(x = self; f32::from_bits(((x as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn positive(self, a: Self, b: Self) -> Self {
        lanewise!(x = self, a = a, b = b; if x > 0.0 { a } else { b })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        let mut v = self.0;
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                v[i] += v[i + width];
            }
        }
        v[0]
    }
    #[inline(always)]
    unsafe fn hmax(self) -> f32 {
        self.0.iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m })
    }
    #[inline(always)]
    unsafe fn store_u8_biased(self, p: *mut u8) {
        // SAFETY: delegated to the caller.
        let r = unsafe { self.round() };
        let raw = r.0.map(|x| (x as i32 + 128) as u8);
        // SAFETY: the caller gives room for 16 bytes.
        unsafe { p.cast::<[u8; LANES]>().write_unaligned(raw) }
    }
}

/// Rounds to the nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
pub fn round_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return ((bits >> 16) | 0x40) as u16;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}
