//! Sampling: a token from each row of logits, by the row's own settings, to where embeddings look it up.
//!
//! In the order of the transformers package: penalty, what is allowed, temperature, the best `top_k`, of those the
//! fewest that hold `top_p`. Values that equal the last one taken are taken as well. The choice is the largest of
//! logit plus Gumbel noise, which needs no sums: it is the same on a CPU and on a device.

use super::philox::{gumbel, key_of, value_of, weight};
use super::{Buffer, EveryRow, Exec, Shared, Table, Tokens, View};
use crate::pool::share;

/// The largest vocabulary that can be sampled from.
pub const MAX_SAMPLED: usize = 65_535;

/// How a stream's tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the best.
    pub temperature: f32,
    /// How many of the best are drawn from; 0 for all.
    pub top_k: usize,
    /// The smallest set of best tokens with at least this probability is drawn from; 1 for all.
    pub top_p: f32,
    /// Divides positive logits of tokens in the history, and multiplies negative ones.
    pub penalty: f32,
    /// Tokens from this one on are not drawn.
    pub below: u32,
    /// But this one is.
    pub also: Option<u32>,
    /// Of the random numbers.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, penalty: 1.0, below: u32::MAX, also: None, seed: 0 }
    }
}

impl Sampling {
    /// What logits are multiplied with; 0 where the best is taken.
    pub(crate) fn inverse(&self) -> f32 {
        if self.temperature > 0.0 { 1.0 / self.temperature } else { 0.0 }
    }
}

/// One row to draw from.
#[derive(Clone, Copy, Debug)]
pub struct SampleRow {
    /// Whose tokens and history.
    pub slot: usize,
    /// The number of the draw, which picks the random number: each draw of a stream has its own.
    pub step: u32,
    /// How.
    pub sampling: Sampling,
}

/// Where the embedding of what was drawn goes.
pub struct SampledRows<'a> {
    /// The embeddings.
    pub table: &'a Table,
    /// The rows that take them.
    pub out: &'a mut Buffer,
    /// Which rows.
    pub place: EveryRow,
    /// Takes them off what is there.
    pub less: bool,
}

/// A draw from each row of logits.
pub struct SampleOp<'a> {
    /// The logits.
    pub logits: View<'a>,
    /// Their rows' settings; no slot is named twice.
    pub rows: &'a [SampleRow],
    /// Where in a slot's tokens the drawn one goes.
    pub column: usize,
    /// Which tokens slots have had: read for the penalty, and the drawn one is noted.
    pub history: Option<&'a mut Tokens>,
    /// Looks the drawn token up at once.
    pub next: Option<SampledRows<'a>>,
}

impl Exec {
    /// Draws a token for each row.
    pub fn sample(&mut self, mut op: SampleOp<'_>, tokens: &mut Tokens) {
        let n = op.logits.width();
        assert!(n > 0 && n <= MAX_SAMPLED, "1 to {MAX_SAMPLED} tokens to draw from");
        assert!(op.rows.len() <= op.logits.rows() && op.column < tokens.cols, "rows and column fit");
        self.scratch.marks.check(tokens.slots, op.rows.iter().map(|r| r.slot));
        if let Some(h) = &op.history {
            assert!(h.cols >= n.div_ceil(32), "a bit per token");
            assert!(op.rows.iter().all(|r| r.slot < h.slots), "slots have a history");
        }
        if let Some(next) = &op.next {
            assert!(
                next.table.dim() == next.out.cols() && next.place.fits(op.rows.len(), next.out),
                "rows fit"
            );
        }
        if op.rows.is_empty() {
            return;
        }
        if let Some(cuda) = &mut self.cuda {
            tokens.stale = true;
            return cuda.sample(op, tokens);
        }
        let threads = self.pool.threads();
        for s in &mut self.scratch.rows {
            s.reserve_zeroed(2 * n);
        }
        let temp = Shared(self.scratch.rows.as_mut_ptr());
        let (words, cols) = (Shared(tokens.words.as_mut_ptr()), tokens.cols);
        let history = op.history.as_mut().map(|h| (Shared(h.words.as_mut_ptr()), h.cols));
        let (rows, logits, column) = (op.rows, &op.logits, op.column);
        self.pool.run(|id| {
            // SAFETY: each worker has its own scratch, of which 2 n words are used; any bits are words.
            let temp =
                unsafe { std::slice::from_raw_parts_mut((*temp.get().add(id)).as_mut_ptr().cast(), 2 * n) };
            for r in share(rows.len(), 1, id, threads) {
                let row = &rows[r];
                let x = &logits.buffer.row(r)[logits.cols.clone()];
                // SAFETY: rows are split by worker and no slot is named twice, so the history is this worker's.
                let seen = history.map(|(h, words)| unsafe {
                    std::slice::from_raw_parts_mut(h.get().add(row.slot * words), words)
                });
                let token = draw(x, row, seen.as_deref(), temp);
                if let Some(seen) = seen {
                    seen[token as usize / 32] |= 1 << (token % 32);
                }
                // SAFETY: the slot's tokens are this worker's, as above.
                unsafe { *words.get().add(row.slot * cols + column) = token };
            }
        });
        if let Some(next) = &mut op.next {
            for (r, row) in rows.iter().enumerate() {
                let to = next.out.row_mut(next.place.at(r));
                let token = tokens.words[row.slot * cols + column];
                if next.less {
                    next.table.add_row(token, -1.0, to);
                } else {
                    to.fill(0.0);
                    next.table.add_row(token, 1.0, to);
                }
            }
        }
    }
}

/// A token from one row; `temp` has room for two words per token.
fn draw(x: &[f32], row: &SampleRow, seen: Option<&[u32]>, temp: &mut [u32]) -> u32 {
    let s = &row.sampling;
    let inverse = s.inverse();
    let (keys, sorted) = temp.split_at_mut(x.len());
    for (i, (&x, key)) in x.iter().zip(keys.iter_mut()).enumerate() {
        let mut x = x;
        if s.penalty != 1.0 && seen.is_some_and(|b| b[i / 32] >> (i % 32) & 1 == 1) {
            x = if x < 0.0 { x * s.penalty } else { x / s.penalty };
        }
        if inverse > 0.0 {
            x *= inverse;
        }
        let allowed = (i as u32) < s.below || s.also == Some(i as u32);
        // Neither NaN nor minus infinity is drawn.
        *key = if allowed && x > f32::NEG_INFINITY { key_of(x.min(3e38)) } else { 0 };
    }
    let mut least = 1;
    if inverse > 0.0 {
        sorted.copy_from_slice(keys);
        if s.top_k > 0 && s.top_k < x.len() {
            least = (*sorted.select_nth_unstable_by(s.top_k - 1, |a, b| b.cmp(a)).1).max(1);
        }
        if s.top_p < 1.0 {
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let top = value_of(sorted[0]);
            let kept = sorted.iter().take_while(|k| **k >= least);
            let weights = kept.map(|&k| (k, u64::from(weight(value_of(k) - top))));
            let total: u64 = weights.clone().map(|(_, w)| w).sum();
            let target = ((f64::from(s.top_p) * total as f64) as u64).max(1);
            let mut sum = 0;
            for (key, w) in weights {
                sum += w;
                if sum >= target {
                    least = key;
                    break;
                }
            }
        }
    }
    let mut best = (f32::NEG_INFINITY, 0);
    for (i, &key) in keys.iter().enumerate().filter(|(_, k)| **k >= least) {
        let i = i as u32;
        let score = value_of(key) + if inverse > 0.0 { gumbel(s.seed, row.step, i) } else { 0.0 };
        if score > best.0 {
            best = (score, i);
        }
    }
    best.1
}
