//! SentencePiece's BPE: the best-scored adjacent pair is merged until none is in the vocabulary.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

use super::trie::Trie;

/// A SentencePiece BPE model; a merge is allowed when its result is a piece, and a piece's score is its priority.
#[derive(Debug)]
pub(crate) struct Bpe {
    /// Pieces that merges may produce.
    pub(crate) pieces: Trie,
    /// Symbols that are taken whole and never merged.
    pub(crate) defined: Trie,
    pub(crate) scores: Vec<f32>,
    /// Pieces that may be passed through but not put out.
    pub(crate) unused: Vec<bool>,
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    start: u32,
    length: u32,
    previous: u32,
    next: u32,
    frozen: bool,
}

const END: u32 = u32::MAX;

#[derive(Debug)]
struct Pair {
    score: f32,
    left: u32,
    right: u32,
    length: u32,
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl Bpe {
    /// The segments of `text`, in order, as byte ranges.
    pub(crate) fn segment(&self, text: &str) -> Vec<(usize, usize)> {
        let bytes = text.as_bytes();
        let mut symbols = self.characters(text);
        let mut agenda = BinaryHeap::new();
        // How each unused piece that came up was made, so that it can be taken apart again.
        let mut made: HashMap<&[u8], u32> = HashMap::new();
        for right in 1..symbols.len() as u32 {
            self.offer(bytes, &symbols, right - 1, right, &mut agenda, &mut made);
        }
        while let Some(Pair { left, right, length, .. }) = agenda.pop() {
            let (Symbol { length: left_length, .. }, Symbol { length: right_length, next, .. }) =
                (symbols[left as usize], symbols[right as usize]);
            if left_length == 0 || right_length == 0 || left_length + right_length != length {
                continue;
            }
            symbols[left as usize].length = length;
            symbols[left as usize].next = next;
            symbols[right as usize].length = 0;
            if next != END {
                symbols[next as usize].previous = left;
            }
            self.offer(bytes, &symbols, symbols[left as usize].previous, left, &mut agenda, &mut made);
            self.offer(bytes, &symbols, left, next, &mut agenda, &mut made);
        }
        let mut out = Vec::new();
        let mut at = if symbols.is_empty() { END } else { 0 };
        while at != END {
            let symbol = symbols[at as usize];
            let start = symbol.start as usize;
            self.take_apart(bytes, start, start + symbol.length as usize, &made, &mut out);
            at = symbol.next;
        }
        out
    }

    fn characters(&self, text: &str) -> Vec<Symbol> {
        let bytes = text.as_bytes();
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut start = 0;
        while start < bytes.len() {
            let defined = self.defined.longest(&bytes[start..]);
            let width = text[start..].chars().next().map_or(1, char::len_utf8);
            let length = defined.map_or(width, |(length, _)| length);
            let index = symbols.len() as u32;
            symbols.push(Symbol {
                start: start as u32,
                length: length as u32,
                previous: index.checked_sub(1).unwrap_or(END),
                next: index + 1,
                frozen: defined.is_some(),
            });
            start += length;
        }
        if let Some(last) = symbols.last_mut() {
            last.next = END;
        }
        symbols
    }

    fn offer<'t>(
        &self,
        bytes: &'t [u8],
        symbols: &[Symbol],
        left: u32,
        right: u32,
        agenda: &mut BinaryHeap<Pair>,
        made: &mut HashMap<&'t [u8], u32>,
    ) {
        if left == END || right == END {
            return;
        }
        let (a, b) = (symbols[left as usize], symbols[right as usize]);
        if a.frozen || b.frozen {
            return;
        }
        let length = a.length + b.length;
        let piece = &bytes[a.start as usize..(a.start + length) as usize];
        if let Some(id) = self.pieces.get(piece) {
            agenda.push(Pair { score: self.scores[id as usize], left, right, length });
            if self.unused[id as usize] {
                made.insert(piece, a.length);
            }
        }
    }

    fn take_apart(
        &self,
        bytes: &[u8],
        start: usize,
        end: usize,
        made: &HashMap<&[u8], u32>,
        out: &mut Vec<(usize, usize)>,
    ) {
        let mut stack = vec![(start, end)];
        while let Some((start, end)) = stack.pop() {
            let piece = &bytes[start..end];
            let unused = self.pieces.get(piece).is_some_and(|id| self.unused[id as usize]);
            match made.get(piece).filter(|_| unused) {
                Some(&left) => {
                    stack.push((start + left as usize, end));
                    stack.push((start, start + left as usize));
                }
                None => out.push((start, end)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_by_score_and_takes_unused_pieces_apart() {
        let pieces =
            [("a", -9.0), ("b", -9.0), ("c", -9.0), ("ab", -1.0), ("bc", -2.0), ("abc", -3.0), ("<x>", 0.0)];
        let model = Bpe {
            pieces: Trie::new(pieces.iter().enumerate().map(|(id, (piece, _))| (*piece, id as u32))),
            defined: Trie::new([("<x>", 6)]),
            scores: pieces.iter().map(|(_, score)| *score).collect(),
            unused: vec![false, false, false, false, false, true, false],
        };
        let cut =
            |text: &str| model.segment(text).iter().map(|&(a, b)| text[a..b].to_owned()).collect::<Vec<_>>();
        assert_eq!(cut("abc"), ["ab", "c"]);
        assert_eq!(cut("bcab<x>é"), ["bc", "ab", "<x>", "é"]);
        assert!(cut("").is_empty());
    }
}
