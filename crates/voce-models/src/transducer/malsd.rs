//! NeMo's alignment-length synchronous search (`malsd_batch`): each step gives every hypothesis one more label or
//! blank, and each stands at its own frame. One that has come to the end waits, its score still competing.

use voce_runtime::Candidate;

use super::decoder::Transducer;
use super::hypothesis::Hyp;
use super::{BlankScore, Method, Pruning, SearchOptions, modified_beam};

/// The label of a hypothesis that waits at the end.
pub(super) const WAITS: u32 = u32::MAX;

/// One way a hypothesis may go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extension {
    pub score: f64,
    pub from: usize,
    pub label: u32,
    pub duration: usize,
    pub log_prob: f32,
}

/// What the joint said about one hypothesis.
pub(super) struct Looked<'a> {
    /// The best classes, best first, as log-probabilities.
    pub best: &'a [Candidate],
    pub log_sum: f32,
    pub blank_logit: f32,
    /// Logits of durations.
    pub durations: &'a [f32],
    /// All logits, where labels are chosen among all.
    pub logits: &'a [f32],
    pub blank: usize,
}

impl Looked<'_> {
    pub(super) fn log_prob(&self, label: usize) -> f32 {
        let logit = if label == self.blank {
            self.blank_logit
        } else if let Some(logit) = self.logits.get(label) {
            *logit
        } else {
            self.best.iter().find(|c| c.index as usize == label).map_or(f32::NEG_INFINITY, |c| c.logit)
        };
        let v = logit - self.log_sum;
        if v.is_nan() { f32::NEG_INFINITY } else { v }
    }
}

/// Appends the ways in which a hypothesis may go on.
#[allow(clippy::too_many_arguments)] // of one caller
pub(super) fn extend(
    options: &SearchOptions,
    t: &Transducer,
    h: &Hyp,
    from: usize,
    looked: Option<Looked<'_>>,
    out: &mut Vec<Extension>,
    labels: &mut Vec<(f32, u32)>,
    biased: &mut Vec<f32>,
) {
    let Some(z) = looked else {
        out.push(Extension { score: h.score, from, label: WAITS, duration: 0, log_prob: 0.0 });
        return;
    };
    let blank = z.blank as u32;
    if z.best[0].index == u32::MAX {
        // A frame without a number says nothing.
        out.push(Extension { score: h.score, from, label: blank, duration: 1, log_prob: 0.0 });
        return;
    }
    if options.method == Method::ModifiedBeam {
        return modified_beam::extend(options, h, from, &z, out, labels, biased);
    }
    let forced_blank = weigh(options, h, &z, labels, biased);
    let mut durations = [0f32; MAX_DURATIONS];
    let durations = log_softmax(z.durations, &mut durations);
    let force = h.symbols >= options.max_symbols.unwrap_or(t.max_symbols);
    if durations.is_empty() {
        if force {
            let score = h.score + f64::from(forced_blank);
            out.push(Extension { score, from, label: blank, duration: 1, log_prob: 0.0 });
            return;
        }
        for &(score, label) in labels.iter() {
            let score = h.score + f64::from(score);
            let duration = usize::from(label == blank);
            out.push(Extension { score, from, label, duration, log_prob: z.log_prob(label as usize) });
        }
        return;
    }
    let sure = super::greedy::best_of(durations);
    if force {
        let score = h.score + f64::from(forced_blank) + f64::from(durations[sure]);
        let duration = t.durations[sure].max(1);
        out.push(Extension { score, from, label: blank, duration, log_prob: 0.0 });
        return;
    }
    // The best pairs are among the pairs of the best labels.
    let begin = out.len();
    for &(score, label) in labels.iter() {
        for (d, &more) in durations.iter().enumerate() {
            let score = h.score + f64::from(score + more);
            let duration = if label == blank { t.durations[d].max(1) } else { t.durations[d] };
            out.push(Extension { score, from, label, duration, log_prob: z.log_prob(label as usize) });
        }
    }
    out[begin..].sort_unstable_by(|a, b| {
        b.score.total_cmp(&a.score).then((a.label, a.duration).cmp(&(b.label, b.duration)))
    });
    out.truncate(begin + options.beam);
}

/// The most durations of a TDT model.
const MAX_DURATIONS: usize = 64;

fn log_softmax<'a>(logits: &[f32], out: &'a mut [f32; MAX_DURATIONS]) -> &'a [f32] {
    let n = logits.len().min(MAX_DURATIONS);
    let max = logits.iter().fold(f32::NEG_INFINITY, |m, &v| m.max(v));
    let sum: f32 = logits[..n].iter().map(|v| (v - max).exp()).sum();
    for (o, v) in out.iter_mut().zip(logits) {
        *o = v - max - sum.ln();
    }
    &out[..n]
}

/// The labels that a hypothesis may go on with, blank among them, with what each adds; returns what a blank
/// adds that nothing can be chosen against.
fn weigh(
    options: &SearchOptions,
    h: &Hyp,
    z: &Looked<'_>,
    labels: &mut Vec<(f32, u32)>,
    biased: &mut Vec<f32>,
) -> f32 {
    labels.clear();
    let plain = z.best.iter().filter(|c| c.index != u32::MAX).map(|c| (c.logit - z.log_sum, c.index));
    labels.extend(plain);
    let blank = z.log_prob(z.blank);
    if !options.fuses() {
        return blank;
    }
    let weighted = options.blank_score == BlankScore::Weighted;
    let share = if weighted { options.lm_share() } else { 0.0 };
    // What the model leaves for labels, which the language model's mass is a share of.
    let rest = (-blank.exp().min(1.0 - 1e-2)).ln_1p() * share;
    let heavy = blank * (1.0 + share);
    if options.pruning == Pruning::Early {
        for (score, label) in labels.iter_mut() {
            *score = if *label as usize == z.blank {
                heavy
            } else {
                *score + rest + options.fusion_step(h.fusion, *label).1
            };
        }
        labels.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        return blank;
    }
    biased.resize(z.blank, 0.0);
    options.fusion_scores(h.fusion, biased);
    top(options.beam, z.blank, labels, |label| {
        if label == z.blank { heavy } else { z.log_prob(label) + rest + biased[label] }
    });
    heavy
}

/// The best `k` of the classes up to `last`, best first, of equals the first.
pub(super) fn top(k: usize, last: usize, out: &mut Vec<(f32, u32)>, score: impl Fn(usize) -> f32) {
    out.clear();
    for label in 0..=last {
        let v = score(label);
        if v > f32::NEG_INFINITY && (out.len() < k || v > out[k - 1].0) {
            let at = out.partition_point(|o| o.0 >= v);
            out.truncate(k - 1);
            out.insert(at, (v, label as u32));
        }
    }
}
