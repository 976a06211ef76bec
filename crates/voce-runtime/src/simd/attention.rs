//! Attention of query rows over one head's ring of keys and values.
//!
//! Keys are visited in order of position, whatever their place in the ring, so the result does not
//! depend on how the stream was cut into calls.

use super::lanes::{F32s, LANES, exp};

/// One query row against a window of a head's ring.
#[derive(Clone, Copy)]
pub struct Attend {
    /// Query, rotated and scaled, zero-padded to `width`.
    pub q: *const f32,
    /// The head's keys `[capacity][width]`.
    pub k: *const u8,
    /// The head's values `[capacity][width]`.
    pub v: *const u8,
    /// Padded head dimension, a multiple of 16.
    pub width: usize,
    /// Ring capacity in positions.
    pub capacity: usize,
    /// First position attended.
    pub start: usize,
    /// Positions attended.
    pub len: usize,
    /// Room for `len` rounded up to 16.
    pub scores: *mut f32,
    /// Output of `width` values.
    pub out: *mut f32,
}

/// How keys and values are stored.
pub trait Element {
    /// Bytes per value.
    const BYTES: usize;
    /// Sixteen values as f32.
    ///
    /// # Safety
    /// Sixteen values are readable at `p`; the CPU has V's instructions.
    unsafe fn load<V: F32s>(p: *const u8) -> V;
}

impl Element for f32 {
    const BYTES: usize = 4;
    #[inline(always)]
    unsafe fn load<V: F32s>(p: *const u8) -> V {
        // SAFETY: per the trait's contract.
        unsafe { V::load(p.cast()) }
    }
}

/// Bf16 storage.
pub struct Bf16;

impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    unsafe fn load<V: F32s>(p: *const u8) -> V {
        // SAFETY: per the trait's contract.
        unsafe { V::load_bf16(p.cast()) }
    }
}

/// Softmax attention.
///
/// # Safety
/// Pointers of `a` are valid for its sizes; `len <= capacity`; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn attend<V: F32s, E: Element>(a: &Attend) {
    // SAFETY: passed on.
    unsafe {
        match a.width / LANES {
            1 => attend_chunks::<V, E, 1>(a, 0),
            2 => attend_chunks::<V, E, 2>(a, 0),
            4 => attend_chunks::<V, E, 4>(a, 0),
            8 => attend_chunks::<V, E, 8>(a, 0),
            n => {
                scores_any::<V, E>(a);
                let total = softmax::<V>(a.scores, a.len);
                for c in 0..n {
                    values::<V, E, 1>(a, c, total);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn attend_chunks<V: F32s, E: Element, const C: usize>(a: &Attend, _: usize) {
    // SAFETY: passed on.
    unsafe {
        scores::<V, E, C>(a);
        let total = softmax::<V>(a.scores, a.len);
        values::<V, E, C>(a, 0, total);
    }
}

/// The window as one or two runs of the ring: `(first slot, first index in window, length)`.
#[inline(always)]
fn runs(a: &Attend) -> [(usize, usize, usize); 2] {
    let at = a.start % a.capacity;
    let first = a.len.min(a.capacity - at);
    [(at, 0, first), (0, first, a.len - first)]
}

#[inline(always)]
unsafe fn scores<V: F32s, E: Element, const C: usize>(a: &Attend) {
    // SAFETY: slots and indices stay inside the ring and the score buffer.
    unsafe {
        let q: [V; C] = std::array::from_fn(|c| V::load(a.q.add(c * LANES)));
        let row = a.width * E::BYTES;
        for (slot, index, len) in runs(a) {
            let mut k = a.k.add(slot * row);
            for i in 0..len {
                let mut acc = q[0].mul(E::load::<V>(k));
                for (c, q) in q.iter().enumerate().skip(1) {
                    acc = q.fma(E::load::<V>(k.add(c * LANES * E::BYTES)), acc);
                }
                *a.scores.add(index + i) = acc.sum();
                k = k.add(row);
            }
        }
    }
}

#[inline(always)]
unsafe fn scores_any<V: F32s, E: Element>(a: &Attend) {
    // SAFETY: as `scores`.
    unsafe {
        let row = a.width * E::BYTES;
        for (slot, index, len) in runs(a) {
            for i in 0..len {
                let k = a.k.add((slot + i) * row);
                let mut acc = V::splat(0.0);
                for c in 0..a.width / LANES {
                    acc = V::load(a.q.add(c * LANES)).fma(E::load::<V>(k.add(c * LANES * E::BYTES)), acc);
                }
                *a.scores.add(index + i) = acc.sum();
            }
        }
    }
}

/// Turns scores into weights in place (not normalised) and returns their sum.
#[inline(always)]
unsafe fn softmax<V: F32s>(s: *mut f32, n: usize) -> f32 {
    // SAFETY: the buffer has room for n rounded up to 16.
    unsafe {
        let padded = n.next_multiple_of(LANES);
        for i in n..padded {
            *s.add(i) = f32::NEG_INFINITY;
        }
        let mut m = V::splat(f32::NEG_INFINITY);
        for i in (0..padded).step_by(LANES) {
            m = m.max(V::load(s.add(i)));
        }
        let m = V::splat(m.hmax());
        let mut sum = V::splat(0.0);
        for i in (0..padded).step_by(LANES) {
            // exp clamps at e^-87, about 1e-38: padding and far keys vanish against the maximum's 1.
            let e = exp(V::load(s.add(i)).sub(m));
            e.store(s.add(i));
            if i + LANES <= n {
                sum = sum.add(e);
            }
        }
        let mut total = sum.sum();
        for i in n / LANES * LANES..n {
            total += *s.add(i);
        }
        total
    }
}

#[inline(always)]
unsafe fn values<V: F32s, E: Element, const C: usize>(a: &Attend, chunk: usize, total: f32) {
    // SAFETY: slots and chunks stay inside the ring.
    unsafe {
        let mut acc = [V::splat(0.0); C];
        let row = a.width * E::BYTES;
        for (slot, index, len) in runs(a) {
            let mut v = a.v.add(slot * row + chunk * LANES * E::BYTES);
            for i in 0..len {
                let p = V::splat(*a.scores.add(index + i));
                for (c, acc) in acc.iter_mut().enumerate() {
                    *acc = p.fma(E::load::<V>(v.add(c * LANES * E::BYTES)), *acc);
                }
                v = v.add(row);
            }
        }
        let inv = V::splat(1.0 / total);
        for (c, acc) in acc.iter().enumerate() {
            acc.mul(inv).store(a.out.add((chunk + c) * LANES));
        }
    }
}
