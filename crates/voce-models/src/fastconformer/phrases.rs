//! The search that a request asks for: beams, phrases and a language model, as tokens of the model.

use std::sync::Arc;

use voce_text::Tokenizer;

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
    let unknown = tokenizer.id("<unk>");
    let mut phrases = Vec::with_capacity(hotwords.len());
    for h in hotwords {
        let bad = |rule| HearingError::Value { what: "hotword", value: format!("'{}'", h.phrase), rule };
        let tokens = tokenizer.encode(h.phrase.trim());
        if tokens.is_empty() {
            return Err(bad("write a word"));
        }
        if tokens.iter().any(|&t| Some(t) == unknown || t as usize >= vocab) {
            return Err(bad("the model's tokens cannot spell it: use letters that it knows"));
        }
        phrases.push((tokens, h.weight));
    }
    Boost::new(phrases, BoostRule::default()).map_err(|e| HearingError::Search(e.to_string()))
}
