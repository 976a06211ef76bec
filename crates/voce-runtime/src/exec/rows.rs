//! Rows from buffer to buffer: what models do between products without a look at the values.

use super::{Buffer, Exec, Tokens};

/// The row number that stands for none, in lists that ops write.
pub const NO_ROW: u32 = u32::MAX;

/// Row numbers that an op takes.
#[derive(Clone, Copy)]
pub enum RowList<'a> {
    /// The host's.
    Host(&'a [usize]),
    /// The first `n` row numbers in a device list, which an op has written. [`NO_ROW`] entries are skipped; a list of rows
    /// to write names none twice.
    Device(&'a Tokens, usize),
}

impl<'a, T: AsRef<[usize]> + ?Sized> From<&'a T> for RowList<'a> {
    fn from(rows: &'a T) -> Self {
        Self::Host(rows.as_ref())
    }
}

impl<'a> RowList<'a> {
    /// How many.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(rows) => rows.len(),
            Self::Device(_, count) => *count,
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all that the host knows are below `rows`.
    pub(super) fn below(&self, rows: usize) -> bool {
        match self {
            Self::Host(list) => list.iter().all(|&r| r < rows),
            Self::Device(list, count) => *count <= list.slots() * list.cols(),
        }
    }

    /// The host's.
    pub(super) fn host(&self) -> &'a [usize] {
        match self {
            Self::Host(rows) => rows,
            Self::Device(..) => panic!("row numbers on a device are taken by that device's executor"),
        }
    }
}

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
    pub fn gather_rows<'a>(
        &mut self,
        from: &Buffer,
        rows: impl Into<RowList<'a>>,
        column: usize,
        to: &mut Buffer,
    ) {
        let (rows, cols) = (rows.into(), to.cols);
        assert!(column + cols <= from.cols && rows.len() <= to.rows, "rows fit");
        assert!(rows.below(from.rows), "rows of the source");
        if let Some(cuda) = &mut self.cuda {
            return cuda.gather_rows(from, rows, column, to);
        }
        for (r, &row) in rows.host().iter().enumerate() {
            to.row_mut(r).copy_from_slice(&from.row(row)[column..column + cols]);
        }
    }

    /// Row `rows[r]` of `to` becomes row `r` of `from`; no row of `to` is named twice.
    pub fn scatter_rows<'a>(&mut self, from: &Buffer, rows: impl Into<RowList<'a>>, to: &mut Buffer) {
        let rows = rows.into();
        assert!(from.cols == to.cols && rows.len() <= from.rows, "rows fit");
        assert!(rows.below(to.rows), "rows of the target");
        if let Some(cuda) = &mut self.cuda {
            return cuda.scatter_rows(from, rows, to);
        }
        for (r, &row) in rows.host().iter().enumerate() {
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
