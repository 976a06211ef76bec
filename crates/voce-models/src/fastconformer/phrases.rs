//! The search that a request asks for: beams, phrases and a language model, as tokens of the model.

use std::collections::HashMap;
use std::sync::Arc;

use voce_text::{Tokenizer, letters};

use crate::hearing::{HearingError, Hotword, TrackRequest};
use crate::transducer::{Boost, BoostRule, RepeatGuard, SearchOptions};

/// What is taken for a loop: a cycle of up to eight tokens, twenty times over.
const GUARD: RepeatGuard = RepeatGuard { cycle: 8, repeats: 20 };

/// The search of a stream.
pub(super) fn search_options(
    ask: &TrackRequest<'_>,
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<SearchOptions, HearingError> {
    let boost = match ask.hotwords {
        [] => None,
        hotwords => Some(Arc::new(boost(hotwords, tokenizer, vocab)?)),
    };
    Ok(SearchOptions {
        boost,
        lm: ask.lm.cloned(),
        lm_weight: ask.lm_weight,
        repeat_guard: Some(GUARD),
        ..SearchOptions::with_beam(ask.beam)
    })
}

fn boost(hotwords: &[Hotword], tokenizer: &Tokenizer, vocab: usize) -> Result<Boost, HearingError> {
    let mut speller = Speller { tokenizer, unknown: tokenizer.id("<unk>"), vocab, known: HashMap::new() };
    let mut phrases = Vec::with_capacity(hotwords.len());
    for h in hotwords {
        let bad = |rule| HearingError::Value { what: "hotword", value: format!("'{}'", h.phrase), rule };
        if h.phrase.trim().is_empty() {
            return Err(bad("write a word"));
        }
        let tokens = speller.tokens(&h.phrase);
        let unspelled = || bad("the model's tokens cannot spell it: use letters that it knows");
        phrases.push((tokens.ok_or_else(unspelled)?, h.weight));
    }
    Boost::new(phrases, BoostRule::default()).map_err(|e| HearingError::Search(e.to_string()))
}

/// Spells phrases in the letters of a model.
struct Speller<'a> {
    tokenizer: &'a Tokenizer,
    unknown: Option<u32>,
    vocab: usize,
    /// Characters that were looked at.
    known: HashMap<char, bool>,
}

impl Speller<'_> {
    /// The tokens of a phrase: as it is written where the model can write it so, else in the nearest letters that it has.
    fn tokens(&mut self, phrase: &str) -> Option<Vec<u32>> {
        let phrase = phrase.trim();
        self.encode(phrase).or_else(|| {
            let respelled = self.respelled(phrase)?;
            self.encode(&respelled)
        })
    }

    fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let tokens = self.tokenizer.encode(text);
        let spells = |&t: &u32| Some(t) != self.unknown && (t as usize) < self.vocab;
        (!tokens.is_empty() && tokens.iter().all(spells)).then_some(tokens)
    }

    fn knows(&mut self, letter: char) -> bool {
        if let Some(known) = self.known.get(&letter) {
            return *known;
        }
        let known = self.encode(letter.encode_utf8(&mut [0; 4])).is_some();
        self.known.insert(letter, known);
        known
    }

    /// A phrase whose letters are those of the model: of the other case, or without their marks. Dashes are gaps and
    /// other stops are nothing where the model writes none. None where a letter has no such form.
    fn respelled(&mut self, phrase: &str) -> Option<String> {
        let mut out = String::with_capacity(phrase.len());
        for letter in letters::composed(phrase).chars() {
            if letter.is_whitespace() {
                out.push(' ');
            } else if self.knows(letter) {
                out.push(letter);
            } else {
                out.push_str(&self.nearest(letter)?);
            }
        }
        Some(out.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn nearest(&mut self, letter: char) -> Option<String> {
        let plain = letters::plain(letter);
        let (lower, upper) = (plain.to_lowercase(), plain.to_uppercase());
        let forms = [plain, letter.to_lowercase().collect(), letter.to_uppercase().collect(), lower, upper];
        // A mark by itself has no plain form, and is left out.
        let fits = |form: &String| form.chars().all(|c| self.knows(c));
        let found = forms.into_iter().find(fits);
        found.or_else(|| match letter {
            '-' | '/' | '_' | '\u{2010}'..='\u{2015}' => Some(" ".into()),
            '.' | ',' | ';' | ':' | '!' | '?' | '"' | '\'' | '\u{2018}' | '\u{201c}' | '\u{201d}' => {
                Some(String::new())
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokeniser of single letters.
    fn of(letters: &str) -> Tokenizer {
        let list: String = ["<unk>", "\u{2581}"]
            .into_iter()
            .map(str::to_owned)
            .chain(letters.chars().map(String::from))
            .map(|piece| piece + "\t0\n")
            .collect();
        Tokenizer::from_vocab_bytes(list.as_bytes()).unwrap()
    }

    fn spelled(tokenizer: &Tokenizer, phrase: &str) -> Option<String> {
        let vocab = tokenizer.model_size();
        let mut speller = Speller { tokenizer, unknown: tokenizer.id("<unk>"), vocab, known: HashMap::new() };
        speller.tokens(phrase).map(|tokens| tokenizer.decode(&tokens))
    }

    #[test]
    fn phrases_are_spelled_in_the_letters_of_the_model() {
        let lower = of("abcdefghijklmnopqrstuvwxyz'");
        for (phrase, as_it_writes) in [
            ("rosville", "rosville"),
            ("Brownie Beaver", "brownie beaver"),
            ("Caf\u{e9}", "cafe"),
            ("cafe\u{301}", "cafe"),
            ("STRASSE Stra\u{df}e", "strasse strasse"),
            ("Jean-Luc", "jean luc"),
            ("O\u{2019}Neill, Jr.", "o'neill jr"),
        ] {
            assert_eq!(spelled(&lower, phrase).as_deref(), Some(as_it_writes), "{phrase}");
        }
        for phrase in ["\u{4f60}", "route 66", "a\u{4f60}", "...", "a & b"] {
            assert_eq!(spelled(&lower, phrase), None, "{phrase}");
        }
    }

    #[test]
    fn what_the_model_can_write_is_kept() {
        let both = of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\u{e9}-");
        for phrase in ["Rosville", "rosville", "Jean-Luc", "caf\u{e9}"] {
            assert_eq!(spelled(&both, phrase).as_deref(), Some(phrase));
        }
        assert_eq!(spelled(&both, "CAF\u{c9}").as_deref(), Some("CAFE"));
        assert_eq!(spelled(&of("ABC"), "abc").as_deref(), Some("ABC"));
    }
}
