//! Markdown, HTML and emoji taken out of text that is to be spoken, whole or still arriving.
//!
//! The text is read step by step. A step looks at the text ahead, up to [`MAX_HOLD`] bytes, and either takes some of it
//! or waits for more to arrive; so where the text was cut into pieces cannot matter. What is no markup comes out as it
//! went in. Web addresses, pause tags and `<turn/>` are passed on whole.

mod block;
mod emoji;
mod html;
mod inline;
mod link;

use std::borrow::Cow;
use std::collections::VecDeque;

/// Bytes that a construct may span: the start of a longer one is text.
pub const MAX_HOLD: usize = 4096;

/// The text ahead of a step.
#[derive(Clone, Copy)]
struct Ahead<'t> {
    text: &'t str,
    /// Nothing further may be waited for.
    last: bool,
}

/// What a step has come to.
enum Step {
    /// More text must arrive before it is certain.
    Wait,
    /// This many bytes are dealt with.
    Took(usize),
}

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    Plain,
    Heading,
    Item,
    /// A row of a table.
    Row,
}

/// A block of code.
#[derive(Debug, Clone, Copy)]
struct Fence {
    mark: char,
    length: usize,
    /// Whether what is in it is text to speak.
    spoken: bool,
}

/// Takes markup out of text that arrives piece by piece.
#[derive(Debug)]
pub struct MarkupStream {
    /// Text that waits for more.
    pending: String,
    out: String,
    /// Bytes of the text dealt with so far.
    at: usize,
    /// Ends of emphasis and links that were found when they began: where, and how long.
    ends: VecDeque<(usize, usize)>,
    line: Line,
    starts_line: bool,
    fence: Option<Fence>,
    /// Backticks that will close the code being read, 0 for none.
    code: usize,
    /// Emphasis by stars that is open.
    stars: usize,
    struck: bool,
    /// The character before, in the text.
    before: Option<char>,
    /// The last character that came out, and the last that is no white space.
    said: Option<char>,
    visible: Option<char>,
    /// Spaces of a line that may need a full stop before them.
    gap: String,
    /// A line break that waits for the start of the next line.
    broken: Option<&'static str>,
    /// A cell has ended, and another may follow.
    comma: bool,
    /// Something was left out since the last visible character.
    dropped: bool,
}

impl Default for MarkupStream {
    fn default() -> Self {
        Self::new()
    }
}

/// The text without its markup.
///
/// ```
/// assert_eq!(voce_text::strip_markup("## Hi 😀\n- see [the *docs*](https://a.b/c)"), "Hi.\nsee the docs.");
/// ```
pub fn strip_markup(text: &str) -> Cow<'_, str> {
    let mut stream = MarkupStream::new();
    let mut plain = stream.push(text);
    plain += &stream.finish();
    if plain == text { Cow::Borrowed(text) } else { Cow::Owned(plain) }
}

impl MarkupStream {
    /// A stream at its start.
    pub fn new() -> Self {
        Self {
            pending: String::new(),
            out: String::new(),
            at: 0,
            ends: VecDeque::new(),
            line: Line::Plain,
            starts_line: true,
            fence: None,
            code: 0,
            stars: 0,
            struck: false,
            before: None,
            said: None,
            visible: None,
            gap: String::new(),
            broken: None,
            comma: false,
            dropped: false,
        }
    }

    /// Takes more text and returns what can be said of it by now.
    pub fn push(&mut self, text: &str) -> String {
        self.pending.push_str(text);
        self.advance(false);
        std::mem::take(&mut self.out)
    }

    /// Ends the text and returns what is left of it. The stream can be used again for another text.
    pub fn finish(&mut self) -> String {
        self.advance(true);
        if self.line != Line::Plain && self.fence.is_none() {
            self.stop();
        }
        self.gap.clear();
        if let Some(line_break) = self.broken.take() {
            self.out.push_str(line_break);
        }
        let out = std::mem::take(&mut self.out);
        *self = Self::new();
        out
    }

    /// How many bytes wait for more text: never more than [`MAX_HOLD`] and a character.
    pub fn pending_bytes(&self) -> usize {
        self.pending.len()
    }

    fn advance(&mut self, end: bool) {
        let pending = std::mem::take(&mut self.pending);
        let mut from = 0;
        while from < pending.len() {
            let rest = &pending[from..];
            let window = &rest[..boundary(rest, MAX_HOLD)];
            let ahead = Ahead { text: window, last: end || window.len() < rest.len() };
            match self.step(ahead) {
                Step::Wait => break,
                Step::Took(bytes) => {
                    self.before = rest[..bytes].chars().next_back().or(self.before);
                    self.at += bytes;
                    from += bytes;
                }
            }
        }
        self.pending = pending[from..].to_owned();
    }

    fn step(&mut self, ahead: Ahead<'_>) -> Step {
        if let Some((at, length)) = self.ends.front().copied().filter(|(at, _)| *at <= self.at) {
            self.ends.pop_front();
            return Step::Took(if at == self.at { length } else { 0 });
        }
        if self.starts_line { self.start_line(ahead) } else { self.inline(ahead) }
    }

    /// Text that comes out as it is.
    fn say(&mut self, text: &str) {
        for letter in text.chars() {
            self.letter(letter);
        }
    }

    fn letter(&mut self, letter: char) {
        if letter.is_whitespace() {
            // What was left out between two spaces leaves one of them.
            if self.dropped && self.said.is_none_or(char::is_whitespace) {
                return;
            }
            self.said = Some(letter);
            // A row is all there when it is read; elsewhere the end of a sentence should not wait.
            let ended = self.line != Line::Row && self.visible.is_some_and(ends_clause);
            if self.line == Line::Plain || ended {
                self.out.push(letter);
            } else {
                self.gap.push(letter);
            }
            return;
        }
        if std::mem::take(&mut self.comma) && self.visible.is_some_and(|last| !ends_clause(last)) {
            self.gap.clear();
            self.dropped = false;
            self.out.push_str(", ");
        }
        let words = |letter: char| letter.is_ascii_alphanumeric();
        if std::mem::take(&mut self.dropped) && self.said.is_some_and(words) && words(letter) {
            self.out.push(' ');
        }
        self.out.push_str(&std::mem::take(&mut self.gap));
        self.out.push(letter);
        self.said = Some(letter);
        self.visible = Some(letter);
    }

    /// Ends what a heading, an item or a row says, unless it has an end of its own.
    fn stop(&mut self) {
        self.comma = false;
        self.gap.clear();
        if let Some(last) = self.visible.filter(|last| !ends_clause(*last)) {
            self.letter(if is_wide(last) { '\u{3002}' } else { '.' });
        }
    }

    /// A line break that comes out.
    fn line_break(&mut self, line_break: &str) {
        self.gap.clear();
        self.comma = false;
        self.dropped = false;
        self.out.push_str(line_break);
        self.said = Some('\n');
        self.visible = None;
    }

    /// Emphasis and code do not go on past their paragraph.
    fn end_paragraph(&mut self) {
        self.code = 0;
        self.stars = 0;
        self.struck = false;
    }
}

impl<'t> Ahead<'t> {
    /// The characters of a run at the start, unless it may still go on.
    fn run(self, mark: char) -> Option<usize> {
        let length = self.text.chars().take_while(|letter| *letter == mark).count();
        (self.last || length * mark.len_utf8() < self.text.len()).then_some(length)
    }

    /// The text up to the end of the line, unless it has not arrived, and the line break's length.
    fn line(self) -> Option<(&'t str, usize)> {
        match self.text.find('\n') {
            Some(at) => {
                let line = &self.text[..at];
                let line = line.strip_suffix('\r').unwrap_or(line);
                Some((line, at + 1 - line.len()))
            }
            None => self.last.then_some((self.text, 0)),
        }
    }
}

/// Marks after which neither a full stop nor a comma is missing.
fn ends_clause(letter: char) -> bool {
    matches!(letter, '.' | '!' | '?' | ':' | ';' | ',' | '\u{2026}' | '\u{2014}')
        || "。！？：；，、".contains(letter)
}

/// The most bytes of a text up to a limit that are whole characters.
fn boundary(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Scripts whose sentences end with a full-width mark.
fn is_wide(letter: char) -> bool {
    matches!(letter, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}')
}

#[cfg(test)]
mod tests;
