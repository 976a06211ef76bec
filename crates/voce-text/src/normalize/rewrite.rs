//! Replacing matches of a pattern with an eye on what stands around them.

use std::borrow::Cow;

use regex::{Captures, Regex};

/// One match and its surroundings.
pub(super) struct Found<'t> {
    captures: Captures<'t>,
    /// Everything before the match.
    pub(super) before: &'t str,
    /// Everything after the match.
    pub(super) after: &'t str,
}

impl<'t> Found<'t> {
    /// The text of a group, if it took part.
    pub(super) fn get(&self, group: usize) -> Option<&'t str> {
        self.captures.get(group).map(|group| group.as_str())
    }

    /// The text of a group, empty if it took no part.
    pub(super) fn text(&self, group: usize) -> &'t str {
        self.get(group).unwrap_or_default()
    }

    pub(super) fn previous(&self) -> Option<char> {
        self.before.chars().next_back()
    }

    pub(super) fn next(&self) -> Option<char> {
        self.after.chars().next()
    }

    /// Whether the match starts inside a word or a number.
    pub(super) fn starts_inside(&self) -> bool {
        let mut back = self.before.chars().rev();
        match back.next() {
            Some('.' | ',') => back.next().is_some_and(|letter| letter.is_ascii_digit()),
            Some(letter) => letter.is_alphanumeric() || letter == '_',
            None => false,
        }
    }

    /// Whether the match ends inside a word or a number.
    pub(super) fn ends_inside(&self) -> bool {
        let mut ahead = self.after.chars();
        match ahead.next() {
            Some('.' | ',') => ahead.next().is_some_and(|letter| letter.is_ascii_digit()),
            Some(letter) => letter.is_alphanumeric() || letter == '_',
            None => false,
        }
    }

    /// Whether a sentence seems to end here: nothing follows, or white space and a capital.
    pub(super) fn ends_sentence(&self) -> bool {
        let rest = self.after.trim_start_matches(['"', '\'', ')', '\u{201d}', '\u{2019}']);
        let mut ahead = rest.trim_start().chars();
        match (ahead.next(), ahead.next()) {
            (None, _) => true,
            // A second capital makes it an acronym, which follows an abbreviation as often as it starts a sentence.
            (Some(first), second) => {
                let capital = first.is_uppercase() && !second.is_some_and(char::is_uppercase);
                capital && rest.starts_with(char::is_whitespace)
            }
        }
    }

    /// The last word before the match.
    pub(super) fn word_before(&self) -> &'t str {
        let before = self.before.trim_end_matches([' ', '\u{a0}']);
        let start = before
            .rfind(|letter: char| !letter.is_alphabetic())
            .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
        &before[start..]
    }
}

/// Replaces every match for which `say` gives words; the text is only copied when something is replaced.
pub(super) fn rewrite<'t>(
    text: Cow<'t, str>,
    pattern: &Regex,
    say: impl Fn(&Found<'_>) -> Option<String>,
) -> Cow<'t, str> {
    let mut out = String::new();
    let mut done = 0;
    for captures in pattern.captures_iter(&text) {
        let Some(whole) = captures.get(0) else { continue };
        let found = Found { before: &text[..whole.start()], after: &text[whole.end()..], captures };
        if let Some(words) = say(&found) {
            out.push_str(&text[done..whole.start()]);
            out.push_str(&words);
            done = whole.end();
        }
    }
    if done == 0 {
        return text;
    }
    out.push_str(&text[done..]);
    out.into()
}

/// A pattern compiled on first use; the patterns are constants, and a test compiles them all.
macro_rules! pattern {
    ($($part:expr),+ $(,)?) => {{
        static PATTERN: std::sync::LazyLock<regex::Regex> =
            std::sync::LazyLock::new(|| regex::Regex::new(&[$($part),+].concat()).expect("a constant pattern"));
        &*PATTERN
    }};
}

pub(super) use pattern;
