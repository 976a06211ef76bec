//! Streaming convolution as a product over overlapping rows, and depthwise forms of it.
//!
//! Activations are rows of channels, so the taps of an output row are consecutive input rows: with
//! unit dilation the product reads them in place. A transposed convolution with stride `s` is an
//! ordinary one whose `s * channels` outputs are `s` rows. State is the last input rows, activated. With int8
//! weights the taps of each output row are quantised together, so that it depends on no other row.

use super::linear::{Operand, OperandKind, OperandLayout, Product, run_product};
use super::{Buffer, Exec, Shared, Snake, Span, Vector};
use crate::cuda::PastRows;
use crate::matrix::{Format, Matrix};
use crate::memory::{AlignedVec, volume};
use crate::pool::share;
use crate::simd::{Activation, Store};

/// Shape of a [`ConvState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvStateSpec {
    /// Streams side by side.
    pub slots: usize,
    /// Past rows each needs.
    pub history: usize,
    /// Channels per row.
    pub channels: usize,
    /// Before the first row: its copies (true) or zeros (false).
    pub replicate: bool,
}

/// The past rows of a streaming convolution, per slot. On a device from their first use there.
pub struct ConvState {
    pub(crate) spec: ConvStateSpec,
    pub(crate) rows: AlignedVec<f32>,
    /// Slots whose stream has not begun.
    pub(crate) fresh: Vec<bool>,
    pub(crate) device: PastRows,
}

impl ConvState {
    /// A state before the first row.
    pub fn new(spec: ConvStateSpec) -> Self {
        let rows = AlignedVec::zeroed(volume([spec.slots, spec.history, spec.channels]));
        Self { spec, rows, fresh: vec![true; spec.slots], device: PastRows::default() }
    }

    /// Starts a slot anew.
    pub fn reset(&mut self, slot: usize) {
        self.slot_mut(slot).fill(0.0);
        self.fresh[slot] = true;
    }

    /// Values that a slot keeps.
    pub fn slot_len(&self) -> usize {
        self.spec.history * self.spec.channels
    }

    /// What a slot has kept on the host, to save it; [`Exec::save_conv`] knows of devices too.
    pub fn save(&self, slot: usize) -> &[f32] {
        assert!(!self.device.is_used(), "a state of a device is saved by its executor");
        self.slot(slot)
    }

    /// Restores what was saved, as of a stream that has begun, on the host; [`Exec::restore_conv`] knows of
    /// devices too.
    pub fn restore(&mut self, slot: usize, rows: &[f32]) {
        assert!(!self.device.is_used(), "a state of a device is restored by its executor");
        self.slot_mut(slot).copy_from_slice(rows);
        self.fresh[slot] = false;
    }

    pub(super) fn slot_mut(&mut self, slot: usize) -> &mut [f32] {
        let len = self.slot_len();
        &mut self.rows[slot * len..(slot + 1) * len]
    }

    pub(super) fn slot(&self, slot: usize) -> &[f32] {
        let len = self.slot_len();
        &self.rows[slot * len..(slot + 1) * len]
    }
}

/// A streaming convolution.
pub struct ConvOp<'a> {
    /// Input rows of all spans; each span's rows are a multiple of `stride`.
    pub x: &'a Buffer,
    /// Whose rows they are.
    pub spans: &'a [Span],
    /// Applied to the input.
    pub pre: Activation,
    /// `[outputs][taps * channels]`; f32 or bf16, on CPUs int8 too.
    pub w: &'a Matrix,
    /// Added to the product.
    pub bias: Option<&'a Vector>,
    /// Kernel size.
    pub taps: usize,
    /// Input rows per output row.
    pub stride: usize,
    /// Distance between taps.
    pub dilation: usize,
    /// Applied after the bias.
    pub act: Activation,
    /// `out += v` instead of `out = v`.
    pub add: bool,
}

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
struct Stretch {
    /// Where the first operand begins, in values.
    at: usize,
    /// From one operand to the next, in values.
    lda: usize,
    /// Output rows.
    rows: usize,
    /// The first of them, and how far they are from each other.
    row: usize,
    apart: usize,
    /// Output rows of the stretches before.
    before: usize,
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

impl ConvOp<'_> {
    /// Past rows that a convolution of this kernel keeps.
    pub fn history(taps: usize, stride: usize, dilation: usize) -> usize {
        ((taps - 1) * dilation + 1).saturating_sub(stride)
    }
}

impl Exec {
    /// What a slot has kept, to save it.
    pub fn save_conv(&mut self, state: &ConvState, slot: usize) -> Vec<f32> {
        assert!(slot < state.spec.slots, "slot {slot} of {}", state.spec.slots);
        match &mut self.cuda {
            Some(cuda) if state.device.is_used() => cuda.save_conv(state, slot),
            _ => state.save(slot).to_vec(),
        }
    }

    /// Restores what [`Exec::save_conv`] gave, as of a stream that has begun.
    pub fn restore_conv(&mut self, state: &mut ConvState, slot: usize, rows: &[f32]) {
        assert!(slot < state.spec.slots && rows.len() == state.slot_len(), "rows of slot {slot}");
        match &mut self.cuda {
            Some(cuda) => cuda.restore_conv(state, slot, rows),
            None => state.restore(slot, rows),
        }
    }

    /// Runs a convolution. A slot has one span at most. Where `w` has more outputs than `out` has columns, each output row
    /// of the product is several consecutive rows of `out` (a transposed convolution).
    pub fn conv(&mut self, op: &ConvOp<'_>, state: &mut ConvState, out: &mut Buffer) {
        self.conv_of(op, None, state, out);
    }

    /// The convolution of `snake(x)` in one pass, if this executor can; otherwise nothing happens, and the caller runs the
    /// two ops. It takes no other activation of the input.
    pub fn conv_snaked(
        &mut self,
        op: &ConvOp<'_>,
        snake: Snake<'_>,
        state: &mut ConvState,
        out: &mut Buffer,
    ) -> bool {
        assert!(op.pre == Activation::None, "one activation of the input");
        assert!(
            [snake.rate, snake.gain].iter().all(|v| v.len() == op.x.cols),
            "a rate and a gain per channel"
        );
        if self.cuda.is_some() {
            self.conv_of(op, Some(snake), state, out);
        }
        self.cuda.is_some()
    }

    fn conv_of(
        &mut self,
        op: &ConvOp<'_>,
        snake: Option<Snake<'_>>,
        state: &mut ConvState,
        out: &mut Buffer,
    ) {
        let (cin, hist) = (op.x.cols, state.spec.history);
        let rows_in: usize = op.spans.iter().map(|s| s.rows).sum();
        assert_eq!(op.w.k, op.taps * cin, "kernel width");
        assert_eq!(state.spec.channels, cin, "state channels");
        assert_eq!(hist, ConvOp::history(op.taps, op.stride, op.dilation), "state history");
        assert!(rows_in <= op.x.rows, "input rows");
        op.w.expect_place(self.cuda.is_some());
        self.scratch.marks.check(state.spec.slots, op.spans.iter().map(|s| s.slot));
        let out_stride = if op.w.n > out.cols { op.w.n } else { out.cols };
        assert!(out_stride.is_multiple_of(out.cols), "outputs fold into rows");
        let quantised = op.w.format == Format::Int8 && self.cuda.is_none();
        let kind = if quantised { OperandKind::F32 } else { OperandKind::of(op.w.format, self.kernels) };
        assert!(
            matches!(kind, OperandKind::F32 | OperandKind::Bf16),
            "convolution weights are f32, bf16 or int8"
        );
        let value = if kind == OperandKind::F32 { 4 } else { 2 };
        let slack = op.w.kp;
        let padded = |values: usize| (values + slack).next_multiple_of(32);
        let way = |rows: usize| match op.dilation {
            1 => Way::InPlace,
            d if op.stride == 1 && rows >= PHASE_ROWS * d => Way::Phases(Phases::new(hist + rows, d)),
            _ => Way::Gathered,
        };
        let staged = |rows: usize| match way(rows) {
            Way::InPlace => padded((hist + rows) * cin),
            Way::Gathered => padded(rows / op.stride * op.w.k),
            Way::Phases(p) => p.before(op.dilation, |rows| padded(rows * cin)),
        };
        let total: usize = op.spans.iter().map(|s| staged(s.rows)).sum();
        let mut longest = 0;
        for s in op.spans {
            assert!(s.rows.is_multiple_of(op.stride), "rows in steps of the stride");
            longest = longest.max(s.rows);
        }
        assert!(rows_in / op.stride * out_stride <= out.data.len(), "output rows");
        assert!(op.bias.is_none_or(|b| b.len() == op.w.n), "bias length");
        if rows_in == 0 {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            return cuda.conv(op, snake, rows_in / op.stride, state, out);
        }
        self.scratch.operand.reserve_zeroed(total * value);
        self.reserve_products(longest);
        let threads = self.pool.threads();
        let kernels = self.kernels;
        let outputs = if quantised { rows_in / op.stride } else { 0 };
        let layout = OperandLayout::new(OperandKind::of(op.w.format, kernels), outputs, op.w);
        self.scratch.quantised.reserve_zeroed(layout.bytes);
        self.scratch.scales.reserve_zeroed(outputs);
        for s in op.spans {
            if state.spec.replicate && state.fresh[s.slot] && s.rows > 0 {
                let first: usize = first_row(op.spans, s.slot);
                let row = op.x.row(first);
                for h in state.slot_mut(s.slot).chunks_exact_mut(cin) {
                    // SAFETY: both hold a row of `cin` values.
                    unsafe { (kernels.map)(row.as_ptr(), cin, op.pre, h.as_mut_ptr()) };
                }
            }
        }

        let operand = Shared(self.scratch.operand.as_mut_ptr());
        let products = Shared(self.scratch.products.as_mut_ptr());
        let bytes = Shared(self.scratch.quantised.as_mut_ptr());
        let scales = Shared(self.scratch.scales.as_mut_ptr());
        // Copies `n` values (activated unless they come from the history) to value offset `to`.
        let copy = |from: &[f32], act: Activation, to: usize| {
            // SAFETY: `to..to + n` lies in the reserved operand and belongs to the calling worker.
            unsafe {
                let at = operand.get().add(to * value);
                match kind {
                    OperandKind::F32 => (kernels.map)(from.as_ptr(), from.len(), act, at.cast()),
                    _ => (kernels.map_bf16)(from.as_ptr(), from.len(), act, at.cast()),
                }
            }
        };
        let past = &*state;
        self.pool.run(|id| {
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
                // Kernels read what follows a part's rows against zero weights, so it must hold numbers.
                let clear = |used: usize, end: usize| {
                    if id == threads - 1 {
                        // SAFETY: the tail of this part of the operand, which no worker copies to.
                        unsafe { operand.get().add(used * value).write_bytes(0, (end - used) * value) };
                    }
                };
                let len = staged(s.rows);
                match way(s.rows) {
                    Way::Gathered => {
                        for t in share(s.rows / op.stride, 1, id, threads) {
                            for tap in 0..op.taps {
                                row_to(t * op.stride + tap * op.dilation, base + t * op.w.k + tap * cin);
                            }
                        }
                        clear(base + s.rows / op.stride * op.w.k, base + len);
                    }
                    Way::Phases(p) => {
                        for r in share(hist + s.rows, 1, id, threads) {
                            let phase = base + p.before(r % op.dilation, |rows| padded(rows * cin));
                            row_to(r, phase + r / op.dilation * cin);
                        }
                        for phase in 0..op.dilation {
                            let at = |phase| base + p.before(phase, |rows| padded(rows * cin));
                            clear(at(phase) + p.rows(phase) * cin, at(phase + 1));
                        }
                    }
                    Way::InPlace => {
                        if id == 0 && hist > 0 {
                            copy(history, Activation::None, base);
                        }
                        let part = share(s.rows, 1, id, threads);
                        if !part.is_empty() {
                            let from = &op.x.data[(first + part.start) * cin..(first + part.end) * cin];
                            copy(from, op.pre, base + (hist + part.start) * cin);
                        }
                        clear(base + (hist + s.rows) * cin, base + len);
                    }
                }
                base += len;
                first += s.rows;
            }
        });

        let each_stretch = |f: &mut dyn FnMut(Stretch)| {
            let (mut base, mut first) = (0, 0);
            for s in op.spans {
                let (rows, row) = (s.rows / op.stride, first / op.stride);
                match way(s.rows) {
                    Way::InPlace => {
                        f(Stretch { at: base, lda: op.stride * cin, rows, row, apart: 1, before: row });
                    }
                    Way::Gathered => f(Stretch { at: base, lda: op.w.k, rows, row, apart: 1, before: row }),
                    Way::Phases(p) => {
                        let mut before = row;
                        for phase in 0..op.dilation {
                            let at = base + p.before(phase, |rows| padded(rows * cin));
                            let rows = p.rows(phase) - (op.taps - 1);
                            let apart = op.dilation;
                            f(Stretch { at, lda: cin, rows, row: row + phase, apart, before });
                            before += rows;
                        }
                    }
                }
                base += staged(s.rows);
                first += s.rows;
            }
        };
        if quantised {
            self.pool.run(|id| {
                each_stretch(&mut |s| {
                    for r in share(s.rows, 1, id, threads) {
                        // SAFETY: `k` staged values of an output row, and its place among the quantised ones.
                        unsafe {
                            let x = operand.get().add((s.at + r * s.lda) * value).cast::<f32>();
                            let to = bytes.get().add((s.before + r) * layout.row);
                            *scales.get().add(s.before + r) = (kernels.quantize_int8)(x, op.w.k, op.w.kp, to);
                        }
                    }
                });
            });
        }

        let out = Shared(out.data.as_mut_ptr());
        self.pool.run(|id| {
            each_stretch(&mut |s| {
                // SAFETY: inside the reserved operand, or the reserved quantised rows.
                let operand = unsafe {
                    if quantised {
                        Operand {
                            a: bytes.get().add(s.before * layout.row),
                            lda: layout.row,
                            scales: scales.get().add(s.before),
                            sums: std::ptr::null(),
                        }
                    } else {
                        Operand {
                            a: operand.get().add(s.at * value),
                            lda: s.lda * value,
                            scales: std::ptr::null(),
                            sums: std::ptr::null(),
                        }
                    }
                };
                let product = Product {
                    w: op.w,
                    operand,
                    rows: s.rows,
                    bias: op.bias,
                    act: op.act,
                    store: if op.add { Store::Add } else { Store::Set },
                    gate: None,
                    // SAFETY: output rows were checked above; workers write disjoint parts.
                    out: unsafe { out.get().add(s.row * out_stride) },
                    out_stride: s.apart * out_stride,
                };
                // SAFETY: as above; each worker has its own block of products.
                unsafe {
                    run_product(kernels, &product, id, threads, (*products.get().add(id)).as_mut_ptr())
                };
            });
        });

        remember(op.x, op.spans, state, |row, to| {
            // SAFETY: both hold a row of `cin` values.
            unsafe { (kernels.map)(row.as_ptr(), cin, op.pre, to.as_mut_ptr()) };
        });
    }

    /// Depthwise transposed convolution: `stride` output rows per input row, each channel by itself.
    pub fn upsample(&mut self, op: &UpsampleOp<'_>, state: &mut ConvState, out: &mut Buffer) {
        let (channels, stride) = (op.x.cols, op.stride);
        let taps = op.kernel.len() / channels / stride;
        assert_eq!(op.kernel.len(), taps * stride * channels, "kernel shape");
        assert_eq!((state.spec.history, state.spec.channels), (taps - 1, channels), "state shape");
        let rows: usize = op.spans.iter().map(|s| s.rows).sum();
        assert!(rows <= op.x.rows && rows * stride <= out.rows && channels <= out.cols, "rows fit");
        self.scratch.marks.check(state.spec.slots, op.spans.iter().map(|s| s.slot));
        if rows == 0 {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            return cuda.upsample(op, rows, state, out);
        }
        let mut first = 0;
        for s in op.spans {
            state.fresh[s.slot] &= s.rows == 0;
            for r in 0..s.rows {
                let past = state.slot_mut(s.slot);
                for j in 0..stride {
                    let out = out.row_mut((first + r) * stride + j);
                    let x = op.x.row(first + r);
                    let w = &op.kernel[j * channels..(j + 1) * channels];
                    out.iter_mut().zip(x).zip(w).for_each(|((o, x), w)| *o = x * w);
                    for tap in 1..taps {
                        let x = &past[(taps - 1 - tap) * channels..][..channels];
                        let w = &op.kernel[(tap * stride + j) * channels..][..channels];
                        out.iter_mut().zip(x).zip(w).for_each(|((o, x), w)| *o += x * w);
                    }
                }
                if taps > 1 {
                    past.copy_within(channels.., 0);
                    past[(taps - 2) * channels..].copy_from_slice(op.x.row(first + r));
                }
            }
            first += s.rows;
        }
    }
}

/// Makes each slot's last input rows its history, written by `put`.
pub(super) fn remember(x: &Buffer, spans: &[Span], state: &mut ConvState, put: impl Fn(&[f32], &mut [f32])) {
    let (hist, channels) = (state.spec.history, state.spec.channels);
    let mut first = 0;
    for s in spans {
        state.fresh[s.slot] &= s.rows == 0;
        let history = state.slot_mut(s.slot);
        let keep = hist.saturating_sub(s.rows);
        history.copy_within((hist - keep) * channels.., 0);
        for h in keep..hist {
            let row = x.row(first + s.rows - (hist - h));
            put(row, &mut history[h * channels..(h + 1) * channels]);
        }
        first += s.rows;
    }
}

fn first_row(spans: &[Span], slot: usize) -> usize {
    spans.iter().take_while(|s| s.slot != slot).map(|s| s.rows).sum()
}

/// A depthwise transposed convolution whose kernel is a whole number of strides.
pub struct UpsampleOp<'a> {
    /// Input rows.
    pub x: &'a Buffer,
    /// Whose rows they are.
    pub spans: &'a [Span],
    /// `[taps * stride][channels]`.
    pub kernel: &'a Vector,
    /// Output rows per input row.
    pub stride: usize,
}
