//! Softmax over a row of attention scores.

use super::lanes::{F32s, LANES, exp};

/// Turns `scores[first..end]` into weights, not normalised, and everything else of `0..len` (a multiple
/// of 16) into zeros; returns the weights' sum. Sums run in order of position from the first, so they do
/// not depend on where in the row the window lies.
///
/// # Safety
/// `len` values at `scores`; `first < end <= len`; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn softmax<V: F32s>(scores: *mut f32, first: usize, end: usize, len: usize) -> f32 {
    // SAFETY: all offsets are under len.
    unsafe {
        for i in (0..first).chain(end..len) {
            *scores.add(i) = f32::NEG_INFINITY;
        }
        let (low, high) = (first / LANES * LANES, end.next_multiple_of(LANES));
        let mut max = V::splat(f32::NEG_INFINITY);
        let mut i = low;
        while i < high {
            max = max.max(V::load(scores.add(i)));
            i += LANES;
        }
        let max = V::splat(max.hmax());
        i = low;
        while i < high {
            exp(V::load(scores.add(i)).sub(max)).store(scores.add(i));
            i += LANES;
        }
        for i in (0..first).chain(end..len) {
            *scores.add(i) = 0.0;
        }
        let mut sum = V::splat(0.0);
        i = first;
        while i + LANES <= end {
            sum = sum.add(V::load(scores.add(i)));
            i += LANES;
        }
        let mut total = sum.sum();
        while i < end {
            total += *scores.add(i);
            i += 1;
        }
        total
    }
}
