//! Rows from buffer to buffer on the device.

use super::driver::{Address, Shape};
use super::queue::Args;
use super::{Cuda, Plain, program};
use crate::exec::{Buffer, Guide, RowList};

/// Threads of a block.
const THREADS: u32 = 256;

/// Arguments of `copy_rows`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CopyRowsArgs {
    from: Address,
    to: Address,
    /// Row numbers of the source, or 0 for one after the other.
    from_rows: Address,
    /// Row numbers of the target, or 0 for one after the other.
    to_rows: Address,
    from_stride: u32,
    to_stride: u32,
    cols: u32,
    rows: u32,
}

/// Arguments of `add_scaled`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AddScaledArgs {
    x: Address,
    to: Address,
    count: u64,
    scale: f32,
    pad: u32,
}

/// A row to guide: see `rows.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct GuideWords {
    row: u32,
    without: u32,
    by: f32,
    pad: u32,
}

// SAFETY: numbers without padding.
unsafe impl Plain for GuideWords {}

/// Arguments of `guide_rows`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GuideRowsArgs {
    guides: Address,
    x: Address,
    cols: u32,
    count: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for GuideRowsArgs {}
// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for CopyRowsArgs {}
// SAFETY: as above.
unsafe impl Args for AddScaledArgs {}

/// Row numbers as kernels take them.
pub(super) fn numbers(rows: &[usize]) -> Vec<u32> {
    rows.iter().map(|&r| r as u32).collect()
}

impl Cuda {
    /// Where row numbers are.
    pub(super) fn row_list(&mut self, rows: RowList<'_>) -> Address {
        match rows {
            RowList::Host(rows) => self.queue.table(&numbers(rows)),
            RowList::Device(rows, _) => self.tokens(rows),
        }
    }

    fn move_rows(&mut self, args: CopyRowsArgs) {
        let blocks = (args.rows as u64 * args.cols as u64).div_ceil(4 * THREADS as u64);
        let shape = Shape { grid: [blocks as u32, 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(program::COPY_ROWS, shape, &args);
    }

    pub(crate) fn copy_head(&mut self, from: &Buffer, first: usize, to: &mut Buffer, rows: usize) {
        let cols = from.cols();
        let from = self.read(from) + 4 * (first * cols) as u64;
        let to = self.write(to);
        self.queue.copy(from, to, rows * cols * 4);
    }

    pub(crate) fn gather_rows(&mut self, from: &Buffer, rows: RowList<'_>, column: usize, to: &mut Buffer) {
        let (from_stride, cols) = (from.cols() as u32, to.cols() as u32);
        let from = self.read(from) + 4 * column as u64;
        let to = self.write(to);
        let from_rows = self.row_list(rows);
        let rows = rows.len() as u32;
        self.move_rows(CopyRowsArgs {
            from,
            to,
            from_rows,
            to_rows: 0,
            from_stride,
            to_stride: cols,
            cols,
            rows,
        });
    }

    pub(crate) fn scatter_rows(&mut self, from: &Buffer, rows: RowList<'_>, to: &mut Buffer) {
        let cols = from.cols() as u32;
        let (from, to) = (self.read(from), self.write(to));
        let to_rows = self.row_list(rows);
        let rows = rows.len() as u32;
        self.move_rows(CopyRowsArgs {
            from,
            to,
            from_rows: 0,
            to_rows,
            from_stride: cols,
            to_stride: cols,
            cols,
            rows,
        });
    }

    pub(crate) fn copy_rows(
        &mut self,
        from: &Buffer,
        from_rows: &[usize],
        to: &mut Buffer,
        to_rows: &[usize],
    ) {
        let cols = from.cols() as u32;
        let (from, to) = (self.read(from), self.write(to));
        let rows = from_rows.len() as u32;
        let (from_rows, to_rows) =
            (self.queue.table(&numbers(from_rows)), self.queue.table(&numbers(to_rows)));
        let args =
            CopyRowsArgs { from, to, from_rows, to_rows, from_stride: cols, to_stride: cols, cols, rows };
        self.move_rows(args);
    }

    pub(crate) fn set_rows(
        &mut self,
        to: &mut Buffer,
        rows: &[usize],
        values: &[f32],
        stride: usize,
        column: usize,
    ) {
        let cols = to.cols();
        let to = self.write(to);
        let from = if stride == cols {
            self.queue.table(values)
        } else {
            // Only what is wanted travels.
            let parts = values.chunks_exact(stride).take(rows.len());
            self.queue.table(&parts.flat_map(|v| &v[column..column + cols]).copied().collect::<Vec<_>>())
        };
        let to_rows = self.queue.table(&numbers(rows));
        let (rows, cols) = (rows.len() as u32, cols as u32);
        self.move_rows(CopyRowsArgs {
            from,
            to,
            from_rows: 0,
            to_rows,
            from_stride: cols,
            to_stride: cols,
            cols,
            rows,
        });
    }

    pub(crate) fn guide_rows(&mut self, guides: &[Guide], x: &mut Buffer) {
        let words = |g: &Guide| GuideWords { row: g.row as u32, without: g.without as u32, by: g.by, pad: 0 };
        let words: Vec<GuideWords> = guides.iter().map(words).collect();
        let (cols, count) = (x.cols() as u32, guides.len() as u32);
        let args = GuideRowsArgs { guides: self.queue.table(&words), x: self.write(x), cols, count };
        let shape = Shape { grid: [count, cols.div_ceil(THREADS), 1], block: THREADS, shared: 0 };
        self.queue.launch(program::GUIDE_ROWS, shape, &args);
    }

    pub(crate) fn add_scaled(&mut self, x: &Buffer, scale: f32, rows: usize, to: &mut Buffer) {
        let count = (rows * x.cols()) as u64;
        let args = AddScaledArgs { x: self.read(x), to: self.write(to), count, scale, pad: 0 };
        let shape = Shape { grid: [count.div_ceil(THREADS as u64) as u32, 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(program::ADD_SCALED, shape, &args);
    }
}
