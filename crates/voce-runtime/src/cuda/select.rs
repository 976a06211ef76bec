//! Selection over rows of logits on the device; what was selected comes back to the host.

use std::ops::Range;

use super::driver::{Address, Shape};
use super::queue::Args;
use super::{Cuda, program, reserve};
use crate::exec::{Buffer, Candidate};
use crate::simd::select::RowStats;

/// Threads of a block; a row has one.
const THREADS: u32 = 256;
/// Words that the kernels write about a row: see `row_stats` in `select.cu`.
const STATS: usize = 5;

/// Arguments of `argmax`, `choose` and `top_k`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SelectArgs {
    x: Address,
    stats: Address,
    top: Address,
    stride: u32,
    n: u32,
    k: u32,
    alpha: f32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for SelectArgs {}

/// What the kernels found, one row after the other.
pub(crate) struct Selected<'a> {
    stats: &'a [u32],
    top: &'a [u32],
    k: usize,
}

impl Selected<'_> {
    /// A row's best and its sums.
    pub(crate) fn stats(&self, row: usize) -> RowStats {
        let s = &self.stats[row * STATS..(row + 1) * STATS];
        let [max, sum, dot, power] = [s[1], s[2], s[3], s[4]].map(f32::from_bits);
        RowStats { index: s[0] as usize, max, sum, dot, power }
    }

    /// A row's best few.
    pub(crate) fn top(&self, row: usize) -> impl Iterator<Item = Candidate> {
        let words = &self.top[2 * row * self.k..2 * (row + 1) * self.k];
        words.chunks_exact(2).map(|w| Candidate { logit: f32::from_bits(w[0]), index: w[1] })
    }
}

impl Cuda {
    pub(crate) fn argmax(&mut self, x: &Buffer, rows: usize, cols: &Range<usize>, out: &mut [u32]) {
        let (stride, device) = (x.cols() as u32, self.queue.device.clone());
        let x = self.read(x) + 4 * cols.start as u64;
        let top = reserve(&device, &mut self.scratch.selected, rows * 4);
        let args = SelectArgs { x, stats: 0, top, stride, n: cols.len() as u32, k: 1, alpha: 0.0 };
        let shape = Shape { grid: [rows as u32, 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(program::ARGMAX, shape, &args);
        self.queue.download(top, &mut out[..rows]);
    }

    /// The statistics of rows and, unless `k` is 0, the best few of each.
    pub(crate) fn select(
        &mut self,
        x: &Buffer,
        rows: usize,
        cols: &Range<usize>,
        alpha: f32,
        k: usize,
    ) -> Selected<'_> {
        let (stride, device) = (x.cols() as u32, self.queue.device.clone());
        let x = self.read(x) + 4 * cols.start as u64;
        let words = rows * (STATS + 2 * k);
        let stats = reserve(&device, &mut self.scratch.selected, words * 4);
        // Pairs of words are written at once, so they begin at an even one.
        let (stats, top) = (stats + 8 * (rows * k) as u64, stats);
        let args = SelectArgs { x, stats, top, stride, n: cols.len() as u32, k: k as u32, alpha };
        let shape = Shape { grid: [rows as u32, 1, 1], block: THREADS, shared: 0 };
        let kernel = if k == 0 { program::CHOOSE } else { program::TOP_K };
        self.queue.launch(kernel, shape, &args);
        self.selected.resize(words, 0);
        self.queue.download(top, &mut self.selected);
        let (top, stats) = self.selected.split_at(2 * rows * k);
        Selected { stats, top, k }
    }
}
