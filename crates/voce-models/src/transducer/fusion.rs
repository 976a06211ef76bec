//! Phrases and language model together, as a hypothesis sees them.

use super::SearchOptions;

/// Where a hypothesis stands in phrases and language model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FusionState {
    pub boost: u32,
    pub lm: u32,
}

impl SearchOptions {
    /// Whether anything is added to labels.
    pub(super) fn fuses(&self) -> bool {
        self.boost.is_some() || self.lm.is_some()
    }

    /// The state before the first label.
    pub(super) fn fusion_start(&self) -> FusionState {
        FusionState { boost: 0, lm: self.lm.as_ref().map_or(0, |lm| lm.start()) }
    }

    /// Where a label leads, and what it adds.
    pub(super) fn fusion_step(&self, s: FusionState, label: u32) -> (FusionState, f32) {
        let (mut next, mut add) = (s, 0.0);
        if let Some(b) = &self.boost {
            let (state, score) = b.step(s.boost, label);
            (next.boost, add) = (state, self.boost_weight * score);
        }
        if let Some(lm) = &self.lm {
            let (state, score) = lm.step(s.lm, label);
            next.lm = state;
            add += self.lm_weight * score;
        }
        (next, add)
    }

    /// What each label would add, one entry per label.
    pub(super) fn fusion_scores(&self, s: FusionState, out: &mut [f32]) {
        match &self.lm {
            Some(lm) => {
                lm.scores(s.lm, out);
                out.iter_mut().for_each(|o| *o *= self.lm_weight);
            }
            None => out.fill(0.0),
        }
        if let Some(b) = &self.boost {
            b.scores(s.boost, self.boost_weight, out);
        }
    }

    /// What the end of the text adds.
    pub(super) fn fusion_finish(&self, s: FusionState) -> f32 {
        self.boost.as_ref().map_or(0.0, |b| self.boost_weight * b.finish(s.boost))
    }

    /// How many states phrases and language model have.
    pub(super) fn fusion_states(&self) -> (usize, usize) {
        (self.boost.as_ref().map_or(1, |b| b.states()), self.lm.as_ref().map_or(1, |lm| lm.states()))
    }

    /// Weight of the language model where there is one.
    pub(super) fn lm_share(&self) -> f32 {
        if self.lm.is_some() { self.lm_weight } else { 0.0 }
    }
}
