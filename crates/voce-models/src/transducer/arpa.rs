//! Reads language models in ARPA's text form.
//!
//! Words are the model's labels: its pieces as text (`▁the`), their numbers (`17`), or NeMo's form, one
//! character of code number + 100 each. Which it is follows from the 1-grams. `<s>`, `</s>` and `<unk>` have
//! their usual meaning; n-grams with other words than the model has are left out.

use std::collections::HashMap;
use std::io::{BufRead, Read};

use super::Ngram;
use super::ngram::{Gram, MAX_ORDER};

/// The longest line that is read.
const MAX_LINE: u64 = 64 * 1024;
/// The most n-grams that are read.
const MAX_GRAMS: usize = 1 << 28;
/// What NeMo adds to a label's number to make a character of it.
const CHARACTER_OFFSET: u32 = 100;

/// A language model that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ArpaError {
    /// Something is wrong with a line.
    #[error("line {line} of the language model: {reason}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The file ends too soon.
    #[error("the language model has no \\end\\: it is cut short, or not an ARPA file")]
    Cut,
    /// A section has another number of n-grams than the header says.
    #[error("the language model has {got} {order}-grams and its header says {said}: it is damaged")]
    Count {
        /// N-gram order.
        order: usize,
        /// What the header says.
        said: usize,
        /// How many there are.
        got: usize,
    },
    /// None of its words is a label.
    #[error("no word of the language model is a token of this model: build it over the model's tokens")]
    Foreign,
    /// Too many n-grams.
    #[error("the language model is too large: prune it")]
    TooLarge,
    /// It cannot be read.
    #[error("the language model cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

fn wrong(line: usize, reason: &'static str) -> ArpaError {
    ArpaError::Line { line, reason }
}

impl Ngram {
    /// Reads an ARPA file for a model with these pieces, label 0 first.
    pub fn read<S: AsRef<str>>(reader: impl BufRead, pieces: &[S]) -> Result<Self, ArpaError> {
        let mut lines = Lines { reader, text: Vec::new(), line: 0 };
        let counts = header(&mut lines)?;
        let order = counts.len();
        let mut words = Words { known: HashMap::new(), vocab: pieces.len() };
        let mut grams: Vec<Vec<Gram>> = Vec::with_capacity(order);
        let mut unknown = None;
        for (n, &said) in (1..).zip(&counts) {
            let mut section = Vec::new();
            let mut singles: Vec<(String, f32, f32, usize)> = Vec::new();
            let mut got = 0;
            loop {
                let Some(text) = lines.next()? else { return Err(ArpaError::Cut) };
                if text.starts_with('\\') {
                    break;
                }
                got += 1;
                if got > MAX_GRAMS {
                    return Err(ArpaError::TooLarge);
                }
                let line = lines.line;
                let (score, names, back) = fields(lines.text(), n, n < order, line)?;
                if n == 1 {
                    singles.push((names.to_owned(), score, back, line));
                } else if let Some(labels) = words.labels(names) {
                    section.push(Gram { labels, score, back, line });
                }
            }
            if got != said {
                return Err(ArpaError::Count { order: n, said, got });
            }
            if n == 1 {
                words.learn(pieces, &singles);
                if words.known.keys().all(|w| is_special(w)) {
                    return Err(ArpaError::Foreign);
                }
                for (name, score, back, line) in singles {
                    if name.eq_ignore_ascii_case("<unk>") {
                        unknown = Some(score);
                    }
                    if let Some(labels) = words.labels(&name) {
                        section.push(Gram { labels, score, back, line });
                    }
                }
            }
            grams.push(section);
            let next = if n < order { format!("\\{}-grams:", n + 1) } else { "\\end\\".to_owned() };
            if lines.text() != next {
                return Err(wrong(lines.line, "another section was expected here"));
            }
        }
        Ngram::build(pieces.len(), grams, unknown)
    }
}

/// A way to read a word as a label.
type Reading<'a> = &'a dyn Fn(&str) -> Option<u32>;

/// The words of a file that stand for labels.
struct Words {
    known: HashMap<String, u32>,
    vocab: usize,
}

impl Words {
    /// Takes the reading of words as labels that fits most of them.
    fn learn<S: AsRef<str>>(&mut self, pieces: &[S], singles: &[(String, f32, f32, usize)]) {
        let ids: HashMap<&str, u32> = (0..).zip(pieces).map(|(i, p)| (p.as_ref(), i)).collect();
        let vocab = self.vocab as u32;
        let piece = |w: &str| ids.get(w).copied();
        let number = |w: &str| w.parse::<u32>().ok().filter(|&i| i < vocab);
        let character = |w: &str| {
            let mut c = w.chars();
            let only = c.next().filter(|_| c.as_str().is_empty())?;
            (only as u32).checked_sub(CHARACTER_OFFSET).filter(|&i| i < vocab)
        };
        let readings: [Reading<'_>; 3] = [&piece, &number, &character];
        let plain = || singles.iter().map(|s| s.0.as_str()).filter(|w| !is_special(w));
        let fits = |r: &Reading<'_>| plain().filter(|w| r(w).is_some()).count();
        // Of equals the last is taken: the order is from the least to the most natural.
        let best = readings.iter().rev().copied().max_by_key(fits).unwrap_or(&piece);
        self.known = plain().filter_map(|w| Some((w.to_owned(), best(w)?))).collect();
        self.known.insert("<s>".to_owned(), vocab);
    }

    /// The labels of an n-gram, or nothing if one is none of the model's.
    fn labels(&self, names: &str) -> Option<Vec<u32>> {
        names.split([' ', '\t']).filter(|w| !w.is_empty()).map(|w| self.known.get(w).copied()).collect()
    }
}

fn is_special(word: &str) -> bool {
    ["<s>", "</s>", "<unk>"].iter().any(|s| word.eq_ignore_ascii_case(s))
}

/// Numbers of n-grams by order. Leaves the reader behind `\1-grams:`.
fn header<R: BufRead>(lines: &mut Lines<R>) -> Result<Vec<usize>, ArpaError> {
    loop {
        match lines.next()? {
            None => return Err(ArpaError::Cut),
            Some("\\data\\") => break,
            Some(_) => {}
        }
    }
    let mut counts = Vec::new();
    loop {
        let Some(text) = lines.next()? else { return Err(ArpaError::Cut) };
        let text = text.to_owned();
        if text == "\\1-grams:" && !counts.is_empty() {
            return Ok(counts);
        }
        let (order, count) = text
            .strip_prefix("ngram ")
            .and_then(|t| t.split_once('='))
            .and_then(|(o, c)| Some((o.trim().parse::<usize>().ok()?, c.trim().parse::<usize>().ok()?)))
            .ok_or(wrong(lines.line, "expected 'ngram N=COUNT' or '\\1-grams:'"))?;
        if order != counts.len() + 1 {
            return Err(wrong(lines.line, "orders must come as 1, 2, 3, ..."));
        }
        if order > MAX_ORDER {
            return Err(wrong(lines.line, "n-grams that long are not supported"));
        }
        counts.push(count);
    }
}

/// Score, words and back-off weight of a line, as natural logarithms.
fn fields(text: &str, n: usize, may_back: bool, line: usize) -> Result<(f32, &str, f32), ArpaError> {
    let number = |s: &str| {
        let v: f32 = s.parse().map_err(|_| wrong(line, "expected a number"))?;
        if v.is_nan() || v == f32::INFINITY { Err(wrong(line, "a score that is no number")) } else { Ok(v) }
    };
    let blank = |c: char| c == ' ' || c == '\t';
    let (score, rest) = text.split_once(blank).ok_or(wrong(line, "expected a score and words"))?;
    let mut rest = rest.trim_start_matches(blank);
    let words = rest.split(blank).filter(|w| !w.is_empty()).count();
    let mut back = 0.0;
    if words == n + 1 && may_back {
        let at = rest.trim_end_matches(blank).rfind(blank).unwrap_or(0);
        back = number(rest[at..].trim_matches(blank))?;
        rest = rest[..at].trim_end_matches(blank);
    } else if words != n {
        return Err(wrong(line, "the wrong number of words"));
    }
    let ln10 = std::f32::consts::LN_10;
    // Scores of -99 and minus infinity mean never; finite ones keep sums finite.
    Ok((number(score)?.clamp(-99.0, 99.0) * ln10, rest, back.clamp(-99.0, 99.0) * ln10))
}

/// Lines that are not empty, trimmed, of bounded length.
struct Lines<R> {
    reader: R,
    text: Vec<u8>,
    line: usize,
}

impl<R: BufRead> Lines<R> {
    fn next(&mut self) -> Result<Option<&str>, ArpaError> {
        loop {
            self.text.clear();
            let read = self.reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut self.text)?;
            self.line += 1;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 == MAX_LINE && self.text.last() != Some(&b'\n') {
                return Err(wrong(self.line, "the line is too long"));
            }
            if std::str::from_utf8(&self.text).is_err() {
                return Err(wrong(self.line, "the text is not UTF-8"));
            }
            if !self.text().is_empty() {
                return Ok(Some(self.text()));
            }
        }
    }

    /// The last line.
    fn text(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or("").trim_matches([' ', '\t', '\r', '\n'])
    }
}
