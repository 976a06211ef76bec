//! CTC prefix beam search: a prefix holds the probability of ending in a blank and of ending in its last label.
//!
//! Every label of a frame is looked at: of those that make new prefixes only the best few per prefix can
//! survive, and the others that meet a prefix which is already there are added to it.

use std::ops::Range;

use voce_runtime::{Buffer, Candidate, Exec};

use super::fusion::FusionState;
use super::hypothesis::{ROOT, TIDY, Tree, extend_hash, log_add};
use super::state::{Kind, SearchState};
use super::{SearchOptions, Token};

const NEVER: f64 = f64::NEG_INFINITY;

/// A stream's prefixes.
#[derive(Clone, Debug)]
pub(super) struct CtcBeam {
    /// Best first.
    pub prefixes: Vec<Prefix>,
    pub tree: Tree,
}

/// A prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prefix {
    /// Log-probability of alignments that end in a blank.
    pub blank: f64,
    /// Log-probability of those that end in the last label.
    pub label: f64,
    /// What phrases and language model add.
    pub bonus: f64,
    pub node: u32,
    pub len: usize,
    /// The last label; `u32::MAX` for none.
    pub last: u32,
    pub hash: u64,
    /// Of all labels but the last.
    pub before: u64,
    pub fusion: FusionState,
}

impl Prefix {
    fn total(&self) -> f64 {
        log_add(self.blank, self.label) + self.bonus
    }
}

/// A prefix that one more label would make.
#[derive(Clone, Copy)]
struct Growth {
    from: usize,
    label: u32,
    /// Acoustic log-probability.
    score: f64,
    bonus: f64,
    log_prob: f32,
}

/// Scratch that is kept between steps.
#[derive(Default)]
pub(super) struct CtcScratch {
    best: Vec<Candidate>,
    /// Candidates per row.
    width: usize,
    log_sums: Vec<f32>,
    growths: Vec<Growth>,
    next: Vec<Prefix>,
    old: Vec<Prefix>,
    biased: Vec<f32>,
    order: Vec<(f64, usize)>,
}

impl CtcBeam {
    pub(super) fn new(options: &SearchOptions) -> Self {
        let empty = Prefix {
            blank: 0.0,
            label: NEVER,
            bonus: 0.0,
            node: ROOT,
            len: 0,
            last: u32::MAX,
            hash: 0,
            before: 0,
            fusion: options.fusion_start(),
        };
        Self { prefixes: vec![empty], tree: Tree::default() }
    }

    /// Appends the labels of a prefix that are not stable.
    pub(super) fn path(&self, i: usize, out: &mut Vec<Token>) {
        self.tree.path(self.prefixes[i].node, out);
    }

    /// The last label of a prefix that is not stable.
    pub(super) fn last(&self, i: usize) -> Option<&Token> {
        self.tree.up(self.prefixes[i].node).next()
    }

    /// Score and length of each prefix.
    pub(super) fn scores(&self) -> impl Iterator<Item = (f64, usize)> {
        self.prefixes.iter().map(|p| (p.total(), p.len))
    }

    fn settle(&mut self, stable: &mut Vec<Token>) {
        self.tree.settle(&mut self.prefixes, |p| &mut p.node, stable);
    }
}

/// Candidates that a frame must have for a beam: new prefixes that can survive are as many as the beam has, past
/// those that are there already, the blank and the last label.
pub(super) fn candidates(options: &SearchOptions) -> usize {
    2 * options.beam + 2
}

impl CtcScratch {
    /// Finds the candidates of all frames.
    pub(super) fn look(
        &mut self,
        exec: &mut Exec,
        logits: &Buffer,
        rows: usize,
        classes: Range<usize>,
        k: usize,
    ) {
        self.width = k;
        self.best.resize(self.best.len().max(rows * k), Candidate::default());
        self.log_sums.resize(self.log_sums.len().max(rows), 0.0);
        exec.top_k(logits, rows, classes, k, &mut self.log_sums, &mut self.best);
    }
}

/// Takes some rows of logits that were looked at.
pub(super) fn step(
    state: &mut SearchState,
    logits: &Buffer,
    rows: Range<usize>,
    blank: u32,
    s: &mut CtcScratch,
) {
    let SearchState { options, frames, stable, kind, .. } = state;
    let Kind::CtcBeam(beam) = kind else { return };
    for r in rows {
        let row = &logits.row(r)[..=blank as usize];
        // A frame without a number says nothing.
        if s.best[r * s.width].index != u32::MAX {
            beam.frame(options, stable, row, r, *frames, s);
        }
        *frames += 1;
        if beam.tree.nodes.len() > TIDY {
            beam.settle(stable);
        }
    }
    beam.settle(stable);
}

impl CtcBeam {
    fn frame(
        &mut self,
        options: &SearchOptions,
        stable: &[Token],
        row: &[f32],
        r: usize,
        frame: usize,
        s: &mut CtcScratch,
    ) {
        let log_sum = s.log_sums[r];
        let blank = row.len() - 1;
        let value = |label: usize| {
            let v = row[label] - log_sum;
            if v.is_nan() { f32::NEG_INFINITY } else { v }
        };
        s.next.clear();
        s.growths.clear();
        for p in &self.prefixes {
            let mut q = *p;
            q.blank = log_add(p.blank, p.label) + f64::from(value(blank));
            q.label = if p.last == u32::MAX { NEVER } else { p.label + f64::from(value(p.last as usize)) };
            s.next.push(q);
        }
        for i in 0..self.prefixes.len() {
            let p = self.prefixes[i];
            let both = log_add(p.blank, p.label);
            if options.fuses() {
                s.biased.resize(blank, 0.0);
                options.fusion_scores(p.fusion, &mut s.biased);
            }
            // What a label would give: repeats of the last one come only after a blank.
            let grown = |label: u32| {
                let from = if label == p.last { p.blank } else { both };
                from + f64::from(value(label as usize))
            };
            for (j, q) in self.prefixes.iter().enumerate() {
                if q.len == p.len + 1 && q.before == p.hash {
                    s.next[j].label = log_add(s.next[j].label, grown(q.last));
                }
            }
            let there = |label: u32| {
                let hash = extend_hash(p.hash, label);
                self.prefixes.iter().any(|q| q.len == p.len + 1 && q.hash == hash)
            };
            let guard = options.repeat_guard;
            let mut add = |label: u32, bonus: f64| {
                let before = |n: usize| self.tree.recent(p.node, stable, n);
                if there(label) || guard.is_some_and(|g| g.refuses(before, label)) {
                    return;
                }
                let (score, log_prob) = (grown(label), value(label as usize));
                s.growths.push(Growth { from: i, label, score, bonus: p.bonus + bonus, log_prob });
            };
            if options.fuses() {
                for (label, &bonus) in s.biased.iter().enumerate() {
                    add(label as u32, f64::from(bonus));
                }
            } else {
                for c in &s.best[r * s.width..][..candidates(options)] {
                    if c.index != u32::MAX && c.index as usize != blank {
                        add(c.index, 0.0);
                    }
                }
            }
        }
        self.prune(options, frame, s);
    }

    /// Keeps the best of the prefixes that stay and those that are new.
    fn prune(&mut self, options: &SearchOptions, frame: usize, s: &mut CtcScratch) {
        let held = s.next.len();
        s.order.clear();
        s.order.extend(s.next.iter().map(Prefix::total).enumerate().map(|(i, v)| (v, i)));
        s.order.extend(s.growths.iter().enumerate().map(|(i, g)| (g.score + g.bonus, held + i)));
        let by_score = |a: &(f64, usize), b: &(f64, usize)| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1));
        let keep = options.beam.min(s.order.len());
        if keep < s.order.len() {
            s.order.select_nth_unstable_by(keep - 1, by_score);
            s.order.truncate(keep);
        }
        s.order.sort_unstable_by(by_score);
        s.old.clear();
        std::mem::swap(&mut s.old, &mut self.prefixes);
        for &(score, i) in &s.order {
            if i < held {
                self.prefixes.push(s.next[i]);
            } else if score > NEVER || self.prefixes.is_empty() {
                let Growth { from, label, score, bonus, log_prob } = s.growths[i - held];
                let p = s.old[from];
                let token =
                    Token { id: label, frame, duration: 1, log_prob, confidence: log_prob.exp().min(1.0) };
                self.prefixes.push(Prefix {
                    blank: NEVER,
                    label: score,
                    bonus,
                    node: self.tree.push(p.node, token),
                    len: p.len + 1,
                    last: label,
                    hash: extend_hash(p.hash, label),
                    before: p.hash,
                    fusion: options.fusion_step(p.fusion, label).0,
                });
            }
        }
    }
}
