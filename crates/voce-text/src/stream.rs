//! Sentences out of text that is still arriving, each as soon as its end is certain.
//!
//! The text is read character by character, so that where it was cut into pieces cannot matter.

use std::collections::VecDeque;

/// A sentence of this many bytes is given out unfinished, cut at a comma or between words.
pub const MAX_SENTENCE_BYTES: usize = 2000;

/// Words that a full stop follows without ending a sentence.
const ABBREVIATIONS: &[&str] = &[
    "mr", "mrs", "ms", "dr", "prof", "st", "vs", "e.g", "i.e", "approx", "fig", "figs", "gen", "gov", "hon",
    "col", "capt", "lt", "sgt", "rev", "sen", "rep", "pres", "mt", "cf", "viz", "al", "mme", "mlle", "eq",
    "sec", "ch", "pp", "vol", "ed", "eds", "dept", "est", "ave", "blvd", "rd",
];

/// Words whose full stop ends a sentence only when what follows starts like one.
const AMBIGUOUS: &[&str] = &[
    "etc", "inc", "ltd", "co", "corp", "jr", "sr", "a.m", "p.m", "u.s", "u.k", "u.n", "e.u", "ph.d", "b.c",
    "a.d",
];

/// Words whose full stop ends no sentence when a digit follows.
const BEFORE_NUMBERS: &[&str] = &[
    "no", "nos", "p", "art", "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov",
    "dec",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Inside a sentence.
    Inside,
    /// After sentence-final marks and perhaps closing quotes; white space decides.
    AfterMark,
    /// After a mark and white space; the next character decides.
    Undecided(Doubt),
    /// After a full-width mark, which needs no space after it.
    AfterWideMark,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    /// Ends unless a small letter follows.
    Lowercase,
    /// Ends unless a digit follows.
    Digit,
}

/// Cuts sentences out of text that arrives piece by piece.
#[derive(Debug)]
pub struct SentenceStream {
    buffer: String,
    state: State,
    /// Where the marks that ended the current sentence start in `buffer`.
    mark_at: usize,
    /// Whether the last white space held a line break, for blank lines.
    line_break: bool,
    ready: VecDeque<String>,
}

impl Default for SentenceStream {
    fn default() -> Self {
        Self::new()
    }
}

impl SentenceStream {
    /// A stream at its start.
    pub fn new() -> Self {
        Self {
            buffer: String::new(),
            state: State::Inside,
            mark_at: 0,
            line_break: false,
            ready: VecDeque::new(),
        }
    }

    /// Takes more text and returns the sentences that are now complete, without the white space around them.
    pub fn push(&mut self, text: &str) -> Vec<String> {
        for letter in text.chars() {
            self.step(letter);
        }
        self.ready.drain(..).collect()
    }

    /// Ends the text and returns what is left of it. The stream can be used again for another text.
    pub fn finish(&mut self) -> Vec<String> {
        self.emit(self.buffer.len());
        self.buffer.clear();
        self.state = State::Inside;
        self.line_break = false;
        self.ready.drain(..).collect()
    }

    /// How many bytes wait for the end of their sentence: never more than [`MAX_SENTENCE_BYTES`].
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len()
    }

    fn step(&mut self, letter: char) {
        if self.buffer.is_empty() && letter.is_whitespace() {
            return;
        }
        let space = letter.is_whitespace();
        match self.state {
            State::AfterMark if space => match self.doubt() {
                Verdict::End => return self.emit(self.buffer.len()),
                Verdict::Wait(doubt) => self.state = State::Undecided(doubt),
                Verdict::NoEnd => self.state = State::Inside,
            },
            State::AfterMark if is_closer(letter) || is_mark(letter) => {}
            State::AfterMark if is_wide_mark(letter) => self.state = State::AfterWideMark,
            State::AfterMark => self.state = State::Inside,
            State::AfterWideMark if is_closer(letter) || is_mark(letter) || is_wide_mark(letter) => {}
            State::AfterWideMark => {
                self.emit(self.buffer.len());
                return self.step(letter);
            }
            State::Undecided(_) if space => {}
            State::Undecided(doubt) => {
                self.state = State::Inside;
                let goes_on = match doubt {
                    Doubt::Lowercase => letter.is_lowercase() || is_weak(letter),
                    Doubt::Digit => letter.is_numeric(),
                };
                if !goes_on {
                    self.emit(self.buffer.len());
                    return self.step(letter);
                }
            }
            State::Inside => {}
        }
        if letter == '\n' && std::mem::replace(&mut self.line_break, true) {
            return self.emit(self.buffer.len());
        }
        self.line_break &= space;
        if self.state == State::Inside && (is_mark(letter) || is_wide_mark(letter)) {
            self.mark_at = self.buffer.len();
            self.state = if is_mark(letter) { State::AfterMark } else { State::AfterWideMark };
        }
        self.buffer.push(letter);
        if self.buffer.len() + char::MAX.len_utf8() > MAX_SENTENCE_BYTES {
            self.cut();
        }
    }

    /// Gives out the first `end` bytes as a sentence and starts a new one.
    fn emit(&mut self, end: usize) {
        let sentence = self.buffer[..end].trim();
        if !sentence.is_empty() {
            self.ready.push_back(sentence.to_owned());
        }
        self.buffer.drain(..end);
        self.state = State::Inside;
        self.line_break = false;
    }

    /// Cuts a sentence that grew too long at its last clause end, else its last space, else where it stands.
    fn cut(&mut self) {
        let half = self.buffer.len() / 2;
        let after =
            |found: Option<(usize, &str)>| found.map(|(at, mark)| at + mark.len()).filter(|at| *at > half);
        let clause = self
            .buffer
            .rmatch_indices([',', ';', ':', '\u{2014}'])
            .find(|(at, mark)| self.buffer[at + mark.len()..].starts_with(char::is_whitespace));
        let word = self.buffer.rmatch_indices(char::is_whitespace).next();
        let end = after(clause).or(after(word)).unwrap_or(self.buffer.len());
        let (state, mark_at) = (self.state, self.mark_at);
        self.emit(end);
        let spaces = self.buffer.len() - self.buffer.trim_start().len();
        self.buffer.drain(..spaces);
        // A mark that is still in the buffer keeps its meaning.
        if let Some(mark_at) = mark_at.checked_sub(end + spaces).filter(|at| *at < self.buffer.len()) {
            (self.state, self.mark_at) = (state, mark_at);
        }
    }

    /// What a mark followed by white space means.
    fn doubt(&self) -> Verdict {
        let marks = self.buffer[self.mark_at..].trim_end_matches(is_closer);
        if marks.len() + self.mark_at < self.buffer.len()
            || marks.contains("..")
            || marks.contains('\u{2026}')
        {
            // A quotation or an ellipsis may stand inside a sentence.
            return Verdict::Wait(Doubt::Lowercase);
        }
        if marks != "." {
            return Verdict::End;
        }
        let before = &self.buffer[..self.mark_at];
        let start = before.rfind(|letter: char| letter.is_whitespace() || is_opener(letter) || letter == '-');
        let word = start
            .map_or(before, |at| before[at..].trim_start_matches(|letter: char| !letter.is_alphanumeric()));
        let lower = word.to_lowercase();
        let mut letters = word.chars();
        let initial = letters.next().is_some_and(char::is_uppercase) && letters.next().is_none();
        if AMBIGUOUS.contains(&lower.as_str()) {
            Verdict::Wait(Doubt::Lowercase)
        } else if BEFORE_NUMBERS.contains(&lower.as_str()) {
            Verdict::Wait(Doubt::Digit)
        } else if ABBREVIATIONS.contains(&lower.as_str()) || (initial && word != "I") || is_dotted(word) {
            Verdict::NoEnd
        } else if !word.is_empty()
            && word.chars().all(|letter| letter.is_ascii_digit())
            && word.len() == before.len()
        {
            // The number of a list item opens its sentence.
            Verdict::NoEnd
        } else {
            Verdict::End
        }
    }
}

enum Verdict {
    End,
    NoEnd,
    Wait(Doubt),
}

/// Initials run together, as in `J.R.R.`
fn is_dotted(word: &str) -> bool {
    word.contains('.') && word.split('.').all(|part| part.len() == 1 && part.chars().all(char::is_alphabetic))
}

fn is_mark(letter: char) -> bool {
    matches!(letter, '.' | '!' | '?' | '\u{2026}')
}

fn is_wide_mark(letter: char) -> bool {
    matches!(letter, '\u{3002}' | '\u{ff01}' | '\u{ff1f}')
}

fn is_weak(letter: char) -> bool {
    matches!(letter, ',' | ';' | ':')
}

fn is_closer(letter: char) -> bool {
    matches!(
        letter,
        '"' | '\'' | ')' | ']' | '}' | '\u{201d}' | '\u{2019}' | '\u{bb}' | '\u{300d}' | '\u{300f}'
    )
}

fn is_opener(letter: char) -> bool {
    matches!(letter, '"' | '\'' | '(' | '[' | '{' | '\u{201c}' | '\u{2018}' | '\u{ab}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str) -> Vec<String> {
        let mut stream = SentenceStream::new();
        let mut out = stream.push(text);
        out.extend(stream.finish());
        out
    }

    #[test]
    fn cuts_where_sentences_end() {
        for (text, expected) in [
            ("Hello there. How are you?", &["Hello there.", "How are you?"][..]),
            ("Dr. Smith met Mrs. Jones. They left.", &["Dr. Smith met Mrs. Jones.", "They left."]),
            ("Pi is 3.14 or so. Yes.", &["Pi is 3.14 or so.", "Yes."]),
            (
                "J. R. R. Tolkien wrote. J.R.R. Tolkien slept.",
                &["J. R. R. Tolkien wrote.", "J.R.R. Tolkien slept."],
            ),
            ("Fruit, e.g. apples, etc. are good. Fine.", &["Fruit, e.g. apples, etc. are good.", "Fine."]),
            ("Apples, etc. They rot.", &["Apples, etc.", "They rot."]),
            ("At 5 p.m. we left. At 6 p.m. She came.", &["At 5 p.m. we left.", "At 6 p.m.", "She came."]),
            (
                "He said \"Go!\" and went. \"Why?\" she asked.",
                &["He said \"Go!\" and went.", "\"Why?\" she asked."],
            ),
            (
                "Well... maybe. \u{201c}Yes.\u{201d} He left.",
                &["Well... maybe.", "\u{201c}Yes.\u{201d}", "He left."],
            ),
            ("What?! No... Really.", &["What?!", "No...", "Really."]),
            ("A title\n\nA text\nover lines.", &["A title", "A text\nover lines."]),
            ("See No. 5 there. He said no. Then left.", &["See No. 5 there.", "He said no.", "Then left."]),
            ("今日は。元気？はい", &["今日は。", "元気？", "はい"]),
            ("It was I. He knew.", &["It was I.", "He knew."]),
            ("1. First item. 2. Second", &["1. First item.", "2. Second"]),
            ("www.example.com is up. Good.", &["www.example.com is up.", "Good."]),
            ("", &[]),
            ("  \n ", &[]),
            ("...", &["..."]),
        ] {
            assert_eq!(all(text), expected, "{text}");
        }
    }

    #[test]
    fn gives_a_sentence_out_at_the_space_after_it() {
        let mut stream = SentenceStream::new();
        assert!(stream.push("Hello wor").is_empty());
        assert!(stream.push("ld.").is_empty());
        assert_eq!(stream.push(" "), ["Hello world."]);
        assert!(stream.push("And").is_empty());
        assert_eq!(stream.finish(), ["And"]);
        assert_eq!(stream.push("Again. "), ["Again."]);
    }

    #[test]
    fn long_text_is_cut_at_the_limit() {
        let text = "word ".repeat(2000);
        let sentences = all(&text);
        assert!(sentences.iter().all(|sentence| sentence.len() <= MAX_SENTENCE_BYTES));
        assert_eq!(sentences.join(" "), text.trim());
        let text = format!("{}, {}", "a".repeat(1500), "b ".repeat(400));
        assert_eq!(all(&text)[0], format!("{},", "a".repeat(1500)));
        let mut stream = SentenceStream::new();
        let mut out = stream.push(&"é".repeat(5000));
        assert!(stream.pending_bytes() <= MAX_SENTENCE_BYTES);
        out.extend(stream.finish());
        assert_eq!(out.concat(), "é".repeat(5000));
    }

    fn solid(text: &str) -> String {
        text.chars().filter(|letter| !letter.is_whitespace()).collect()
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter_and_nothing_is_lost(
            words in prop::collection::vec("(Mr|etc|p\\.m|no|A|[a-z]{1,9}|[0-9]{1,3}|é|。)[.!?,\")]{0,2}[ \\n]{0,2}", 0..300),
            cuts in prop::collection::vec(0usize..3000, 0..20),
        ) {
            let text: String = words.concat();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut stream = SentenceStream::new();
            let mut pieces = Vec::new();
            for pair in cuts.windows(2) {
                pieces.extend(stream.push(&text[pair[0]..pair[1]]));
                prop_assert!(stream.pending_bytes() <= MAX_SENTENCE_BYTES);
            }
            pieces.extend(stream.finish());
            prop_assert_eq!(&pieces, &all(&text));
            prop_assert_eq!(solid(&pieces.concat()), solid(&text));
        }

        #[test]
        fn any_text_survives(text in "\\PC{0,200}") {
            prop_assert_eq!(solid(&all(&text).concat()), solid(&text));
        }
    }
}
