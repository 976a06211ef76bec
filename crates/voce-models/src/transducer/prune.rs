//! Which hypotheses of a beam go on, and in which lanes their predictors are.

use super::decoder::Transducer;
use super::hypothesis::{Hyp, extend_hash, log_add};
use super::malsd::{Extension, WAITS};
use super::state::Beam;
use super::{Method, SearchOptions, Token, modified_beam};
use crate::fastconformer::Moves;

/// Frames by which a hypothesis may be behind another before it is dropped.
const MAX_SPREAD: usize = 256;
/// Lanes per hypothesis of the beam: those that are not in use keep what predictors said after labels that
/// may well be tried again at the next frame.
pub(super) const LANES: usize = 4;

/// What a lane holds: the predictor's state after some labels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub hash: u64,
    pub len: usize,
    /// When it was last of use.
    pub used: usize,
    /// Whether a hypothesis needs it now.
    pub taken: bool,
}

impl Held {
    /// What the lane of a hypothesis holds.
    pub(super) fn after(h: &Hyp) -> Self {
        Self { hash: h.hash, len: h.len, ..NOTHING }
    }
}

pub(super) const NOTHING: Held = Held { hash: 0, len: usize::MAX, used: 0, taken: false };

impl Beam {
    /// The best extensions as hypotheses, with the same ones joined. A new label's lane is still its parent's.
    pub(super) fn choose(
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
    /// been useless longest, which the predictor is asked to fill. `lanes` are all lanes of the stream.
    pub(super) fn assign_lanes(
        &mut self,
        lanes: &[usize],
        round: usize,
        next: &mut [Hyp],
        moves: &mut Moves,
    ) {
        let held = &mut self.held;
        held.iter_mut().for_each(|l| l.taken = false);
        self.hyps.iter().for_each(|h| held[h.lane].taken = true);
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
                moves.push(self.tree.nodes[h.node as usize].token.id, lanes[h.lane], lanes[lane]);
                held[lane] = Held { hash: h.hash, len: h.len, used: round, taken: true };
                lane
            });
            held[lane].used = round;
            h.lane = lane;
        }
    }

    pub(super) fn settle(&mut self, stable: &mut Vec<Token>) {
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
