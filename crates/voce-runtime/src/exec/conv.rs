//! Streaming convolution as a product over overlapping rows, and depthwise forms of it.
//!
//! Activations are rows of channels, so the taps of an output row are consecutive input rows: with
//! unit dilation the product reads them in place. A transposed convolution with stride `s` is an
//! ordinary one whose `s * channels` outputs are `s` rows. State is the last input rows, activated. With int8
//! weights the taps of each output row are quantised together, so that it depends on no other row.

use super::conv_staging::Staging;
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
        let (cin, rows_in) = (op.x.cols, op.spans.iter().map(|s| s.rows).sum::<usize>());
        let out_stride = op.w.n.max(out.cols);
        self.check_conv(op, state, rows_in, out);
        if rows_in == 0 {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            return cuda.conv(op, snake, rows_in / op.stride, state, out);
        }
        let kernels = self.kernels;
        let quantised = op.w.format == Format::Int8;
        let kind = if quantised { OperandKind::F32 } else { OperandKind::of(op.w.format, kernels) };
        let staging = Staging::new(op, kind, state.spec.history);
        self.scratch.operand.reserve_zeroed(staging.bytes());
        self.reserve_products(op.spans.iter().map(|s| s.rows).max().unwrap_or(0));
        let (threads, work) = (self.pool.threads(), rows_in / op.stride * op.w.kp * op.w.n);
        let outputs = if quantised { rows_in / op.stride } else { 0 };
        let layout = OperandLayout::new(OperandKind::of(op.w.format, kernels), outputs, op.w);
        self.scratch.quantised.reserve_zeroed(layout.bytes);
        self.scratch.scales.reserve_zeroed(outputs);
        // A row of the input as the product takes it.
        let activate = |row: &[f32], to: &mut [f32]| {
            // SAFETY: both hold a row of `cin` values.
            unsafe { (kernels.map)(row.as_ptr(), cin, op.pre, to.as_mut_ptr()) };
        };
        for s in op.spans {
            if state.spec.replicate && state.fresh[s.slot] && s.rows > 0 {
                let row = op.x.row(first_row(op.spans, s.slot));
                state.slot_mut(s.slot).chunks_exact_mut(cin).for_each(|to| activate(row, to));
            }
        }

        let operand = Shared(self.scratch.operand.as_mut_ptr());
        let products = Shared(self.scratch.products.as_mut_ptr());
        let bytes = Shared(self.scratch.quantised.as_mut_ptr());
        let scales = Shared(self.scratch.scales.as_mut_ptr());
        let past = &*state;
        // SAFETY: the operand has room for all of it, and each worker writes its own part.
        self.pool.run_parts(work, |id, share, parts| unsafe {
            staging.fill(kernels, past, operand.get(), (share, threads), id == share, parts);
        });
        if quantised {
            self.pool.run_parts(work, |_, id, parts| {
                staging.stretches(&mut |s| {
                    for r in parts.of(share(s.rows, 1, id, threads), 1).flatten() {
                        // SAFETY: `k` staged values of an output row, and its place among the quantised ones.
                        unsafe {
                            let x = operand.get().add(staging.at(s.at + r * s.lda)).cast::<f32>();
                            let to = bytes.get().add((s.before + r) * layout.row);
                            *scales.get().add(s.before + r) = (kernels.quantize_int8)(x, op.w.k, op.w.kp, to);
                        }
                    }
                });
            });
        }

        let out = Shared(out.data.as_mut_ptr());
        self.pool.run_parts(work, |id, share, parts| {
            staging.stretches(&mut |s| {
                // SAFETY: inside the reserved operand, or the reserved quantised rows.
                let (a, lda, scales) = unsafe {
                    if quantised {
                        let a = bytes.get().add(s.before * layout.row);
                        (a, layout.row, scales.get().add(s.before).cast_const())
                    } else {
                        (operand.get().add(staging.at(s.at)), staging.at(s.lda), std::ptr::null())
                    }
                };
                let product = Product {
                    w: op.w,
                    operand: Operand { a, lda, scales, sums: std::ptr::null() },
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
                    let products = (*products.get().add(id)).as_mut_ptr();
                    run_product(kernels, &product, (share, threads), parts, products);
                }
            });
        });
        remember(op.x, op.spans, state, activate);
    }

    /// Ends the program where a convolution's parts do not fit each other.
    fn check_conv(&mut self, op: &ConvOp<'_>, state: &ConvState, rows_in: usize, out: &Buffer) {
        assert_eq!(op.w.k, op.taps * op.x.cols, "kernel width");
        assert_eq!(state.spec.channels, op.x.cols, "state channels");
        assert_eq!(state.spec.history, ConvOp::history(op.taps, op.stride, op.dilation), "state history");
        assert!(rows_in <= op.x.rows, "input rows");
        assert!(op.spans.iter().all(|s| s.rows.is_multiple_of(op.stride)), "rows in steps of the stride");
        op.w.expect_place(self.cuda.is_some());
        self.scratch.marks.check(state.spec.slots, op.spans.iter().map(|s| s.slot));
        let is_taken = match op.w.format {
            Format::F32 | Format::Bf16 => true,
            Format::Int8 => self.cuda.is_none(),
            _ => false,
        };
        assert!(is_taken, "convolution weights are f32, bf16 or, on CPUs, int8");
        let out_stride = op.w.n.max(out.cols);
        assert!(out_stride.is_multiple_of(out.cols), "outputs fold into rows");
        assert!(rows_in / op.stride * out_stride <= out.data.len(), "output rows");
        assert!(op.bias.is_none_or(|b| b.len() == op.w.n), "bias length");
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
