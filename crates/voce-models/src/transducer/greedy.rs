//! Greedy search of transducers by label looping: every stream looks for its next label with the joint
//! alone, and then the predictor takes all labels found as one batch.

use voce_runtime::{AddReluOp, Buffer, Choice, Confidence, Exec, Span};

use super::decoder::Transducer;
use super::fusion::FusionState;
use super::search::{Search, padded};
use super::state::{Greedy, Kind, SearchState};
use super::{SearchOptions, Token};

/// Rows of the joint that a few streams fill by looking ahead, on trust that the next frames are blanks.
const LOOK_ROWS: usize = 16;
/// On a device a wait costs more than rows: every stream looks ahead so far, as long as there are not too many rows.
const DEVICE_AHEAD: usize = 8;
const DEVICE_ROWS: usize = 8192;

/// A stream within a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Its state.
    pub index: usize,
    /// Its predictor's lane.
    pub lane: usize,
    /// Its first row of the frames.
    pub first: usize,
    /// Rows it has.
    pub rows: usize,
    /// Where among them it stands.
    pub at: usize,
    /// Labels since it came there.
    pub symbols: usize,
    /// Labels per frame at most.
    pub max_symbols: usize,
    /// Whether a device can decide: nothing but logits has a say.
    pub plain: bool,
}

/// Scratch that is kept between steps.
#[derive(Default)]
pub(super) struct GreedyScratch {
    pub runs: Vec<Run>,
    pub searching: Vec<usize>,
    next: Vec<usize>,
    found: Vec<usize>,
    looks: Vec<usize>,
    /// Whether a stream of the step needs all logits and not only the best.
    wants_logits: bool,
}

/// The label that phrases and language model would rather have, given that it is not a blank.
pub(super) fn prefer(
    options: &SearchOptions,
    fusion: FusionState,
    logits: &[f32],
    labels: usize,
    best: u32,
    biased: &mut Vec<f32>,
) -> u32 {
    if !options.fuses() {
        return best;
    }
    let labels = &logits[..labels];
    biased.resize(labels.len(), 0.0);
    options.fusion_scores(fusion, biased);
    let (mut id, mut top) = (best, f32::NEG_INFINITY);
    for (k, (bias, logit)) in biased.iter().zip(labels).enumerate() {
        if bias + logit > top {
            (id, top) = (k as u32, bias + logit);
        }
    }
    id
}

/// Whether the repetition guard refuses a label after these.
pub(super) fn repeats_too_often(options: &SearchOptions, tokens: &[Token], next: u32) -> bool {
    let before = |i: usize| tokens.len().checked_sub(i + 1).map(|at| tokens[at].id);
    options.repeat_guard.is_some_and(|g| g.refuses(before, next))
}

/// The confidence of a label that was taken.
pub(super) fn sureness(options: &SearchOptions, best: &Choice, id: u32, logits: &[f32], blank: usize) -> f32 {
    match options.confidence {
        Confidence::MaxProb if id == best.index => best.confidence,
        Confidence::MaxProb => (logits[id as usize] - best.log_sum).exp(),
        other => other.of(&logits[..=blank]),
    }
}

/// The largest of a few values; of equals the first.
pub(super) fn best_of(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] || values[best].is_nan() {
            best = i;
        }
    }
    best
}

impl Search {
    /// Takes the frames of every stream that searches greedily.
    pub(super) fn greedy<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        frames: &Buffer,
        spans: &[Span],
        states: &mut [S],
    ) {
        let mut s = std::mem::take(&mut self.greedy);
        s.runs.clear();
        s.wants_logits = false;
        self.moves.clear();
        let mut first = 0;
        for (index, (state, span)) in states.iter_mut().zip(spans).enumerate() {
            let state = state.as_mut();
            if let Kind::Greedy(g) = &mut state.kind {
                let o = &state.options;
                let wants_logits = o.fuses() || o.confidence != Confidence::MaxProb;
                s.wants_logits |= wants_logits;
                let plain = !wants_logits && o.guard_on_device().is_some();
                self.lodge(t, &mut g.place, 1);
                let lane = g.place.lanes(&self.bank)[0];
                let max_symbols = o.max_symbols.unwrap_or(t.max_symbols);
                s.runs.push(Run {
                    index,
                    lane,
                    first,
                    rows: span.rows,
                    at: g.carry,
                    symbols: 0,
                    max_symbols,
                    plain,
                });
            }
            first += span.rows;
        }
        if s.runs.is_empty() {
            self.greedy = s;
            return;
        }
        self.settle_lanes(exec, t);
        if exec.decides_searches() {
            self.greedy_on_device(exec, t, frames, states, &mut s);
        }
        s.searching.clear();
        s.searching.extend((0..s.runs.len()).filter(|&i| s.runs[i].at < s.runs[i].rows));
        while !s.searching.is_empty() {
            s.found.clear();
            while !s.searching.is_empty() {
                self.look(exec, t, frames, &mut s);
                self.judge(t, states, &mut s);
                std::mem::swap(&mut s.searching, &mut s.next);
            }
            self.predict(exec, t);
            s.searching.extend(s.found.iter().copied().filter(|&i| s.runs[i].at < s.runs[i].rows));
        }
        for run in &s.runs {
            let state = states[run.index].as_mut();
            state.frames += run.rows;
            if let Kind::Greedy(g) = &mut state.kind {
                g.carry = run.at - run.rows;
            }
        }
        self.greedy = s;
    }

    /// Runs the joint for the next frames of every searching stream.
    fn look(&mut self, exec: &mut Exec, t: &Transducer, frames: &Buffer, s: &mut GreedyScratch) {
        // A blank of a TDT model says itself how far to go: there is no looking ahead.
        let streams = s.searching.len();
        let ahead = if exec.wants_batches() { DEVICE_AHEAD.min(DEVICE_ROWS / streams) } else { 1 };
        let depth = if t.durations.is_empty() { (LOOK_ROWS / streams).max(ahead).max(1) } else { 1 };
        self.pairs.clear();
        s.looks.clear();
        for &i in &s.searching {
            let run = s.runs[i];
            let looks = depth.min(run.rows - run.at);
            for j in 0..looks {
                self.pairs.push(run.first + run.at + j, run.lane);
            }
            s.looks.push(looks);
        }
        let rows = padded(exec, self.pairs.frames.len());
        self.pairs.pad(rows);
        let lanes = self.lanes.as_ref().expect("a transducer has lanes");
        let joint = self.joint.as_mut().expect("a transducer has a joint");
        let (a_rows, b_rows) = ((&self.pairs.frames).into(), (&self.pairs.lanes).into());
        t.joint.run(exec, &AddReluOp { a: frames, a_rows, b: lanes.out(), b_rows }, joint);
        self.choices.resize(rows.max(self.choices.len()), Choice::default());
        let labels = self.blank as usize;
        let columns = [0..labels + 1, labels + 1..t.joint.classes()];
        if !t.durations.is_empty() {
            self.durations.resize(rows.max(self.durations.len()), 0);
        }
        let (choices, durations) = (&mut self.choices, &mut self.durations);
        exec.choose_pair(&joint.logits, rows, columns, Confidence::MaxProb, choices, durations);
        if s.wants_logits {
            exec.fetch(&mut joint.logits, rows);
        }
    }

    /// Goes over what the joint said: blanks move on, the first label is taken.
    fn judge<S: AsMut<SearchState>>(&mut self, t: &Transducer, states: &mut [S], s: &mut GreedyScratch) {
        s.next.clear();
        let logits = &self.joint.as_ref().expect("a transducer has a joint").logits;
        let labels = self.blank as usize;
        let mut row = 0;
        for (&i, &looks) in s.searching.iter().zip(&s.looks) {
            let run = &mut s.runs[i];
            let state = states[run.index].as_mut();
            let SearchState { options, frames, stable, kind, .. } = state;
            let Kind::Greedy(g) = kind else { continue };
            let mut label = None;
            for r in row..row + looks {
                let c = self.choices[r];
                let z = if s.wants_logits { logits.row(r) } else { &[] };
                let duration = self.durations.get(r).and_then(|&d| t.durations.get(d as usize)).copied();
                let id = if c.index == self.blank || c.logit == f32::NEG_INFINITY {
                    self.blank
                } else {
                    prefer(options, g.fusion, z, labels, c.index, &mut self.biased)
                };
                if id == self.blank || repeats_too_often(options, stable, id) {
                    run.at += duration.unwrap_or(1).max(1);
                    run.symbols = 0;
                    continue;
                }
                let log_prob = if id == c.index { c.log_prob() } else { z[id as usize] - c.log_sum };
                let confidence = sureness(options, &c, id, z, labels);
                let frame = *frames + run.at;
                label = Some(Token { id, frame, duration: duration.unwrap_or(1), log_prob, confidence });
                run.at += duration.unwrap_or(0);
                run.symbols = if duration.unwrap_or(0) > 0 { 0 } else { run.symbols + 1 };
                if run.symbols >= run.max_symbols {
                    run.at += 1;
                    run.symbols = 0;
                }
                break;
            }
            row += looks;
            match label {
                Some(token) => {
                    stable.push(token);
                    g.accept(options, &token);
                    self.moves.push(token.id, run.lane, run.lane);
                    s.found.push(i);
                }
                None if run.at < run.rows => s.next.push(i),
                None => {}
            }
        }
    }
}

impl Greedy {
    pub(super) fn accept(&mut self, options: &SearchOptions, token: &Token) {
        self.score += f64::from(token.log_prob);
        self.fusion = options.fusion_step(self.fusion, token.id).0;
    }
}
