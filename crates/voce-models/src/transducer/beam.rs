//! Beams of transducers: hypotheses, their predictors' lanes and the frames they need, for many streams at once.
//!
//! While a stream goes on, a beam pauses as soon as one hypothesis needs a frame that is not there yet, and
//! keeps the frames that others have still to pass: so the result does not depend on how frames are cut into
//! steps.

use std::sync::{Arc, Mutex};

use voce_runtime::{AddReluOp, Buffer, Candidate, Exec, Span};

use super::decoder::Transducer;
use super::hypothesis::{Hyp, ROOT, TIDY};
use super::malsd::{Extension, Looked, extend};
use super::prune::{Held, LANES, NOTHING};
use super::search::{Search, padded};
use super::state::{Beam, Kind, SearchState};
use super::{Pruning, SearchOptions};
use crate::fastconformer::{Moves, grow};

/// Beams from which several threads take them on, where a device has done the rest.
const SHARED: usize = 256;

/// A stream within a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Its state.
    pub index: usize,
    /// Where its lanes begin among those of all runs.
    pub lane: usize,
    /// Where its frames begin among those of all runs, and which is the first.
    pub row: usize,
    pub frame: usize,
    /// One past its last frame.
    pub end: usize,
    /// Whether nothing comes after them.
    pub last: bool,
}

/// Scratch that is kept between steps.
#[derive(Default)]
pub(super) struct BeamScratch {
    pub runs: Vec<Run>,
    /// Lanes of all runs.
    pub lanes: Vec<usize>,
    /// Rows of the search's frames, of all runs.
    pub frames: Vec<usize>,
    /// For each hypothesis of each run: its row of the joint, if it has one.
    rows: Vec<Option<usize>>,
    pub round: usize,
    workers: Vec<Worker>,
    staging: Staging,
    /// Whether a stream of the step needs all logits and not only the best.
    wants_logits: bool,
}

/// What a thread works in, and the labels that it wants predictors to be fed.
#[derive(Default)]
struct Worker {
    extensions: Vec<Extension>,
    next: Vec<Hyp>,
    labels: Vec<(f32, u32)>,
    biased: Vec<f32>,
    moves: Moves,
}

/// Some of the runs: their states, of which the first has the number `offset`, and where their hypotheses begin among all.
struct Share<'a, S> {
    runs: &'a [Run],
    states: &'a mut [S],
    offset: usize,
    first: usize,
    worker: &'a mut Worker,
}

/// What is put into rows of frames before a step: frames that were saved, and new ones.
#[derive(Default)]
struct Staging {
    saved_to: Vec<usize>,
    saved: Vec<f32>,
    from: Vec<usize>,
    to: Vec<usize>,
}

/// Whether a stream's labels are chosen among all of a row.
fn wants_logits(options: &SearchOptions) -> bool {
    options.fuses() && options.pruning == Pruning::Late
}

impl Run {
    /// Whether the beam has to wait for frames, or is through with them.
    pub(super) fn rests(&self, hyps: &[Hyp]) -> bool {
        let past = |h: &Hyp| h.time >= self.end;
        if self.last { hyps.iter().all(past) } else { hyps.iter().any(past) }
    }
}

impl Search {
    /// Takes the frames of every stream that has a beam; with `flush` to their very end.
    pub(super) fn beams<S: AsMut<SearchState> + Send>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        frames: &Buffer,
        spans: &[Span],
        states: &mut [S],
        flush: bool,
    ) {
        let mut s = std::mem::take(&mut self.beam);
        if self.stage(exec, t, frames, spans, states, flush, &mut s) {
            if exec.decides_searches() {
                self.beams_on_device(exec, t, states, &mut s);
            }
            let threads = if s.runs.len() >= SHARED { exec.host_threads() } else { 1 };
            let mut workers = std::mem::take(&mut s.workers);
            workers.resize_with(workers.len().max(threads), Worker::default);
            while self.look_at_beams(exec, t, states, &mut s) {
                s.round += 1;
                let shares = share_out(&s.runs, states, &mut workers, threads);
                let (this, scratch) = (&*self, &s);
                if threads > 1 {
                    let shares: Vec<_> = shares.into_iter().map(|share| Mutex::new(Some(share))).collect();
                    exec.together(|id| {
                        let share = shares.get(id).and_then(|s| s.lock().ok()?.take());
                        share.into_iter().for_each(|share| this.go_on(t, scratch, share));
                    });
                } else {
                    shares.into_iter().for_each(|share| this.go_on(t, scratch, share));
                }
                workers.iter_mut().for_each(|w| self.moves.append(&mut w.moves));
                self.predict(exec, t);
            }
            s.workers = workers;
            for run in &s.runs {
                let SearchState { stable, kind, .. } = states[run.index].as_mut();
                if let Kind::Beam(beam) = kind {
                    let needed = beam.needed(run.end);
                    beam.forget_frames(needed);
                    beam.settle(stable);
                }
            }
        }
        self.beam = s;
    }

    /// Gives every hypothesis of a share one more label or blank, after what the joint said.
    fn go_on<S: AsMut<SearchState>>(&self, t: &Transducer, s: &BeamScratch, share: Share<'_, S>) {
        let Share { runs, states, offset, mut first, worker } = share;
        let Worker { extensions, next, labels, biased, moves } = worker;
        for run in runs {
            let state = states[run.index - offset].as_mut();
            let SearchState { options, stable, kind, .. } = state;
            let Kind::Beam(beam) = kind else { continue };
            let rows = first..first + beam.hyps.len();
            first = rows.end;
            if run.rests(&beam.hyps) {
                continue;
            }
            extensions.clear();
            for (i, row) in rows.enumerate() {
                let looked = s.rows[row].map(|row| self.looked(t, row, options));
                extend(options, t, &beam.hyps[i], i, looked, extensions, labels, biased);
            }
            next.clear();
            beam.choose(options, t, stable, extensions, next);
            beam.assign_lanes(&s.lanes[run.lane..], s.round, next, moves);
            std::mem::swap(&mut beam.hyps, next);
            if beam.tree.nodes.len() > TIDY {
                beam.settle(stable);
            }
        }
    }

    /// Lays out lanes and frames of all beams. False if there are none.
    #[allow(clippy::too_many_arguments)] // one call site
    fn stage<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        frames: &Buffer,
        spans: &[Span],
        states: &mut [S],
        flush: bool,
        s: &mut BeamScratch,
    ) -> bool {
        s.runs.clear();
        s.lanes.clear();
        s.frames.clear();
        s.wants_logits = false;
        self.moves.clear();
        let width = t.joint.width();
        let Staging { saved_to, saved, from, to } = &mut s.staging;
        let mut first = 0;
        for (index, (state, span)) in states.iter_mut().zip(spans).enumerate() {
            let SearchState { options, frames, begin, kind, .. } = state.as_mut();
            let given = first..first + span.rows;
            first = given.end;
            let Kind::Beam(beam) = kind else { continue };
            if beam.hyps.is_empty() && given.is_empty() {
                continue;
            }
            self.lodge(t, &mut beam.place, LANES * options.beam);
            if beam.hyps.is_empty() {
                beam.hyps.push(Hyp {
                    score: 0.0,
                    node: ROOT,
                    len: 0,
                    hash: 0,
                    time: (*begin).max(*frames),
                    symbols: 0,
                    lane: 0,
                    fusion: options.fusion_start(),
                });
            }
            if beam.held.is_empty() {
                beam.held.resize(LANES * options.beam, NOTHING);
                beam.hyps.iter().for_each(|h| beam.held[h.lane] = Held::after(h));
            }
            let (lane, row) = (s.lanes.len(), s.frames.len());
            s.lanes.extend_from_slice(beam.place.lanes(&self.bank));
            if !beam.saved.is_empty() {
                let rows = self.frame_bank.take(beam.saved.len() / width);
                saved_to.extend_from_slice(rows.of(&self.frame_bank));
                saved.append(&mut beam.saved);
                beam.frames.push(Arc::new(rows));
            }
            if !given.is_empty() {
                let rows = self.frame_bank.take(given.len());
                to.extend_from_slice(rows.of(&self.frame_bank));
                from.extend(given);
                beam.frames.push(Arc::new(rows));
            }
            beam.frames.iter().for_each(|rows| s.frames.extend_from_slice(rows.of(&self.frame_bank)));
            *frames += span.rows;
            let last = flush || options.sync_chunks;
            s.wants_logits |= wants_logits(options);
            let begins = *frames - (s.frames.len() - row);
            s.runs.push(Run { index, lane, row, frame: begins, end: *frames, last });
        }
        if s.runs.is_empty() {
            return false;
        }
        grow(exec, &mut self.frames, self.frame_bank.total());
        if !saved_to.is_empty() {
            exec.set_rows(&mut self.frames, saved_to, saved);
        }
        if !from.is_empty() {
            exec.copy_rows(frames, from, &mut self.frames, to);
        }
        [saved_to, from, to].into_iter().for_each(Vec::clear);
        saved.clear();
        self.settle_lanes(exec, t);
        true
    }

    /// Runs the joint for every hypothesis that has a frame to look at. False when every beam rests.
    fn look_at_beams<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        states: &mut [S],
        s: &mut BeamScratch,
    ) -> bool {
        self.pairs.clear();
        s.rows.clear();
        let mut widest = 1;
        for run in &s.runs {
            let state = states[run.index].as_mut();
            let Kind::Beam(beam) = &state.kind else { continue };
            let rests = run.rests(&beam.hyps);
            widest = widest.max(state.options.beam);
            for h in &beam.hyps {
                if rests || h.time >= run.end {
                    s.rows.push(None);
                    continue;
                }
                s.rows.push(Some(self.pairs.frames.len()));
                self.pairs.push(s.frames[run.row + (h.time - run.frame)], s.lanes[run.lane + h.lane]);
            }
        }
        let rows = padded(exec, self.pairs.frames.len());
        if rows == 0 {
            return false;
        }
        self.pairs.pad(rows);
        let lanes = self.lanes.as_ref().expect("a transducer has lanes");
        let joint = self.joint.as_mut().expect("a transducer has a joint");
        let (a_rows, b_rows) = ((&self.pairs.frames).into(), (&self.pairs.lanes).into());
        t.joint.run(exec, &AddReluOp { a: &self.frames, a_rows, b: lanes.out(), b_rows }, joint);
        let blank = self.blank as usize;
        let columns = [0..blank + 1, blank..t.joint.classes()];
        self.width = widest;
        self.candidates.resize(self.candidates.len().max(rows * widest), Candidate::default());
        self.facts.resize(self.facts.len().max(rows * (1 + columns[1].len())), 0.0);
        exec.top_k_with(&joint.logits, rows, columns, widest, &mut self.facts, &mut self.candidates);
        if s.wants_logits {
            exec.fetch(&mut joint.logits, rows);
        }
        true
    }

    fn looked(&self, t: &Transducer, row: usize, options: &SearchOptions) -> Looked<'_> {
        let from = row * self.width;
        let facts = 2 + t.durations.len();
        let facts = &self.facts[row * facts..(row + 1) * facts];
        let logits = &self.joint.as_ref().expect("a transducer has a joint").logits;
        Looked {
            best: &self.candidates[from..from + options.beam.min(self.width)],
            log_sum: facts[0],
            blank_logit: facts[1],
            durations: &facts[2..],
            logits: if wants_logits(options) { logits.row(row) } else { &[] },
            blank: self.blank as usize,
        }
    }
}

/// Cuts runs into as many stretches as there are threads, each with its states.
fn share_out<'a, S: AsMut<SearchState>>(
    runs: &'a [Run],
    states: &'a mut [S],
    workers: &'a mut [Worker],
    threads: usize,
) -> Vec<Share<'a, S>> {
    let mut shares = Vec::with_capacity(threads);
    let (mut rest, mut offset, mut first) = (states, 0, 0);
    let pieces = runs.chunks(runs.len().div_ceil(threads).max(1));
    for (runs, worker) in pieces.zip(workers) {
        let end = runs.last().map_or(offset, |run| run.index + 1);
        let (states, others) = rest.split_at_mut(end - offset);
        let mut hyps = 0;
        for run in runs {
            if let Kind::Beam(beam) = &states[run.index - offset].as_mut().kind {
                hyps += beam.hyps.len();
            }
        }
        shares.push(Share { runs, states, offset, first, worker });
        (rest, offset, first) = (others, end, first + hyps);
    }
    shares
}

impl Beam {
    /// Frames before `end` that hypotheses have still to pass.
    pub(super) fn needed(&self, end: usize) -> usize {
        self.hyps.iter().map(|h| end.saturating_sub(h.time)).max().unwrap_or(0)
    }

    /// Gives back rows of frames before the last `needed`.
    fn forget_frames(&mut self, needed: usize) {
        let mut there: usize = self.frames.iter().map(|rows| rows.len()).sum();
        self.frames.retain(|rows| {
            let passed = there - rows.len() >= needed;
            there -= rows.len();
            !passed
        });
    }
}
