//! Row kernels of a decoder: the best of a row of logits and what it is worth, the best few, the input of a
//! joint network, and the point-wise half of an LSTM cell.
//!
//! NaN never wins and never spreads; of equal values the one with the lowest index wins.

use super::lanes::{F32s, LANES, exp};
use super::vector::{load, sigmoid, store};

/// Values whose maximum is taken together before a winner is looked for among them.
const BLOCK: usize = 4 * LANES;

/// The best of a row, and sums over the row relative to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowStats {
    /// Where the largest value is.
    pub index: usize,
    /// The largest value; minus infinity when there is no number in the row.
    pub max: f32,
    /// Sum of `e^(x - max)`.
    pub sum: f32,
    /// Sum of `(x - max) e^(x - max)`.
    pub dot: f32,
    /// Sum of `e^(alpha (x - max))`.
    pub power: f32,
}

/// Sixteen values from `p`; those past `len` are minus infinity.
#[inline(always)]
unsafe fn load_low<V: F32s>(p: *const f32, len: usize) -> V {
    // SAFETY: `len` values are readable.
    unsafe {
        if len >= LANES {
            return V::load(p);
        }
        let mut tmp = [f32::NEG_INFINITY; LANES];
        std::ptr::copy_nonoverlapping(p, tmp.as_mut_ptr(), len);
        V::load(tmp.as_ptr())
    }
}

/// The largest number among `len <= BLOCK` values.
#[inline(always)]
unsafe fn block_max<V: F32s>(x: *const f32, len: usize) -> f32 {
    // SAFETY: offsets stay under len.
    unsafe {
        let mut best = V::splat(f32::NEG_INFINITY);
        let mut at = 0;
        while at < len {
            // `max` gives its argument where the receiver is NaN.
            best = load_low::<V>(x.add(at), len - at).max(best);
            at += LANES;
        }
        best.hmax()
    }
}

/// Index and value of the largest number of a row (0 and minus infinity if there is none).
///
/// # Safety
/// `x` holds `n > 0` values; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn argmax<V: F32s>(x: *const f32, n: usize) -> (usize, f32) {
    // SAFETY: offsets stay under n.
    unsafe {
        let (mut best, mut block, mut at) = (f32::NEG_INFINITY, 0, 0);
        while at < n {
            let m = block_max::<V>(x.add(at), BLOCK.min(n - at));
            if m > best {
                (best, block) = (m, at);
            }
            at += BLOCK;
        }
        let mut i = block;
        while i < n && *x.add(i) != best {
            i += 1;
        }
        (if i < n { i } else { 0 }, best)
    }
}

/// The best of a row and its sums; `power` only where `alpha > 0`.
///
/// # Safety
/// `x` holds `n > 0` values; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn row_stats<V: F32s>(x: *const f32, n: usize, alpha: f32) -> RowStats {
    // SAFETY: offsets stay under n.
    unsafe {
        let (index, max) = argmax::<V>(x, n);
        if !max.is_finite() {
            return RowStats { index, max, sum: 1.0, dot: 0.0, power: 1.0 };
        }
        let (centre, low, a) = (V::splat(max), V::splat(-87.0), V::splat(alpha));
        let (mut sum, mut dot, mut power) = (V::splat(0.0), V::splat(0.0), V::splat(0.0));
        let mut at = 0;
        while at < n {
            // NaN and what is far below count as e^-87: nothing.
            let d = load_low::<V>(x.add(at), n - at).sub(centre).max(low);
            let e = exp(d);
            sum = sum.add(e);
            dot = e.fma(d, dot);
            if alpha > 0.0 {
                power = power.add(exp(d.mul(a)));
            }
            at += LANES;
        }
        // Lanes past the end counted as e^(-87 alpha), which a small alpha makes noticeable.
        let extra = (n.next_multiple_of(LANES) - n) as f32 * (-87.0 * alpha).exp();
        let power = power.sum() - if alpha > 0.0 { extra } else { 0.0 };
        RowStats { index, max, sum: sum.sum(), dot: dot.sum(), power }
    }
}

/// Writes indices and values of the `k` largest numbers of a row, best first, and returns how many there
/// are (fewer than `k` where the row has fewer numbers above minus infinity).
///
/// # Safety
/// `x` holds `n` values, `index` and `value` have room for `k > 0`; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn top_k<V: F32s>(x: *const f32, n: usize, k: usize, index: *mut u32, value: *mut f32) -> usize {
    // SAFETY: offsets stay under n and k.
    unsafe {
        let (mut found, mut floor, mut at) = (0usize, f32::NEG_INFINITY, 0);
        while at < n {
            let end = (at + BLOCK).min(n);
            if block_max::<V>(x.add(at), end - at) > floor {
                let mut i = at;
                while i < end {
                    let v = *x.add(i);
                    if v > floor {
                        let mut to = if found < k { found } else { k - 1 };
                        while to > 0 && *value.add(to - 1) < v {
                            *value.add(to) = *value.add(to - 1);
                            *index.add(to) = *index.add(to - 1);
                            to -= 1;
                        }
                        *value.add(to) = v;
                        *index.add(to) = i as u32;
                        found = (found + 1).min(k);
                        if found == k {
                            floor = *value.add(k - 1);
                        }
                    }
                    i += 1;
                }
            }
            at = end;
        }
        found
    }
}

/// `out = max(a + b, 0)`.
///
/// # Safety
/// Pointers hold `n` values; the CPU has V's instructions.
#[inline(always)]
pub unsafe fn add_relu<V: F32s>(a: *const f32, b: *const f32, n: usize, out: *mut f32) {
    // SAFETY: offsets stay under n.
    unsafe {
        let zero = V::splat(0.0);
        let mut at = 0;
        while at < n {
            let len = LANES.min(n - at);
            store(load::<V>(a.add(at), len).add(load::<V>(b.add(at), len)).max(zero), out.add(at), len);
            at += LANES;
        }
    }
}

#[inline(always)]
unsafe fn tanh<V: F32s>(x: V) -> V {
    // SAFETY: arithmetic only.
    unsafe { sigmoid(x.add(x)).fma(V::splat(2.0), V::splat(-1.0)) }
}

/// Pointers of a part of one LSTM cell: gates `[4][hidden]` in the order input, forget, cell, output.
#[derive(Clone, Copy)]
pub struct LstmRow {
    /// The part's first value of the input gate, before the non-linearity.
    pub gates: *const f32,
    /// From one gate to the next.
    pub hidden: usize,
    /// Cell state before.
    pub c: *const f32,
    /// Cell state after; may be `c`.
    pub c_out: *mut f32,
    /// Output.
    pub h_out: *mut f32,
}

/// `c' = sigmoid(f) c + sigmoid(i) tanh(g)`, `h = sigmoid(o) tanh(c')`, for `n` values.
///
/// # Safety
/// Pointers hold `n` values (gates: at each of the four offsets); the CPU has V's instructions.
#[inline(always)]
pub unsafe fn lstm_cell<V: F32s>(r: &LstmRow, n: usize) {
    // SAFETY: offsets stay under n.
    unsafe {
        let mut at = 0;
        while at < n {
            let len = LANES.min(n - at);
            let i = sigmoid(load::<V>(r.gates.add(at), len));
            let f = sigmoid(load::<V>(r.gates.add(r.hidden + at), len));
            let g = tanh(load::<V>(r.gates.add(2 * r.hidden + at), len));
            let o = sigmoid(load::<V>(r.gates.add(3 * r.hidden + at), len));
            let c = f.mul(load::<V>(r.c.add(at), len)).add(i.mul(g));
            store(c, r.c_out.add(at), len);
            store(o.mul(tanh(c)), r.h_out.add(at), len);
            at += LANES;
        }
    }
}
