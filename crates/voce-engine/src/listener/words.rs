//! Tokens as words: where a word begins, what it says, when it was said.

use std::sync::Arc;

use voce_models::hearing::{Hearing, Token};
use voce_text::Tokenizer;

use super::event::Word;

/// The space symbol inside pieces.
const SPACE: char = '\u{2581}';

/// When frames are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Clock {
    /// Seconds per frame.
    pub frame: f64,
    /// Where frame 0 of the current part of the stream is.
    pub offset: f64,
}

impl Clock {
    pub(super) fn at(&self, frame: usize) -> f64 {
        // Microseconds, so that sums of tenths print as such.
        ((self.offset + frame as f64 * self.frame) * 1e6).round() / 1e6
    }
}

/// What the listener knows of each token.
#[derive(Clone, Copy, Default)]
struct Piece {
    begins_word: bool,
    /// Punctuation that belongs to the word before.
    punctuation: bool,
}

/// A model's tokeniser that knows words.
pub(super) struct Speller {
    hearing: Arc<dyn Hearing>,
    pieces: Vec<Piece>,
    /// Whether tokens last as long as they say.
    durations: bool,
    /// The token that ends an utterance, in models that have one.
    pub end_token: Option<u32>,
    /// Tokens that were spelled so far.
    #[cfg(test)]
    spelled: std::sync::atomic::AtomicUsize,
}

impl Speller {
    pub(super) fn new(hearing: Arc<dyn Hearing>) -> Self {
        let (info, tokenizer) = (hearing.info(), hearing.tokenizer());
        let piece = |id: u32| {
            let text = tokenizer.piece(id).unwrap_or_default();
            let begins_word = text.chars().next().is_some_and(|c| c == SPACE || is_ideograph(c));
            let punctuation = !text.is_empty() && text.chars().all(is_punctuation);
            Piece { begins_word, punctuation }
        };
        let pieces = (0..info.vocab as u32).map(piece).collect();
        let (durations, end_token) = (info.durations, info.end_token);
        Self {
            hearing,
            pieces,
            durations,
            end_token,
            #[cfg(test)]
            spelled: Default::default(),
        }
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        self.hearing.tokenizer()
    }

    /// Whether tokens say how long they last.
    pub(super) fn has_durations(&self) -> bool {
        self.durations
    }

    /// Tokens that were spelled so far.
    #[cfg(test)]
    pub(super) fn spelled(&self) -> usize {
        self.spelled.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn piece(&self, id: u32) -> Piece {
        self.pieces.get(id as usize).copied().unwrap_or_default()
    }

    /// Whether a token begins a word.
    pub(super) fn begins_word(&self, id: u32) -> bool {
        self.piece(id).begins_word
    }

    /// Whether a token is punctuation that follows a word.
    pub(super) fn is_punctuation(&self, id: u32) -> bool {
        self.piece(id).punctuation
    }

    /// The frame after a token's last.
    pub(super) fn end_of(&self, token: &Token) -> usize {
        token.frame + if self.durations { token.duration } else { 1 }
    }

    /// The text of some tokens.
    pub(super) fn text(&self, ids: &[u32]) -> String {
        #[cfg(test)]
        self.spelled.fetch_add(ids.len(), std::sync::atomic::Ordering::Relaxed);
        let text = self.tokenizer().decode(ids);
        let trimmed = text.trim();
        if trimmed.len() == text.len() { text } else { trimmed.to_owned() }
    }

    /// Appends the words of some tokens, the first of which begins one whatever it is.
    pub(super) fn words(&self, tokens: &[Token], clock: Clock, out: &mut Vec<Word>) {
        let mut rest = tokens;
        while !rest.is_empty() {
            let (word, later) = rest.split_at(self.word_length(rest));
            out.extend(self.word(word, clock));
            rest = later;
        }
    }

    /// Tokens of the first word.
    pub(super) fn word_length(&self, tokens: &[Token]) -> usize {
        let next = tokens.iter().skip(1).position(|t| self.begins_word(t.id));
        next.map_or(tokens.len(), |n| n + 1)
    }

    /// One word; none where its tokens have no text.
    pub(super) fn word(&self, tokens: &[Token], clock: Clock) -> Option<Word> {
        let ids: Vec<u32> = tokens.iter().map(|t| t.id).collect();
        let text = self.text(&ids);
        let (first, last) = (tokens.first()?, tokens.last()?);
        if text.is_empty() {
            return None;
        }
        let end = self.end_of(last).max(first.frame + 1);
        let sum: f32 = tokens.iter().map(|t| t.confidence).sum();
        let confidence = sum / tokens.len() as f32;
        Some(Word { text, start: clock.at(first.frame), end: clock.at(end), confidence })
    }
}

/// Scripts without spaces, where a character is as good as a word.
fn is_ideograph(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

fn is_punctuation(c: char) -> bool {
    c.is_ascii_punctuation()
        || matches!(c, '\u{a1}'..='\u{bf}' | '\u{2010}'..='\u{203e}' | '\u{3001}'..='\u{3003}' | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff20}' | '\u{60c}' | '\u{61b}' | '\u{61f}' | '\u{964}' | '\u{37e}')
}
