//! Hypotheses as leaves of a tree of labels: those that begin alike share their beginning.

use super::Token;
use super::fusion::FusionState;

/// The parent of a first label.
pub(super) const ROOT: u32 = u32::MAX;
/// Nodes after which a tree is tidied within a step.
pub(super) const TIDY: usize = 4096;

/// A label and what came before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Node {
    pub parent: u32,
    pub token: Token,
}

/// Labels of hypotheses. A node's number is above its parent's.
#[derive(Clone, Debug, Default)]
pub(super) struct Tree {
    pub nodes: Vec<Node>,
    /// Scratch: ancestors of leaves, new numbers of nodes.
    ends: Vec<u32>,
    names: Vec<u32>,
}

impl Tree {
    pub(super) fn push(&mut self, parent: u32, token: Token) -> u32 {
        self.nodes.push(Node { parent, token });
        (self.nodes.len() - 1) as u32
    }

    /// Appends the labels from the root to a leaf.
    pub(super) fn path(&self, leaf: u32, out: &mut Vec<Token>) {
        let from = out.len();
        out.extend(self.up(leaf).copied());
        out[from..].reverse();
    }

    /// The labels from a leaf to the root.
    pub(super) fn up(&self, leaf: u32) -> impl Iterator<Item = &Token> + Clone {
        let mut at = leaf;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.parent;
            Some(&node.token)
        })
    }

    /// The label `n` before the last of a leaf, `stable` being what came before the tree.
    pub(super) fn recent(&self, leaf: u32, stable: &[Token], n: usize) -> Option<u32> {
        self.up(leaf).chain(stable.iter().rev()).nth(n).map(|t| t.id)
    }

    /// Moves what the leaves of all items begin with to `stable`, and forgets what no leaf needs.
    pub(super) fn settle<T>(
        &mut self,
        items: &mut [T],
        leaf: impl Fn(&mut T) -> &mut u32,
        stable: &mut Vec<Token>,
    ) {
        // The last node that all leaves come from: the largest number goes to its parent until all agree.
        self.ends.clear();
        self.ends.extend(items.iter_mut().map(|i| *leaf(i)));
        let ends = &mut self.ends;
        while !ends.contains(&ROOT) && ends.iter().any(|&e| e != ends[0]) {
            if let Some(end) = ends.iter_mut().max() {
                *end = self.nodes[*end as usize].parent;
            }
        }
        let common = if ends.contains(&ROOT) { ROOT } else { ends.first().copied().unwrap_or(ROOT) };
        self.path(common, stable);
        self.names.clear();
        self.names.resize(self.nodes.len(), ROOT);
        for item in items.iter_mut() {
            let mut at = *leaf(item);
            while at != common && at != ROOT && self.names[at as usize] == ROOT {
                self.names[at as usize] = 0;
                at = self.nodes[at as usize].parent;
            }
        }
        let mut count = 0;
        for i in 0..self.nodes.len() {
            if self.names[i] != ROOT {
                let Node { parent, token } = self.nodes[i];
                let parent =
                    if parent == ROOT || parent == common { ROOT } else { self.names[parent as usize] };
                self.nodes[count] = Node { parent, token };
                self.names[i] = count as u32;
                count += 1;
            }
        }
        self.nodes.truncate(count);
        for item in items {
            let leaf = leaf(item);
            *leaf = self.names.get(*leaf as usize).copied().unwrap_or(ROOT);
        }
    }
}

/// A hypothesis of a transducer's beam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hyp {
    /// Log-probability with all that was added.
    pub score: f64,
    /// Its last label in the tree.
    pub node: u32,
    /// Labels since the utterance began.
    pub len: usize,
    /// Of all its labels.
    pub hash: u64,
    /// The frame it stands at.
    pub time: usize,
    /// Labels since it came there.
    pub symbols: usize,
    /// The lane of its predictor.
    pub lane: usize,
    /// Where it stands in phrases and language model.
    pub fusion: FusionState,
}

impl Hyp {
    /// Whether both have the same labels and stand at the same frame.
    pub(super) fn same(&self, other: &Hyp) -> bool {
        (self.hash, self.len, self.time) == (other.hash, other.len, other.time)
    }
}

/// The hash of labels with one more.
pub(super) fn extend_hash(hash: u64, label: u32) -> u64 {
    hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(u64::from(label) + 1)
}

/// `ln(e^a + e^b)`.
pub(super) fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32) -> Token {
        Token { id, frame: id as usize, duration: 1, log_prob: 0.0, confidence: 1.0 }
    }

    fn settle(tree: &mut Tree, leaves: &mut [&mut u32], stable: &mut Vec<Token>) {
        tree.settle(leaves, |l| l, stable);
    }

    fn ids(t: &[Token]) -> Vec<u32> {
        t.iter().map(|t| t.id).collect()
    }

    #[test]
    fn settling_keeps_what_differs_and_gives_what_is_common() {
        let mut tree = Tree::default();
        let a = tree.push(ROOT, token(1));
        let b = tree.push(a, token(2));
        tree.push(a, token(9));
        let mut c = tree.push(b, token(3));
        let mut d = tree.push(b, token(4));
        let mut e = tree.push(d, token(5));
        let mut stable = Vec::new();
        settle(&mut tree, &mut [&mut c, &mut d, &mut e], &mut stable);
        assert_eq!(ids(&stable), [1, 2]);
        assert_eq!(tree.nodes.len(), 3);
        let mut path = Vec::new();
        tree.path(e, &mut path);
        assert_eq!(ids(&path), [4, 5]);
        settle(&mut tree, &mut [&mut d, &mut e], &mut stable);
        assert_eq!(ids(&stable), [1, 2, 4]);
        assert_eq!(d, ROOT);
        settle(&mut tree, &mut [&mut e], &mut stable);
        assert_eq!(ids(&stable), [1, 2, 4, 5]);
        assert!(tree.nodes.is_empty() && e == ROOT);
    }

    #[test]
    fn a_leaf_at_the_root_holds_everything_back() {
        let mut tree = Tree::default();
        let (mut a, mut r) = (tree.push(ROOT, token(1)), ROOT);
        let mut stable = Vec::new();
        settle(&mut tree, &mut [&mut a, &mut r], &mut stable);
        assert!(stable.is_empty() && tree.nodes.len() == 1);
    }

    #[test]
    fn log_add_is_right_at_the_edges() {
        let never = f64::NEG_INFINITY;
        assert_eq!(log_add(never, never), never);
        assert_eq!(log_add(-2.0, never), -2.0);
        assert!((log_add(-1.0, -1.0) - (-1.0 + 2f64.ln())).abs() < 1e-12);
    }
}
