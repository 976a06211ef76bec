//! Selection over rows of logits: the best class with its probability and a confidence, and the best few.

use std::ops::Range;

use super::{Buffer, Exec, Shared};
use crate::pool::share;
use crate::simd::Kernels;
use crate::simd::select::RowStats;

/// Values per worker below which rows are not worth sharing out.
const WORTH_SHARING: usize = 16 * 1024;

/// The most candidates per row.
pub const MAX_TOP_K: usize = 72;

/// How sure a decision is, from 0 to 1. The entropies are normalised exponentially: 1 where one class has
/// everything, 0 where all are alike.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Confidence {
    /// The probability of the best class.
    #[default]
    MaxProb,
    /// Gibbs entropy.
    Gibbs,
    /// Tsallis entropy; its exponent is above 0 and not 1.
    Tsallis(f32),
    /// Rényi entropy; its exponent is above 0 and not 1.
    Renyi(f32),
}

impl Confidence {
    fn alpha(self) -> f32 {
        match self {
            Confidence::MaxProb | Confidence::Gibbs => 0.0,
            Confidence::Tsallis(a) | Confidence::Renyi(a) => a,
        }
    }

    /// The confidence in the best of one row of logits.
    pub fn of(self, logits: &[f32]) -> f32 {
        let (mut index, mut max) = (0, f32::NEG_INFINITY);
        for (i, &x) in logits.iter().enumerate() {
            if x > max {
                (index, max) = (i, x);
            }
        }
        if !max.is_finite() {
            return 0.0;
        }
        let mut s = RowStats { index, max, sum: 0.0, dot: 0.0, power: 0.0 };
        for x in logits.iter().filter(|x| !x.is_nan()) {
            let d = (x - max).max(-87.0);
            s.sum += d.exp();
            s.dot += d * d.exp();
            s.power += (self.alpha() * d).exp();
        }
        self.with_sums(&s, logits.len())
    }

    fn with_sums(self, s: &RowStats, classes: usize) -> f32 {
        let v = classes as f64;
        let sum = s.sum as f64;
        let c = match self {
            _ if classes < 2 => 1.0,
            Confidence::MaxProb => 1.0 / sum,
            Confidence::Gibbs => ((s.dot as f64 / sum - sum.ln()).exp() * v - 1.0) / (v - 1.0),
            Confidence::Tsallis(a) => {
                let a = a as f64;
                let flat = ((1.0 - v.powf(1.0 - a)) / (1.0 - a)).exp();
                (((1.0 - s.power as f64 / sum.powf(a)) / (1.0 - a)).exp() - flat) / (1.0 - flat)
            }
            Confidence::Renyi(a) => {
                let a = a as f64;
                ((s.power as f64 / sum.powf(a)).powf(1.0 / (a - 1.0)) * v - 1.0) / (v - 1.0)
            }
        };
        c.clamp(0.0, 1.0) as f32
    }
}

/// The best class of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Choice {
    /// Its index within the classes looked at.
    pub index: u32,
    /// Its logit; minus infinity when the row has no number.
    pub logit: f32,
    /// Logarithm of the sum of the classes' exponentials.
    pub log_sum: f32,
    /// How sure the choice is.
    pub confidence: f32,
}

impl Choice {
    /// Logarithm of the best class's probability.
    pub fn log_prob(&self) -> f32 {
        self.logit - self.log_sum
    }
}

/// A class among the best of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Candidate {
    /// Its index within the classes looked at; `u32::MAX` where the row has no more numbers.
    pub index: u32,
    /// Its logit, or minus infinity.
    pub logit: f32,
}

impl Exec {
    /// The largest number among some columns of each row, without a look at the others.
    pub fn argmax(&mut self, logits: &Buffer, rows: usize, cols: Range<usize>, out: &mut [u32]) {
        if let Some(cuda) = &mut self.cuda {
            fits(logits, rows, &cols, out.len(), 1);
            return cuda.argmax(logits, rows, &cols, out);
        }
        self.each_row(logits, rows, &cols, out, 1, |kn, _, x, n, out| {
            // SAFETY: `n` values of a row.
            out[0] = unsafe { (kn.argmax)(x, n) }.0 as u32;
        });
    }

    /// The best of some columns of each row, with its probability and confidence.
    pub fn choose(
        &mut self,
        logits: &Buffer,
        rows: usize,
        cols: Range<usize>,
        confidence: Confidence,
        out: &mut [Choice],
    ) {
        self.choose_pair(logits, rows, [cols, 0..0], confidence, out, &mut []);
    }

    /// As [`Exec::choose`], with the largest number among other columns (unless there are none); a device is waited for
    /// once.
    pub fn choose_pair(
        &mut self,
        logits: &Buffer,
        rows: usize,
        [cols, more]: [Range<usize>; 2],
        confidence: Confidence,
        out: &mut [Choice],
        seconds: &mut [u32],
    ) {
        if let Some(cuda) = &mut self.cuda {
            fits(logits, rows, &cols, out.len(), 1);
            if !more.is_empty() {
                fits(logits, rows, &more, seconds.len(), 1);
            }
            let selected = cuda.select(logits, rows, [&cols, &more], confidence.alpha(), 0);
            for (r, c) in out[..rows].iter_mut().enumerate() {
                *c = choice_of(&selected.stats(r), cols.len(), confidence);
            }
            if !more.is_empty() {
                seconds[..rows].iter_mut().enumerate().for_each(|(r, s)| *s = selected.tail(r, 1)[0]);
            }
            return;
        }
        self.each_row(logits, rows, &cols, out, 1, |kn, _, x, n, out| {
            // SAFETY: `n` values of a row.
            let s = unsafe { (kn.row_stats)(x, n, confidence.alpha()) };
            out[0] = choice_of(&s, n, confidence);
        });
        if !more.is_empty() {
            self.argmax(logits, rows, more, seconds);
        }
    }

    /// The `k` best of some columns of each row, best first: `k` per row into `out`. `log_sums` gets each
    /// row's logarithm of the sum of exponentials: what to take off a logit for a log-probability.
    pub fn top_k(
        &mut self,
        logits: &Buffer,
        rows: usize,
        cols: Range<usize>,
        k: usize,
        log_sums: &mut [f32],
        out: &mut [Candidate],
    ) {
        self.top_k_with(logits, rows, [cols, 0..0], k, log_sums, out);
    }

    /// As [`Exec::top_k`], with the values of other columns: `facts` gets each row's logarithm of the sum, followed
    /// by these.
    pub fn top_k_with(
        &mut self,
        logits: &Buffer,
        rows: usize,
        [cols, more]: [Range<usize>; 2],
        k: usize,
        facts: &mut [f32],
        out: &mut [Candidate],
    ) {
        let width = 1 + more.len();
        assert!(k > 0 && k <= MAX_TOP_K, "1 to {MAX_TOP_K} candidates");
        assert!(facts.len() >= rows * width && more.end <= logits.cols, "room for every row's facts");
        if let Some(cuda) = &mut self.cuda {
            fits(logits, rows, &cols, out.len(), k);
            let selected = cuda.select(logits, rows, [&cols, &more], 0.0, k);
            let facts = facts.chunks_exact_mut(width);
            for (r, (to, facts)) in out.chunks_exact_mut(k).zip(facts).take(rows).enumerate() {
                facts[0] = log_sum(&selected.stats(r));
                let tail = selected.tail(r, width - 1);
                facts[1..].iter_mut().zip(tail).for_each(|(f, &bits)| *f = f32::from_bits(bits));
                to.iter_mut().zip(selected.top(r)).for_each(|(c, top)| *c = top);
            }
            return;
        }
        let to_facts = Shared(facts.as_mut_ptr());
        self.each_row(logits, rows, &cols, out, k, |kn, row, x, n, out| {
            let (mut index, mut value) = ([0u32; MAX_TOP_K], [0f32; MAX_TOP_K]);
            // SAFETY: `n` values of a row; room for MAX_TOP_K candidates.
            let (s, found) = unsafe {
                ((kn.row_stats)(x, n, 0.0), (kn.top_k)(x, n, k, index.as_mut_ptr(), value.as_mut_ptr()))
            };
            // SAFETY: `width` facts per row, and rows are split by worker.
            let facts = unsafe { std::slice::from_raw_parts_mut(to_facts.get().add(row * width), width) };
            facts[0] = log_sum(&s);
            facts[1..].copy_from_slice(&logits.row(row)[more.clone()]);
            for (i, c) in out.iter_mut().enumerate() {
                *c = if i < found {
                    Candidate { index: index[i], logit: value[i] }
                } else {
                    Candidate { index: u32::MAX, logit: f32::NEG_INFINITY }
                };
            }
        });
    }

    /// Runs `f(kernels, row, values, count, results)` for each row, shared out where that is worth it.
    fn each_row<T>(
        &mut self,
        x: &Buffer,
        rows: usize,
        cols: &Range<usize>,
        out: &mut [T],
        per_row: usize,
        f: impl Fn(&Kernels, usize, *const f32, usize, &mut [T]) + Sync,
    ) {
        let n = cols.len();
        fits(x, rows, cols, out.len(), per_row);
        let kernels = self.kernels;
        let to = Shared(out.as_mut_ptr());
        let run = |range: Range<usize>| {
            for r in range {
                let row = x.row(r)[cols.clone()].as_ptr();
                // SAFETY: results of different rows are disjoint, and rows are split by worker.
                let out = unsafe { std::slice::from_raw_parts_mut(to.get().add(r * per_row), per_row) };
                f(kernels, r, row, n, out);
            }
        };
        let threads = self.pool.threads();
        if threads == 1 || rows * n < WORTH_SHARING {
            return run(0..rows);
        }
        self.pool.run(|id| run(share(rows, 1, id, threads)));
    }
}

/// The choice that a row's sums mean.
pub(super) fn choice_of(s: &RowStats, classes: usize, confidence: Confidence) -> Choice {
    let sure = if s.max.is_finite() { confidence.with_sums(s, classes) } else { 0.0 };
    Choice { index: s.index as u32, logit: s.max, log_sum: log_sum(s), confidence: sure }
}

/// Logarithm of the sum of a row's exponentials; 0 where the row has no finite best.
fn log_sum(s: &RowStats) -> f32 {
    if s.max.is_finite() { s.max + s.sum.ln() } else { 0.0 }
}

/// Fails where rows, columns or the room for results are not there.
fn fits(x: &Buffer, rows: usize, cols: &Range<usize>, room: usize, per_row: usize) {
    assert!(!cols.is_empty() && cols.end <= x.cols, "columns {cols:?} of {}", x.cols);
    assert!(rows <= x.rows && rows * per_row <= room, "room for every row's result");
}
