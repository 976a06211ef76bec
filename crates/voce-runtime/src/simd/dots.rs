//! One register of integer sums: what every instruction set has to multiply and add bytes with.
//!
//! `x86_dots.rs` and `neon_dots.rs` hold the implementations, `integer.rs` the products that are written over them.

/// A register of bytes, four inputs for each of some outputs, or of as many 32-bit sums.
///
/// # Safety
/// Every method may use instructions of the implementation's instruction set: call them only on a CPU that has it, inside a
/// function with the matching `target_feature`. Pointers must be valid for a register; no alignment is needed.
#[allow(clippy::missing_safety_doc)] // the contract above holds for every method
pub trait Dots: Copy {
    /// Outputs in a register.
    const OUTPUTS: usize;
    /// Rows that have registers beside a block of outputs: 2, 4 or 6.
    const ROWS: usize;
    /// Whether int8 sums have 128 times the sum of the weights in them, which a biased row leaves there.
    const BIASED: bool;
    /// What gathers int8 products.
    type Sums: Copy;
    /// What gathers the products of a group of int4.
    type Small: Copy;
    /// As many floats as sums.
    type Floats: Copy;
    /// All sums `x`.
    unsafe fn splat(x: i32) -> Self;
    /// Loads a register.
    unsafe fn load(p: *const u8) -> Self;
    /// The four bytes at `p`, for every output.
    unsafe fn spread(p: *const u8) -> Self;
    /// Asks for what lies at `p`, which need not be valid, before it is read.
    unsafe fn prefetch(p: *const u8);
    /// As [`Dots::prefetch`], as far as the second-level cache.
    unsafe fn prefetch_near(p: *const u8);
    /// Packed int8 weights of a step as `dot` takes them: for split rows unsigned, `w + 128` in even steps and `127 - w` in odd ones.
    unsafe fn prepared(self, odd: bool) -> Self;
    /// The low and the high half of every byte.
    unsafe fn nibbles(self) -> (Self, Self);
    /// No int8 products.
    unsafe fn none() -> Self::Sums;
    /// Adds four products of a prepared weight by a row's byte to every sum.
    unsafe fn dot(to: Self::Sums, w: Self, x: Self) -> Self::Sums;
    /// Adds the products of two steps, no sum of four of which exceeds 16 bits.
    #[inline(always)]
    unsafe fn dot_two(to: Self::Sums, w: [Self; 2], x: [Self; 2]) -> Self::Sums {
        // SAFETY: as the caller vouches.
        unsafe { Self::dot(Self::dot(to, w[0], x[0]), w[1], x[1]) }
    }
    /// The sums of what `dot` gathered.
    unsafe fn sums(of: Self::Sums) -> Self;
    /// No int4 products.
    unsafe fn none_small() -> Self::Small;
    /// Adds four products of a nibble by a signed byte to every sum, at most eight times.
    unsafe fn dot_small(to: Self::Small, w: Self, x: Self) -> Self::Small;
    /// The sums of what `dot_small` gathered.
    unsafe fn total(of: Self::Small) -> Self;
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
