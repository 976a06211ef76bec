//! Beams of transducers: hypotheses, their predictors' lanes and the frames they need, for many streams at once.
//!
//! While a stream goes on, a beam pauses as soon as one hypothesis needs a frame that is not there yet, and
//! keeps the frames that others have still to pass: so the result does not depend on how frames are cut into
//! steps.

use voce_runtime::{AddReluOp, Buffer, Candidate, Exec, Span};

use super::decoder::Transducer;
use super::hypothesis::{Hyp, ROOT, TIDY, extend_hash, log_add};
use super::malsd::{Extension, Looked, WAITS, extend};
use super::search::Search;
use super::state::{Beam, Kind, SearchState};
use super::{Method, SearchOptions, Token, modified_beam};

/// Frames by which a hypothesis may be behind another before it is dropped.
const MAX_SPREAD: usize = 256;
/// Lanes per hypothesis of the beam: those that are not in use keep what predictors said after labels that
/// may well be tried again at the next frame.
const LANES: usize = 4;

/// A stream within a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    /// Its state.
    index: usize,
    /// Its first lane.
    lane: usize,
    /// Its first staged row, and the frame that this is.
    row: usize,
    frame: usize,
    /// One past its last frame.
    end: usize,
    /// Whether nothing comes after them.
    last: bool,
}

/// What a lane holds: the predictor's state after some labels.
#[derive(Clone, Copy, Debug)]
struct Held {
    hash: u64,
    len: usize,
    /// When it was last of use.
    used: usize,
    /// Whether a hypothesis needs it now.
    taken: bool,
}

const NOTHING: Held = Held { hash: 0, len: usize::MAX, used: 0, taken: false };

/// Scratch that is kept between steps.
pub(super) struct BeamScratch {
    runs: Vec<Run>,
    staged: Buffer,
    /// For each hypothesis of each run: its row of the joint, if it has one.
    rows: Vec<Option<usize>>,
    pub extensions: Vec<Extension>,
    next: Vec<Hyp>,
    /// What the lanes of all runs hold.
    held: Vec<Held>,
    round: usize,
    pub labels: Vec<(f32, u32)>,
    staging: Staging,
}

/// What is put into lanes and staged rows before a step.
#[derive(Default)]
struct Staging {
    kept: Vec<usize>,
    saved: Vec<f32>,
    backlog_rows: Vec<usize>,
    backlog: Vec<f32>,
    from: Vec<usize>,
    to: Vec<usize>,
}

impl Default for BeamScratch {
    fn default() -> Self {
        Self {
            runs: Vec::new(),
            staged: Buffer::new(0, 0),
            rows: Vec::new(),
            extensions: Vec::new(),
            next: Vec::new(),
            held: Vec::new(),
            round: 0,
            labels: Vec::new(),
            staging: Staging::default(),
        }
    }
}

impl Run {
    /// Whether the beam has to wait for frames, or is through with them.
    fn rests(&self, hyps: &[Hyp]) -> bool {
        let past = |h: &Hyp| h.time >= self.end;
        if self.last { hyps.iter().all(past) } else { hyps.iter().any(past) }
    }
}

impl Search {
    /// Takes the frames of every stream that has a beam; with `flush` to their very end.
    pub(super) fn beams<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        frames: &Buffer,
        spans: &[Span],
        states: &mut [S],
        flush: bool,
    ) {
        let mut s = std::mem::take(&mut self.beam);
        let mut biased = std::mem::take(&mut self.biased);
        if self.stage(exec, t, frames, spans, states, flush, &mut s) {
            self.predict(exec, t);
            while self.look_at_beams(exec, t, states, &mut s) {
                let mut first = 0;
                s.round += 1;
                for run in &s.runs {
                    let state = states[run.index].as_mut();
                    let SearchState { options, stable, kind, .. } = state;
                    let Kind::Beam(beam) = kind else { continue };
                    let rows = first..first + beam.hyps.len();
                    first = rows.end;
                    if run.rests(&beam.hyps) {
                        continue;
                    }
                    s.extensions.clear();
                    for (i, row) in rows.enumerate() {
                        let looked = s.rows[row].map(|row| self.looked(row, options.beam));
                        let (out, labels) = (&mut s.extensions, &mut s.labels);
                        extend(options, t, &beam.hyps[i], i, looked, out, labels, &mut biased);
                    }
                    s.next.clear();
                    beam.choose(options, t, stable, &s.extensions, &mut s.next);
                    let held = &mut s.held[run.lane..run.lane + LANES * options.beam];
                    beam.assign_lanes(run.lane, s.round, &mut s.next, held, &mut self.moves);
                    std::mem::swap(&mut beam.hyps, &mut s.next);
                    if beam.tree.nodes.len() > TIDY {
                        beam.settle(stable);
                    }
                }
                self.predict(exec, t);
            }
            self.unstage(exec, states, &mut s);
        }
        self.biased = biased;
        self.beam = s;
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
        let width = t.joint.width();
        s.runs.clear();
        let (mut lane, mut row) = (0, 0);
        for (index, (state, span)) in states.iter_mut().zip(spans).enumerate() {
            let state = state.as_mut();
            let Kind::Beam(beam) = &state.kind else { continue };
            if beam.hyps.is_empty() && span.rows == 0 {
                continue;
            }
            let held = beam.backlog.len() / width;
            let end = state.frames + span.rows;
            let last = flush || state.options.sync_chunks;
            s.runs.push(Run { index, lane, row, frame: state.frames - held, end, last });
            lane += LANES * state.options.beam;
            row += held + span.rows;
        }
        if s.runs.is_empty() {
            return false;
        }
        self.reserve_lanes(t, lane);
        s.held.clear();
        s.held.resize(lane, NOTHING);
        s.round = 0;
        if s.staged.rows() < row || s.staged.cols() != width {
            s.staged = Buffer::new(row.next_power_of_two(), width);
        }
        let Staging { kept, saved, backlog_rows, backlog, from, to } = &mut s.staging;
        [&mut *kept, backlog_rows, from, to].into_iter().for_each(Vec::clear);
        [&mut *saved, backlog].into_iter().for_each(Vec::clear);
        self.moves.clear();
        let (mut first, mut runs) = (0, s.runs.iter().peekable());
        for (index, (state, span)) in states.iter_mut().zip(spans).enumerate() {
            let state = state.as_mut();
            let given = first..first + span.rows;
            first = given.end;
            let Some(run) = runs.next_if(|r| r.index == index) else { continue };
            let Kind::Beam(beam) = &mut state.kind else { continue };
            if beam.hyps.is_empty() {
                beam.hyps.push(Hyp {
                    score: 0.0,
                    node: ROOT,
                    len: 0,
                    hash: 0,
                    time: state.begin.max(state.frames),
                    symbols: 0,
                    lane: run.lane,
                    fusion: state.options.fusion_start(),
                });
                kept.push(run.lane);
                saved.resize(saved.len() + t.predictor.lane_width(), 0.0);
                s.held[run.lane] = Held { len: 0, ..NOTHING };
                self.moves.push(self.blank, run.lane, run.lane);
            } else {
                kept.extend((0..beam.lanes.len() / t.predictor.lane_width()).map(|i| run.lane + i));
                saved.extend_from_slice(&beam.lanes);
                beam.hyps.iter_mut().for_each(|h| h.lane += run.lane);
                beam.hyps.iter().for_each(|h| s.held[h.lane] = Held { hash: h.hash, len: h.len, ..NOTHING });
            }
            let held = beam.backlog.len() / width;
            backlog_rows.extend(run.row..run.row + held);
            backlog.extend_from_slice(&beam.backlog);
            to.extend((0..given.len()).map(|i| run.row + held + i));
            from.extend(given);
            state.frames += span.rows;
        }
        self.lanes.as_mut().expect("a transducer has lanes").restore(exec, kept, saved);
        exec.set_rows(&mut s.staged, backlog_rows, backlog);
        exec.copy_rows(frames, from, &mut s.staged, to);
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
                self.pairs.push(run.row + (h.time - run.frame), h.lane);
            }
        }
        let rows = self.pairs.frames.len();
        if rows == 0 {
            return false;
        }
        let lanes = self.lanes.as_ref().expect("a transducer has lanes");
        let joint = self.joint.as_mut().expect("a transducer has a joint");
        let (a_rows, b_rows) = (&self.pairs.frames[..], &self.pairs.lanes[..]);
        t.joint.run(exec, &AddReluOp { a: &s.staged, a_rows, b: lanes.out(), b_rows }, joint);
        self.width = widest;
        self.candidates.resize(self.candidates.len().max(rows * widest), Candidate::default());
        self.log_sums.resize(self.log_sums.len().max(rows), 0.0);
        let classes = 0..self.blank as usize + 1;
        exec.top_k(&joint.logits, rows, classes, widest, &mut self.log_sums, &mut self.candidates);
        exec.fetch(&mut joint.logits, rows);
        true
    }

    fn looked(&self, row: usize, beam: usize) -> Looked<'_> {
        let from = row * self.width;
        Looked {
            best: &self.candidates[from..from + beam.min(self.width)],
            log_sum: self.log_sums[row],
            logits: self.joint.as_ref().expect("a transducer has a joint").logits.row(row),
            blank: self.blank as usize,
        }
    }

    /// Gives lanes and the frames that are still needed back to the states.
    fn unstage<S: AsMut<SearchState>>(&mut self, exec: &mut Exec, states: &mut [S], s: &mut BeamScratch) {
        let lanes = self.lanes.as_mut().expect("a transducer has lanes");
        lanes.fetch(exec, s.held.len());
        let staged = s.runs.iter().map(|r| r.row + r.end - r.frame).max().unwrap_or(0);
        exec.fetch(&mut s.staged, staged);
        for run in &s.runs {
            let state = states[run.index].as_mut();
            let SearchState { stable, kind, .. } = state;
            let Kind::Beam(beam) = kind else { continue };
            beam.lanes.clear();
            let mut places = [None; LANES * super::MAX_BEAM];
            let mut count = 0;
            for h in &mut beam.hyps {
                let place = &mut places[h.lane - run.lane];
                h.lane = *place.get_or_insert_with(|| {
                    lanes.save(h.lane, &mut beam.lanes);
                    count += 1;
                    count - 1
                });
            }
            let behind = beam.hyps.iter().map(|h| h.time).min().unwrap_or(run.end).clamp(run.frame, run.end);
            beam.backlog.clear();
            for frame in behind..run.end {
                beam.backlog.extend_from_slice(s.staged.row(run.row + frame - run.frame));
            }
            beam.settle(stable);
        }
    }
}

impl Beam {
    /// The best extensions as hypotheses, with the same ones joined. A new label's lane is still its parent's.
    fn choose(
        &mut self,
        options: &SearchOptions,
        t: &Transducer,
        stable: &[Token],
        extensions: &[Extension],
        next: &mut Vec<Hyp>,
    ) {
        let mut order: [usize; ORDER] = [0; ORDER];
        let order = best_extensions(extensions, options.beam, &mut order);
        let guard = options.repeat_guard;
        let floor = match (options.max_gap, order.first()) {
            (Some(gap), Some(&best)) => extensions[best].score - f64::from(gap),
            _ => f64::NEG_INFINITY,
        };
        for &e in order.iter() {
            let Extension { score, from, label, duration, log_prob } = extensions[e];
            if score < floor {
                break;
            }
            let mut h = Hyp { score, ..self.hyps[from] };
            if options.method == Method::ModifiedBeam && label != WAITS {
                h.score += modified_beam::afterwards(options, &h, label, t.blank());
            }
            if label != WAITS {
                let refused = label != t.blank()
                    && guard.is_some_and(|g| g.refuses(|n| self.tree.recent(h.node, stable, n), label));
                if refused {
                    continue;
                }
                if label != t.blank() {
                    h.hash = extend_hash(h.hash, label);
                    h.len += 1;
                    h.fusion = options.fusion_step(h.fusion, label).0;
                }
                h.time += duration;
                h.symbols = if duration > 0 { 0 } else { h.symbols + 1 };
            }
            match next.iter_mut().find(|n| n.same(&h)) {
                Some(n) => n.score = log_add(n.score, h.score),
                None => {
                    if label != WAITS && label != t.blank() {
                        let duration = if t.durations.is_empty() { 1 } else { duration };
                        let frame = self.hyps[from].time;
                        let confidence = log_prob.exp().min(1.0);
                        let token = Token { id: label, frame, duration, log_prob, confidence };
                        h.node = self.tree.push(h.node, token);
                    }
                    next.push(h);
                }
            }
        }
        if next.is_empty() {
            // Everything was refused: the best goes on as if it had heard nothing.
            if let Some(mut h) = self.hyps.first().copied() {
                h.time += 1;
                h.symbols = 0;
                next.push(h);
            }
        }
        let front = next.iter().map(|h| h.time).max().unwrap_or(0);
        next.retain(|h| h.time + MAX_SPREAD >= front);
    }

    /// Gives each hypothesis with new labels a lane: one that holds just these already, or the one that has
    /// been useless longest, which the predictor is asked to fill.
    fn assign_lanes(
        &self,
        first: usize,
        round: usize,
        next: &mut [Hyp],
        held: &mut [Held],
        moves: &mut crate::fastconformer::Moves,
    ) {
        held.iter_mut().for_each(|l| l.taken = false);
        self.hyps.iter().for_each(|h| held[h.lane - first].taken = true);
        let find = |held: &[Held], h: &Hyp| held.iter().position(|l| (l.hash, l.len) == (h.hash, h.len));
        for h in next.iter() {
            if let Some(lane) = find(held, h) {
                held[lane].taken = true;
            }
        }
        for h in next {
            let lane = find(held, h).unwrap_or_else(|| {
                // A beam's old and new hypotheses take at most half of its lanes.
                let free = held.iter().enumerate().filter(|(_, l)| !l.taken);
                let lane = free.min_by_key(|(_, l)| l.used).map_or(0, |(i, _)| i);
                moves.push(self.tree.nodes[h.node as usize].token.id, h.lane, first + lane);
                held[lane] = Held { hash: h.hash, len: h.len, used: round, taken: true };
                lane
            });
            held[lane].used = round;
            h.lane = first + lane;
        }
    }

    fn settle(&mut self, stable: &mut Vec<Token>) {
        self.tree.settle(&mut self.hyps, |h| &mut h.node, stable);
    }
}

/// Room for the best extensions.
const ORDER: usize = super::MAX_BEAM;

/// Indices of the best extensions, best first, of equals the first.
fn best_extensions<'a>(all: &[Extension], beam: usize, out: &'a mut [usize; ORDER]) -> &'a [usize] {
    let mut found = 0;
    for (i, e) in all.iter().enumerate() {
        if e.score == f64::NEG_INFINITY || e.score.is_nan() {
            continue;
        }
        let mut at = found;
        while at > 0 && all[out[at - 1]].score < e.score {
            at -= 1;
        }
        if at < beam {
            found = (found + 1).min(beam);
            out.copy_within(at..found - 1, at + 1);
            out[at] = i;
        }
    }
    &out[..found]
}
