//! Attention with relative positions over the rings, as conformers have it: a row sees its whole chunk and
//! some rows before it, and scores depend on content and on distance.

use super::attend::{QUERY_ROWS, Queries, Relative, Tile};
use super::kv_cache::TILE;
use super::{Buffer, Exec, KvCache, KvFormat, Output, Shared, Target, Vector};
use crate::matrix::Matrix;
use crate::pool::share;
use crate::simd::lanes::LANES;

/// Consecutive rows of one slot, cut into chunks counted from the slot's first position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSpan {
    /// The slot whose state the rows use.
    pub slot: usize,
    /// How many rows.
    pub rows: usize,
    /// Rows per chunk; `usize::MAX` when all rows are one.
    pub chunk: usize,
    /// Positions before its chunk that a row sees.
    pub left: usize,
}

impl ChunkSpan {
    /// What the row at `position` sees, given that rows before `end` exist.
    pub(crate) fn seen(&self, position: usize, end: usize) -> (usize, usize) {
        let start = position / self.chunk * self.chunk;
        (start.saturating_sub(self.left), start.saturating_add(self.chunk).min(end))
    }
}

/// Projected relative positions of one layer.
pub struct RelativePositions {
    /// Per head, a row per distance from the farthest on, one less each.
    pub heads: Vec<Matrix>,
    /// Distance of the first row.
    pub farthest: usize,
}

/// `softmax((q + u) k + (q + v) p) v` of each row over what it sees.
pub struct RelativeAttentionOp<'a> {
    /// Rows of `[q | k | v]`.
    pub qkv: &'a Buffer,
    /// Whose rows they are.
    pub spans: &'a [ChunkSpan],
    /// Where keys and values are kept; positions are advanced by the caller after all layers.
    pub cache: &'a mut KvCache,
    /// The layer's index in the cache.
    pub layer: usize,
    /// Projected distances.
    pub positions: &'a RelativePositions,
    /// `u`, `[heads * head_dim]`: added to queries that meet keys.
    pub content_bias: &'a Vector,
    /// `v`, `[heads * head_dim]`: added to queries that meet distances.
    pub position_bias: &'a Vector,
}

impl Exec {
    /// Writes the rows' keys and values to the cache and the attention output to `out`.
    pub fn relative_attention(&mut self, op: RelativeAttentionOp<'_>, out: &mut impl Target) {
        self.relative_attention_to(op, out.output());
    }

    fn relative_attention_to(&mut self, op: RelativeAttentionOp<'_>, output: Output<'_>) {
        let out = &*output.buffer;
        let spec = *op.cache.spec();
        let (dim, width, heads) = (spec.head_dim, spec.width(), spec.kv_heads);
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        assert_eq!(op.qkv.cols, 3 * heads * dim, "qkv width");
        assert_eq!(op.positions.heads.len(), heads, "positions per head");
        assert!(op.content_bias.len() == heads * dim && op.position_bias.len() == heads * dim, "biases");
        assert!(rows <= op.qkv.rows && rows <= out.rows && heads * dim <= out.cols, "rows fit");
        assert!(op.layer < spec.layers, "layer {} of {}", op.layer, spec.layers);
        op.positions.heads.iter().for_each(|m| m.expect_place(self.cuda.is_some()));
        self.scratch.marks.check(spec.slots, op.spans.iter().map(|s| s.slot));
        let mut longest = 0;
        for s in op.spans {
            let start = op.cache.position(s.slot);
            let end = start + s.rows;
            let first = s.seen(start, end).0;
            assert!(
                end - first <= spec.capacity,
                "the ring holds {} positions, not {}",
                spec.capacity,
                end - first
            );
            let chunk = s.chunk.min(s.rows + start % s.chunk);
            longest = longest.max((s.left.min(end) + chunk).min(end));
        }
        if let Some(cuda) = &mut self.cuda {
            return cuda.relative_attention(op, output);
        }
        self.note_attention(&spec, heads);
        let out = output.buffer;
        let keys = (longest + 2 * TILE).next_multiple_of(TILE);
        let block = QUERY_ROWS.min(rows);
        let relative_room = Relative::room(keys);
        for s in &mut self.scratch.rows {
            let narrow = block * width.max(keys).div_ceil(2);
            s.reserve_zeroed(block * (3 * width + keys) + narrow + relative_room + LANES);
        }
        let (threads, kernels) = (self.pool.threads(), self.kernels);
        let work = 3 * rows * longest * heads * dim;
        let (qkv, spans, layer) = (op.qkv, op.spans, op.layer);
        let (positions, biases) = (op.positions, [op.content_bias, op.position_bias]);
        let storage = Shared(op.cache.base());
        let cache = &*op.cache;
        let (out, cols) = (Shared(out.data.as_mut_ptr()), out.cols);
        let temp = Shared(self.scratch.rows.as_mut_ptr());
        let scale = 1.0 / (dim as f32).sqrt();
        let value_bytes = if spec.format == KvFormat::F32 { 4 } else { 2 };
        self.pool.run_parts(work, |id, s, parts| {
            // SAFETY: each worker has its own scratch.
            let temp = unsafe { &mut *temp.get().add(id) };
            let (q, temp) = temp.split_at_mut(2 * block * width);
            let (result, temp) = temp.split_at_mut(block * width);
            let (scores, temp) = temp.split_at_mut(block * keys);
            let (relative_scores, narrow) = temp.split_at_mut(relative_room);
            for item in parts.of(share(spans.len() * heads, 1, s, threads), 1).flatten() {
                let (span, head) = (&spans[item / heads], item % heads);
                let first: usize = spans[..item / heads].iter().map(|s| s.rows).sum();
                let start = cache.position(span.slot);
                let end = start + span.rows;
                let rings = cache.rings(layer, span.slot, head);
                for r in 0..span.rows {
                    let row = qkv.row(first + r);
                    let at = (start + r) % spec.capacity;
                    // SAFETY: items (span, head) are split by worker, so these rings are this worker's.
                    unsafe {
                        spec.put(storage.get(), rings[0], 0, at, &row[(heads + head) * dim..][..dim]);
                        spec.put(storage.get(), rings[1], 1, at, &row[(2 * heads + head) * dim..][..dim]);
                    }
                }
                // SAFETY: ring offsets are inside the storage.
                let [k, v] = rings.map(|r| unsafe { storage.get().add(r * value_bytes) }.cast_const());
                let tile = Tile { k, v, width, capacity: spec.capacity, bf16: spec.format != KvFormat::F32 };
                let mut part = 0;
                while part < span.rows {
                    // Rows of one chunk see the same: a block does not cross chunks.
                    let at = start + part;
                    let n = (span.chunk - at % span.chunk).min(span.rows - part).min(QUERY_ROWS);
                    let (content, position) = q.split_at_mut(block * width);
                    for (q, bias) in [&mut *content, &mut *position].into_iter().zip(biases) {
                        q[..n * width].fill(0.0);
                        for (r, q) in q.chunks_exact_mut(width).take(n).enumerate() {
                            let row = &qkv.row(first + part + r)[head * dim..][..dim];
                            let bias = &bias[head * dim..][..dim];
                            q.iter_mut().zip(row).zip(bias).for_each(|((q, x), b)| *q = (x + b) * scale);
                        }
                    }
                    let queries = Queries { q: content, at, rows: n, group: 1 };
                    let relative = Relative {
                        q: position,
                        distances: &positions.heads[head],
                        farthest: positions.farthest,
                        scores: relative_scores,
                    };
                    let seen = |p: usize| span.seen(p, end);
                    // SAFETY: the ring holds what the rows see; scratch was reserved for it.
                    unsafe { tile.attend(kernels, &queries, seen, Some(relative), scores, narrow, result) };
                    for (r, result) in result.chunks_exact(width).take(n).enumerate() {
                        // SAFETY: this head's columns of this row belong to this worker.
                        unsafe {
                            let to = out.get().add((first + part + r) * cols + head * dim);
                            std::ptr::copy_nonoverlapping(result.as_ptr(), to, dim);
                        }
                    }
                    part += n;
                }
            }
            (kernels.release)();
        });
    }
}
