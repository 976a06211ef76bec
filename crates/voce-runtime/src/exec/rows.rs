//! Rows from buffer to buffer: what models do between products without a look at the values.

use super::{Buffer, Exec};

impl Exec {
    /// Copies rows `first..first + rows` of `from` to the first rows of `to`; both have the same columns.
    pub fn copy_head(&mut self, from: &Buffer, first: usize, to: &mut Buffer, rows: usize) {
        let cols = from.cols;
        assert!(to.cols == cols && first + rows <= from.rows && rows <= to.rows, "rows fit");
        if let Some(cuda) = &mut self.cuda {
            return cuda.copy_head(from, first, to, rows);
        }
        to.head_mut(rows).copy_from_slice(&from.head(first + rows)[first * cols..]);
    }

    /// Row `r` of `to` becomes the values of row `rows[r]` of `from` from column `column` on.
    pub fn gather_rows(&mut self, from: &Buffer, rows: &[usize], column: usize, to: &mut Buffer) {
        let cols = to.cols;
        assert!(column + cols <= from.cols && rows.len() <= to.rows, "rows fit");
        assert!(rows.iter().all(|&r| r < from.rows), "rows of the source");
        if let Some(cuda) = &mut self.cuda {
            return cuda.gather_rows(from, rows, column, to);
        }
        for (r, &row) in rows.iter().enumerate() {
            to.row_mut(r).copy_from_slice(&from.row(row)[column..column + cols]);
        }
    }

    /// Row `rows[r]` of `to` becomes row `r` of `from`; no row of `to` is named twice.
    pub fn scatter_rows(&mut self, from: &Buffer, rows: &[usize], to: &mut Buffer) {
        assert!(from.cols == to.cols && rows.len() <= from.rows, "rows fit");
        assert!(rows.iter().all(|&r| r < to.rows), "rows of the target");
        if let Some(cuda) = &mut self.cuda {
            return cuda.scatter_rows(from, rows, to);
        }
        for (r, &row) in rows.iter().enumerate() {
            to.row_mut(row).copy_from_slice(from.row(r));
        }
    }

    /// Row `to_rows[r]` of `to` becomes row `from_rows[r]` of `from`; no row of `to` is named twice.
    pub fn copy_rows(&mut self, from: &Buffer, from_rows: &[usize], to: &mut Buffer, to_rows: &[usize]) {
        assert!(from.cols == to.cols && from_rows.len() == to_rows.len(), "rows fit");
        assert!(from_rows.iter().all(|&r| r < from.rows), "rows of the source");
        assert!(to_rows.iter().all(|&r| r < to.rows), "rows of the target");
        if let Some(cuda) = &mut self.cuda {
            return cuda.copy_rows(from, from_rows, to, to_rows);
        }
        for (&a, &b) in from_rows.iter().zip(to_rows) {
            to.row_mut(b).copy_from_slice(from.row(a));
        }
    }

    /// Row `rows[r]` of `to` becomes the `r`th of the values that the host has.
    pub fn set_rows(&mut self, to: &mut Buffer, rows: &[usize], values: &[f32]) {
        assert_eq!(values.len(), rows.len() * to.cols, "rows fit");
        self.set_row_parts(to, rows, values, to.cols, 0);
    }

    /// As [`Exec::set_rows`], from column `column` on of values that lie `stride` apart.
    pub fn set_row_parts(
        &mut self,
        to: &mut Buffer,
        rows: &[usize],
        values: &[f32],
        stride: usize,
        column: usize,
    ) {
        assert!(column + to.cols <= stride && rows.len() * stride <= values.len(), "columns fit");
        assert!(rows.iter().all(|&r| r < to.rows), "rows fit");
        if let Some(cuda) = &mut self.cuda {
            return cuda.set_rows(to, rows, values, stride, column);
        }
        for (&row, values) in rows.iter().zip(values.chunks_exact(stride.max(1))) {
            let cols = to.cols;
            to.row_mut(row).copy_from_slice(&values[column..column + cols]);
        }
    }

    /// `to += scale * x` over the first rows.
    pub fn add_scaled(&mut self, x: &Buffer, scale: f32, rows: usize, to: &mut Buffer) {
        assert!(x.cols == to.cols && rows <= x.rows && rows <= to.rows, "rows fit");
        if let Some(cuda) = &mut self.cuda {
            return cuda.add_scaled(x, scale, rows, to);
        }
        to.head_mut(rows).iter_mut().zip(x.head(rows)).for_each(|(t, x)| *t += x * scale);
    }
}
