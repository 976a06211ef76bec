//! Root-mean-square norms in place: of each query and key head with its rotation, and of whole rows.

use super::{Buffer, Exec, KvCache, Rope, Shared, Span, Vector};
use crate::pool::share;
use crate::simd::NormRow;

/// Root-mean-square norms of query and key heads.
#[derive(Clone, Copy)]
pub struct HeadNorms<'a> {
    /// Multiplied into each query head.
    pub query: &'a Vector,
    /// Multiplied into each key head.
    pub key: &'a Vector,
    /// Added to the mean square.
    pub eps: f32,
}

/// What stands between the product that makes `[q | k | v]` and attention without rotation.
pub struct HeadNormOp<'a> {
    /// Whose rows they are.
    pub spans: &'a [Span],
    /// The cache that attention then uses: it knows the slots' positions and the shape of heads.
    pub cache: &'a KvCache,
    /// Query heads.
    pub heads: usize,
    /// The norms.
    pub norms: HeadNorms<'a>,
    /// Rotation after the norm.
    pub rope: Option<&'a Rope>,
}

fn rms(weight: &Vector, eps: f32) -> NormRow {
    let null = std::ptr::null();
    NormRow { centred: false, eps, weight: weight.as_ptr(), bias: null, shift: null, scale: null }
}

impl Exec {
    /// Norms and rotates the queries and keys of rows of `[q | k | v]` in place.
    pub fn head_norm(&mut self, op: &HeadNormOp<'_>, qkv: &mut Buffer) {
        let (dim, kv_heads) = (op.cache.spec().head_dim, op.cache.spec().kv_heads);
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        assert_eq!(qkv.cols(), (op.heads + 2 * kv_heads) * dim, "qkv width");
        assert!(
            op.norms.query.len() == dim && op.norms.key.len() == dim && dim.is_multiple_of(2),
            "norm parameters"
        );
        assert!(rows <= qkv.rows(), "rows fit");
        assert!(op.rope.is_none_or(|r| 2 * r.freqs.len() <= dim), "a rotation of a head's values");
        if let Some(cuda) = &mut self.cuda {
            return cuda.head_norm(op, qkv);
        }
        let (threads, kernels, cols) = (self.pool.threads(), self.kernels, qkv.cols());
        let x = Shared(qkv.data.as_mut_ptr());
        let mut norms = [rms(op.norms.query, op.norms.eps), rms(op.norms.key, op.norms.eps)];
        let norms = Shared(norms.as_mut_ptr());
        self.pool.run(|id| {
            let all = op.heads + kv_heads;
            let (mut span, mut before) = (0, 0);
            for item in share(rows * all, 1, id, threads) {
                let (row, head) = (item / all, item % all);
                while row >= before + op.spans[span].rows {
                    before += op.spans[span].rows;
                    span += 1;
                }
                let position = op.cache.position(op.spans[span].slot) + row - before;
                // SAFETY: heads of rows are split by worker; there are two norms.
                let (x, norm) = unsafe {
                    let x = x.get().add(row * cols + head * dim);
                    (std::slice::from_raw_parts_mut(x, dim), &*norms.get().add(usize::from(head >= op.heads)))
                };
                // SAFETY: a head's values and as many parameters.
                unsafe { (kernels.norm)(x.as_ptr(), dim, norm, x.as_mut_ptr()) };
                if let Some(rope) = op.rope {
                    rope.rotate(position, x);
                }
            }
        });
    }

    /// Root-mean-square norm of each row, in place.
    pub fn rms_norm(&mut self, weight: &Vector, eps: f32, x: &mut Buffer, rows: usize) {
        assert!(rows <= x.rows() && weight.len() == x.cols() && x.cols().is_multiple_of(2), "rows fit");
        if let Some(cuda) = &mut self.cuda {
            return cuda.rms_norm(weight, eps, x, rows);
        }
        let (kernels, n, norm) = (self.kernels, x.cols(), rms(weight, eps));
        for row in x.head_mut(rows).chunks_exact_mut(n.max(1)) {
            // SAFETY: a row and as many parameters.
            unsafe { (kernels.norm)(row.as_ptr(), n, &norm, row.as_mut_ptr()) };
        }
    }
}
