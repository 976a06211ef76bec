//! Strided 3 x 3 convolutions over spectrograms: each halves time and frequency.
//!
//! A time row is `bins * channels` values, channels together, so that a row of a [`Buffer`] with one bin per
//! row is what the pointwise product between two such convolutions reads.

use super::kv_cache::MAX_POSITION;
use super::{Buffer, Exec, Shared, Vector};
use crate::cuda::PastRows;
use crate::memory::{AlignedVec, volume};
use crate::pool::share;
use crate::simd::{Activation, Taps2d};

/// Shape of a [`SubsampleState`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubsampleSpec {
    /// Streams side by side.
    pub slots: usize,
    /// Input bins.
    pub bins: usize,
    /// Input channels: 1 for a spectrogram, else that of the output.
    pub channels: usize,
    /// Zeros before the first time row and bin: 2 sees the past only, 1 is centred.
    pub left: usize,
}

impl SubsampleSpec {
    /// Output bins.
    pub fn out_bins(&self) -> usize {
        (self.bins + self.left - 2) / 2 + 1
    }

    /// Output rows once `seen` input rows are known, and whether more will come.
    pub fn out_rows(&self, seen: usize, ended: bool) -> usize {
        let padded = seen + self.left + usize::from(ended);
        if seen == 0 || padded < 3 { 0 } else { (padded - 3) / 2 + 1 }
    }
}

/// The last time rows of a strided convolution, per slot. On a device from their first use there.
pub struct SubsampleState {
    pub(crate) spec: SubsampleSpec,
    pub(crate) rows: AlignedVec<f32>,
    /// Time rows that a slot's stream has had.
    pub(crate) seen: Vec<usize>,
    pub(crate) device: PastRows,
}

impl SubsampleState {
    /// Time rows that a slot keeps.
    pub(crate) const HISTORY: usize = 2;

    /// A state before the first row.
    pub fn new(spec: SubsampleSpec) -> Self {
        assert!(spec.left == 1 || spec.left == 2, "padding of 1 or 2");
        let rows = AlignedVec::zeroed(volume([spec.slots, Self::HISTORY, spec.bins, spec.channels]));
        Self { spec, rows, seen: vec![0; spec.slots], device: PastRows::default() }
    }

    /// Its shape.
    pub fn spec(&self) -> &SubsampleSpec {
        &self.spec
    }

    /// Starts a slot anew.
    pub fn reset(&mut self, slot: usize) {
        self.slot_mut(slot).fill(0.0);
        self.seen[slot] = 0;
    }

    /// Output rows that `rows` more input rows of a slot give.
    pub fn yields(&self, slot: usize, rows: usize, last: bool) -> usize {
        let seen = self.seen[slot];
        self.spec.out_rows(seen + rows, last) - self.spec.out_rows(seen, false)
    }

    /// Values that a slot keeps.
    pub fn slot_len(&self) -> usize {
        Self::HISTORY * self.spec.bins * self.spec.channels
    }

    /// What a slot has seen and kept on the host, to save it; [`Exec::save_subsample`] knows of devices too.
    pub fn save(&self, slot: usize) -> (usize, &[f32]) {
        assert!(!self.device.is_used(), "a state of a device is saved by its executor");
        (self.seen[slot], self.slot(slot))
    }

    /// Restores what was saved, on the host; [`Exec::restore_subsample`] knows of devices too.
    pub fn restore(&mut self, slot: usize, seen: usize, rows: &[f32]) {
        assert!(!self.device.is_used(), "a state of a device is restored by its executor");
        assert!(seen <= MAX_POSITION, "a stream of at most {MAX_POSITION} rows");
        self.slot_mut(slot).copy_from_slice(rows);
        self.seen[slot] = seen;
    }

    fn slot(&self, slot: usize) -> &[f32] {
        let len = self.slot_len();
        &self.rows[slot * len..(slot + 1) * len]
    }

    fn slot_mut(&mut self, slot: usize) -> &mut [f32] {
        let len = self.slot_len();
        &mut self.rows[slot * len..(slot + 1) * len]
    }
}

/// Consecutive time rows of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSpan {
    /// The slot whose state the rows use.
    pub slot: usize,
    /// How many time rows.
    pub rows: usize,
    /// No more will come: zeros follow.
    pub last: bool,
}

/// A strided 3 x 3 convolution.
pub struct SubsampleOp<'a> {
    /// Input: `bins * channels` values per time row, whatever the buffer's columns are.
    pub x: &'a Buffer,
    /// Whose rows they are.
    pub spans: &'a [FrameSpan],
    /// `[3][3][channels]`: time, frequency, output channel.
    pub kernel: &'a Vector,
    /// Added.
    pub bias: Option<&'a Vector>,
    /// Applied last.
    pub act: Activation,
}

impl Exec {
    /// What a slot has seen and kept, to save it.
    pub fn save_subsample(&mut self, state: &SubsampleState, slot: usize) -> (usize, Vec<f32>) {
        assert!(slot < state.spec.slots, "slot {slot} of {}", state.spec.slots);
        match &mut self.cuda {
            Some(cuda) if state.device.is_used() => (state.seen[slot], cuda.save_subsample(state, slot)),
            _ => (state.seen[slot], state.slot(slot).to_vec()),
        }
    }

    /// Restores what [`Exec::save_subsample`] gave.
    pub fn restore_subsample(&mut self, state: &mut SubsampleState, slot: usize, seen: usize, rows: &[f32]) {
        assert!(slot < state.spec.slots && rows.len() == state.slot_len(), "rows of slot {slot}");
        assert!(seen <= MAX_POSITION, "a stream of at most {MAX_POSITION} rows");
        match &mut self.cuda {
            Some(cuda) => cuda.restore_subsample(state, slot, seen, rows),
            None => state.restore(slot, seen, rows),
        }
    }

    /// Runs the convolution; `out` gets [`SubsampleState::yields`] time rows per span, one buffer row per bin.
    pub fn subsample(&mut self, op: &SubsampleOp<'_>, state: &mut SubsampleState, out: &mut Buffer) {
        let spec = state.spec;
        let channels = op.kernel.len() / 9;
        assert!(op.kernel.len() == 9 * channels && channels == out.cols, "kernel shape");
        assert!(spec.channels == 1 || spec.channels == channels, "one channel or as many as there are");
        assert!(op.bias.is_none_or(|b| b.len() == channels), "bias length");
        self.scratch.marks.check(spec.slots, op.spans.iter().map(|s| s.slot));
        let (width, out_width) = (spec.bins * spec.channels, spec.out_bins() * channels);
        let (rows, made) =
            op.spans.iter().fold((0, 0), |(r, m), s| (r + s.rows, m + state.yields(s.slot, s.rows, s.last)));
        assert!(rows * width <= op.x.data.len(), "input rows");
        assert!(made * out_width <= out.data.len(), "output rows");
        if let Some(cuda) = &mut self.cuda {
            return cuda.subsample(op, made, state, out);
        }
        let (threads, kernels) = (self.pool.threads(), self.kernels);
        let to = Shared(out.data.as_mut_ptr());
        let past = &*state;
        self.pool.run(|id| {
            let null = std::ptr::null();
            let (mut first, mut base) = (0, 0);
            for s in op.spans {
                let (seen, kept) = (past.seen[s.slot], past.slot(s.slot));
                let begin = spec.out_rows(seen, false);
                let count = past.yields(s.slot, s.rows, s.last);
                for i in share(count, 1, id, threads) {
                    let mut taken = [null; 3];
                    for (dt, row) in taken.iter_mut().enumerate() {
                        // Time row 2 i + dt - left; negative and later than the last are zeros.
                        let Some(t) = (2 * (begin + i) + dt).checked_sub(spec.left) else { continue };
                        *row = if t >= seen + s.rows {
                            null
                        } else if t >= seen {
                            op.x.data[(first + t - seen) * width..].as_ptr()
                        } else {
                            kept[(t + SubsampleState::HISTORY - seen) * width..].as_ptr()
                        };
                    }
                    let input = Taps2d {
                        rows: taken,
                        bins: spec.bins,
                        out_bins: spec.out_bins(),
                        left: spec.left,
                        channels,
                        weights: op.kernel.as_ptr(),
                        bias: op.bias.map_or(null, |b| b.as_ptr()),
                    };
                    // SAFETY: output time rows are split by worker; shapes were checked above.
                    unsafe {
                        let out = to.get().add((base + i) * out_width);
                        (kernels.taps_2d)(&input, spec.channels == 1 && channels != 1, op.act, out);
                    }
                }
                first += s.rows;
                base += count;
            }
        });
        let mut first = 0;
        for s in op.spans {
            let kept = state.slot_mut(s.slot);
            let keep = SubsampleState::HISTORY.saturating_sub(s.rows);
            kept.copy_within((SubsampleState::HISTORY - keep) * width.., 0);
            for h in keep..SubsampleState::HISTORY {
                let from = (first + s.rows - (SubsampleState::HISTORY - h)) * width;
                kept[h * width..(h + 1) * width].copy_from_slice(&op.x.data[from..from + width]);
            }
            state.seen[s.slot] += s.rows;
            first += s.rows;
        }
    }
}
