//! Rotation, cache write and attention over the rings as one op.

use super::kv_cache::TILE;
use super::{Buffer, Exec, KvCache, KvFormat, Shared, Span};
use crate::memory::AlignedVec;
use crate::pool::share;
use crate::simd::gemm::Gemm;
use crate::simd::lanes::LANES;
use crate::simd::{Activation, Kernels};

/// Which values of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(x[2i], x[2i + 1])`.
    Interleaved,
    /// `(x[i], x[i + dim / 2])`.
    Halves,
}

/// Rotary position embedding with its table made once.
#[derive(Clone)]
pub struct Rope {
    style: RopeStyle,
    freqs: Vec<f32>,
    /// `[position][cos.., sin..]`.
    table: AlignedVec<f32>,
}

impl Rope {
    /// Angles `position * period^(-2i / dim)`, tabulated for the first `positions`.
    pub fn new(style: RopeStyle, dim: usize, period: f32, positions: usize) -> Self {
        let step = -period.ln() * 2.0 / dim as f32;
        let freqs: Vec<f32> = (0..dim / 2).map(|i| (i as f32 * step).exp()).collect();
        let mut rope = Self { style, freqs, table: AlignedVec::zeroed(positions * dim / 2 * 2) };
        let mut table = std::mem::replace(&mut rope.table, AlignedVec::zeroed(0));
        let half = rope.freqs.len();
        for (p, row) in table.chunks_exact_mut(2 * half.max(1)).enumerate() {
            for i in 0..half {
                (row[i], row[half + i]) = rope.angle(p, i);
            }
        }
        rope.table = table;
        rope
    }

    /// Cosine and sine of pair `i` at a position; the angle itself is an f32 product.
    fn angle(&self, position: usize, i: usize) -> (f32, f32) {
        let a = (self.freqs[i] * position as f32) as f64;
        (a.cos() as f32, a.sin() as f32)
    }

    /// Rotates one head's row.
    pub fn rotate(&self, position: usize, x: &mut [f32]) {
        let half = self.freqs.len();
        let row = self.table.get(position * 2 * half..(position + 1) * 2 * half);
        for i in 0..half {
            let (cos, sin) = match row {
                Some(row) => (row[i], row[half + i]),
                None => self.angle(position, i),
            };
            let (a, b) = match self.style {
                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                RopeStyle::Halves => (i, i + half),
            };
            let (re, im) = (x[a], x[b]);
            x[a] = re * cos - im * sin;
            x[b] = re * sin + im * cos;
        }
    }
}

/// Causal attention of each row over its slot's past, the row included.
pub struct AttentionOp<'a> {
    /// Rows of `[q | k | v]`.
    pub qkv: &'a Buffer,
    /// Whose rows they are.
    pub spans: &'a [Span],
    /// Where keys and values are kept; positions are advanced by the caller after all layers.
    pub cache: &'a mut KvCache,
    /// The layer's index in the cache.
    pub layer: usize,
    /// Query heads, a multiple of the cache's heads.
    pub heads: usize,
    /// Positions a row can see, itself included.
    pub window: Option<usize>,
    /// Rotation of queries and keys.
    pub rope: Option<&'a Rope>,
}

impl Exec {
    /// Writes the rows' keys and values to the cache and the attention output to `out`.
    pub fn attention(&mut self, op: AttentionOp<'_>, out: &mut Buffer) {
        let spec = *op.cache.spec();
        let (dim, width, kv_heads) = (spec.head_dim, spec.width(), spec.kv_heads);
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        assert_eq!(op.heads % kv_heads, 0, "query heads share key heads evenly");
        assert!(op.heads / kv_heads <= MAX_GROUP, "at most {MAX_GROUP} query heads share a key head");
        assert_eq!(op.qkv.cols, (op.heads + 2 * kv_heads) * dim, "qkv width");
        assert!(rows <= op.qkv.rows && rows <= out.rows && op.heads * dim <= out.cols, "rows fit");
        let mut longest = 0;
        for s in op.spans {
            let end = op.cache.position(s.slot) + s.rows;
            match op.window {
                Some(w) => assert!(w + s.rows <= spec.capacity + 1, "ring holds window and rows"),
                None => assert!(end <= spec.capacity, "position {end} past capacity {}", spec.capacity),
            }
            longest = longest.max(op.window.map_or(end, |w| end.min(w)));
        }
        let group = op.heads / kv_heads;
        let block = QUERY_ROWS.min(op.spans.iter().map(|s| s.rows).max().unwrap_or(0)) * group;
        // Scores of a block of rows: the longest window, the block's own rows, and both ends' tiles. Queries
        // and weights may be wanted in bf16 as well.
        let keys = (longest + QUERY_ROWS + 2 * TILE).next_multiple_of(TILE);
        for s in &mut self.scratch.rows {
            s.reserve_zeroed(block * (2 * width + keys + (width.max(keys)).div_ceil(2)) + LANES);
        }
        let threads = self.pool.threads();
        let kernels = self.kernels;
        let (qkv, spans, layer, rope, window) = (op.qkv, op.spans, op.layer, op.rope, op.window);
        let storage = Shared(op.cache.base());
        let cache = &*op.cache;
        let (out, cols) = (Shared(out.data.as_mut_ptr()), out.cols);
        let temp = Shared(self.scratch.rows.as_mut_ptr());
        let scale = 1.0 / (dim as f32).sqrt();
        self.pool.run(|id| {
            // SAFETY: each worker has its own scratch.
            let temp = unsafe { &mut *temp.get().add(id) };
            let (q, temp) = temp.split_at_mut(block * width);
            let (result, temp) = temp.split_at_mut(block * width);
            let (scores, narrow) = temp.split_at_mut(block * keys);
            for item in share(spans.len() * kv_heads, 1, id, threads) {
                let (span, head) = (item / kv_heads, item % kv_heads);
                let first: usize = spans[..span].iter().map(|s| s.rows).sum();
                let Span { slot, rows } = spans[span];
                let start = cache.position(slot);
                let rings = cache.rings(layer, slot, head);
                for r in 0..rows {
                    let row = qkv.row(first + r);
                    let key = &mut q[..dim];
                    key.copy_from_slice(&row[(op.heads + head) * dim..][..dim]);
                    if let Some(rope) = rope {
                        rope.rotate(start + r, key);
                    }
                    let at = (start + r) % spec.capacity;
                    let value = &row[(op.heads + kv_heads + head) * dim..][..dim];
                    // SAFETY: items (span, head) are split by worker, so these rings are this worker's.
                    unsafe {
                        spec.put(storage.get(), rings[0], 0, at, key);
                        spec.put(storage.get(), rings[1], 1, at, value);
                    }
                }
                let value_bytes = if spec.format == KvFormat::F32 { 4 } else { 2 };
                // SAFETY: ring offsets are inside the storage.
                let [k, v] = rings.map(|r| unsafe { storage.get().add(r * value_bytes) }.cast_const());
                for part in (0..rows).step_by(QUERY_ROWS) {
                    let n = QUERY_ROWS.min(rows - part);
                    q[..n * group * width].fill(0.0);
                    for (i, q) in q.chunks_exact_mut(width).take(n * group).enumerate() {
                        let (r, h) = (part + i / group, head * group + i % group);
                        q[..dim].copy_from_slice(&qkv.row(first + r)[h * dim..][..dim]);
                        if let Some(rope) = rope {
                            rope.rotate(start + r, &mut q[..dim]);
                        }
                        q[..dim].iter_mut().for_each(|x| *x *= scale);
                    }
                    let tile =
                        Tile { k, v, width, capacity: spec.capacity, bf16: spec.format == KvFormat::Bf16 };
                    let at = start + part;
                    // SAFETY: the ring holds the window of these rows; scratch was reserved for it.
                    unsafe { tile.attend(kernels, q, at, n, group, window, scores, narrow, result) };
                    for (i, result) in result.chunks_exact(width).take(n * group).enumerate() {
                        let (r, h) = (part + i / group, head * group + i % group);
                        // SAFETY: this head's columns of this row belong to this worker.
                        unsafe {
                            let to = out.get().add((first + r) * cols + h * dim);
                            std::ptr::copy_nonoverlapping(result.as_ptr(), to, dim);
                        }
                    }
                }
            }
            (kernels.release)();
        });
    }
}

/// Query heads that may share a key head.
const MAX_GROUP: usize = 64;
/// Query rows of one slot that share a pass over its keys.
const QUERY_ROWS: usize = 16;

/// One head's rings.
struct Tile {
    k: *const u8,
    v: *const u8,
    width: usize,
    capacity: usize,
    bf16: bool,
}

impl Tile {
    /// Attention of `n` rows (each `group` queries) from position `at` on.
    ///
    /// # Safety
    /// The rings hold every position of the rows' windows; `q` and `result` have `n * group` rows and
    /// `scores` and `narrow` as many of the window rounded out to tiles.
    #[allow(clippy::too_many_arguments)] // one call site
    unsafe fn attend(
        &self,
        kn: &Kernels,
        q: &[f32],
        at: usize,
        n: usize,
        group: usize,
        window: Option<usize>,
        scores: &mut [f32],
        narrow: &mut [f32],
        result: &mut [f32],
    ) {
        let from = |position: usize| window.map_or(0, |w| (position + 1).saturating_sub(w));
        // Tiles begin at multiples of their size: how sums are grouped depends on positions alone.
        let base = from(at) / TILE * TILE;
        let len = (at + n - base).next_multiple_of(TILE);
        let (value, m) = (if self.bf16 { 2 } else { 4 }, n * group);
        let gemm = if self.bf16 { kn.gemm_bf16 } else { kn.gemm_f32 };
        // The left operand as the product wants it: f32 as it is, or rounded to bf16.
        let rounded = self.bf16 && kn.bf16_activations;
        let narrow = narrow.as_mut_ptr();
        let operand = |rows: *const f32, width: usize| {
            if !rounded {
                return (rows.cast::<u8>(), 4);
            }
            // SAFETY: `narrow` has room for m rows of either operand.
            unsafe { (kn.map_bf16)(rows, m * width, Activation::None, narrow.cast()) };
            (narrow.cast::<u8>().cast_const(), 2)
        };
        let (a, a_value) = operand(q.as_ptr(), self.width);
        // The window is one or more runs of the ring: (position in the window, in the ring, length). Rounded
        // out to panels it may overlap itself; what is seen twice is outside every row's window once.
        let run = |index: usize| {
            let ring = (base + index) % self.capacity;
            (index, ring, (len - index).min(self.capacity - ring))
        };
        let next = |&(index, _, n): &(usize, usize, usize)| (index + n < len).then(|| run(index + n));
        let runs = || std::iter::successors(Some(run(0)), next);
        let mut g = Gemm {
            a,
            lda: self.width * a_value,
            m,
            k: self.width,
            b: self.k,
            panel: self.width * LANES * value,
            panels: 0,
            c: scores.as_mut_ptr(),
            ldc: len,
            a_scale: std::ptr::null(),
            b_scale: std::ptr::null(),
            b_sum: std::ptr::null(),
            a_sums: std::ptr::null(),
            accumulate: false,
        };
        for (index, ring, len) in runs() {
            g.panels = len / LANES;
            // SAFETY: panels of the run are inside the ring, columns inside the scores.
            unsafe {
                g.b = self.k.add(ring * self.width * value);
                g.c = scores.as_mut_ptr().add(index);
                gemm(&g);
            }
        }
        let mut totals = [0f32; QUERY_ROWS * MAX_GROUP];
        for (i, total) in totals[..m].iter_mut().enumerate() {
            let position = at + i / group;
            // SAFETY: row i of the scores.
            *total = unsafe {
                (kn.softmax)(
                    scores.as_mut_ptr().add(i * len),
                    from(position) - base,
                    position + 1 - base,
                    len,
                )
            };
        }
        let (a, a_value) = operand(scores.as_ptr(), len);
        g.lda = len * a_value;
        g.ldc = self.width;
        g.panels = self.width / LANES;
        g.panel = self.capacity * LANES * value;
        g.c = result.as_mut_ptr();
        for (index, ring, len) in runs() {
            // SAFETY: positions of the run are inside each panel of values.
            unsafe {
                g.a = a.add(index * a_value);
                g.b = self.v.add(ring * LANES * value);
                g.k = len;
                gemm(&g);
            }
            g.accumulate = true;
        }
        for (row, total) in result.chunks_exact_mut(self.width).zip(&totals[..m]) {
            row.iter_mut().for_each(|x| *x *= 1.0 / total);
        }
    }
}
