//! What a stream asks of the search.

use std::sync::Arc;

use voce_runtime::Confidence;

use super::{Boost, Decoder, Ngram};

/// The widest beam.
pub const MAX_BEAM: usize = 32;

/// Options that a model cannot do.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SearchError {
    /// The beam is zero or too wide.
    #[error("a beam of {0}: use 1 to {MAX_BEAM}")]
    Beam(usize),
    /// The method is for RNN-T models.
    #[error("modified beam search is for RNN-T models: use malsd with this one")]
    Method,
    /// A weight that is not a number, or negative.
    #[error("a weight of {0} for phrases or language model: use a number from 0 on")]
    Weight(f32),
    /// A phrase holds a label that the model has not.
    #[error(
        "a phrase has label {got}, and the model has {vocab}: tokenise phrases with this model's tokeniser"
    )]
    Boost {
        /// The label.
        got: u32,
        /// Labels of the model.
        vocab: usize,
    },
    /// The language model was read for another vocabulary.
    #[error("the language model was read for {got} labels, and the model has {vocab}: read it again")]
    Lm {
        /// Labels it was read for.
        got: usize,
        /// Labels of the model.
        vocab: usize,
    },
    /// A gap that would drop the best.
    #[error("a score gap of {0}: use a number above 0, about 12")]
    Gap(f32),
    /// No label per frame at all.
    #[error("at most 0 symbols per frame would give no text: use 1 or more")]
    MaxSymbols,
}

/// How labels are searched for. With a CTC head every method but greedy is prefix beam search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// The best label at each step.
    #[default]
    Greedy,
    /// Alignment-length synchronous beam search with recombination (NeMo's `malsd_batch`).
    Malsd,
    /// At most one label per frame (k2's `modified_beam_search`); RNN-T only.
    ModifiedBeam,
}

/// When a language model and phrases have their say in a transducer's beam search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pruning {
    /// The labels of each hypothesis that go on are chosen with them.
    #[default]
    Late,
    /// They are chosen without, and then scored.
    Early,
}

/// What a language model means for the blank in MALSD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlankScore {
    /// The blank counts as often as a label does: its log-probability is multiplied by one plus the weight,
    /// and labels share the rest of the language model's mass.
    #[default]
    Weighted,
    /// Nothing.
    None,
}

/// Stops a decoder that repeats itself: when the last labels are a cycle of at most `cycle` labels that has
/// come `repeats` times, another round of it is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepeatGuard {
    /// Longest cycle, in labels.
    pub cycle: usize,
    /// Rounds that are let through.
    pub repeats: usize,
}

/// What a stream asks of the search.
#[derive(Clone, Debug)]
pub struct SearchOptions {
    /// How labels are searched for.
    pub method: Method,
    /// Hypotheses side by side; 1 with [`Method::Greedy`].
    pub beam: usize,
    /// Labels per frame at most; the model's own limit where absent.
    pub max_symbols: Option<usize>,
    /// Phrases to prefer.
    pub boost: Option<Arc<Boost>>,
    /// Multiplies what phrases add.
    pub boost_weight: f32,
    /// A language model over labels.
    pub lm: Option<Arc<Ngram>>,
    /// Weight of its natural-log scores.
    pub lm_weight: f32,
    /// When language model and phrases have their say.
    pub pruning: Pruning,
    /// What the language model means for the blank.
    pub blank_score: BlankScore,
    /// Drops a transducer's hypotheses whose score is this far below the best: beams then cost little where
    /// the model is sure. About 12 is safe for the best reading; lists of readings get shorter.
    pub max_gap: Option<f32>,
    /// MALSD: hypotheses wait for each other at the end of every step's frames, as NeMo's do between chunks.
    /// Then the result depends on how frames are cut into steps; without, it never does.
    pub sync_chunks: bool,
    /// What a token's confidence is in greedy search; in beams it is the probability.
    pub confidence: Confidence,
    /// Stops endless repetition.
    pub repeat_guard: Option<RepeatGuard>,
}

impl Default for SearchOptions {
    fn default() -> Self {
        Self {
            method: Method::Greedy,
            beam: 1,
            max_symbols: None,
            boost: None,
            boost_weight: 1.0,
            lm: None,
            lm_weight: 0.3,
            pruning: Pruning::default(),
            blank_score: BlankScore::default(),
            max_gap: None,
            sync_chunks: false,
            confidence: Confidence::default(),
            repeat_guard: None,
        }
    }
}

impl SearchOptions {
    /// Greedy search for a beam of 1, else MALSD (prefix beam search for CTC).
    pub fn with_beam(beam: usize) -> Self {
        let method = if beam > 1 { Method::Malsd } else { Method::Greedy };
        Self { method, beam, ..Self::default() }
    }

    pub(super) fn check(&self, decoder: &Decoder) -> Result<(), SearchError> {
        let vocab = decoder.vocab();
        if self.beam == 0 || self.beam > MAX_BEAM {
            return Err(SearchError::Beam(self.beam));
        }
        if self.method == Method::ModifiedBeam && !decoder.durations().is_empty() {
            return Err(SearchError::Method);
        }
        for weight in [self.lm_weight, self.boost_weight] {
            if !(weight >= 0.0 && weight.is_finite()) {
                return Err(SearchError::Weight(weight));
            }
        }
        if let Some(gap) = self.max_gap.filter(|g| g.is_nan() || *g <= 0.0) {
            return Err(SearchError::Gap(gap));
        }
        if self.max_symbols == Some(0) {
            return Err(SearchError::MaxSymbols);
        }
        match &self.boost {
            Some(b) if b.largest() as usize >= vocab => {
                return Err(SearchError::Boost { got: b.largest(), vocab });
            }
            _ => {}
        }
        match &self.lm {
            Some(lm) if lm.vocab() != vocab => Err(SearchError::Lm { got: lm.vocab(), vocab }),
            _ => Ok(()),
        }
    }
}

impl RepeatGuard {
    /// Whether `next` after these labels (the last first) would be a round too many.
    pub(super) fn refuses(self, mut recent: impl FnMut(usize) -> Option<u32>, next: u32) -> bool {
        for cycle in 1..=self.cycle {
            // `next` completes a further round when it and everything before it equal what came a cycle
            // earlier, for as long as the allowed rounds lasted.
            let length = cycle * self.repeats;
            let at = |recent: &mut dyn FnMut(usize) -> Option<u32>, i: usize| {
                if i == 0 { Some(next) } else { recent(i - 1) }
            };
            let repeated = (0..length).all(|i| {
                let (a, b) = (at(&mut recent, i), at(&mut recent, i + cycle));
                a.is_some() && a == b
            });
            if length > 0 && repeated {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(guard: RepeatGuard, labels: &[u32], next: u32) -> bool {
        guard.refuses(|i| labels.len().checked_sub(i + 1).map(|at| labels[at]), next)
    }

    #[test]
    fn the_guard_lets_through_just_the_rounds_it_is_told() {
        let guard = RepeatGuard { cycle: 2, repeats: 3 };
        assert!(!refuses(guard, &[5, 5], 5));
        assert!(refuses(guard, &[5, 5, 5], 5));
        assert!(!refuses(guard, &[5, 5, 5], 6));
        assert!(!refuses(guard, &[1, 2, 1, 2], 1));
        assert!(!refuses(guard, &[1, 2, 1, 2, 1, 2], 1));
        assert!(refuses(guard, &[1, 2, 1, 2, 1, 2, 1], 2));
        assert!(!refuses(guard, &[1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2], 3));
        assert!(!refuses(guard, &[], 3));
    }
}
