//! Sampling on the device: what is drawn stays there.

use super::driver::{Address, Shape};
use super::queue::Args;
use super::{Cuda, Plain, program};
use crate::exec::{SampleOp, Tokens};

/// Threads of a block; a row has one. And where the largest is taken.
const THREADS: u32 = 512;
const BEST_THREADS: u32 = 256;
/// Bytes of shared memory that the kernel has of its own, at most.
const OWN_SHARED: u32 = 8 << 10;

/// A row's settings: see `sampling.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct RowSettings {
    slot: u32,
    step: u32,
    seed: [u32; 2],
    inverse: f32,
    top_p: f32,
    penalty: f32,
    top_k: u32,
    below: u32,
    also: u32,
    pad: [u32; 2],
}

// SAFETY: numbers without padding.
unsafe impl Plain for RowSettings {}

/// Arguments of `sample`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SampleArgs {
    pub(super) logits: Address,
    pub(super) rows: Address,
    pub(super) tokens: Address,
    pub(super) history: Address,
    pub(super) table: Address,
    pub(super) next: Address,
    pub(super) spill: Address,
    pub(super) stride: u32,
    pub(super) n: u32,
    pub(super) columns: u32,
    pub(super) column: u32,
    pub(super) words: u32,
    pub(super) table_rows: u32,
    pub(super) table_stride: u32,
    pub(super) table_bf16: u32,
    pub(super) dim: u32,
    pub(super) next_stride: u32,
    pub(super) first: u32,
    pub(super) every: u32,
    pub(super) less: u32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernel declares them.
unsafe impl Args for SampleArgs {}

impl Cuda {
    pub(crate) fn sample(&mut self, op: SampleOp<'_>, tokens: &Tokens) {
        let n = op.logits.width() as u32;
        let mut args = SampleArgs {
            logits: self.view(&op.logits),
            rows: 0,
            tokens: self.tokens(tokens),
            history: 0,
            table: 0,
            next: 0,
            spill: 0,
            stride: op.logits.stride() as u32,
            n,
            columns: tokens.cols() as u32,
            column: op.column as u32,
            words: 0,
            table_rows: 0,
            table_stride: 0,
            table_bf16: 0,
            dim: 0,
            next_stride: 0,
            first: 0,
            every: 0,
            less: 0,
            pad: 0,
        };
        if let Some(history) = op.history {
            (args.history, args.words) = (self.written_tokens(history), history.cols() as u32);
        }
        if let Some(next) = op.next {
            if next.less {
                self.read(next.out);
            }
            let table = self.table_rows(next.table);
            (args.table, args.table_stride) = (table.at(), table.stride as u32);
            (args.table_rows, args.dim) = (next.table.rows() as u32, next.table.dim() as u32);
            args.table_bf16 = u32::from(next.table.is_bf16());
            (args.next_stride, args.next) = (next.out.cols() as u32, self.write(next.out));
            (args.first, args.every) = (next.place.first as u32, next.place.step as u32);
            args.less = u32::from(next.less);
        }
        let rows: Vec<RowSettings> = op
            .rows
            .iter()
            .map(|r| {
                let s = &r.sampling;
                RowSettings {
                    slot: r.slot as u32,
                    step: r.step,
                    seed: [s.seed as u32, (s.seed >> 32) as u32],
                    inverse: s.inverse(),
                    top_p: s.top_p,
                    penalty: s.penalty,
                    top_k: s.top_k.min(n as usize) as u32,
                    below: s.below,
                    also: s.also.unwrap_or(u32::MAX),
                    pad: [0; 2],
                }
            })
            .collect();
        // Weights are kept beside the keys where a row sums them.
        let arrays = 1 + u32::from(rows.iter().any(|r| r.top_p < 1.0));
        args.rows = self.queue.table(&rows);
        // A row alone may be part of a frame's kernel, which knows one way to draw.
        let plain = |r: &RowSettings| r.inverse <= 0.0 && (args.history == 0 || r.penalty == 1.0);
        if rows.len() > 1 && rows.iter().all(plain) {
            let shape = Shape { grid: [rows.len() as u32, 1, 1], block: BEST_THREADS, shared: 0 };
            return self.queue.launch(program::SAMPLE_BEST, shape, &args);
        }
        let mut shared = 4 * n * arrays;
        if shared + OWN_SHARED > self.queue.device.info().shared {
            args.spill = self.queue.reserve(&mut self.scratch.draws, rows.len() * 8 * n as usize);
            shared = 0;
        }
        let shape = Shape { grid: [rows.len() as u32, 1, 1], block: THREADS, shared };
        self.queue.launch(program::SAMPLE, shape, &args);
    }
}
