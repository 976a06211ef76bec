//! Added tokens of a `tokenizer.json`: strings that are cut out of the text before the model sees it.

use std::collections::HashMap;

use serde_json::Value;

use super::hf::{flag, letters};
use super::hf_normalizer::Normalizer;
use super::trie::Trie;
use crate::TokenizerError;

#[derive(Debug)]
struct Added {
    content: String,
    single_word: bool,
    strip_left: bool,
    strip_right: bool,
    normalized: bool,
    special: bool,
    /// The content after the normaliser, where that differs and the token is matched after it.
    decoded: Option<String>,
}

/// A part of a text: a stretch for the model, or an added token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    Text { start: usize, text: &'t str },
    Token(u32),
}

/// The added tokens of a vocabulary.
#[derive(Debug, Default)]
pub(crate) struct AddedTokens {
    tokens: HashMap<u32, Added>,
    before: Trie,
    after: Trie,
}

impl AddedTokens {
    /// Reads `added_tokens`; `model_id` finds a piece of the model, `model_size` is where new ids start.
    pub(crate) fn parse(
        value: Option<&Value>,
        model_id: impl Fn(&str) -> Option<u32>,
        model_size: usize,
        normalizer: Option<&Normalizer>,
    ) -> Result<Self, TokenizerError> {
        let mut tokens = HashMap::new();
        for entry in value.and_then(Value::as_array).into_iter().flatten() {
            let content = letters(entry, "content")?;
            let id = entry.get("id").and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
            let id =
                id.ok_or_else(|| TokenizerError::broken(format!("added token `{content}` has no id")))?;
            match model_id(&content) {
                Some(known) if known != id => {
                    return Err(TokenizerError::broken(format!(
                        "added token `{content}` has id {id}, but the vocabulary says {known}"
                    )));
                }
                None if (id as usize) < model_size => {
                    return Err(TokenizerError::broken(format!(
                        "added token `{content}` takes the id of a piece"
                    )));
                }
                _ => {}
            }
            let normalized = flag(entry, "normalized", false);
            let decoded = normalizer
                .filter(|_| normalized)
                .map(|normalizer| normalizer.normalize(content.as_str().into()).into_owned())
                .filter(|decoded| *decoded != content);
            if content.is_empty() {
                continue;
            }
            let added = Added {
                single_word: flag(entry, "single_word", false),
                strip_left: flag(entry, "lstrip", false),
                strip_right: flag(entry, "rstrip", false),
                special: flag(entry, "special", false),
                normalized,
                decoded,
                content,
            };
            tokens.insert(id, added);
        }
        let keys = |normalized: bool| {
            Trie::new(
                tokens
                    .iter()
                    .filter(move |(_, token)| token.normalized == normalized)
                    .map(|(id, token)| (token.decoded.as_deref().unwrap_or(&token.content), *id)),
            )
        };
        Ok(Self { before: keys(false), after: keys(true), tokens })
    }

    /// Ids beyond those of the model.
    pub(crate) fn count_from(&self, model_size: usize) -> usize {
        self.tokens.keys().filter(|id| **id as usize >= model_size).count()
    }

    pub(crate) fn piece(&self, id: u32) -> Option<&str> {
        self.tokens.get(&id).map(|token| token.content.as_str())
    }

    pub(crate) fn id(&self, piece: &str) -> Option<u32> {
        self.tokens.iter().find(|(_, token)| token.content == piece).map(|(id, _)| *id)
    }

    /// What the decoder sees for an added token: `None` when it is no added token, `Some(None)` when it is left out.
    pub(crate) fn decoded(&self, id: u32) -> Option<Option<&str>> {
        let token = self.tokens.get(&id)?;
        Some((!token.special).then(|| token.decoded.as_deref().unwrap_or(&token.content)))
    }

    /// Cuts out the tokens that are matched before the normaliser.
    pub(crate) fn split_raw<'t>(&self, text: &'t str, emit: &mut dyn FnMut(Part<'t>)) {
        self.split(&self.before, text, emit);
    }

    /// Cuts out the tokens that are matched after the normaliser.
    pub(crate) fn split_normalized<'t>(&self, text: &'t str, emit: &mut dyn FnMut(Part<'t>)) {
        self.split(&self.after, text, emit);
    }

    fn split<'t>(&self, trie: &Trie, text: &'t str, emit: &mut dyn FnMut(Part<'t>)) {
        let (mut done, mut at) = (0, 0);
        while !trie.is_empty() && at < text.len() {
            let Some((length, id)) = trie.longest(&text.as_bytes()[at..]) else {
                at += text[at..].chars().next().map_or(1, char::len_utf8);
                continue;
            };
            let (mut start, mut end) = (at, at + length);
            at = end;
            let Some(token) = self.tokens.get(&id) else { continue };
            let touches_word = text[..start].chars().next_back().is_some_and(is_word)
                || text[end..].chars().next().is_some_and(is_word);
            if token.single_word && touches_word {
                continue;
            }
            if token.strip_left {
                start = text[..start].trim_end().len().max(done);
            }
            if token.strip_right {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                emit(Part::Text { start: done, text: &text[done..start] });
            }
            emit(Part::Token(id));
            done = end;
            at = at.max(end);
        }
        if done < text.len() {
            emit(Part::Text { start: done, text: &text[done..] });
        }
    }
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}
