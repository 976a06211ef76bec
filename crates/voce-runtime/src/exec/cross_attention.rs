//! Attention of rows over positions that are already in a cache: nothing is written, and every row sees all of them.

use super::attend::{MAX_GROUP, QUERY_ROWS, Queries, Tile};
use super::kv_cache::TILE;
use super::{Buffer, Exec, KvCache, KvFormat, Output, Shared, Span, Target};
use crate::pool::share;
use crate::simd::lanes::LANES;

/// Attention of each row over the positions of a slot. Several spans may name a slot: what it holds is only read.
pub struct CrossAttentionOp<'a> {
    /// Rows of queries.
    pub q: &'a Buffer,
    /// Which slot of the cache consecutive rows look at.
    pub spans: &'a [Span],
    /// Keys and values; a slot has those before its position.
    pub cache: &'a mut KvCache,
    /// The layer's index in the cache.
    pub layer: usize,
    /// Query heads, a multiple of the cache's heads.
    pub heads: usize,
}

impl Exec {
    /// Writes the attention output to `out`.
    pub fn cross_attention(&mut self, op: CrossAttentionOp<'_>, out: &mut impl Target) {
        self.cross_attention_to(op, out.output());
    }

    fn cross_attention_to(&mut self, op: CrossAttentionOp<'_>, output: Output<'_>) {
        let out = &*output.buffer;
        let spec = *op.cache.spec();
        let (dim, width, kv_heads) = (spec.head_dim, spec.width(), spec.kv_heads);
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        assert_eq!(op.heads % kv_heads, 0, "query heads share key heads evenly");
        let group = op.heads / kv_heads;
        assert!(group <= MAX_GROUP, "at most {MAX_GROUP} query heads share a key head");
        assert!(op.heads * dim <= op.q.cols, "query width");
        assert!(rows <= op.q.rows && rows <= out.rows && op.heads * dim <= out.cols, "rows fit");
        assert!(op.layer < spec.layers, "layer {} of {}", op.layer, spec.layers);
        let mut longest = 0;
        for s in op.spans {
            assert!(s.slot < spec.slots, "slot {} of {}", s.slot, spec.slots);
            let seen = op.cache.position(s.slot);
            assert!((1..=spec.capacity).contains(&seen), "a slot that holds {seen} positions");
            longest = longest.max(seen);
        }
        if rows == 0 {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            return cuda.cross_attention(op, output);
        }
        self.note_attention(&spec, op.heads);
        let out = output.buffer;
        let block = QUERY_ROWS.min(op.spans.iter().map(|s| s.rows).max().unwrap_or(0)) * group;
        let keys = (longest + 2 * TILE).next_multiple_of(TILE);
        for s in &mut self.scratch.rows {
            s.reserve_zeroed(block * (2 * width + keys + (width.max(keys)).div_ceil(2)) + LANES);
        }
        let (threads, kernels) = (self.pool.threads(), self.kernels);
        let (q_rows, spans, layer) = (op.q, op.spans, op.layer);
        let storage = Shared(op.cache.base());
        let cache = &*op.cache;
        let (out, cols) = (Shared(out.data.as_mut_ptr()), out.cols);
        let temp = Shared(self.scratch.rows.as_mut_ptr());
        let scale = 1.0 / (dim as f32).sqrt();
        let value_bytes = if spec.format == KvFormat::F32 { 4 } else { 2 };
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
                let seen = cache.position(slot);
                let rings = cache.rings(layer, slot, head);
                // SAFETY: ring offsets are inside the storage.
                let [k, v] = rings.map(|r| unsafe { storage.get().add(r * value_bytes) }.cast_const());
                let tile = Tile { k, v, width, capacity: spec.capacity, bf16: spec.format != KvFormat::F32 };
                for part in (0..rows).step_by(QUERY_ROWS) {
                    let n = QUERY_ROWS.min(rows - part);
                    q[..n * group * width].fill(0.0);
                    for (i, q) in q.chunks_exact_mut(width).take(n * group).enumerate() {
                        let (r, h) = (part + i / group, head * group + i % group);
                        let from = &q_rows.row(first + r)[h * dim..][..dim];
                        q.iter_mut().zip(from).for_each(|(q, x)| *q = x * scale);
                    }
                    let queries = Queries { q, at: 0, rows: n, group };
                    // SAFETY: the ring holds what is seen; scratch was reserved for it.
                    unsafe { tile.attend(kernels, &queries, |_| (0, seen), None, scores, narrow, result) };
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
