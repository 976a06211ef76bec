//! Spectrograms on the device: samples travel there in one copy and become rows where the encoder reads them.

use super::driver::{Address, Shape};
use super::queue::{Args, LARGE};
use super::{Cuda, bytes, program};
use crate::exec::{Buffer, FrameSpan, MelOp, Staging};

/// Threads of a block of `mel`: a warp per row.
const THREADS: u32 = 256;
/// Threads of a block of `standardise`, and bins that it takes.
const STANDARDISE_THREADS: u32 = 512;
const STANDARDISE_BINS: u32 = 32;

/// Arguments of `mel`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct MelArgs {
    samples: Address,
    spans: Address,
    window: Address,
    roots: Address,
    bands: Address,
    weights: Address,
    out: Address,
    rows: u32,
    count: u32,
    hop: u32,
    length: u32,
    fft: u32,
    bins: u32,
    guard: f32,
    pad: u32,
}

/// Arguments of `standardise`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct StandardiseArgs {
    x: Address,
    spans: Address,
    bins: u32,
    groups: u32,
    guard: f32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for MelArgs {}
// SAFETY: as above.
unsafe impl Args for StandardiseArgs {}

impl Cuda {
    /// Makes host memory ready to be written: what was on its way from there has arrived.
    pub(crate) fn stage(&mut self, staging: &mut Staging, len: usize) {
        match staging.was_taken_by(self.queue.number) {
            Some(true) => self.queue.wait(),
            Some(false) => {}
            None => staging.leave(),
        }
        staging.grow(len, &self.queue.device);
    }

    pub(crate) fn mel(&mut self, op: &MelOp<'_>, rows: usize, values: usize, out: &mut Buffer) {
        let (f, staging) = (op.filters, op.samples);
        let samples = {
            let mut memory = staging.device.lock().unwrap_or_else(|e| e.into_inner());
            self.queue.reserve(&mut memory, staging.host.len() * 4)
        };
        self.queue.upload(samples, bytes(&staging.host[..values]));
        staging.is_taken_by(self.queue.number, values * 4 >= LARGE);
        let [window, roots, bands, weights] =
            [&f.window, &f.roots, &f.bands, &f.weights].map(|v| self.constant(v));
        let out = self.write(out);
        let mut first = 0;
        let spans: Vec<[u32; 2]> = op
            .spans
            .iter()
            .map(|s| {
                let words = [first as u32, s.to as u32];
                first += s.rows;
                words
            })
            .collect();
        let args = MelArgs {
            samples,
            spans: self.queue.table(&spans),
            window,
            roots,
            bands,
            weights,
            out,
            rows: rows as u32,
            count: spans.len() as u32,
            hop: f.hop as u32,
            length: f.window.len() as u32,
            fft: f.fft as u32,
            bins: f.bins() as u32,
            guard: f.guard,
            pad: 0,
        };
        // Shared memory for as many rows as a block has warps, or as there is room for.
        let row_bytes = 8 * f.fft as u32;
        let warps = (THREADS / 32).min(self.device().info().shared / row_bytes).max(1);
        let blocks = (rows as u32).div_ceil(warps);
        let shape = Shape { grid: [blocks, 1, 1], block: 32 * warps, shared: warps * row_bytes };
        self.queue.launch(program::MEL, shape, &args);
    }

    pub(crate) fn standardise(&mut self, x: &mut Buffer, spans: &[FrameSpan], guard: f32) {
        let bins = x.cols() as u32;
        let x = self.write(x);
        let mut begins = vec![0u32];
        // Of spans without rows nothing is asked.
        for rows in spans.iter().map(|s| s.rows as u32).filter(|&r| r > 0) {
            begins.push(begins.last().map_or(0, |b| b + rows));
        }
        let groups = bins.div_ceil(STANDARDISE_BINS);
        let blocks = (begins.len() as u32 - 1) * groups;
        let args = StandardiseArgs { x, spans: self.queue.table(&begins), bins, groups, guard, pad: 0 };
        let shape = Shape { grid: [blocks, 1, 1], block: STANDARDISE_THREADS, shared: 0 };
        self.queue.launch(program::STANDARDISE, shape, &args);
    }
}
