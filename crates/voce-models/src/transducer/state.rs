//! What the search knows about a stream: a value that the session owns.

use std::sync::Arc;

use super::bank::{Place, Rows};
use super::ctc_beam::CtcBeam;
use super::ctc_greedy::CtcGreedy;
use super::decoder::{Decoder, DecoderHead};
use super::fusion::FusionState;
use super::hypothesis::{Hyp, ROOT, Tree};
use super::prune::Held;
use super::{Hypothesis, Method, SearchError, SearchOptions, Token};

/// A stream's search. What its predictors know is with the [`Search`](super::Search) that steps it; a copy shares
/// that until one of the two is stepped.
#[derive(Clone, Debug)]
pub struct SearchState {
    pub(super) options: Arc<SearchOptions>,
    /// Frames given so far.
    pub(super) frames: usize,
    /// The frame at which this utterance began.
    pub(super) begin: usize,
    /// Labels of this utterance that no longer change.
    pub(super) stable: Vec<Token>,
    /// How many of them were taken.
    pub(super) taken: usize,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Greedy(Greedy),
    Beam(Beam),
    Ctc(CtcGreedy),
    CtcBeam(CtcBeam),
}

/// A transducer's greedy search.
#[derive(Clone, Debug)]
pub(super) struct Greedy {
    /// The predictor's lane.
    pub place: Place,
    /// Frames of the next step that a duration has already passed.
    pub carry: usize,
    pub fusion: FusionState,
    /// Sum of the labels' log-probabilities.
    pub score: f64,
}

/// A transducer's beam.
#[derive(Clone, Debug)]
pub(super) struct Beam {
    /// Best first; empty before the first frame.
    pub hyps: Vec<Hyp>,
    /// The predictors' lanes: some per hypothesis, which has the number of its own among them.
    pub place: Place,
    /// What each of the lanes holds.
    pub held: Vec<Held>,
    pub tree: Tree,
    /// Frames that hypotheses have not passed yet, up to the last: those of a snapshot, until the next step.
    pub saved: Vec<f32>,
    /// And those that the search has.
    pub frames: Vec<Arc<Rows>>,
}

impl SearchState {
    /// A stream before its first frame.
    pub fn new(decoder: &Decoder, options: &SearchOptions) -> Result<Self, SearchError> {
        options.check(decoder)?;
        let kind = Kind::start(decoder, options);
        let options = Arc::new(options.clone());
        Ok(Self { options, frames: 0, begin: 0, stable: Vec::new(), taken: 0, kind })
    }

    /// The stream's options.
    pub fn options(&self) -> &SearchOptions {
        &self.options
    }

    /// Frames consumed since the stream began.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// The labels of this utterance that no longer change.
    pub fn stable(&self) -> &[Token] {
        &self.stable
    }

    /// The labels that have become stable since the last call.
    pub fn take_stable(&mut self) -> &[Token] {
        let from = std::mem::replace(&mut self.taken, self.stable.len());
        &self.stable[from..]
    }

    /// The best reading of this utterance so far: stable labels and those that may still change.
    pub fn tokens(&self) -> Vec<Token> {
        [&self.stable[..], &self.tentative()].concat()
    }

    /// The labels of the best reading after the stable ones, which may still change.
    pub fn tentative(&self) -> Vec<Token> {
        let mut out = Vec::new();
        match &self.kind {
            Kind::Greedy(_) | Kind::Ctc(_) => {}
            Kind::Beam(b) => {
                if let Some(best) = b.best(&self.options) {
                    b.tree.path(best.node, &mut out);
                }
            }
            Kind::CtcBeam(b) => b.path(0, &mut out),
        }
        out
    }

    /// Forgets the stable labels that were taken, all but the last `keep`; the search goes on.
    pub fn forget_taken(&mut self, keep: usize) {
        let gone = self.taken.saturating_sub(keep);
        self.stable.drain(..gone);
        self.taken -= gone;
    }

    /// Frames since the last label of the best reading ended, or since the utterance began.
    pub fn silence(&self) -> usize {
        let last = match &self.kind {
            Kind::Greedy(_) | Kind::Ctc(_) => self.stable.last().copied(),
            Kind::Beam(b) => {
                let best = b.best(&self.options).map_or(ROOT, |h| h.node);
                b.tree.up(best).next().or(self.stable.last()).copied()
            }
            Kind::CtcBeam(b) => b.last(0).or(self.stable.last()).copied(),
        };
        let end = last.map_or(self.begin, |t| t.frame + t.duration.max(1));
        self.frames.saturating_sub(end.max(self.begin))
    }

    /// The readings of this utterance, best first; a beam must have been [flushed](super::Search::flush), or
    /// its readings lack the last few frames. Greedy search has one.
    pub fn finish(&self) -> Vec<Hypothesis> {
        let whole = |score: f64, len: usize, tail: &dyn Fn(&mut Vec<Token>)| {
            let mut tokens = self.stable.clone();
            tail(&mut tokens);
            Hypothesis { tokens, score, normalized: score / (len + 1) as f64 }
        };
        match &self.kind {
            Kind::Greedy(Greedy { score, .. }) | Kind::Ctc(CtcGreedy { score, .. }) => {
                vec![whole(*score, self.stable.len(), &|_| {})]
            }
            Kind::Beam(b) if b.hyps.is_empty() => vec![whole(0.0, 0, &|_| {})],
            Kind::Beam(b) => b
                .ranked(&self.options)
                .into_iter()
                .map(|(i, score)| {
                    let h = b.hyps[i];
                    whole(score, h.len, &|out| b.tree.path(h.node, out))
                })
                .collect(),
            Kind::CtcBeam(b) => b
                .scores()
                .enumerate()
                .map(|(i, (score, len))| whole(score, len, &|out| b.path(i, out)))
                .collect(),
        }
    }

    /// Forgets the labels so far, which were all taken, after the end of an utterance: a greedy search goes on with what its
    /// predictor knows, so that the end changes nothing of what it finds. A beam that was flushed begins anew.
    pub fn go_on(&mut self, decoder: &Decoder) {
        let score = match &mut self.kind {
            Kind::Greedy(Greedy { score, .. }) | Kind::Ctc(CtcGreedy { score, .. }) => score,
            Kind::Beam(_) | Kind::CtcBeam(_) => return self.reset_utterance(decoder),
        };
        *score = 0.0;
        self.stable.clear();
        self.taken = 0;
        self.begin = self.frames;
    }

    /// Begins a new utterance at the frame the stream has come to; its labels so far are forgotten.
    pub fn reset_utterance(&mut self, decoder: &Decoder) {
        let carry = match &self.kind {
            Kind::Greedy(g) => g.carry,
            Kind::Beam(b) => b.best(&self.options).map_or(0, |h| h.time).saturating_sub(self.frames),
            Kind::Ctc(_) | Kind::CtcBeam(_) => 0,
        };
        let last = if let Kind::Ctc(c) = &self.kind { c.last } else { None };
        self.kind = Kind::start(decoder, &self.options);
        match &mut self.kind {
            Kind::Greedy(g) => g.carry = carry,
            // A label that goes on over the border was counted before it.
            Kind::Ctc(c) => c.last = last,
            Kind::Beam(_) | Kind::CtcBeam(_) => {}
        }
        self.stable.clear();
        self.taken = 0;
        self.begin = self.frames + carry;
    }
}

impl AsMut<SearchState> for SearchState {
    fn as_mut(&mut self) -> &mut SearchState {
        self
    }
}

impl Kind {
    pub(super) fn start(decoder: &Decoder, options: &SearchOptions) -> Self {
        let greedy = options.method == Method::Greedy;
        match &decoder.head {
            DecoderHead::Ctc(_) if greedy => Kind::Ctc(CtcGreedy::new(options)),
            DecoderHead::Ctc(_) => Kind::CtcBeam(CtcBeam::new(options)),
            DecoderHead::Transducer(_) if greedy => Kind::Greedy(Greedy {
                place: Place::Nowhere,
                carry: 0,
                fusion: options.fusion_start(),
                score: 0.0,
            }),
            DecoderHead::Transducer(_) => Kind::Beam(Beam {
                hyps: Vec::new(),
                place: Place::Nowhere,
                held: Vec::new(),
                tree: Tree::default(),
                saved: Vec::new(),
                frames: Vec::new(),
            }),
        }
    }
}

impl Beam {
    fn score(options: &SearchOptions, h: &Hyp) -> f64 {
        h.score + f64::from(options.fusion_finish(h.fusion))
    }

    /// The hypothesis with the best score per label.
    fn best(&self, options: &SearchOptions) -> Option<&Hyp> {
        let rank = |h: &Hyp| Self::score(options, h) / (h.len + 1) as f64;
        self.hyps.iter().reduce(|best, h| if rank(h) > rank(best) { h } else { best })
    }

    /// Hypotheses and their final scores, best per label first.
    fn ranked(&self, options: &SearchOptions) -> Vec<(usize, f64)> {
        let scores = self.hyps.iter().map(|h| Self::score(options, h));
        let mut order: Vec<(usize, f64)> = scores.enumerate().collect();
        let rank = |&(i, score): &(usize, f64)| score / (self.hyps[i].len + 1) as f64;
        order.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
        order
    }
}
