//! The BPE model of a `tokenizer.json`: adjacent pieces are merged in the order of the file's list.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use serde_json::Value;

use super::hf::{flag, list};
use super::trie::Trie;
use crate::TokenizerError;

/// A BPE model with ranked merges.
#[derive(Debug)]
pub(crate) struct HfBpe {
    ids: Trie,
    /// Rank and result of a pair.
    merges: HashMap<(u32, u32), (u32, u32)>,
    unknown_id: Option<u32>,
    fuse_unknown: bool,
    whole_words: bool,
    /// Pieces of bytes, where the vocabulary has them and unknown letters are to fall back to them.
    byte_ids: Option<Box<[Option<u32>; 256]>>,
}

const END: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
    gone: bool,
}

impl HfBpe {
    /// Reads the model: the pieces by id, and what is needed to encode.
    pub(crate) fn parse(model: &Value) -> Result<(Vec<String>, Self), TokenizerError> {
        for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
            if model.get(name).and_then(Value::as_str).is_some_and(|text| !text.is_empty()) {
                return Err(TokenizerError::unsupported("setting", name));
            }
        }
        if model.get("dropout").and_then(Value::as_f64).is_some_and(|dropout| dropout > 0.0) {
            return Err(TokenizerError::unsupported("setting", "dropout"));
        }
        let pieces = pieces(model)?;
        let ids = Trie::new(pieces.iter().enumerate().map(|(id, piece)| (piece.as_str(), id as u32)));
        let id = |piece: &str| ids.get(piece.as_bytes());
        let mut merges = HashMap::new();
        for (rank, merge) in list(model, "merges")?.iter().enumerate() {
            let bad = || TokenizerError::broken(format!("merge {rank} is not two pieces of the vocabulary"));
            let (left, right) = pair(merge).ok_or_else(bad)?;
            let merged = id(&format!("{left}{right}"));
            let (left, right, merged) =
                (id(left).ok_or_else(bad)?, id(right).ok_or_else(bad)?, merged.ok_or_else(bad)?);
            merges.insert((left, right), (rank as u32, merged));
        }
        let unknown = model.get("unk_token").and_then(Value::as_str);
        let unknown_id = match unknown {
            Some(piece) => Some(id(piece).ok_or_else(|| TokenizerError::broken("`unk_token` is no piece"))?),
            None => None,
        };
        let byte_ids = flag(model, "byte_fallback", false)
            .then(|| Box::new(std::array::from_fn(|byte| id(&format!("<0x{byte:02X}>")))));
        let fuse_unknown = flag(model, "fuse_unk", false);
        let whole_words = flag(model, "ignore_merges", false);
        Ok((pieces, Self { ids, merges, unknown_id, fuse_unknown, whole_words, byte_ids }))
    }

    pub(crate) fn id(&self, piece: &str) -> Option<u32> {
        self.ids.get(piece.as_bytes())
    }

    /// Appends the ids of one word.
    pub(crate) fn encode(&self, word: &str, out: &mut Vec<u32>) {
        if self.whole_words
            && let Some(id) = self.id(word)
        {
            out.push(id);
            return;
        }
        let mut symbols = self.letters(word);
        let mut agenda = BinaryHeap::new();
        for right in 1..symbols.len() as u32 {
            self.offer(&symbols, right - 1, right, &mut agenda);
        }
        while let Some(Reverse((_, left, right, pair, merged))) = agenda.pop() {
            let (a, b) = (symbols[left as usize], symbols[right as usize]);
            if a.gone || b.gone || a.next != right || (a.id, b.id) != pair {
                continue;
            }
            symbols[left as usize] = Symbol { id: merged, next: b.next, ..a };
            symbols[right as usize].gone = true;
            if b.next != END {
                symbols[b.next as usize].previous = left;
            }
            self.offer(&symbols, a.previous, left, &mut agenda);
            self.offer(&symbols, left, b.next, &mut agenda);
        }
        out.extend(symbols.iter().filter(|symbol| !symbol.gone).map(|symbol| symbol.id));
    }

    /// The piece of what the vocabulary lacks, if it has one.
    pub(crate) fn unknown_id(&self) -> Option<u32> {
        self.unknown_id
    }

    /// The pieces of single letters, or of their bytes, or the unknown one.
    fn letters(&self, word: &str) -> Vec<Symbol> {
        let mut ids: Vec<u32> = Vec::with_capacity(word.len());
        let mut after_unknown = false;
        let mut buffer = [0u8; 4];
        for letter in word.chars() {
            let letter: &str = letter.encode_utf8(&mut buffer);
            if let Some(id) = self.id(letter) {
                ids.push(id);
                after_unknown = false;
                continue;
            }
            let bytes = self.byte_ids.as_ref().and_then(|known| {
                letter.bytes().map(|byte| known[usize::from(byte)]).collect::<Option<Vec<u32>>>()
            });
            match (bytes, self.unknown_id) {
                (Some(bytes), _) => {
                    ids.extend(bytes);
                    after_unknown = false;
                }
                (None, Some(unknown)) => {
                    if !(after_unknown && self.fuse_unknown) {
                        ids.push(unknown);
                    }
                    after_unknown = true;
                }
                (None, None) => {}
            }
        }
        let last = ids.len() as u32;
        let symbol = |(at, id): (u32, u32)| Symbol {
            id,
            previous: at.checked_sub(1).unwrap_or(END),
            next: if at + 1 < last { at + 1 } else { END },
            gone: false,
        };
        (0..).zip(ids).map(symbol).collect()
    }

    fn offer(&self, symbols: &[Symbol], left: u32, right: u32, agenda: &mut BinaryHeap<Reverse<Merge>>) {
        if left == END || right == END {
            return;
        }
        let pair = (symbols[left as usize].id, symbols[right as usize].id);
        if let Some(&(rank, merged)) = self.merges.get(&pair) {
            agenda.push(Reverse((rank, left, right, pair, merged)));
        }
    }
}

/// Rank, left and right place, the pieces there, and the result.
type Merge = (u32, u32, u32, (u32, u32), u32);

fn pieces(model: &Value) -> Result<Vec<String>, TokenizerError> {
    let vocab = model.get("vocab").and_then(Value::as_object);
    let vocab = vocab.ok_or_else(|| TokenizerError::broken("`vocab` is missing or no map"))?;
    let mut pieces = vec![None; vocab.len()];
    for (piece, id) in vocab {
        let place = id.as_u64().and_then(|id| pieces.get_mut(usize::try_from(id).ok()?));
        match place {
            Some(place @ None) => *place = Some(piece.clone()),
            _ => return Err(TokenizerError::broken(format!("piece `{piece}` has the id {id}"))),
        }
    }
    Ok(pieces.into_iter().flatten().collect())
}

/// A merge: a list of two pieces, or both in one text with a space between.
fn pair(merge: &Value) -> Option<(&str, &str)> {
    match merge {
        Value::String(text) => text.split_once(' '),
        Value::Array(two) => match &two[..] {
            [Value::String(left), Value::String(right)] => Some((left, right)),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(extra: &str) -> HfBpe {
        let text = format!(
            r#"{{"type": "BPE", "vocab": {{"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "bc": 5, "abc": 6, "<0xC3>": 7}},
                "merges": ["b c", ["a", "b"], "a bc"], "unk_token": "<unk>"{extra}}}"#
        );
        HfBpe::parse(&serde_json::from_str(&text).unwrap()).unwrap().1
    }

    fn ids(model: &HfBpe, word: &str) -> Vec<u32> {
        let mut out = Vec::new();
        model.encode(word, &mut out);
        out
    }

    #[test]
    fn merges_go_by_rank_then_from_the_left() {
        let m = model("");
        assert_eq!(ids(&m, "abc"), [6]);
        assert_eq!(ids(&m, "abab"), [4, 4]);
        assert_eq!(ids(&m, "aabcc"), [1, 6, 3]);
        assert!(ids(&m, "").is_empty());
    }

    #[test]
    fn unknown_letters_are_single_fused_or_bytes() {
        assert_eq!(ids(&model(""), "axya"), [1, 0, 0, 1]);
        assert_eq!(ids(&model(r#", "fuse_unk": true"#), "axya"), [1, 0, 1]);
        // Only one of the two bytes of é has a piece.
        assert_eq!(ids(&model(r#", "byte_fallback": true"#), "é"), [0]);
    }

    #[test]
    fn broken_vocabularies_are_errors() {
        for text in [
            r#"{"vocab": {"a": 1}, "merges": []}"#,
            r#"{"vocab": {"a": 0, "b": 0}, "merges": []}"#,
            r#"{"vocab": {"a": -1}, "merges": []}"#,
            r#"{"vocab": {"a": 0}, "merges": ["a b"]}"#,
            r#"{"vocab": {"a": 0}, "merges": ["a a"]}"#,
            r#"{"vocab": {"a": 0}, "merges": [7]}"#,
            r#"{"vocab": {"a": 0}}"#,
            r#"{"merges": []}"#,
            r#"{"vocab": {"a": 0}, "merges": [], "unk_token": "b"}"#,
            r#"{"vocab": {"a": 0}, "merges": [], "dropout": 0.5}"#,
            r###"{"vocab": {"a": 0}, "merges": [], "continuing_subword_prefix": "##"}"###,
        ] {
            assert!(HfBpe::parse(&serde_json::from_str(text).unwrap()).is_err(), "{text}");
        }
    }
}
