//! Words that were told before the stream came to them: a copy of its state heard them where somebody wanted a report. When
//! the stream itself comes to them they are not told again.

use std::collections::VecDeque;

use voce_models::hearing::Token;
use voce_models::saved::{Reader, Unfit, Writer};

use super::words::Speller;

/// Frames after the last early word at which the stream may still come to one of them.
const LATE: usize = 8;
/// Most tokens of a saved stream that were told early.
const MAX_TOKENS: usize = 1 << 12;

/// Words that were told early and that the stream has not reached yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Early {
    tokens: VecDeque<Token>,
    /// The frame before which every word was told.
    until: usize,
    /// Whether the word that the stream is in was told.
    inside: bool,
    /// Whether anything is left to be come to.
    waits: bool,
}

impl Early {
    /// Everything before a frame was told; `tokens` are those that the stream has yet to come to. `inside` is whether the
    /// stream is in a word that was told.
    pub(super) fn new(tokens: &[Token], until: usize, inside: bool) -> Self {
        let last = tokens.iter().map(|t| t.frame + 1).max().unwrap_or(0);
        Self { tokens: tokens.iter().copied().collect(), until: until.max(last), inside, waits: true }
    }

    /// Whether a token that the stream has come to was told: as part of the same word, or of another reading of it.
    pub(super) fn has_told(&mut self, token: &Token, speller: &Speller) -> bool {
        if !self.waits {
            return false;
        }
        if token.frame >= self.until + LATE {
            *self = Self::default();
            return false;
        }
        if !speller.begins_word(token.id) && (self.inside || token.frame < self.until) {
            return true;
        }
        let same = |t: &Token| t.id == token.id && (speller.begins_word(t.id) || !self.inside);
        if let Some(at) = self.tokens.iter().position(same) {
            self.tokens.drain(..=at);
            self.inside = true;
            return true;
        }
        if token.frame >= self.until {
            *self = Self::default();
            return false;
        }
        // Another reading of what was told there.
        self.tokens.retain(|t| t.frame > token.frame);
        self.inside = true;
        true
    }

    pub(super) fn save(&self, w: &mut Writer) {
        w.size(usize::from(self.waits));
        w.size(usize::from(self.inside));
        w.size(self.until);
        w.tokens(&self.tokens.iter().copied().collect::<Vec<_>>());
    }

    pub(super) fn restore(vocab: usize, r: &mut Reader<'_>) -> Result<Self, Unfit> {
        let (waits, inside) = (r.count(1)? == 1, r.count(1)? == 1);
        let until = r.position()?;
        Ok(Self { tokens: r.tokens(vocab, MAX_TOKENS)?.into(), until, inside, waits })
    }
}
