//! Cutting a clause that is too long between its words.

use crate::Tokenizer;

/// A word before a cut of this many letters and fewer is mostly one that leans on the next ("the", "of", "to").
const LEANING_LETTERS: usize = 3;

/// A word of a clause, or a part of a word that alone is too long.
struct Unit {
    text: String,
    tokens: usize,
    /// Whether the text before it goes on in it without a space.
    joined: bool,
}

impl Unit {
    /// What a cut after it costs, in tokens of imbalance: a mark is a better place than most, a short word a worse one.
    fn cost(&self, limit: usize) -> isize {
        let limit = limit as isize;
        match self.text.chars().next_back() {
            Some(last) if !last.is_alphanumeric() => -limit / 4,
            _ if self.text.chars().count() <= LEANING_LETTERS => limit / 5,
            _ => 0,
        }
    }
}

/// The pieces of `text`, of `limit` tokens at most and of about the same length, so that none is a word or two that were
/// left over. A word of more tokens than that is cut between characters.
pub fn cut_between_words(tokenizer: &Tokenizer, text: &str, limit: usize) -> Vec<String> {
    let limit = limit.max(1);
    let mut units = Vec::new();
    text.split_whitespace().for_each(|word| add_units(tokenizer, word, limit, &mut units));
    let before: Vec<usize> = std::iter::once(0)
        .chain(units.iter().scan(0, |sum, unit| {
            *sum += unit.tokens;
            Some(*sum)
        }))
        .collect();
    let (mut pieces, mut from) = (Vec::new(), 0);
    while from < units.len() {
        let end = piece_end(&units, &before, from, limit);
        pieces.push(join(&units[from..end]));
        from = end;
    }
    pieces
}

/// The two halves of a text of several words; none of one word.
pub fn halve(tokenizer: &Tokenizer, text: &str) -> Option<[String; 2]> {
    let lengths: Vec<usize> = text.split_whitespace().map(|word| tokenizer.encode(word).len()).collect();
    let tokens: usize = lengths.iter().sum();
    // A half may be somewhat longer than the other, where that is a better place; no word is cut.
    let least = (tokens * 5).div_ceil(8).max(lengths.iter().copied().max()?);
    (least..tokens).find_map(|limit| cut_between_words(tokenizer, text, limit).try_into().ok())
}

fn add_units(tokenizer: &Tokenizer, word: &str, limit: usize, units: &mut Vec<Unit>) {
    let ids = tokenizer.encode(word);
    if ids.len() <= limit {
        return units.push(Unit { text: word.to_owned(), tokens: ids.len(), joined: false });
    }
    let mut decoder = tokenizer.detokenizer();
    let (mut text, mut tokens, mut joined) = (String::new(), 0, false);
    for id in ids {
        text.push_str(&decoder.push(id));
        tokens += 1;
        if tokens >= limit && !decoder.is_mid_character() && !text.is_empty() {
            units.push(Unit { text: std::mem::take(&mut text), tokens, joined });
            (tokens, joined) = (0, true);
        }
    }
    text.push_str(&decoder.finish());
    if !text.is_empty() {
        units.push(Unit { text, tokens, joined });
    }
}

/// Where the piece that starts at `from` ends: near an even share of what is left, so that the rest fits as well.
fn piece_end(units: &[Unit], before: &[usize], from: usize, limit: usize) -> usize {
    let left = before[units.len()] - before[from];
    if left <= limit {
        return units.len();
    }
    let pieces = left.div_ceil(limit);
    let share = left.div_ceil(pieces) as isize;
    let fits = |end: &usize| before[*end] - before[from] <= limit;
    let rest_fits = |end: usize| before[units.len()] - before[end] <= (pieces - 1) * limit;
    let cost = |end: &usize| {
        let length = (before[*end] - before[from]) as isize;
        let joined = units.get(*end).is_some_and(|next| next.joined);
        (!rest_fits(*end), joined, (length - share).abs() + units[*end - 1].cost(limit))
    };
    (from + 1..=units.len()).take_while(fits).min_by_key(cost).unwrap_or(from + 1)
}

fn join(units: &[Unit]) -> String {
    let mut text = String::new();
    for (n, unit) in units.iter().enumerate() {
        if n > 0 && !unit.joined {
            text.push(' ');
        }
        text.push_str(&unit.text);
    }
    text
}
