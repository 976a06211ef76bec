//! Streams on the device: past rows of slots, and the tables by which kernels find them and what is new.

use super::driver::Address;
use super::linear::activation;
use super::pointwise::THREADS;
use super::{Cuda, Memory, bytes};
use crate::exec::{Buffer, ConvState, Span, SubsampleOp, SubsampleState};
use crate::simd::Activation;

/// The device's form of streams: see `conv.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct StreamArgs {
    x: Address,
    past: Address,
    spans: Address,
    rows: Address,
    /// Parameters of the periodic activation, where that is what new rows pass through.
    rate: Address,
    gain: Address,
    pub(super) width: u32,
    pub history: u32,
    count: u32,
    pre: u32,
    replicate: u32,
    /// Rows that share an entry of the table `rows`.
    pub(super) unit: u32,
}

/// The number of the periodic activation of new rows: as in `common.cuh`.
const ACT_SNAKE: u32 = 100;

impl StreamArgs {
    /// The same, with new rows that pass through the periodic activation of these parameters.
    pub(super) fn snaked(self, rate: Address, gain: Address) -> Self {
        Self { pre: ACT_SNAKE, rate, gain, ..self }
    }

    /// Blocks that write the past rows which come next.
    pub(super) fn keep_blocks(&self) -> u32 {
        self.keep_blocks_of(THREADS)
    }

    /// As [`StreamArgs::keep_blocks`], for blocks of `threads` threads.
    pub(super) fn keep_blocks_of(&self, threads: u32) -> u32 {
        let width = if self.width.is_multiple_of(4) { self.width / 4 } else { self.width };
        (self.count * self.history * width).div_ceil(threads)
    }
}

/// Past rows of slots on a device, twice for each slot: an op reads one copy while it writes the other.
#[derive(Default)]
pub(crate) struct PastRows {
    memory: Option<Memory>,
    /// Which of the two holds a slot's rows.
    halves: Vec<u32>,
}

impl PastRows {
    /// Whether a device has the rows.
    pub(crate) fn is_used(&self) -> bool {
        self.memory.is_some()
    }

    /// Where a slot's rows of `len` values are.
    fn slot(&self, slot: usize, len: usize) -> Address {
        let at = self.memory.as_ref().map_or(0, |m| m.at);
        at + ((2 * slot + self.halves[slot] as usize) * len * 4) as u64
    }
}

/// A span as the kernels see it: `StreamSpan` of `conv.cu`.
pub(super) type SpanWords = [u32; 8];

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Cuda {
    /// Where past rows are on the device. At first use the host's rows of streams that have begun are copied there, at once
    /// and not in the recording, which may never run.
    fn past<'h>(
        &mut self,
        past: &mut PastRows,
        slots: usize,
        len: usize,
        host: impl Fn(usize) -> Option<&'h [f32]>,
    ) -> Address {
        if past.memory.is_none() {
            past.halves = vec![0; slots];
            self.queue.reserve(&mut past.memory, 2 * slots * len * 4);
            for slot in 0..slots {
                if let Some(rows) = host(slot).filter(|_| past.is_used()) {
                    let result = self.queue.device.write(past.slot(slot, len), bytes(rows));
                    self.queue.check(result);
                }
            }
        }
        if let Some(memory) = &past.memory {
            self.queue.own(memory);
        }
        past.memory.as_ref().map_or(0, |m| m.at)
    }

    fn conv_past(&mut self, state: &mut ConvState) -> Address {
        let len = state.spec.history * state.spec.channels;
        let (rows, fresh) = (&state.rows, &state.fresh);
        let host = |slot: usize| (!fresh[slot]).then(|| &rows[slot * len..(slot + 1) * len]);
        self.past(&mut state.device, state.spec.slots, len, host)
    }

    fn subsample_past(&mut self, state: &mut SubsampleState) -> Address {
        let len = state.slot_len();
        let (rows, seen) = (&state.rows, &state.seen);
        let host = |slot: usize| (seen[slot] > 0).then(|| &rows[slot * len..(slot + 1) * len]);
        self.past(&mut state.device, state.spec.slots, len, host)
    }

    /// Rows that all spans are multiples of.
    pub(super) fn unit(spans: &[Span]) -> u32 {
        spans.iter().map(|s| s.rows as u32).fold(0, gcd).max(1)
    }

    /// The streams of a convolution with `stride` input rows per output row, which now go on by their spans.
    pub(super) fn streams(
        &mut self,
        x: &Buffer,
        spans: &[Span],
        stride: usize,
        pre: Activation,
        state: &mut ConvState,
    ) -> StreamArgs {
        let (x, past) = (self.read(x), self.conv_past(state));
        let spec = state.spec;
        let mut first = 0;
        let words: Vec<SpanWords> = spans
            .iter()
            .map(|s| {
                let half = &mut state.device.halves[s.slot];
                let blank = if state.fresh[s.slot] { spec.history } else { 0 };
                let words = [first / stride, first, s.rows, s.slot, *half as usize, blank, 0, 0];
                if s.rows > 0 {
                    *half ^= 1;
                    state.fresh[s.slot] = false;
                }
                first += s.rows;
                words.map(|w| w as u32)
            })
            .collect();
        let at = self.queue.table(&words);
        let (rows, unit) = self.rows_of(&words, first / stride);
        StreamArgs {
            x,
            past,
            spans: at,
            rows,
            rate: 0,
            gain: 0,
            width: spec.channels as u32,
            history: spec.history as u32,
            count: spans.len() as u32,
            pre: activation(pre),
            replicate: u32::from(spec.replicate),
            unit,
        }
    }

    /// A table that tells the span of each of `count` output rows, and how many consecutive rows share an entry: the
    /// largest number that divides all spans, which for a codec is a frame or more.
    fn rows_of(&mut self, words: &[SpanWords], count: usize) -> (Address, u32) {
        let begins = words.iter().skip(1).map(|w| w[0]).chain([count as u32]);
        let unit = begins.clone().fold(0, gcd).max(1);
        let mut rows = Vec::with_capacity(count / unit as usize);
        for (span, end) in begins.enumerate() {
            rows.resize((end / unit) as usize, span as u32);
        }
        (self.queue.table(&rows), unit)
    }

    /// The streams of a strided convolution over time rows, which now go on by their spans.
    pub(super) fn time_streams(&mut self, op: &SubsampleOp<'_>, state: &mut SubsampleState) -> StreamArgs {
        let spec = state.spec;
        let (x, past) = (self.read(op.x), self.subsample_past(state));
        let (mut first, mut first_out) = (0, 0);
        let words: Vec<SpanWords> = op
            .spans
            .iter()
            .map(|s| {
                let seen = state.seen[s.slot];
                let history = SubsampleState::HISTORY;
                let half = &mut state.device.halves[s.slot];
                let blank = history - seen.min(history);
                let origin = 2 * spec.out_rows(seen, false) + history - spec.left - seen;
                let words = [first_out, first, s.rows, s.slot, *half as usize, blank, origin, 0];
                if s.rows > 0 {
                    *half ^= 1;
                }
                first += s.rows;
                first_out += spec.out_rows(seen + s.rows, s.last) - spec.out_rows(seen, false);
                state.seen[s.slot] += s.rows;
                words.map(|w| w as u32)
            })
            .collect();
        let spans = self.queue.table(&words);
        let (rows, unit) = self.rows_of(&words, first_out);
        StreamArgs {
            x,
            past,
            spans,
            rows,
            rate: 0,
            gain: 0,
            width: (spec.bins * spec.channels) as u32,
            history: SubsampleState::HISTORY as u32,
            count: words.len() as u32,
            pre: 0,
            replicate: 0,
            unit,
        }
    }

    /// A slot's past rows, of which the first `blank` are not known.
    fn load_past(&mut self, past: &PastRows, slot: usize, blank: usize, rows: &mut [f32]) {
        self.queue.download(past.slot(slot, rows.len()), rows);
        rows[..blank].fill(0.0);
    }

    pub(crate) fn save_conv(&mut self, state: &ConvState, slot: usize) -> Vec<f32> {
        let mut rows = vec![0f32; state.slot_len()];
        let blank = if state.fresh[slot] { rows.len() } else { 0 };
        self.load_past(&state.device, slot, blank, &mut rows);
        rows
    }

    pub(crate) fn restore_conv(&mut self, state: &mut ConvState, slot: usize, rows: &[f32]) {
        self.conv_past(state);
        self.queue.upload(state.device.slot(slot, rows.len()), bytes(rows));
        state.fresh[slot] = false;
    }

    pub(crate) fn save_subsample(&mut self, state: &SubsampleState, slot: usize) -> Vec<f32> {
        let mut rows = vec![0f32; state.slot_len()];
        let known = state.seen[slot].min(SubsampleState::HISTORY);
        let blank = rows.len() / SubsampleState::HISTORY * (SubsampleState::HISTORY - known);
        self.load_past(&state.device, slot, blank, &mut rows);
        rows
    }

    pub(crate) fn restore_subsample(
        &mut self,
        state: &mut SubsampleState,
        slot: usize,
        seen: usize,
        rows: &[f32],
    ) {
        self.subsample_past(state);
        self.queue.upload(state.device.slot(slot, rows.len()), bytes(rows));
        state.seen[slot] = seen;
    }
}
