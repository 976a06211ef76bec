//! The unigram model: the best path through all pieces that cover a text, found in one pass.

use super::trie::Trie;

/// What an unknown character costs beyond the least likely piece.
const UNKNOWN_PENALTY: f64 = 10.0;

/// How the two reference implementations round, so that ties and near ties fall the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// SentencePiece keeps path scores in 32 bits.
    Single,
    /// `tokenizers` keeps them in 64 bits.
    Double,
}

/// The score of a piece on a path.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Score {
    /// A log probability.
    Log(f64),
    /// A user-defined symbol: `per_byte * length - 0.1`, which beats every other segmentation.
    Defined {
        /// What each byte of the symbol adds.
        per_byte: f32,
    },
}

/// A unigram model over a vocabulary.
#[derive(Debug)]
pub(crate) struct Unigram {
    pub(crate) trie: Trie,
    pub(crate) scores: Vec<Score>,
    pub(crate) unknown_id: u32,
    pub(crate) unknown_score: f64,
    pub(crate) rounding: Rounding,
}

/// One step of the best path: bytes `start..end` as `id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) id: u32,
}

#[derive(Debug, Clone, Copy)]
struct Best {
    score: f64,
    start: u32,
    id: u32,
}

const UNREACHED: u32 = u32::MAX;

/// Working memory kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    best: Vec<Best>,
    path: Vec<Span>,
}

impl Unigram {
    /// The score an unknown character gets, given the least score of the vocabulary.
    pub(crate) fn unknown_score(least: f64, rounding: Rounding) -> f64 {
        match rounding {
            Rounding::Single => f64::from(least as f32 - UNKNOWN_PENALTY as f32),
            Rounding::Double => least - UNKNOWN_PENALTY,
        }
    }

    fn add(&self, score: f64, path: f64) -> f64 {
        match self.rounding {
            Rounding::Single => f64::from(score as f32 + path as f32),
            Rounding::Double => score + path,
        }
    }

    /// The best segmentation of `text`, in order.
    pub(crate) fn segment<'s>(&self, text: &str, scratch: &'s mut Scratch) -> &'s [Span] {
        let bytes = text.as_bytes();
        let best = &mut scratch.best;
        best.clear();
        best.resize(bytes.len() + 1, Best { score: 0.0, start: UNREACHED, id: 0 });
        let mut start = 0;
        for letter in text.chars() {
            let here = best[start].score;
            let width = letter.len_utf8();
            let mut covered = false;
            for (length, id) in self.trie.prefixes(&bytes[start..]) {
                let score = match self.scores[id as usize] {
                    Score::Log(score) => score,
                    Score::Defined { per_byte } => f64::from(length as f32 * per_byte) - 0.1,
                };
                offer(&mut best[start + length], self.add(score, here), start, id);
                covered |= length == width;
            }
            if !covered {
                offer(&mut best[start + width], self.add(self.unknown_score, here), start, self.unknown_id);
            }
            start += width;
        }
        scratch.path.clear();
        let mut end = bytes.len();
        while end > 0 {
            let Best { start, id, .. } = scratch.best[end];
            scratch.path.push(Span { start: start as usize, end, id });
            end = start as usize;
        }
        scratch.path.reverse();
        &scratch.path
    }
}

fn offer(target: &mut Best, score: f64, start: usize, id: u32) {
    if target.start == UNREACHED || score > target.score {
        *target = Best { score, start: start as u32, id };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_likeliest_path() {
        let pieces = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0), ("ab", -1.5), ("abc", -9.0), ("c", -2.0)];
        let model = Unigram {
            trie: Trie::new(pieces.iter().enumerate().map(|(id, (piece, _))| (*piece, id as u32))),
            scores: pieces.iter().map(|(_, score)| Score::Log(*score)).collect(),
            unknown_id: 0,
            unknown_score: Unigram::unknown_score(-9.0, Rounding::Double),
            rounding: Rounding::Double,
        };
        let mut scratch = Scratch::default();
        let ids: Vec<u32> = model.segment("abcébb", &mut scratch).iter().map(|span| span.id).collect();
        assert_eq!(ids, [3, 5, 0, 2, 2]);
        assert!(model.segment("", &mut scratch).is_empty());
    }
}
