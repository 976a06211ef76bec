//! Modified beam search (k2's `modified_beam_search`): at most one label per frame, all hypotheses at the same
//! frame, those with the same labels joined after every frame.

use super::hypothesis::Hyp;
use super::malsd::{Extension, Looked, top};
use super::{Pruning, SearchOptions};

/// Appends the ways in which a hypothesis may go on: every one takes it to the next frame.
pub(super) fn extend(
    options: &SearchOptions,
    h: &Hyp,
    from: usize,
    z: &Looked<'_>,
    out: &mut Vec<Extension>,
    labels: &mut Vec<(f32, u32)>,
    biased: &mut Vec<f32>,
) {
    if options.fuses() && options.pruning == Pruning::Late {
        biased.resize(z.blank, 0.0);
        options.fusion_scores(h.fusion, biased);
        top(options.beam, z.blank, labels, |label| {
            z.log_prob(label) + if label == z.blank { 0.0 } else { biased[label] }
        });
    } else {
        labels.clear();
        let plain = z.best.iter().filter(|c| c.index != u32::MAX);
        labels.extend(plain.map(|c| (c.logit - z.log_sum, c.index)));
    }
    for &(score, label) in labels.iter() {
        let score = h.score + f64::from(score);
        out.push(Extension { score, from, label, duration: 1, log_prob: z.log_prob(label as usize) });
    }
}

/// What phrases and language model add to an extension that was chosen without them.
pub(super) fn afterwards(options: &SearchOptions, h: &Hyp, label: u32, blank: u32) -> f64 {
    if options.fuses() && options.pruning == Pruning::Early && label != blank {
        f64::from(options.fusion_step(h.fusion, label).1)
    } else {
        0.0
    }
}
