//! A read-only byte trie over the pieces of a vocabulary, in flat arrays.

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    first_edge: u32,
    edges: u16,
    value: u32,
}

/// Maps byte strings to ids and walks all keys that are prefixes of a text.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    nodes: Vec<Node>,
    labels: Vec<u8>,
    targets: Vec<u32>,
}

impl Trie {
    /// Builds a trie; of equal keys the last one given wins, and empty keys are ignored.
    pub(crate) fn new<'a>(keys: impl IntoIterator<Item = (&'a str, u32)>) -> Self {
        let mut keys: Vec<(&[u8], u32)> = keys.into_iter().map(|(key, id)| (key.as_bytes(), id)).collect();
        keys.retain(|(key, _)| !key.is_empty());
        keys.sort_by(|a, b| a.0.cmp(b.0));
        let mut trie = Self::default();
        // Nodes are numbered as they are queued, so that a node's index is known before it is filled in.
        let mut queue = std::collections::VecDeque::from([(0usize, keys.len(), 0usize)]);
        let mut queued = 1u32;
        while let Some((mut low, high, depth)) = queue.pop_front() {
            let mut node = Node { first_edge: trie.labels.len() as u32, edges: 0, value: NONE };
            while low < high && keys[low].0.len() == depth {
                node.value = keys[low].1;
                low += 1;
            }
            while low < high {
                let label = keys[low].0[depth];
                let end = low + keys[low..high].partition_point(|(key, _)| key[depth] <= label);
                trie.labels.push(label);
                trie.targets.push(queued);
                queued += 1;
                node.edges += 1;
                queue.push_back((low, end, depth + 1));
                low = end;
            }
            trie.nodes.push(node);
        }
        trie
    }

    fn child(&self, node: u32, label: u8) -> Option<u32> {
        let Node { first_edge, edges, .. } = *self.nodes.get(node as usize)?;
        let first = first_edge as usize;
        let at = self.labels[first..first + edges as usize].binary_search(&label).ok()?;
        Some(self.targets[first + at])
    }

    /// Every key that is a prefix of `text`, shortest first, as (length in bytes, id).
    pub(crate) fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut node = 0;
        let mut depth = 0;
        std::iter::from_fn(move || {
            while depth < text.len() {
                node = self.child(node, text[depth])?;
                depth += 1;
                let value = self.nodes[node as usize].value;
                if value != NONE {
                    return Some((depth, value));
                }
            }
            None
        })
    }

    /// The longest key that is a prefix of `text`.
    pub(crate) fn longest(&self, text: &[u8]) -> Option<(usize, u32)> {
        self.prefixes(text).last()
    }

    /// The id of exactly `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Option<u32> {
        let node = key.iter().try_fold(0, |node, &label| self.child(node, label))?;
        self.nodes.get(node as usize).map(|node| node.value).filter(|&value| value != NONE)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_prefixes_shortest_first() {
        let trie = Trie::new([("a", 1), ("abc", 2), ("ab", 3), ("b", 4), ("é", 5), ("", 9), ("ab", 6)]);
        assert_eq!(trie.prefixes(b"abcd").collect::<Vec<_>>(), [(1, 1), (2, 6), (3, 2)]);
        assert_eq!(trie.longest("éa".as_bytes()), Some((2, 5)));
        assert_eq!(trie.longest(b"x"), None);
        assert_eq!((trie.get(b"ab"), trie.get(b"abcd"), trie.get(b"")), (Some(6), None, None));
    }

    #[test]
    fn empty_trie_finds_nothing() {
        let trie = Trie::new([]);
        assert!(trie.is_empty());
        assert_eq!(trie.longest(b"a"), None);
        assert_eq!(trie.get(b"a"), None);
        assert_eq!(Trie::default().longest(b"a"), None);
    }
}
