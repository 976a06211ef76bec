//! Steps many streams together.

use std::sync::Arc;

use voce_runtime::cuda::CudaError;
use voce_runtime::transducer::{Beams, GreedyRuns};
use voce_runtime::{Buffer, Candidate, Choice, Confidence, Exec, Span};

use super::bank::{Bank, Place, Rows};
use super::beam::BeamScratch;
use super::decoder::{Decoder, DecoderHead, Transducer};
use super::greedy::GreedyScratch;
use super::prune::LANES;
use super::state::{Kind, SearchState};
use super::{ctc_beam, ctc_greedy};
use crate::fastconformer::{JointScratch, Lanes, Moves, PredictorScratch, try_grow};

/// The lane that is the state before the first label: zeros.
const ZERO: usize = 0;

/// Rows of the joint's input: frames, and lanes of predictors.
#[derive(Default)]
pub(super) struct Pairs {
    pub frames: Vec<usize>,
    pub lanes: Vec<usize>,
}

impl Pairs {
    pub(super) fn push(&mut self, frame: usize, lane: usize) {
        self.frames.push(frame);
        self.lanes.push(lane);
    }

    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.lanes.clear();
    }

    /// Repeats the last until the list has the length asked for.
    pub(super) fn pad(&mut self, rows: usize) {
        if let (Some(&frame), Some(&lane)) = (self.frames.last(), self.lanes.last()) {
            self.frames.resize(rows, frame);
            self.lanes.resize(rows, lane);
        }
    }
}

/// Lanes that are filled before a step: from other lanes, and from what was saved.
#[derive(Default)]
struct Staging {
    from: Vec<usize>,
    to: Vec<usize>,
    saved_to: Vec<usize>,
    saved: Vec<f32>,
}

/// Steps many streams together, and holds their predictors between steps. A stream stays with the search of its
/// first step; another can go on with what [`Search::save`] gives.
pub struct Search {
    pub(super) blank: u32,
    pub(super) lanes: Option<Lanes>,
    pub(super) bank: Bank,
    staging: Staging,
    /// Lanes that nobody reads, for labels that only fill a batch.
    spares: Rows,
    /// Frames that beams have still to pass.
    pub(super) frames: Buffer,
    pub(super) frame_bank: Bank,
    pub(super) predictor: Option<PredictorScratch>,
    pub(super) joint: Option<JointScratch>,
    pub(super) moves: Moves,
    pub(super) pairs: Pairs,
    pub(super) choices: Vec<Choice>,
    /// Indices of the best durations.
    pub(super) durations: Vec<u32>,
    pub(super) candidates: Vec<Candidate>,
    /// Candidates per row.
    pub(super) width: usize,
    /// Of each row the logarithm of the sum of exponentials, and the logits of the blank and of durations.
    pub(super) facts: Vec<f32>,
    pub(super) biased: Vec<f32>,
    pub(super) greedy: GreedyScratch,
    /// Greedy searches as a device has them.
    pub(super) greedy_runs: GreedyRuns,
    pub(super) beam: BeamScratch,
    /// Beams as a device has them.
    pub(super) beams: Beams,
    ctc: ctc_beam::CtcScratch,
}

/// The rows that a batch of `rows` is run with: one of few numbers where work that repeats costs less.
pub(super) fn padded(exec: &Exec, rows: usize) -> usize {
    if !exec.wants_few_sizes() || rows == 0 {
        return rows;
    }
    match rows {
        ..=64 => rows.next_power_of_two(),
        65..=512 => rows.next_multiple_of(64),
        513..=4096 => rows.next_multiple_of(512),
        _ => rows.next_multiple_of(2048),
    }
}

/// The most rows that [`padded`] adds to a batch that comes to `rows` or fewer with them.
fn most_padding(rows: usize) -> usize {
    match rows {
        ..=64 => (rows / 2).saturating_sub(1),
        65..=512 => 63,
        513..=4096 => 511,
        _ => 2047,
    }
}

impl Search {
    /// For about `slots` streams; it grows when there are more, or beams.
    pub fn new(decoder: &Decoder, slots: usize) -> Self {
        let rows = slots.max(1) + 16;
        let t = match &decoder.head {
            DecoderHead::Transducer(t) => Some(t),
            DecoderHead::Ctc(_) => None,
        };
        let mut bank = Bank::after(ZERO + 1);
        Self {
            blank: decoder.blank(),
            lanes: t.map(|t| t.predictor.lanes(rows)),
            spares: bank.take(0),
            bank,
            staging: Staging::default(),
            frames: Buffer::new(0, t.map_or(0, |t| t.joint.width())),
            frame_bank: Bank::default(),
            predictor: t.map(|t| t.predictor.scratch(rows)),
            joint: t.map(|t| t.joint.scratch(rows)),
            moves: Moves::default(),
            pairs: Pairs::default(),
            choices: Vec::new(),
            durations: Vec::new(),
            candidates: Vec::new(),
            width: 1,
            facts: Vec::new(),
            biased: Vec::new(),
            greedy: GreedyScratch::default(),
            greedy_runs: GreedyRuns::default(),
            beam: BeamScratch::default(),
            beams: Beams::default(),
            ctc: ctc_beam::CtcScratch::default(),
        }
    }

    /// Makes sure, between two steps, that streams with beams of `hypotheses` in all find room beside `streams` others, and
    /// for `frames` frames that beams have yet to pass. Where there is no memory nothing has changed, and the executor
    /// goes on.
    pub fn make_room(
        &mut self,
        exec: &mut Exec,
        streams: usize,
        hypotheses: usize,
        frames: usize,
    ) -> Result<(), CudaError> {
        let Some(lanes) = &mut self.lanes else { return Ok(()) };
        let rows = ZERO + 1 + self.spares.len() + streams + LANES * hypotheses;
        lanes.try_grow(exec, rows.max(self.bank.total()))?;
        try_grow(exec, &mut self.frames, frames.max(self.frame_bank.total()))
    }

    /// Takes all rows of `frames`, which [`Decoder::project`] made: those of span i, one span after the other,
    /// belong to state i. (A span's slot is not looked at.)
    pub fn step<S: AsMut<SearchState> + Send>(
        &mut self,
        exec: &mut Exec,
        decoder: &Decoder,
        frames: &mut Buffer,
        spans: &[Span],
        states: &mut [S],
    ) {
        assert_eq!(spans.len(), states.len(), "a span per state");
        let rows: usize = spans.iter().map(|s| s.rows).sum();
        assert!(rows <= frames.rows() && frames.cols() == decoder.frame_width(), "projected frames");
        match &decoder.head {
            DecoderHead::Transducer(t) => {
                self.greedy(exec, t, frames, spans, states);
                self.beams(exec, t, frames, spans, states, false);
            }
            DecoderHead::Ctc(_) => self.ctc(exec, frames, spans, states),
        }
    }

    /// Lets beams come to the end of the frames they have, as if the stream ended there: for the end of an
    /// utterance. Then [`SearchState::finish`] has the whole of it. Greedy searches need no flush.
    pub fn flush<S: AsMut<SearchState> + Send>(
        &mut self,
        exec: &mut Exec,
        decoder: &Decoder,
        states: &mut [S],
    ) {
        if let DecoderHead::Transducer(t) = &decoder.head {
            let none = Buffer::new(0, decoder.frame_width());
            let spans = vec![Span { slot: 0, rows: 0 }; states.len()];
            self.beams(exec, t, &none, &spans, states, true);
        }
    }

    fn ctc<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        logits: &mut Buffer,
        spans: &[Span],
        states: &mut [S],
    ) {
        let rows = spans.iter().map(|s| s.rows).sum();
        let (mut greedy, mut widest, mut wants_logits) = (false, 0, false);
        for state in states.iter_mut() {
            let SearchState { options, kind, .. } = state.as_mut();
            match kind {
                Kind::CtcBeam(_) => widest = widest.max(ctc_beam::candidates(options)),
                _ => {
                    greedy = true;
                    wants_logits |= options.fuses() || options.confidence != Confidence::MaxProb;
                }
            }
        }
        let classes = 0..self.blank as usize + 1;
        if greedy {
            self.choices.resize(self.choices.len().max(rows), Choice::default());
            exec.choose(logits, rows, classes.clone(), Confidence::MaxProb, &mut self.choices);
        }
        if widest > 0 {
            self.ctc.look(exec, logits, rows, classes, widest);
        }
        if wants_logits || widest > 0 {
            exec.fetch(logits, rows);
        }
        let mut first = 0;
        for (state, span) in states.iter_mut().zip(spans) {
            let (state, rows) = (state.as_mut(), first..first + span.rows);
            if let Kind::Ctc(_) = &state.kind {
                let choices = &self.choices[rows];
                let logits = wants_logits.then_some(&*logits);
                ctc_greedy::step(state, logits, first, choices, self.blank, &mut self.biased);
            } else {
                ctc_beam::step(state, logits, rows, self.blank, &mut self.ctc);
            }
            first += span.rows;
        }
    }

    /// Gives a stream `count` lanes that are its own; [`Search::settle_lanes`] then fills them.
    pub(super) fn lodge(&mut self, t: &Transducer, place: &mut Place, count: usize) {
        if let Place::Lanes(rows) = place
            && Arc::strong_count(rows) == 1
        {
            return;
        }
        let rows = self.bank.take(count);
        let to = rows.of(&self.bank);
        let s = &mut self.staging;
        match place {
            Place::Nowhere => self.moves.push(self.blank, ZERO, to[0]),
            Place::Saved(values) => {
                s.saved_to.extend_from_slice(&to[..values.len() / t.predictor.lane_width()]);
                s.saved.append(values);
            }
            Place::Lanes(shared) => {
                s.from.extend_from_slice(shared.of(&self.bank));
                s.to.extend_from_slice(to);
            }
        }
        *place = Place::Lanes(Arc::new(rows));
    }

    /// Makes room for all lanes that were given out, and fills them.
    pub(super) fn settle_lanes(&mut self, exec: &mut Exec, t: &Transducer) {
        let lanes = self.lanes.as_mut().expect("a transducer has lanes");
        lanes.grow(exec, self.bank.total());
        let s = &mut self.staging;
        // What is copied is read before anything is written: its old owner may have given it back.
        if !s.from.is_empty() {
            lanes.copy(exec, &s.from, &s.to);
        }
        if !s.saved_to.is_empty() {
            lanes.restore(exec, &s.saved_to, &s.saved);
        }
        [&mut s.from, &mut s.to, &mut s.saved_to].into_iter().for_each(Vec::clear);
        s.saved.clear();
        self.predict(exec, t);
    }

    /// Feeds the labels in `moves` to the predictors, and clears them.
    pub(super) fn predict(&mut self, exec: &mut Exec, t: &Transducer) {
        let labels = self.moves.labels.len();
        let more = padded(exec, labels) - labels;
        let (Some(lanes), Some(scratch)) = (&mut self.lanes, &mut self.predictor) else { return };
        if self.spares.len() < more {
            // As many as any number of labels up to these may lack: a smaller step asks for no more memory.
            self.spares = self.bank.take(most_padding(labels + more));
            lanes.grow(exec, self.bank.total());
        }
        for &spare in &self.spares.of(&self.bank)[..more] {
            self.moves.push(self.blank, ZERO, spare);
        }
        t.predictor.step(exec, &self.moves, lanes, scratch);
        self.moves.clear();
    }
}
