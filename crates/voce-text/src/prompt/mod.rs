//! The text rules of Pocket TTS: how a text is prepared for the model, and cut into chunks it can speak.
//!
//! The rules agree with the `pocket_tts` package, quirks included, because the models were judged with them.

mod alphabet;
mod chunk;
mod python;
mod words;

use std::collections::BTreeMap;

pub use alphabet::{in_alphabet, says_something};
pub use chunk::split_into_chunks;
pub use words::{cut_between_words, halve};

use crate::TextError;
use python::{is_space, strip};

/// What a model's configuration says about its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptRules {
    /// Put eight spaces before texts of fewer than five words.
    pub pad_with_spaces_for_short_inputs: bool,
    /// Read semicolons as commas.
    pub remove_semicolons: bool,
    /// End every text with sentence-final punctuation.
    pub append_terminal_punctuation: bool,
    /// Start every text with a capital.
    pub capitalize_first_letter: bool,
    /// Characters to replace before anything else; an empty replacement deletes.
    pub replace_characters: BTreeMap<char, String>,
}

impl Default for PromptRules {
    fn default() -> Self {
        Self {
            pad_with_spaces_for_short_inputs: false,
            remove_semicolons: false,
            append_terminal_punctuation: true,
            capitalize_first_letter: true,
            replace_characters: BTreeMap::new(),
        }
    }
}

/// A text that is ready for the tokeniser.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// The text.
    pub text: String,
    /// How many frames to go on after the end was seen: 3 for up to four words, else 1. The package adds 2 to it,
    /// and uses neither when the model or the caller states a number.
    pub frames_after_eos_guess: u32,
}

/// Up to this many words, speech goes on a little longer after the end was seen.
const SHORT_WORDS: usize = 4;
const PADDING: &str = "        ";

/// Prepares one text, or one chunk of it, for the tokeniser.
pub fn prepare(rules: &PromptRules, text: &str) -> Result<Prepared, TextError> {
    let mut text = strip(text).to_owned();
    if !rules.replace_characters.is_empty() {
        text = drop_stray_commas(&replace_characters(&rules.replace_characters, &text));
    }
    if text.is_empty() {
        return Err(TextError::Empty);
    }
    text = text.replace(['\n', '\r'], " ").replace("  ", " ");
    if rules.remove_semicolons {
        text = text.replace(';', ",");
    }
    let frames_after_eos_guess = if words(&text) <= SHORT_WORDS { 3 } else { 1 };
    if rules.capitalize_first_letter
        && let Some(first) = text.chars().next()
        && !first.is_uppercase()
    {
        text = first.to_uppercase().chain(text.chars().skip(1)).collect();
    }
    if rules.append_terminal_punctuation {
        text = end_sentence(text);
    }
    if rules.pad_with_spaces_for_short_inputs && words(&text) <= SHORT_WORDS {
        text.insert_str(0, PADDING);
    }
    Ok(Prepared { text, frames_after_eos_guess })
}

fn words(text: &str) -> usize {
    text.split(is_space).filter(|word| !word.is_empty()).count()
}

/// Replaces characters and leaves single spaces between words.
fn replace_characters(map: &BTreeMap<char, String>, text: &str) -> String {
    let mut replaced = String::with_capacity(text.len());
    for letter in text.chars() {
        match map.get(&letter) {
            Some(replacement) => replaced.push_str(replacement),
            None => replaced.push(letter),
        }
    }
    replaced.split(is_space).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Deleted quotes leave `"Hi?", she said` as `Hi?, she said`: the sentence mark stays, the comma goes.
fn drop_stray_commas(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        out.push(letter);
        rest = &rest[letter.len_utf8()..];
        if is_terminal(letter)
            && let Some(after) = rest.trim_start_matches(is_space).strip_prefix([',', ';', ':'])
        {
            rest = after;
        }
    }
    out
}

fn is_terminal(letter: char) -> bool {
    matches!(letter, '.' | '!' | '?' | '\u{2026}')
}

fn is_weak(letter: char) -> bool {
    matches!(letter, ',' | ';' | ':' | '-' | '\u{2013}' | '\u{2014}')
}

fn is_closer(letter: char) -> bool {
    matches!(letter, '"' | '\'' | '\u{201d}' | '\u{2019}' | ')' | ']' | '\u{bb}')
}

/// Models end well only on sentence-final punctuation: a trailing comma or dash becomes a full stop, a missing
/// one is added after closing quotes and brackets.
fn end_sentence(text: String) -> String {
    let core = text.trim_end_matches(|letter| is_closer(letter) || letter == ' ');
    match core.chars().next_back() {
        None => text,
        Some(last) if is_terminal(last) => text,
        Some(last) if is_weak(last) => {
            let closers = strip(&text[core.len()..]);
            format!("{}.{closers}", core.trim_end_matches(|letter| is_weak(letter) || letter == ' '))
        }
        Some(_) => text + ".",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(text: &str) -> String {
        prepare(&PromptRules::default(), text).unwrap().text
    }

    #[test]
    fn default_rules() {
        assert_eq!(prepared(" hello\nworld "), "Hello world.");
        assert_eq!(prepared("wait -"), "Wait.");
        assert_eq!(prepared("he said \"no,\""), "He said \"no.\"");
        assert_eq!(prepared("ßa"), "SSa.");
        assert_eq!(prepare(&PromptRules::default(), " \n").unwrap_err(), TextError::Empty);
        assert_eq!(prepare(&PromptRules::default(), "one two three four").unwrap().frames_after_eos_guess, 3);
        assert_eq!(
            prepare(&PromptRules::default(), "one two three four five").unwrap().frames_after_eos_guess,
            1
        );
    }

    #[test]
    fn replacements_take_stray_commas_with_them() {
        let replace_characters = BTreeMap::from([('"', String::new())]);
        let rules = PromptRules { replace_characters, ..PromptRules::default() };
        assert_eq!(prepare(&rules, "\"Hi?\", she said").unwrap().text, "Hi? she said.");
        assert_eq!(prepare(&rules, "\"\"").unwrap_err(), TextError::Empty);
    }
}
