//! Steps many streams together.

use voce_runtime::{Buffer, Candidate, Choice, Confidence, Exec, Span};

use super::beam::BeamScratch;
use super::decoder::{Decoder, DecoderHead, Transducer};
use super::greedy::GreedyScratch;
use super::state::{Kind, SearchState};
use super::{ctc_beam, ctc_greedy};
use crate::fastconformer::{JointScratch, Lanes, Moves, PredictorScratch};

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
}

/// Scratch for steps of many streams. It keeps nothing of a stream between steps.
pub struct Search {
    pub(super) blank: u32,
    pub(super) lanes: Option<Lanes>,
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
    pub(super) log_sums: Vec<f32>,
    pub(super) biased: Vec<f32>,
    pub(super) greedy: GreedyScratch,
    pub(super) beam: BeamScratch,
    ctc: ctc_beam::CtcScratch,
}

impl Search {
    /// Scratch for about `slots` streams; it grows when there are more, or beams.
    pub fn new(decoder: &Decoder, slots: usize) -> Self {
        let rows = slots.max(1) + 16;
        let t = match &decoder.head {
            DecoderHead::Transducer(t) => Some(t),
            DecoderHead::Ctc(_) => None,
        };
        Self {
            blank: decoder.blank(),
            lanes: t.map(|t| t.predictor.lanes(rows)),
            predictor: t.map(|t| t.predictor.scratch(rows)),
            joint: t.map(|t| t.joint.scratch(rows)),
            moves: Moves::default(),
            pairs: Pairs::default(),
            choices: Vec::new(),
            durations: Vec::new(),
            candidates: Vec::new(),
            width: 1,
            log_sums: Vec::new(),
            biased: Vec::new(),
            greedy: GreedyScratch::default(),
            beam: BeamScratch::default(),
            ctc: ctc_beam::CtcScratch::default(),
        }
    }

    /// Takes all rows of `frames`, which [`Decoder::project`] made: those of span i, one span after the other,
    /// belong to state i. (A span's slot is not looked at.)
    pub fn step<S: AsMut<SearchState>>(
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
    pub fn flush<S: AsMut<SearchState>>(&mut self, exec: &mut Exec, decoder: &Decoder, states: &mut [S]) {
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
        self.choices.resize(self.choices.len().max(rows), Choice::default());
        if states.iter_mut().any(|s| matches!(s.as_mut().kind, Kind::Ctc(_))) {
            let classes = 0..self.blank as usize + 1;
            exec.choose(logits, rows, classes, Confidence::MaxProb, &mut self.choices);
        }
        exec.fetch(logits, rows);
        let mut first = 0;
        for (state, span) in states.iter_mut().zip(spans) {
            let (state, rows) = (state.as_mut(), first..first + span.rows);
            if let Kind::Ctc(_) = &state.kind {
                let choices = &self.choices[rows];
                ctc_greedy::step(state, logits, first, choices, self.blank, &mut self.biased);
            } else {
                ctc_beam::step(state, exec, logits, rows, self.blank, &mut self.ctc);
            }
            first += span.rows;
        }
    }

    /// Makes room for lanes; what they held is lost.
    pub(super) fn reserve_lanes(&mut self, t: &Transducer, rows: usize) {
        if self.lanes.as_ref().is_none_or(|l| l.rows() < rows) {
            self.lanes = Some(t.predictor.lanes(rows.next_power_of_two()));
        }
    }

    /// Feeds the labels in `moves` to the predictors, and clears them.
    pub(super) fn predict(&mut self, exec: &mut Exec, t: &Transducer) {
        if let (Some(lanes), Some(scratch)) = (&mut self.lanes, &mut self.predictor) {
            t.predictor.step(exec, &self.moves, lanes, scratch);
        }
        self.moves.clear();
    }
}
