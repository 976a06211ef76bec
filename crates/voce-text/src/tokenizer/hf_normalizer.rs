//! The normalisers of a `tokenizer.json`.

use std::borrow::Cow;

use regex::Regex;
use serde_json::Value;
use unicode_normalization_alignments::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

use super::charsmap::{CharsMap, base64};
use super::hf::{flag, letters, list, type_name};
use crate::TokenizerError;

/// Graphemes of fewer bytes than this are looked up whole in a precompiled map.
const WHOLE_GRAPHEME: usize = 6;

/// What a `Replace` step looks for.
#[derive(Debug)]
pub(crate) enum Pattern {
    Text(String),
    Regex(Box<Regex>),
}

impl Pattern {
    /// Reads `{"String": ...}` or `{"Regex": ...}`.
    pub(crate) fn parse(value: Option<&Value>) -> Result<Self, TokenizerError> {
        let value = value.ok_or_else(|| TokenizerError::broken("a Replace step has no pattern"))?;
        if let Some(text) = value.get("String").and_then(Value::as_str).filter(|text| !text.is_empty()) {
            Ok(Self::Text(text.to_owned()))
        } else if let Some(pattern) = value.get("Regex").and_then(Value::as_str) {
            let regex = Regex::new(pattern).map_err(|_| TokenizerError::unsupported("regex", pattern))?;
            Ok(Self::Regex(Box::new(regex)))
        } else {
            Err(TokenizerError::broken("a Replace step has an empty or unknown pattern"))
        }
    }

    pub(crate) fn replace<'t>(&self, text: &'t str, content: &str) -> Cow<'t, str> {
        match self {
            Self::Text(pattern) if text.contains(pattern) => text.replace(pattern, content).into(),
            Self::Text(_) => text.into(),
            Self::Regex(regex) => regex.replace_all(text, regex::NoExpand(content)),
        }
    }
}

/// One normaliser, or several in a row.
#[derive(Debug)]
pub(crate) enum Normalizer {
    Nmt,
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    Strip { left: bool, right: bool },
    Replace { pattern: Pattern, content: String },
    Prepend(String),
    Precompiled(CharsMap),
    Sequence(Vec<Normalizer>),
}

impl Normalizer {
    pub(crate) fn parse(value: &Value) -> Result<Self, TokenizerError> {
        Ok(match type_name(value, "normaliser")? {
            "Nmt" => Self::Nmt,
            "NFC" => Self::Nfc,
            "NFD" => Self::Nfd,
            "NFKC" => Self::Nfkc,
            "NFKD" => Self::Nfkd,
            "Lowercase" => Self::Lowercase,
            "Strip" => {
                Self::Strip { left: flag(value, "strip_left", true), right: flag(value, "strip_right", true) }
            }
            "Replace" => Self::Replace {
                pattern: Pattern::parse(value.get("pattern"))?,
                content: letters(value, "content")?,
            },
            "Prepend" => Self::Prepend(letters(value, "prepend")?),
            "Precompiled" => {
                let blob = base64(&letters(value, "precompiled_charsmap")?)?;
                if blob.is_empty() {
                    Self::Sequence(Vec::new())
                } else {
                    Self::Precompiled(CharsMap::parse(&blob)?)
                }
            }
            "Sequence" => {
                Self::Sequence(list(value, "normalizers")?.iter().map(Self::parse).collect::<Result<_, _>>()?)
            }
            other => return Err(TokenizerError::unsupported("normaliser", other)),
        })
    }

    pub(crate) fn normalize<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        match self {
            Self::Sequence(steps) => steps.iter().fold(text, |text, step| step.normalize(text)),
            Self::Nmt => text.chars().filter_map(nmt).collect(),
            Self::Nfc => text.nfc().map(|(letter, _)| letter).collect(),
            Self::Nfd => text.nfd().map(|(letter, _)| letter).collect(),
            Self::Nfkc => text.nfkc().map(|(letter, _)| letter).collect(),
            Self::Nfkd => text.nfkd().map(|(letter, _)| letter).collect(),
            Self::Lowercase => text.chars().flat_map(char::to_lowercase).collect(),
            Self::Strip { left, right } => {
                let mut rest = &*text;
                if *left {
                    rest = rest.trim_start();
                }
                if *right {
                    rest = rest.trim_end();
                }
                rest.to_owned().into()
            }
            Self::Replace { pattern, content } => pattern.replace(&text, content).into_owned().into(),
            Self::Prepend(_) if text.is_empty() => text,
            Self::Prepend(prefix) => format!("{prefix}{text}").into(),
            Self::Precompiled(map) => precompiled(map, &text).into(),
        }
    }
}

/// The character clean-up of the NMT rules: controls go, odd spaces become plain ones.
fn nmt(letter: char) -> Option<char> {
    match letter {
        '\u{1}'..='\u{8}' | '\u{b}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{8f}' | '\u{9f}' => None,
        '\t'
        | '\n'
        | '\u{c}'
        | '\r'
        | '\u{1680}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'
        | '\u{2029}'
        | '\u{2581}'
        | '\u{feff}'
        | '\u{fffd}' => Some(' '),
        other => Some(other),
    }
}

/// Unlike SentencePiece, `tokenizers` goes grapheme by grapheme and takes the shortest rule.
fn precompiled(map: &CharsMap, text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let lookup =
        |part: &str| map.prefixes(part.as_bytes()).next().map(|(_, replacement)| replacement.to_owned());
    for grapheme in text.graphemes(true) {
        if grapheme.len() < WHOLE_GRAPHEME
            && let Some(replacement) = lookup(grapheme)
        {
            out.push_str(&replacement);
            continue;
        }
        for letter in grapheme.chars() {
            match lookup(letter.encode_utf8(&mut [0; 4])) {
                Some(replacement) => out.push_str(&replacement),
                None => out.push(letter),
            }
        }
    }
    out
}
