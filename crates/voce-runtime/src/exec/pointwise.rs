//! Ops that work on each row by itself: layer norm in place, gated linear units.

use super::{Buffer, Exec, Shared, Vector};
use crate::pool::share;
use crate::simd::NormRow;

/// Parameters of a layer norm of rows.
#[derive(Clone, Copy)]
pub struct RowNorm<'a> {
    /// Multiplied in.
    pub weight: &'a Vector,
    /// Added, if present.
    pub bias: Option<&'a Vector>,
    /// Added to the variance.
    pub eps: f32,
}

impl RowNorm<'_> {
    /// As the kernel takes it, for rows of `n` values.
    pub(super) fn kernel(&self, n: usize) -> NormRow {
        assert!(self.weight.len() == n && self.bias.is_none_or(|b| b.len() == n), "norm parameters");
        let null = std::ptr::null();
        NormRow {
            centred: true,
            eps: self.eps,
            weight: self.weight.as_ptr(),
            bias: self.bias.map_or(null, |b| b.as_ptr()),
            shift: null,
            scale: null,
        }
    }
}

impl Exec {
    /// `out = x[..n] * sigmoid(x[n..])` of each row, where `n` is half of its columns.
    pub fn glu(&mut self, x: &Buffer, rows: usize, out: &mut Buffer) {
        let n = x.cols / 2;
        assert!(x.cols == 2 * n && n <= out.cols && rows <= x.rows && rows <= out.rows, "rows fit");
        if let Some(cuda) = &mut self.cuda {
            return cuda.glu(x, rows, out);
        }
        let (threads, kernels) = (self.pool.threads(), self.kernels);
        let (to, cols) = (Shared(out.data.as_mut_ptr()), out.cols);
        self.pool.run(|id| {
            for r in share(rows, 1, id, threads) {
                // SAFETY: rows of `out` are split by worker.
                unsafe { (kernels.glu)(x.row(r).as_ptr(), n, to.get().add(r * cols)) };
            }
        });
    }

    /// Layer norm of each row, in place.
    pub fn normalize(&mut self, norm: &RowNorm<'_>, x: &mut Buffer, rows: usize) {
        let n = x.cols;
        assert!(rows <= x.rows, "rows fit");
        if let Some(cuda) = &mut self.cuda {
            norm.kernel(n);
            return cuda.normalize(norm, x, rows);
        }
        let (threads, kernels) = (self.pool.threads(), self.kernels);
        let data = Shared(x.data.as_mut_ptr());
        self.pool.run(|id| {
            let norm = norm.kernel(n);
            for r in share(rows, 1, id, threads) {
                // SAFETY: rows are split by worker; the kernel reads a chunk before it writes it.
                unsafe { (kernels.norm)(data.get().add(r * n), n, &norm, data.get().add(r * n)) };
            }
        });
    }
}
