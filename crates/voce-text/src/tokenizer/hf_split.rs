//! The pre-tokenisers of a `tokenizer.json`: how a text is cut before the model sees it.

use serde_json::Value;

use super::byte_level::Words;
use super::hf::{flag, list, type_name};
use crate::TokenizerError;

/// When a Metaspace step puts a space symbol before a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefix {
    Always,
    First,
    Never,
}

impl Prefix {
    /// Reads `prepend_scheme`, or the older `add_prefix_space`.
    pub(crate) fn parse(value: &Value) -> Result<Self, TokenizerError> {
        match (value.get("prepend_scheme").and_then(Value::as_str), value.get("add_prefix_space")) {
            (None, Some(Value::Bool(false))) | (Some("never"), _) => Ok(Self::Never),
            (None | Some("always"), _) => Ok(Self::Always),
            (Some("first"), _) => Ok(Self::First),
            (Some(other), _) => Err(TokenizerError::unsupported("prepend_scheme", other)),
        }
    }
}

/// Reads the one character that stands for a space.
pub(crate) fn replacement(value: &Value) -> Result<char, TokenizerError> {
    let text = value.get("replacement").and_then(Value::as_str).unwrap_or("\u{2581}");
    let mut letters = text.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) => Ok(letter),
        _ => Err(TokenizerError::broken("the Metaspace replacement is not one character")),
    }
}

/// One pre-tokeniser, or several in a row.
#[derive(Debug)]
pub(crate) enum Splitter {
    Metaspace {
        replacement: char,
        prefix: Prefix,
        split: bool,
    },
    WhitespaceSplit,
    /// Words of a byte-level model; no `tokenizer.json` asks for it.
    Words(Box<Words>),
    Sequence(Vec<Splitter>),
}

impl Splitter {
    pub(crate) fn parse(value: &Value) -> Result<Self, TokenizerError> {
        Ok(match type_name(value, "pre-tokeniser")? {
            "Metaspace" => Self::Metaspace {
                replacement: replacement(value)?,
                prefix: Prefix::parse(value)?,
                split: flag(value, "split", true),
            },
            "WhitespaceSplit" => Self::WhitespaceSplit,
            "Sequence" => Self::Sequence(
                list(value, "pretokenizers")?.iter().map(Self::parse).collect::<Result<_, _>>()?,
            ),
            other => return Err(TokenizerError::unsupported("pre-tokeniser", other)),
        })
    }

    /// Hands each part of `text` to `emit`; `first` says whether the text starts the whole input.
    pub(crate) fn split(&self, text: &str, first: bool, emit: &mut dyn FnMut(&str)) {
        run(std::slice::from_ref(self), text, first, emit);
    }
}

fn run(steps: &[Splitter], text: &str, first: bool, emit: &mut dyn FnMut(&str)) {
    if text.is_empty() {
        return;
    }
    let Some((step, rest)) = steps.split_first() else { return emit(text) };
    match step {
        Splitter::Sequence(inner) if rest.is_empty() => run(inner, text, first, emit),
        Splitter::Sequence(inner) => run(inner, text, first, &mut |part| run(rest, part, false, emit)),
        Splitter::WhitespaceSplit => {
            let mut first = first && !text.starts_with(char::is_whitespace);
            for part in text.split_whitespace() {
                run(rest, part, std::mem::take(&mut first), emit);
            }
        }
        Splitter::Words(words) => words.split(text, &mut |word| run(rest, word, false, emit)),
        Splitter::Metaspace { replacement, prefix, split } => {
            let mut marked = String::with_capacity(text.len() + text.len() / 4 + 4);
            let wanted = *prefix == Prefix::Always || (*prefix == Prefix::First && first);
            if wanted && !text.starts_with([' ', *replacement]) {
                marked.push(*replacement);
            }
            marked.extend(text.chars().map(|letter| if letter == ' ' { *replacement } else { letter }));
            if !split {
                return run(rest, &marked, first, emit);
            }
            let mut start = 0;
            for (at, _) in marked.match_indices(*replacement).filter(|(at, _)| *at > 0) {
                run(rest, &marked[start..at], first && start == 0, emit);
                start = at;
            }
            run(rest, &marked[start..], first && start == 0, emit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(prefix: Prefix, split: bool, text: &str, first: bool) -> Vec<String> {
        let splitter = Splitter::Metaspace { replacement: '▁', prefix, split };
        let mut out = Vec::new();
        splitter.split(text, first, &mut |part| out.push(part.to_owned()));
        out
    }

    #[test]
    fn metaspace_marks_and_splits() {
        assert_eq!(parts(Prefix::Always, true, "a b  c", false), ["▁a", "▁b", "▁", "▁c"]);
        assert_eq!(parts(Prefix::First, true, "a b", false), ["a", "▁b"]);
        assert_eq!(parts(Prefix::First, true, " a ", true), ["▁a", "▁"]);
        assert_eq!(parts(Prefix::Never, false, "a b", true), ["a▁b"]);
        assert!(parts(Prefix::Always, true, "", true).is_empty());
    }
}
