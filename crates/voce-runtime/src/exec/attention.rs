//! Rotation, cache write and attention over the rings as one op.

use super::attend::{MAX_GROUP, QUERY_ROWS, Queries, Tile};
use super::kv_cache::TILE;
use super::{Buffer, Exec, HeadNorms, KvCache, KvFormat, Output, Shared, Span, Target, Vector};
use crate::cuda::Cuda;
use crate::pool::share;
use crate::simd::lanes::LANES;

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
    pub(crate) style: RopeStyle,
    pub(crate) freqs: Vector,
    /// `[position][cos.., sin..]`.
    pub(crate) table: Vector,
}

impl Rope {
    /// Angles `position * period^(-2i / dim)`, tabulated for the first `positions`.
    pub fn new(style: RopeStyle, dim: usize, period: f32, positions: usize) -> Self {
        let step = -period.ln() * 2.0 / dim as f32;
        let freqs: Vector = (0..dim / 2).map(|i| (i as f32 * step).exp()).collect();
        let half = freqs.len();
        let mut rope = Self { style, freqs, table: Vector::default() };
        let mut table = vec![0f32; positions * 2 * half];
        for (p, row) in table.chunks_exact_mut(2 * half.max(1)).enumerate() {
            for i in 0..half {
                (row[i], row[half + i]) = rope.angle(p, i);
            }
        }
        rope.table = table.into();
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
    /// Norms of queries and keys before rotation, where [`Exec::norms_heads`] says that attention takes them.
    pub norms: Option<HeadNorms<'a>>,
    /// Rotation of queries and keys.
    pub rope: Option<&'a Rope>,
}

impl Exec {
    /// Whether attention of these rows norms heads itself, where `group` query heads share a key head; otherwise the caller
    /// runs [`Exec::head_norm`] before it.
    pub fn norms_heads(&self, spans: &[Span], group: usize) -> bool {
        self.cuda.is_some() && Cuda::norms_heads(spans, group)
    }

    /// Writes the rows' keys and values to the cache and the attention output to `out`.
    pub fn attention(&mut self, op: AttentionOp<'_>, out: &mut impl Target) {
        self.attention_to(op, out.output());
    }

    fn attention_to(&mut self, op: AttentionOp<'_>, output: Output<'_>) {
        let out = &*output.buffer;
        let spec = *op.cache.spec();
        let (dim, width, kv_heads) = (spec.head_dim, spec.width(), spec.kv_heads);
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        assert_eq!(op.heads % kv_heads, 0, "query heads share key heads evenly");
        assert!(op.heads / kv_heads <= MAX_GROUP, "at most {MAX_GROUP} query heads share a key head");
        assert_eq!(op.qkv.cols, (op.heads + 2 * kv_heads) * dim, "qkv width");
        assert!(rows <= op.qkv.rows && rows <= out.rows && op.heads * dim <= out.cols, "rows fit");
        assert!(op.layer < spec.layers, "layer {} of {}", op.layer, spec.layers);
        assert!(op.rope.is_none_or(|r| 2 * r.freqs.len() <= dim), "a rotation of a head's values");
        assert!(op.window != Some(0), "a row sees itself");
        self.scratch.marks.check(spec.slots, op.spans.iter().map(|s| s.slot));
        let mut longest = 0;
        for s in op.spans {
            let end = op.cache.position(s.slot) + s.rows;
            match op.window {
                Some(w) => {
                    assert!(w.saturating_add(s.rows) <= spec.capacity + 1, "ring holds window and rows")
                }
                None => assert!(end <= spec.capacity, "position {end} past capacity {}", spec.capacity),
            }
            longest = longest.max(op.window.map_or(end, |w| end.min(w)));
        }
        if let Some(norms) = &op.norms {
            assert!(self.norms_heads(op.spans, op.heads / kv_heads), "norms that it takes");
            assert!(norms.query.len() == dim && norms.key.len() == dim, "norm parameters");
        }
        if let Some(cuda) = &mut self.cuda {
            return cuda.attention(op, output);
        }
        self.note_attention(&spec, op.heads);
        let out = output.buffer;
        let group = op.heads / kv_heads;
        let block = QUERY_ROWS.min(op.spans.iter().map(|s| s.rows).max().unwrap_or(0)) * group;
        // Scores of a block of rows: the longest window, the block's own rows, and both ends' tiles. Queries
        // and weights may be wanted in bf16 as well.
        let keys = (longest + QUERY_ROWS + 2 * TILE).next_multiple_of(TILE);
        for s in &mut self.scratch.rows {
            s.reserve_zeroed(block * (2 * width + keys + (width.max(keys)).div_ceil(2)) + LANES);
        }
        let (threads, work) = (self.pool.threads(), 2 * rows * longest * op.heads * dim);
        let kernels = self.kernels;
        let (qkv, spans, layer, rope, window) = (op.qkv, op.spans, op.layer, op.rope, op.window);
        let storage = Shared(op.cache.base());
        let cache = &*op.cache;
        let (out, cols) = (Shared(out.data.as_mut_ptr()), out.cols);
        let temp = Shared(self.scratch.rows.as_mut_ptr());
        let scale = 1.0 / (dim as f32).sqrt();
        self.pool.run_parts(work, |id, s, parts| {
            // SAFETY: each worker has its own scratch.
            let temp = unsafe { &mut *temp.get().add(id) };
            let (q, temp) = temp.split_at_mut(block * width);
            let (result, temp) = temp.split_at_mut(block * width);
            let (scores, narrow) = temp.split_at_mut(block * keys);
            for item in parts.of(share(spans.len() * kv_heads, 1, s, threads), 1).flatten() {
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
                        Tile { k, v, width, capacity: spec.capacity, bf16: spec.format != KvFormat::F32 };
                    let at = start + part;
                    let queries = Queries { q, at, rows: n, group };
                    let seen = |p: usize| (cache.first_seen(window, p), p + 1);
                    // SAFETY: the ring holds the window of these rows; scratch was reserved for it.
                    unsafe { tile.attend(kernels, &queries, seen, None, scores, narrow, result) };
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
