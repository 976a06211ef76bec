//! CTC, greedily: the best class of each frame, repeats and blanks left out.

use voce_runtime::{Buffer, Choice};

use super::fusion::FusionState;
use super::state::{Kind, SearchState};
use super::{SearchOptions, Token};

/// What has to be known about the frames before.
#[derive(Clone, Debug)]
pub(super) struct CtcGreedy {
    /// The best class of the last frame, before phrases or language model changed it.
    pub last: Option<u32>,
    pub fusion: FusionState,
    /// Sum of the labels' log-probabilities.
    pub score: f64,
}

impl CtcGreedy {
    pub(super) fn new(options: &SearchOptions) -> Self {
        Self { last: None, fusion: options.fusion_start(), score: 0.0 }
    }
}

/// Takes the frames from row `first` on, whose choices are given; logits are there where an option needs them.
pub(super) fn step(
    state: &mut SearchState,
    logits: Option<&Buffer>,
    first: usize,
    choices: &[Choice],
    blank: u32,
    biased: &mut Vec<f32>,
) {
    let SearchState { options, frames, stable, kind, .. } = state;
    let Kind::Ctc(ctc) = kind else { return };
    for (r, c) in choices.iter().enumerate() {
        let before = ctc.last.replace(c.index);
        let frame = *frames;
        *frames += 1;
        if c.index == blank || before == Some(c.index) || c.logit == f32::NEG_INFINITY {
            continue;
        }
        let row = logits.map_or(&[][..], |l| l.row(first + r));
        let id = super::greedy::prefer(options, ctc.fusion, row, blank as usize, c.index, biased);
        if super::greedy::repeats_too_often(options, stable, id) {
            continue;
        }
        ctc.fusion = options.fusion_step(ctc.fusion, id).0;
        let log_prob = if id == c.index { c.log_prob() } else { row[id as usize] - c.log_sum };
        let confidence = super::greedy::sureness(options, c, id, row, blank as usize);
        ctc.score += f64::from(log_prob);
        stable.push(Token { id, frame, duration: 1, log_prob, confidence });
    }
}
