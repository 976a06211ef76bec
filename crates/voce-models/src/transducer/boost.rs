//! Phrases to prefer: an Aho-Corasick automaton over labels, built once and shared by streams.
//!
//! Each label that goes on with a phrase adds a score; when the match breaks, the automaton falls back to the
//! longest beginning of a phrase that still fits, and what was added beyond that is taken back. A phrase
//! that was completed keeps what it earned. (NeMo's boosting tree.)

use std::collections::BTreeMap;

/// The most labels of all phrases together.
pub const MAX_BOOST_TOKENS: usize = 1 << 20;

/// Weights beyond this are mistakes.
const MAX_WEIGHT: f32 = 100.0;

/// Phrases that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum BoostError {
    /// A phrase of no labels.
    #[error("phrase {0} has no labels: leave it out")]
    Empty(usize),
    /// A weight that makes no sense.
    #[error(
        "phrase {phrase} has weight {weight}: use a number from -{MAX_WEIGHT} to {MAX_WEIGHT}, about 1 as a rule"
    )]
    Weight {
        /// Which phrase, from 0.
        phrase: usize,
        /// Its weight.
        weight: f32,
    },
    /// Too many labels.
    #[error("phrases of more than {MAX_BOOST_TOKENS} labels in all: use fewer")]
    TooLarge,
}

/// What becomes of a phrase's bonus once it is complete and the text goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// It stays.
    #[default]
    Keep,
    /// It is taken back, unless the text ends there: it only helps the phrase through the search.
    Refund,
}

/// How phrases score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoostRule {
    /// Multiplies the weight of every label after a phrase's first, which also gets the logarithm of its
    /// place: the further a match is, the surer it is. 0 turns both off: every label counts its weight.
    pub depth_scaling: f32,
    /// What becomes of a complete phrase's bonus.
    pub completion: Completion,
}

impl Default for BoostRule {
    fn default() -> Self {
        Self { depth_scaling: 2.0, completion: Completion::Keep }
    }
}

/// The automaton. State 0 is the start.
#[derive(Debug)]
pub struct Boost {
    nodes: Vec<Node>,
    /// Children of node i, sorted by label: `arcs[nodes[i].arcs..nodes[i + 1].arcs]`.
    arcs: Vec<(u32, u32)>,
    largest: u32,
    completion: Completion,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    arcs: u32,
    fail: u32,
    /// What the step to here adds.
    gain: f32,
    /// What falling back from here adds.
    back: f32,
    /// Sum of gains from the start.
    score: f32,
    end: bool,
}

struct Draft {
    children: BTreeMap<u32, usize>,
    gain: f32,
    score: f32,
    end: bool,
}

impl Boost {
    /// An automaton of phrases as labels, each with the weight of its labels. Where phrases begin alike, the
    /// larger score holds for what they share.
    pub fn new<P: AsRef<[u32]>>(
        phrases: impl IntoIterator<Item = (P, f32)>,
        rule: BoostRule,
    ) -> Result<Self, BoostError> {
        let draft = |gain| Draft { children: BTreeMap::new(), gain, score: 0.0, end: false };
        let mut trie = vec![draft(0.0)];
        let mut largest = 0;
        for (phrase, (labels, weight)) in phrases.into_iter().enumerate() {
            let labels = labels.as_ref();
            if labels.is_empty() {
                return Err(BoostError::Empty(phrase));
            }
            if weight.is_nan() || weight.abs() > MAX_WEIGHT {
                return Err(BoostError::Weight { phrase, weight });
            }
            let mut at = 0;
            for (depth, &label) in labels.iter().enumerate() {
                largest = largest.max(label);
                let (new, before) = (trie.len(), trie[at].score);
                at = *trie[at].children.entry(label).or_insert(new);
                if at < new {
                    trie[at].gain = trie[at].gain.max(weight);
                } else if new > MAX_BOOST_TOKENS {
                    return Err(BoostError::TooLarge);
                } else if depth == 0 || rule.depth_scaling == 0.0 {
                    trie.push(draft(weight));
                } else {
                    trie.push(draft(weight * rule.depth_scaling + ((depth + 1) as f32).ln()));
                }
                trie[at].score = before + trie[at].gain;
            }
            trie[at].end = true;
        }
        Ok(Self::pack(&trie, largest, rule.completion))
    }

    /// Numbers nodes breadth first, so that a node's parent and fail node come before it.
    fn pack(trie: &[Draft], largest: u32, completion: Completion) -> Self {
        let mut order = vec![0usize];
        let mut number = vec![0u32; trie.len()];
        let mut at = 0;
        while at < order.len() {
            for &child in trie[order[at]].children.values() {
                number[child] = order.len() as u32;
                order.push(child);
            }
            at += 1;
        }
        let start = Node { arcs: 0, fail: 0, gain: 0.0, back: 0.0, score: 0.0, end: false };
        let (nodes, arcs) = (vec![start; order.len()], Vec::with_capacity(order.len()));
        let mut boost = Boost { nodes, arcs, largest, completion };
        for (i, &from) in order.iter().enumerate() {
            boost.nodes[i].arcs = boost.arcs.len() as u32;
            boost.arcs.extend(trie[from].children.iter().map(|(&label, &to)| (label, number[to])));
        }
        boost.nodes.push(Node { arcs: boost.arcs.len() as u32, ..start });
        for i in 0..order.len() {
            for a in boost.children(i as u32) {
                let (label, to) = boost.arcs[a];
                let mut fail = 0;
                if i != 0 {
                    fail = boost.nodes[i].fail;
                    while fail != 0 && boost.child(fail, label).is_none() {
                        fail = boost.nodes[fail as usize].fail;
                    }
                    fail = boost.child(fail, label).unwrap_or(0);
                }
                let Draft { gain, score, end, .. } = trie[order[to as usize]];
                let kept = end && completion == Completion::Keep;
                let back = if kept { 0.0 } else { boost.nodes[fail as usize].score - score };
                let node = &mut boost.nodes[to as usize];
                *node = Node { arcs: node.arcs, fail, gain, back, score, end };
            }
        }
        boost
    }

    /// The largest label of any phrase.
    pub fn largest(&self) -> u32 {
        self.largest
    }

    /// How many states there are.
    pub fn states(&self) -> usize {
        self.nodes.len() - 1
    }

    fn children(&self, node: u32) -> std::ops::Range<usize> {
        self.nodes[node as usize].arcs as usize..self.nodes[node as usize + 1].arcs as usize
    }

    fn child(&self, node: u32, label: u32) -> Option<u32> {
        let arcs = &self.arcs[self.children(node)];
        arcs.binary_search_by_key(&label, |a| a.0).ok().map(|i| arcs[i].1)
    }

    /// Where a label leads, and what it adds.
    pub fn step(&self, mut state: u32, label: u32) -> (u32, f32) {
        let mut sum = 0.0;
        loop {
            if let Some(to) = self.child(state, label) {
                return (to, sum + self.nodes[to as usize].gain);
            }
            if state == 0 {
                return (0, sum);
            }
            let node = self.nodes[state as usize];
            (state, sum) = (node.fail, sum + node.back);
        }
    }

    /// Adds to each label's entry of `out` what the label would add, times `weight`.
    pub fn scores(&self, state: u32, weight: f32, out: &mut [f32]) {
        let (mut at, mut sum) = (state, 0.0);
        while at != 0 {
            let node = self.nodes[at as usize];
            (at, sum) = (node.fail, sum + node.back);
        }
        let broken = sum;
        if broken != 0.0 {
            out.iter_mut().for_each(|o| *o += weight * broken);
        }
        // The first node on the way to the start that knows a label decides for it.
        (at, sum) = (state, 0.0);
        loop {
            for &(label, to) in &self.arcs[self.children(at)] {
                if let (Some(o), false) = (out.get_mut(label as usize), self.on_the_way(state, at, label)) {
                    *o += weight * (sum + self.nodes[to as usize].gain - broken);
                }
            }
            if at == 0 {
                return;
            }
            let node = self.nodes[at as usize];
            (at, sum) = (node.fail, sum + node.back);
        }
    }

    /// Whether a node between `state` and `end` has a child for the label.
    fn on_the_way(&self, mut state: u32, end: u32, label: u32) -> bool {
        while state != end {
            if self.child(state, label).is_some() {
                return true;
            }
            state = self.nodes[state as usize].fail;
        }
        false
    }

    /// What the end of the text adds: with [`Completion::Refund`] an unfinished match is taken back.
    pub fn finish(&self, state: u32) -> f32 {
        let n = self.nodes[state as usize];
        if n.end || self.completion == Completion::Keep { 0.0 } else { -n.score }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(completion: Completion) -> BoostRule {
        BoostRule { depth_scaling: 0.0, completion }
    }

    /// The sum over a text, with the dense form checked at each step.
    fn total(b: &Boost, labels: &[u32]) -> f32 {
        let (mut state, mut sum) = (0, 0.0);
        for &l in labels {
            let mut dense = vec![0.0; 20];
            b.scores(state, 1.0, &mut dense);
            for (k, d) in dense.iter().enumerate() {
                assert!((d - b.step(state, k as u32).1).abs() < 1e-5, "state {state} label {k}");
            }
            let (next, add) = b.step(state, l);
            (state, sum) = (next, sum + add);
        }
        sum + b.finish(state)
    }

    #[test]
    fn whole_phrases_earn_their_weight_and_broken_ones_nothing() {
        let phrases = [(vec![1, 2, 3], 2.0), (vec![2, 4], 1.0), (vec![7], 0.5)];
        let b = Boost::new(phrases, flat(Completion::Keep)).unwrap();
        assert_eq!(total(&b, &[9, 1, 2, 3, 9]), 6.0);
        assert_eq!(total(&b, &[1, 2, 9]), 0.0);
        assert_eq!(total(&b, &[1, 2, 4, 9]), 2.0, "falls back to the phrase that begins later");
        assert_eq!(total(&b, &[7, 7, 1, 9]), 1.0);
        assert_eq!(total(&b, &[1, 2, 3, 1, 2, 3]), 12.0);
    }

    #[test]
    fn a_refund_leaves_only_a_phrase_at_the_end() {
        let b = Boost::new([(vec![1, 2], 1.5)], flat(Completion::Refund)).unwrap();
        assert_eq!(total(&b, &[1, 2]), 3.0);
        assert_eq!(total(&b, &[1, 2, 5]), 0.0);
        assert_eq!(total(&b, &[5, 1]), 0.0);
    }

    #[test]
    fn deeper_labels_count_more() {
        let b = Boost::new([(vec![1, 2, 3], 1.0)], BoostRule::default()).unwrap();
        let (s, first) = b.step(0, 1);
        let (s, second) = b.step(s, 2);
        let (_, third) = b.step(s, 3);
        assert_eq!([first, second, third], [1.0, 2.0 + 2f32.ln(), 2.0 + 3f32.ln()]);
    }

    #[test]
    fn senseless_phrases_are_refused() {
        let new = |p: Vec<(Vec<u32>, f32)>| Boost::new(p, BoostRule::default()).map(|b| b.states());
        assert_eq!(new(vec![(vec![1], 1.0), (vec![], 1.0)]), Err(BoostError::Empty(1)));
        assert!(matches!(new(vec![(vec![1], f32::NAN)]), Err(BoostError::Weight { .. })));
        assert!(matches!(new(vec![(vec![1], 1e9)]), Err(BoostError::Weight { .. })));
        assert_eq!(new(vec![]), Ok(1));
    }
}
