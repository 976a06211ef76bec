//! Selection over rows of logits on the device; what was selected comes back to the host.

use std::ops::Range;

use super::driver::{Address, Shape};
use super::queue::Args;
use super::{Cuda, program};
use crate::exec::{Buffer, Candidate};
use crate::simd::select::RowStats;

/// Threads of a block; a row has one.
const THREADS: u32 = 256;
/// Words that the kernels write about a row: see `row_stats` in `select.cu`.
pub(super) const STATS: usize = 5;

/// Arguments of `argmax`, `choose` and `top_k`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct SelectArgs {
    x: Address,
    more: Address,
    stats: Address,
    top: Address,
    tail: Address,
    rows: Address,
    stride: u32,
    n: u32,
    k: u32,
    m: u32,
    alpha: f32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for SelectArgs {}

/// Where the kernels put what they found, and how many words it is from the first place on.
pub(super) struct Places {
    pub(super) top: Address,
    pub(super) stats: Address,
    pub(super) tail: Address,
    words: usize,
}

/// What the kernels found, one row after the other.
pub(crate) struct Selected<'a> {
    stats: &'a [u32],
    top: &'a [u32],
    tail: &'a [u32],
    k: usize,
}

impl Selected<'_> {
    /// A row's best and its sums.
    pub(crate) fn stats(&self, row: usize) -> RowStats {
        let s = &self.stats[row * STATS..(row + 1) * STATS];
        let [max, sum, dot, power] = [s[1], s[2], s[3], s[4]].map(f32::from_bits);
        RowStats { index: s[0] as usize, max, sum, dot, power }
    }

    /// What is wanted of further columns: `width` words of a row.
    pub(crate) fn tail(&self, row: usize, width: usize) -> &[u32] {
        &self.tail[row * width..(row + 1) * width]
    }

    /// A row's best few.
    pub(crate) fn top(&self, row: usize) -> impl Iterator<Item = Candidate> {
        let words = &self.top[2 * row * self.k..2 * (row + 1) * self.k];
        words.chunks_exact(2).map(|w| Candidate { logit: f32::from_bits(w[0]), index: w[1] })
    }
}

impl Cuda {
    pub(crate) fn argmax(&mut self, x: &Buffer, rows: usize, cols: &Range<usize>, out: &mut [u32]) {
        let stride = x.cols() as u32;
        let x = self.read(x) + 4 * cols.start as u64;
        let top = self.queue.reserve(&mut self.scratch.selected, rows * 4);
        let n = cols.len() as u32;
        let args = SelectArgs {
            x,
            more: 0,
            stats: 0,
            top,
            tail: 0,
            rows: 0,
            stride,
            n,
            k: 1,
            m: 0,
            alpha: 0.0,
            pad: 0,
        };
        let shape = Shape { grid: [rows as u32, 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(program::ARGMAX, shape, &args);
        self.queue.download(top, &mut out[..rows]);
    }

    /// The statistics of rows and, unless `k` is 0, the best few of each. Of the columns in `more`, if there are
    /// any, the values come with the best few, else the place of the largest.
    pub(crate) fn select(
        &mut self,
        x: &Buffer,
        rows: usize,
        columns: [&Range<usize>; 2],
        alpha: f32,
        k: usize,
    ) -> Selected<'_> {
        let Places { top, words, .. } = self.select_there(x, rows, columns, alpha, k, 0);
        self.selected.resize(words, 0);
        self.queue.download(top, &mut self.selected);
        let (top, rest) = self.selected.split_at(2 * rows * k);
        let (stats, tail) = rest.split_at(STATS * rows);
        Selected { stats, top, tail, k }
    }

    /// The same, with the results left on the device. Unless `left` is 0 it is a list of rows, and the best few of its
    /// `NO_ROW` entries are not looked for.
    pub(super) fn select_there(
        &mut self,
        x: &Buffer,
        rows: usize,
        [cols, more]: [&Range<usize>; 2],
        alpha: f32,
        k: usize,
        left: Address,
    ) -> Places {
        let stride = x.cols() as u32;
        let at = self.read(x);
        let (x, first) = (at + 4 * cols.start as u64, at + 4 * more.start as u64);
        let wanted = if k == 0 { more.len().min(1) } else { more.len() };
        let words = rows * (STATS + 2 * k + wanted);
        // Pairs of words are written at once, so they begin at an even one.
        let top = self.queue.reserve(&mut self.scratch.selected, words * 4);
        let stats = top + 8 * (rows * k) as u64;
        let tail = stats + (4 * STATS * rows) as u64;
        let (n, m) = (cols.len() as u32, more.len() as u32);
        let k = k as u32;
        let args =
            SelectArgs { x, more: first, stats, top, tail, rows: left, stride, n, k, m, alpha, pad: 0 };
        let shape = Shape { grid: [rows as u32, 1, 1], block: THREADS, shared: 0 };
        let kernel = if k == 0 { program::CHOOSE } else { program::TOP_K };
        self.queue.launch(kernel, shape, &args);
        Places { top, stats, tail, words }
    }
}
