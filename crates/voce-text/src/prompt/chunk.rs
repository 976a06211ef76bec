//! Cutting a long text into chunks of whole sentences that fit the model.

use super::python::{is_digit, strip};
use super::words::cut_between_words;
use super::{PromptRules, prepare};
use crate::{TextError, Tokenizer};

/// Cuts `text` into chunks of up to `max_tokens` tokens, each to be [`prepare`]d again before it is spoken.
///
/// Agrees with the package except that chunks with nothing in them are left out, and that a clause above `max_tokens`
/// is cut between words: the package leaves it whole, and models lose the words of what is longer than they can hold.
pub fn split_into_chunks(
    tokenizer: &Tokenizer,
    rules: &PromptRules,
    text: &str,
    max_tokens: usize,
) -> Result<Vec<String>, TextError> {
    let prepared = prepare(rules, text)?.text;
    let ids = tokenizer.encode(strip(&prepared));
    let sentence_ends = ids_after_first(tokenizer, ".!...?");
    let clause_ends = ids_after_first(tokenizer, ",;:");
    let mut segments = Vec::new();
    for (count, sentence) in segments_of(tokenizer, &ids, &boundaries(&ids, &sentence_ends, Some(tokenizer)))
    {
        if count > max_tokens {
            let ids = tokenizer.encode(strip(&sentence));
            let clauses = segments_of(tokenizer, &ids, &boundaries(&ids, &clause_ends, None));
            if clauses.len() > 1 {
                segments.extend(clauses);
                continue;
            }
        }
        segments.push((count, sentence));
    }
    let mut out = Vec::new();
    for chunk in regroup(segments, max_tokens) {
        if tokenizer.encode(&chunk).len() > max_tokens {
            out.extend(cut_between_words(tokenizer, &chunk, max_tokens));
        } else if !chunk.is_empty() {
            out.push(chunk);
        }
    }
    Ok(out)
}

/// The ids of some punctuation, without the first, which carries the space before it.
fn ids_after_first(tokenizer: &Tokenizer, marks: &str) -> Vec<u32> {
    tokenizer.encode(marks).into_iter().skip(1).collect()
}

/// Where segments start: 0, after each run of boundary ids, and the end. With a tokeniser, a full stop between
/// digits is no boundary.
fn boundaries(ids: &[u32], ends: &[u32], tokenizer: Option<&Tokenizer>) -> Vec<usize> {
    let mut starts = vec![0];
    let mut after_end = false;
    let mut tail = tokenizer.map(Tail::new);
    for (index, id) in ids.iter().enumerate() {
        if ends.contains(id) {
            after_end = true;
        } else if std::mem::take(&mut after_end) {
            let decimal = match (&tail, tokenizer) {
                (Some(tail), Some(tokenizer)) => {
                    tail.is_digit_and_point() && first_letter(tokenizer, &ids[index..]).is_some_and(is_digit)
                }
                _ => false,
            };
            if !decimal {
                starts.push(index);
            }
        }
        if let Some(tail) = &mut tail {
            tail.push(*id);
        }
    }
    starts.push(ids.len());
    starts
}

/// The last two characters of a text that is decoded id by id.
struct Tail {
    decoder: crate::Detokenizer,
    letters: [Option<char>; 2],
}

impl Tail {
    fn new(tokenizer: &Tokenizer) -> Self {
        Self { decoder: tokenizer.detokenizer(), letters: [None; 2] }
    }

    fn push(&mut self, id: u32) {
        for letter in self.decoder.push(id).chars() {
            self.letters = [self.letters[1], Some(letter)];
        }
    }

    fn is_digit_and_point(&self) -> bool {
        matches!(self.letters, [Some(digit), Some('.')] if is_digit(digit))
            && !self.decoder.is_mid_character()
    }
}

/// The first character that `ids` decode to, on their own: a space before them does not count.
fn first_letter(tokenizer: &Tokenizer, ids: &[u32]) -> Option<char> {
    let mut decoder = tokenizer.detokenizer();
    ids.iter().find_map(|id| decoder.push(*id).chars().next()).or_else(|| decoder.finish().chars().next())
}

fn segments_of(tokenizer: &Tokenizer, ids: &[u32], starts: &[usize]) -> Vec<(usize, String)> {
    starts.windows(2).map(|pair| (pair[1] - pair[0], tokenizer.decode(&ids[pair[0]..pair[1]]))).collect()
}

/// Puts neighbours together as long as they fit.
fn regroup(segments: Vec<(usize, String)>, max_tokens: usize) -> Vec<String> {
    let mut chunks = Vec::new();
    let mut current = String::new();
    let mut tokens = 0;
    for (count, segment) in segments {
        if current.is_empty() {
            current = segment;
            tokens = count;
        } else if tokens + count > max_tokens {
            chunks.push(strip(&current).to_owned());
            current = segment;
            tokens = count;
        } else {
            current.push(' ');
            current.push_str(&segment);
            tokens += count;
        }
    }
    if !current.is_empty() {
        chunks.push(strip(&current).to_owned());
    }
    chunks
}
