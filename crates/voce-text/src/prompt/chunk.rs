//! Cutting a long text into chunks of whole sentences that fit the model.

use super::python::{is_digit, strip};
use super::{PromptRules, prepare};
use crate::{TextError, Tokenizer};

/// Chunks above this many tokens are cut at a word boundary, which the package would not do.
///
/// A sentence with neither a full stop nor a comma stays whole in the package, however long it is. Up to this
/// limit it stays whole here as well; past it the memory of one generation would grow with the text.
pub const HARD_LIMIT_TOKENS: usize = 512;

/// Cuts `text` into chunks of about `max_tokens` tokens, each to be [`prepare`]d again before it is spoken.
///
/// Agrees with the package except that chunks with nothing in them are left out, and that chunks above
/// [`HARD_LIMIT_TOKENS`] are cut.
pub fn split_into_chunks(
    tokenizer: &Tokenizer,
    rules: &PromptRules,
    text: &str,
    max_tokens: usize,
) -> Result<Vec<String>, TextError> {
    split_into_chunks_limited(tokenizer, rules, text, max_tokens, HARD_LIMIT_TOKENS)
}

/// As [`split_into_chunks`], with a hard limit of the caller's choice (never below `max_tokens`).
pub fn split_into_chunks_limited(
    tokenizer: &Tokenizer,
    rules: &PromptRules,
    text: &str,
    max_tokens: usize,
    hard_limit_tokens: usize,
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
    let hard_limit = hard_limit_tokens.max(max_tokens).max(1);
    for chunk in regroup(segments, max_tokens) {
        let count = tokenizer.encode(&chunk).len();
        if count > max_tokens {
            tracing::debug!(count, max_tokens, "chunk above the token limit: words may be skipped");
        }
        if count > hard_limit {
            cut_at_words(tokenizer, &chunk, hard_limit, &mut out);
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

/// Cuts a chunk between words, and a word that alone is too long between characters.
fn cut_at_words(tokenizer: &Tokenizer, chunk: &str, limit: usize, out: &mut Vec<String>) {
    let mut current = String::new();
    let mut tokens = 0;
    for word in chunk.split_whitespace() {
        let ids = tokenizer.encode(word);
        if tokens + ids.len() > limit && !current.is_empty() {
            out.push(std::mem::take(&mut current));
            tokens = 0;
        }
        if ids.len() > limit {
            let mut decoder = tokenizer.detokenizer();
            let mut taken = 0;
            for id in ids {
                current.push_str(&decoder.push(id));
                taken += 1;
                if taken >= limit && !decoder.is_mid_character() && !current.is_empty() {
                    out.push(std::mem::take(&mut current));
                    taken = 0;
                }
            }
            current.push_str(&decoder.finish());
            tokens = taken;
        } else {
            if !current.is_empty() {
                current.push(' ');
            }
            current.push_str(word);
            tokens += ids.len();
        }
    }
    if !current.is_empty() {
        out.push(current);
    }
}
