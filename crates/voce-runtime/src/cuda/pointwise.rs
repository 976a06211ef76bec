//! Ops on the device that take each row by itself.

use super::driver::{Address, Shape};
use super::linear::NormArgs;
use super::queue::Args;
use super::{Cuda, choice, program};
use crate::exec::{AddReluOp, Buffer, LstmCellOp, Output, RowList, RowNorm, Snake};

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// Columns that the threads of a row share out: as in `pointwise.cu`.
const TILE: usize = 1024;

/// Arguments of `glu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GluArgs {
    x: Address,
    out: Address,
    rows: u32,
    n: u32,
    out_stride: u32,
    lanes: u32,
}

/// Arguments of `snake`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SnakeArgs {
    x: Address,
    out: Address,
    rate: Address,
    gain: Address,
    rows: u32,
    n: u32,
    narrow: u32,
    pad: u32,
}

/// Arguments of `normalize`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct NormalizeArgs {
    norm: NormArgs,
    x: Address,
    n: u32,
    rows: u32,
}

/// Arguments of `lstm_cell`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct LstmCellArgs {
    gates: Address,
    state: Address,
    from: Address,
    to: Address,
    rows: u32,
    hidden: u32,
    stride: u32,
    lanes: u32,
}

/// Arguments of `add_relu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct AddReluArgs {
    a: Address,
    b: Address,
    a_rows: Address,
    b_rows: Address,
    out: Address,
    rows: u32,
    n: u32,
    lanes: u32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for GluArgs {}
// SAFETY: as above.
unsafe impl Args for SnakeArgs {}
// SAFETY: as above.
unsafe impl Args for NormalizeArgs {}
// SAFETY: as above.
unsafe impl Args for LstmCellArgs {}
// SAFETY: as above.
unsafe impl Args for AddReluArgs {}

/// Threads that share a row of this many pieces: a power of two.
pub(super) fn lanes(pieces: usize) -> u32 {
    pieces.next_power_of_two().min(THREADS as usize) as u32
}

/// The launch of rows shared out by `lanes` threads each, with further blocks for long rows.
fn tiles(rows: usize, width: usize) -> (Shape, u32) {
    let lanes = lanes(width);
    let blocks = (rows as u32).div_ceil(THREADS / lanes);
    let shape = Shape { grid: [blocks, width.div_ceil(TILE) as u32, 1], block: THREADS, shared: 0 };
    (shape, lanes)
}

impl Cuda {
    pub(crate) fn glu(&mut self, x: &Buffer, rows: usize, out: &mut Buffer) {
        let (n, out_stride) = (x.cols() / 2, out.cols() as u32);
        let (shape, lanes) = tiles(rows, n);
        let (x, out) = (self.read(x), self.write(out));
        let args = GluArgs { x, out, rows: rows as u32, n: n as u32, out_stride, lanes };
        let (kernel, fours) = choice::glu(n, out_stride as usize);
        let by_fours = [(rows * n / 4).div_ceil(THREADS as usize) as u32, 1, 1];
        let grid = if fours { by_fours } else { shape.grid };
        self.queue.launch(kernel, Shape { grid, ..shape }, &args);
    }

    /// `out = x + gain * sin(rate * x)^2`, in place where there is no `x`.
    pub(crate) fn snake(&mut self, snake: Snake<'_>, x: Option<&Buffer>, rows: usize, mut out: Output<'_>) {
        if rows == 0 {
            return;
        }
        let n = out.buffer.cols();
        let x = x.map(|x| self.read(x));
        let (rate, gain, to) = (self.constant(snake.rate), self.constant(snake.gain), self.write(out.buffer));
        let (kernel, pieces) = choice::snake(n);
        let blocks = (rows * n / pieces).div_ceil(THREADS as usize) as u32;
        let args = SnakeArgs {
            x: x.unwrap_or(to),
            out: to,
            rate,
            gain,
            rows: rows as u32,
            n: n as u32,
            narrow: u32::from(pieces == 4 && Self::keeps_narrow(&mut out, rows)),
            pad: 0,
        };
        self.queue.launch(kernel, Shape { grid: [blocks, 1, 1], block: THREADS, shared: 0 }, &args);
    }

    /// The device's form of a layer norm of rows.
    pub(super) fn row_norm(&mut self, norm: &RowNorm<'_>) -> NormArgs {
        NormArgs::layer(self.constant(norm.weight), self.optional(norm.bias), norm.eps)
    }

    pub(crate) fn normalize(&mut self, norm: &RowNorm<'_>, x: &mut Buffer, rows: usize) {
        let n = x.cols() as u32;
        let norm = self.row_norm(norm);
        let args = NormalizeArgs { norm, x: self.write(x), n, rows: rows as u32 };
        let (kernel, each) = choice::normalize(n as usize);
        let blocks = rows.div_ceil(each);
        self.queue.launch(kernel, Shape { grid: [blocks as u32, 1, 1], block: THREADS, shared: 0 }, &args);
    }

    /// Rows that the host names run in one launch, until one depends on an earlier one: it begins the next launch.
    pub(crate) fn lstm_cell(&mut self, op: &LstmCellOp<'_>, state: &mut Buffer) {
        let (stride, hidden) = (state.cols() as u32, op.gates.cols() / 4);
        let gates = self.read(op.gates);
        let at = self.write(state) + 4 * op.column as u64;
        let (RowList::Host(from_rows), RowList::Host(to_rows)) = (op.from, op.to) else {
            let (shape, lanes) = tiles(op.from.len(), hidden);
            let (from, to) = (self.row_list(op.from), self.row_list(op.to));
            let (rows, hidden) = (op.from.len() as u32, hidden as u32);
            let args = LstmCellArgs { gates, state: at, from, to, rows, hidden, stride, lanes };
            return self.queue.launch(program::LSTM_CELL, shape, &args);
        };
        // The launch, counted from 1, that last read or wrote a row of state.
        let mut touched = std::mem::take(&mut self.touched);
        touched.clear();
        touched.resize(state.rows(), [0; 2]);
        let (mut launch, mut begin) = (1, 0);
        for r in 0..=from_rows.len() {
            let clash = r < from_rows.len() && {
                let ([_, written], [read, rewritten]) = (touched[from_rows[r]], touched[to_rows[r]]);
                written == launch || read == launch || rewritten == launch
            };
            if clash || r == from_rows.len() {
                let rows = r - begin;
                let (shape, lanes) = tiles(rows, hidden);
                let args = LstmCellArgs {
                    gates: gates + (begin * hidden * 16) as u64,
                    state: at,
                    from: self.row_list((&from_rows[begin..r]).into()),
                    to: self.row_list((&to_rows[begin..r]).into()),
                    rows: rows as u32,
                    hidden: hidden as u32,
                    stride,
                    lanes,
                };
                self.queue.launch(program::LSTM_CELL, shape, &args);
                (launch, begin) = (launch + 1, r);
            }
            if r < from_rows.len() {
                touched[from_rows[r]][0] = launch;
                touched[to_rows[r]][1] = launch;
            }
        }
        self.touched = touched;
    }

    pub(crate) fn add_relu(&mut self, op: &AddReluOp<'_>, out: &mut Buffer) {
        let (rows, n) = (op.a_rows.len(), out.cols());
        let (shape, lanes) = tiles(rows, n);
        let (a, b, out) = (self.read(op.a), self.read(op.b), self.write(out));
        let (a_rows, b_rows) = (self.row_list(op.a_rows), self.row_list(op.b_rows));
        let args = AddReluArgs { a, b, a_rows, b_rows, out, rows: rows as u32, n: n as u32, lanes, pad: 0 };
        self.queue.launch(program::ADD_RELU, shape, &args);
    }
}
