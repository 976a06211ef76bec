//! An n-gram language model over a model's labels: a back-off automaton in flat arrays, shared by streams.
//!
//! A state is a context. State 0 is the empty one and knows every label; the others have sorted arcs for the
//! labels seen after them, and a shorter context to fall back to at a cost.

use super::ArpaError;

/// The longest n-gram that is taken.
pub(super) const MAX_ORDER: usize = 12;
/// Natural-log score of labels that the model does not know and has no `<unk>` for.
const UNKNOWN: f32 = -40.0;

/// A language model.
#[derive(Debug)]
pub struct Ngram {
    vocab: usize,
    order: usize,
    /// Score and next state of each label from the empty context; then of the sentence's start.
    first: Vec<(f32, u32)>,
    states: Vec<State>,
    /// Arcs of state i, sorted by label: `arcs[states[i].arcs..][..states[i].count]`.
    arcs: Vec<Arc>,
    start: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    arcs: u32,
    count: u32,
    back: u32,
    weight: f32,
}

#[derive(Clone, Copy, Debug)]
struct Arc {
    label: u32,
    score: f32,
    to: u32,
}

/// One n-gram of a file: labels are ids, `vocab` for the sentence's start; scores are natural logarithms.
#[derive(Clone, Debug)]
pub(super) struct Gram {
    pub labels: Vec<u32>,
    pub score: f32,
    pub back: f32,
    /// Where it was read, for messages.
    pub line: usize,
}

impl Ngram {
    /// A model from n-grams by order, shortest first. `unknown` is the score of `<unk>`, which the labels
    /// without a 1-gram share.
    pub(super) fn build(
        vocab: usize,
        grams: Vec<Vec<Gram>>,
        unknown: Option<f32>,
    ) -> Result<Self, ArpaError> {
        let order = grams.len();
        let mut lm = Ngram {
            vocab,
            order,
            first: vec![(f32::NEG_INFINITY, 0); vocab + 1],
            states: vec![State::default()],
            arcs: Vec::new(),
            start: 0,
        };
        for (n, mut grams) in (1..).zip(grams) {
            let mut placed = Vec::with_capacity(grams.len());
            for g in grams.drain(..) {
                let (context, label) = g.labels.split_at(n - 1);
                let from = lm.exact(context).ok_or(ArpaError::Line {
                    line: g.line,
                    reason: "the n-gram's own beginning is not in the file",
                })?;
                placed.push((from, label[0], g));
            }
            placed.sort_by_key(|p| (p.0, p.1));
            if let Some(two) = placed.windows(2).find(|w| (w[0].0, w[0].1) == (w[1].0, w[1].1)) {
                return Err(ArpaError::Line { line: two[1].2.line, reason: "the n-gram is there twice" });
            }
            let base = lm.arcs.len();
            for (from, label, g) in &placed {
                let back = (1..n).find_map(|skip| lm.exact(&g.labels[skip..])).unwrap_or(0);
                let to = if n < order { lm.states.len() as u32 } else { back };
                if n < order {
                    lm.states.push(State { arcs: 0, count: 0, back, weight: g.back });
                }
                if n == 1 {
                    lm.first[*label as usize] = (g.score, to);
                } else {
                    let at = lm.arcs.len() as u32;
                    let state = &mut lm.states[*from as usize];
                    if state.count == 0 {
                        state.arcs = at;
                    }
                    state.count += 1;
                    lm.arcs.push(Arc { label: *label, score: g.score, to });
                }
            }
            if u32::try_from(lm.arcs.len().max(lm.states.len())).is_err() {
                return Err(ArpaError::TooLarge);
            }
            debug_assert!(n == 1 || lm.arcs.len() - base == placed.len());
        }
        lm.start = lm.first[vocab].1;
        let missing = lm.first[..vocab].iter().filter(|f| f.0 == f32::NEG_INFINITY).count();
        let share = unknown.map_or(UNKNOWN, |u| (u - (missing.max(1) as f32).ln()).max(UNKNOWN));
        for f in &mut lm.first {
            if f.0 == f32::NEG_INFINITY {
                f.0 = share;
            }
        }
        Ok(lm)
    }

    /// The state of exactly this context.
    fn exact(&self, context: &[u32]) -> Option<u32> {
        let (&first, rest) = match context.split_first() {
            Some(parts) => parts,
            None => return Some(0),
        };
        let mut state = self.first[first as usize].1;
        if state == 0 {
            return None;
        }
        for &label in rest {
            let arc = self.arc(state, label)?;
            state = arc.to;
        }
        Some(state)
    }

    fn arcs(&self, state: u32) -> &[Arc] {
        let s = self.states[state as usize];
        &self.arcs[s.arcs as usize..(s.arcs + s.count) as usize]
    }

    fn arc(&self, state: u32, label: u32) -> Option<Arc> {
        let arcs = self.arcs(state);
        arcs.binary_search_by_key(&label, |a| a.label).ok().map(|i| arcs[i])
    }

    /// Labels of the model it was read for.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// The longest n-gram.
    pub fn order(&self) -> usize {
        self.order
    }

    /// How many contexts there are.
    pub fn states(&self) -> usize {
        self.states.len()
    }

    /// The context of a sentence's beginning.
    pub fn start(&self) -> u32 {
        self.start
    }

    /// Where a label leads, and its score as a natural logarithm.
    pub fn step(&self, mut state: u32, label: u32) -> (u32, f32) {
        let mut sum = 0.0;
        while state != 0 {
            if let Some(a) = self.arc(state, label) {
                return (a.to, sum + a.score);
            }
            let s = self.states[state as usize];
            (state, sum) = (s.back, sum + s.weight);
        }
        let (score, to) = self.first[label as usize];
        (to, sum + score)
    }

    /// Every label's score, in one pass over the contexts.
    pub fn scores(&self, state: u32, out: &mut [f32]) {
        let mut way = [(0u32, 0f32); MAX_ORDER + 1];
        let (mut at, mut sum, mut n) = (state, 0.0, 0);
        while at != 0 && n <= MAX_ORDER {
            way[n] = (at, sum);
            n += 1;
            let s = self.states[at as usize];
            (at, sum) = (s.back, sum + s.weight);
        }
        for (o, f) in out.iter_mut().zip(&self.first) {
            *o = sum + f.0;
        }
        for &(state, sum) in way[..n].iter().rev() {
            for a in self.arcs(state) {
                if let Some(o) = out.get_mut(a.label as usize) {
                    *o = sum + a.score;
                }
            }
        }
    }
}
