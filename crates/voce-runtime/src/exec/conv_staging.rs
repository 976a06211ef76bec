//! The operand of a convolution on a CPU: input rows, activated, laid out so that the taps of an output row are neighbours.

use super::conv::{ConvOp, ConvState};
use super::linear::OperandKind;
use crate::pool::{Parts, share};
use crate::simd::{Activation, Kernels};

/// How the operand of a convolution lies in memory.
enum Way {
    /// The rows as they are: the taps of an output row are neighbours.
    InPlace,
    /// The taps of each output row together.
    Gathered,
    /// Rows a dilation apart are neighbours.
    Phases(Phases),
}

/// Rows of each phase from which a dilated convolution runs phase by phase: each reads the weights anew, and nothing is
/// copied once per tap.
const PHASE_ROWS: usize = 48;

/// Output rows whose operands lie a constant distance apart.
pub(super) struct Stretch {
    /// Where the first operand begins, in values.
    pub(super) at: usize,
    /// From one operand to the next, in values.
    pub(super) lda: usize,
    /// Output rows.
    pub(super) rows: usize,
    /// The first of them, and how far they are from each other.
    pub(super) row: usize,
    pub(super) apart: usize,
    /// Output rows of the stretches before.
    pub(super) before: usize,
}

/// Every n-th row of a sequence, from each of the first n.
#[derive(Clone, Copy)]
struct Phases {
    /// Rows of the shorter ones.
    rows: usize,
    /// Phases that have one more; they come first.
    longer: usize,
}

impl Phases {
    fn new(rows: usize, dilation: usize) -> Self {
        Self { rows: rows / dilation, longer: rows % dilation }
    }

    /// Rows of a phase.
    fn rows(&self, phase: usize) -> usize {
        self.rows + usize::from(phase < self.longer)
    }

    /// Values before a phase, where `size` of them hold a number of rows.
    fn before(&self, phase: usize, size: impl Fn(usize) -> usize) -> usize {
        let longer = phase.min(self.longer);
        longer * size(self.rows + 1) + (phase - longer) * size(self.rows)
    }
}

/// Where the rows of a convolution go.
pub(super) struct Staging<'a> {
    op: &'a ConvOp<'a>,
    kind: OperandKind,
    /// Bytes of a value.
    value: usize,
    /// Past rows before those of a span.
    history: usize,
}

impl<'a> Staging<'a> {
    /// The staging of an op whose product takes f32 or bf16 values.
    pub(super) fn new(op: &'a ConvOp<'a>, kind: OperandKind, history: usize) -> Self {
        Self { op, kind, value: if kind == OperandKind::F32 { 4 } else { 2 }, history }
    }

    /// Bytes of all spans.
    pub(super) fn bytes(&self) -> usize {
        self.at(self.op.spans.iter().map(|s| self.staged(s.rows)).sum())
    }

    /// Bytes of some values.
    pub(super) fn at(&self, values: usize) -> usize {
        values * self.value
    }

    /// Room for values and for what kernels read behind them.
    fn padded(&self, values: usize) -> usize {
        (values + self.op.w.kp).next_multiple_of(32)
    }

    fn way(&self, rows: usize) -> Way {
        match self.op.dilation {
            1 => Way::InPlace,
            d if self.op.stride == 1 && rows >= PHASE_ROWS * d => {
                Way::Phases(Phases::new(self.history + rows, d))
            }
            _ => Way::Gathered,
        }
    }

    /// Values of a span of some rows.
    fn staged(&self, rows: usize) -> usize {
        match self.way(rows) {
            Way::InPlace => self.padded((self.history + rows) * self.op.x.cols),
            Way::Gathered => self.padded(rows / self.op.stride * self.op.w.k),
            Way::Phases(p) => self.before(p, self.op.dilation),
        }
    }

    /// Values before a phase.
    fn before(&self, phases: Phases, phase: usize) -> usize {
        phases.before(phase, |rows| self.padded(rows * self.op.x.cols))
    }

    /// Writes one worker's parts of share `id` of the operand; `owns` it, if nobody else says so of this share.
    ///
    /// # Safety
    /// `operand` has room for [`Staging::bytes`], the kernels' instructions are there, and nobody else has these parts.
    pub(super) unsafe fn fill(
        &self,
        kernels: &Kernels,
        past: &ConvState,
        operand: *mut u8,
        (id, threads): (usize, usize),
        owns: bool,
        parts: &mut Parts<'_>,
    ) {
        let (op, hist, cin) = (self.op, self.history, self.op.x.cols);
        // Copies values (activated unless they come from the history) to value offset `to`.
        let copy = |from: &[f32], act: Activation, to: usize| {
            // SAFETY: `to..to + n` lies in the operand and belongs to this worker.
            unsafe {
                let at = operand.add(self.at(to));
                match self.kind {
                    OperandKind::F32 => (kernels.map)(from.as_ptr(), from.len(), act, at.cast()),
                    _ => (kernels.map_bf16)(from.as_ptr(), from.len(), act, at.cast()),
                }
            }
        };
        // Kernels read what follows a part's rows against zero weights, so it must hold numbers.
        let clear = |used: usize, end: usize| {
            if owns && id == threads - 1 {
                // SAFETY: the tail of a part of the operand, which no worker copies to.
                unsafe { operand.add(self.at(used)).write_bytes(0, self.at(end - used)) };
            }
        };
        let (mut base, mut first) = (0, 0);
        for s in op.spans {
            let history = past.slot(s.slot);
            let row_to = |r: usize, to: usize| {
                if r < hist {
                    copy(&history[r * cin..(r + 1) * cin], Activation::None, to);
                } else {
                    copy(op.x.row(first + r - hist), op.pre, to);
                }
            };
            let len = self.staged(s.rows);
            match self.way(s.rows) {
                Way::Gathered => {
                    for t in parts.of(share(s.rows / op.stride, 1, id, threads), 1).flatten() {
                        for tap in 0..op.taps {
                            row_to(t * op.stride + tap * op.dilation, base + t * op.w.k + tap * cin);
                        }
                    }
                    clear(base + s.rows / op.stride * op.w.k, base + len);
                }
                Way::Phases(p) => {
                    for r in parts.of(share(hist + s.rows, 1, id, threads), 1).flatten() {
                        row_to(r, base + self.before(p, r % op.dilation) + r / op.dilation * cin);
                    }
                    for phase in 0..op.dilation {
                        let at = |phase| base + self.before(p, phase);
                        clear(at(phase) + p.rows(phase) * cin, at(phase + 1));
                    }
                }
                Way::InPlace => {
                    if owns && id == 0 && hist > 0 {
                        copy(history, Activation::None, base);
                    }
                    for part in parts.of(share(s.rows, 1, id, threads), 1) {
                        let from = &op.x.data[(first + part.start) * cin..(first + part.end) * cin];
                        copy(from, op.pre, base + (hist + part.start) * cin);
                    }
                    clear(base + (hist + s.rows) * cin, base + len);
                }
            }
            base += len;
            first += s.rows;
        }
    }

    /// Calls `f` for every stretch of output rows.
    pub(super) fn stretches(&self, f: &mut dyn FnMut(Stretch)) {
        let op = self.op;
        let (mut base, mut first) = (0, 0);
        for s in op.spans {
            let (rows, row) = (s.rows / op.stride, first / op.stride);
            match self.way(s.rows) {
                Way::InPlace => {
                    f(Stretch { at: base, lda: op.stride * op.x.cols, rows, row, apart: 1, before: row });
                }
                Way::Gathered => f(Stretch { at: base, lda: op.w.k, rows, row, apart: 1, before: row }),
                Way::Phases(p) => {
                    let mut before = row;
                    for phase in 0..op.dilation {
                        let at = base + self.before(p, phase);
                        let rows = p.rows(phase) - (op.taps - 1);
                        f(Stretch { at, lda: op.x.cols, rows, row: row + phase, apart: op.dilation, before });
                        before += rows;
                    }
                }
            }
            base += self.staged(s.rows);
            first += s.rows;
        }
    }
}
