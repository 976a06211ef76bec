//! Rotation, cache write and attention over the rings as one op.

use super::{Buffer, Exec, KvCache, KvFormat, Shared, Span};
use crate::memory::AlignedVec;
use crate::pool::share;
use crate::simd::attention::Attend;
use crate::simd::lanes::{LANES, round_bf16};

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
        for s in &mut self.scratch.rows {
            s.reserve_zeroed(2 * width + longest.next_multiple_of(LANES) + LANES);
        }
        let group = op.heads / kv_heads;
        let threads = self.pool.threads();
        let kernels = self.kernels;
        let attend = match spec.format {
            KvFormat::F32 => kernels.attend_f32,
            KvFormat::Bf16 => kernels.attend_bf16,
        };
        let (qkv, spans, layer, rope, window) = (op.qkv, op.spans, op.layer, op.rope, op.window);
        let storage = Shared(op.cache.base());
        let cache = &*op.cache;
        let (out, cols) = (Shared(out.data.as_mut_ptr()), out.cols);
        let temp = Shared(self.scratch.rows.as_mut_ptr());
        let scale = 1.0 / (dim as f32).sqrt();
        self.pool.run(|id| {
            // SAFETY: each worker has its own scratch.
            let temp = unsafe { &mut *temp.get().add(id) };
            let (q, temp) = temp.split_at_mut(width);
            let (result, scores) = temp.split_at_mut(width);
            q.fill(0.0);
            for item in share(spans.len() * kv_heads, 1, id, threads) {
                let (span, head) = (item / kv_heads, item % kv_heads);
                let first: usize = spans[..span].iter().map(|s| s.rows).sum();
                let Span { slot, rows } = spans[span];
                let start = cache.position(slot);
                let (k_ring, v_ring) = cache.rings(layer, slot, head);
                // SAFETY: offsets inside the storage; items (span, head) are split by worker, so these
                // rings and this head's columns of `out` are this worker's.
                let (k_ring, v_ring) = unsafe { (storage.get().add(k_ring), storage.get().add(v_ring)) };
                for r in 0..rows {
                    let row = qkv.row(first + r);
                    let at = (start + r) % spec.capacity * width;
                    let k = &row[(op.heads + head) * dim..][..dim];
                    let v = &row[(op.heads + kv_heads + head) * dim..][..dim];
                    q[..dim].copy_from_slice(k);
                    if let Some(rope) = rope {
                        rope.rotate(start + r, &mut q[..dim]);
                    }
                    // SAFETY: `at` is inside the ring.
                    unsafe {
                        put(k_ring, at, &q[..dim], spec.format);
                        put(v_ring, at, v, spec.format);
                    }
                }
                for r in 0..rows {
                    let position = start + r;
                    let from = window.map_or(0, |w| (position + 1).saturating_sub(w));
                    for h in head * group..(head + 1) * group {
                        q[..dim].copy_from_slice(&qkv.row(first + r)[h * dim..][..dim]);
                        if let Some(rope) = rope {
                            rope.rotate(position, &mut q[..dim]);
                        }
                        q[..dim].iter_mut().for_each(|x| *x *= scale);
                        // SAFETY: window and buffers were checked above.
                        unsafe {
                            attend(&Attend {
                                q: q.as_ptr(),
                                k: k_ring,
                                v: v_ring,
                                width,
                                capacity: spec.capacity,
                                start: from,
                                len: position + 1 - from,
                                scores: scores.as_mut_ptr(),
                                out: result.as_mut_ptr(),
                            });
                        }
                        // SAFETY: this head's columns of this row belong to this worker.
                        unsafe {
                            let to = out.get().add((first + r) * cols + h * dim);
                            std::ptr::copy_nonoverlapping(result.as_ptr(), to, dim);
                        }
                    }
                }
            }
        });
    }
}

/// Writes a head's row at value offset `at` of a ring.
unsafe fn put(ring: *mut u8, at: usize, values: &[f32], format: KvFormat) {
    // SAFETY: the caller gives an offset inside the ring.
    unsafe {
        match format {
            KvFormat::F32 => {
                std::ptr::copy_nonoverlapping(values.as_ptr(), ring.cast::<f32>().add(at), values.len());
            }
            KvFormat::Bf16 => {
                for (i, &v) in values.iter().enumerate() {
                    *ring.cast::<u16>().add(at + i) = round_bf16(v);
                }
            }
        }
    }
}
