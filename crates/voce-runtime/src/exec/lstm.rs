//! The point-wise ops of a transducer's decoder: the LSTM cell over rows of state, and the joint's input.

use super::{Buffer, Exec, RowList, Shared};
use crate::pool::share;
use crate::simd::lanes::LANES;
use crate::simd::select::LstmRow;

/// Values per op below which columns are not worth sharing out.
const WORTH_SHARING: usize = 16 * 1024;

/// The point-wise half of an LSTM cell for some rows of a state buffer, whose columns from `column` on are
/// the output and then the cell state of this layer, `hidden` each.
pub struct LstmCellOp<'a> {
    /// Gates before their non-linearities, `[4 * hidden]` per row: input, forget, cell, output.
    pub gates: &'a Buffer,
    /// Where this layer's state begins in a row of state.
    pub column: usize,
    /// Rows of state that the cells come from.
    pub from: RowList<'a>,
    /// Rows of state that the cells go to; a row may go back to where it came from.
    pub to: RowList<'a>,
}

/// `out[r] = relu(a[a_rows[r]] + b[b_rows[r]])`.
pub struct AddReluOp<'a> {
    /// One term.
    pub a: &'a Buffer,
    /// Its row for each output row.
    pub a_rows: RowList<'a>,
    /// The other term.
    pub b: &'a Buffer,
    /// Its row for each output row.
    pub b_rows: RowList<'a>,
}

impl Exec {
    /// Runs LSTM cells. Rows are taken in order: one may come from where an earlier one went.
    pub fn lstm_cell(&mut self, op: &LstmCellOp<'_>, state: &mut Buffer) {
        let (rows, hidden) = (op.from.len(), op.gates.cols / 4);
        assert!(op.gates.cols == 4 * hidden && rows == op.to.len() && rows <= op.gates.rows, "rows fit");
        assert!(op.column + 2 * hidden <= state.cols, "state columns");
        assert!(op.from.below(state.rows) && op.to.below(state.rows), "state rows");
        if let Some(cuda) = &mut self.cuda {
            return cuda.lstm_cell(op, state);
        }
        let (threads, kernels) = (self.pool.threads(), self.kernels);
        let (from_rows, to_rows) = (op.from.host(), op.to.host());
        let (data, cols) = (Shared(state.data.as_mut_ptr()), state.cols);
        let run = |from: usize, n: usize| {
            for r in 0..rows {
                // SAFETY: rows and columns were checked; workers take disjoint columns of every row.
                unsafe {
                    let at = |row: usize| data.get().add(row * cols + op.column + from);
                    let row = LstmRow {
                        gates: op.gates.row(r).as_ptr().add(from),
                        hidden,
                        c: at(from_rows[r]).add(hidden),
                        c_out: at(to_rows[r]).add(hidden),
                        h_out: at(to_rows[r]),
                    };
                    (kernels.lstm_cell)(&row, n);
                }
            }
        };
        if threads == 1 || rows * hidden < WORTH_SHARING {
            return run(0, hidden);
        }
        self.pool.run(|id| {
            let part = share(hidden, LANES, id, threads);
            run(part.start, part.len());
        });
    }

    /// Sums pairs of rows and clips below zero.
    pub fn add_relu(&mut self, op: &AddReluOp<'_>, out: &mut Buffer) {
        let (rows, n) = (op.a_rows.len(), out.cols);
        assert!(op.a.cols == n && op.b.cols == n, "widths agree");
        assert!(rows == op.b_rows.len() && rows <= out.rows, "rows fit");
        if let Some(cuda) = &mut self.cuda {
            assert!(op.a_rows.below(op.a.rows) && op.b_rows.below(op.b.rows), "rows of a term");
            return cuda.add_relu(op, out);
        }
        let (threads, kernels) = (self.pool.threads(), self.kernels);
        let to = Shared(out.data.as_mut_ptr());
        let (a_rows, b_rows) = (op.a_rows.host(), op.b_rows.host());
        let run = |range: std::ops::Range<usize>| {
            for r in range {
                let (a, b) = (op.a.row(a_rows[r]).as_ptr(), op.b.row(b_rows[r]).as_ptr());
                // SAFETY: rows of `out` are split by worker.
                unsafe { (kernels.add_relu)(a, b, n, to.get().add(r * n)) };
            }
        };
        if threads == 1 || rows * n < WORTH_SHARING {
            return run(0..rows);
        }
        self.pool.run(|id| run(share(rows, 1, id, threads)));
    }
}
