//! What helps the search: phrases and language models, as tokens of the model.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

use voce_models::transducer::{Boost, BoostRule, Ngram, RepeatGuard, SearchOptions};
use voce_text::Tokenizer;

use super::model_thread::Model;
use super::request::{Hotword, ListenRequest};
use crate::EngineError;

/// What is taken for a loop: a cycle of up to eight tokens, twenty times over.
const GUARD: RepeatGuard = RepeatGuard { cycle: 8, repeats: 20 };

/// The search that a request asks for.
pub(super) fn search_options(request: &ListenRequest, model: &Model) -> Result<SearchOptions, EngineError> {
    let boost = if request.hotwords.is_empty() {
        None
    } else {
        Some(Arc::new(boost(&request.hotwords, model.speller.tokenizer(), model.decoder.vocab())?))
    };
    let options = SearchOptions {
        boost,
        lm: request.lm.clone(),
        lm_weight: request.lm_weight,
        repeat_guard: Some(GUARD),
        ..SearchOptions::with_beam(request.beam)
    };
    Ok(options)
}

fn boost(hotwords: &[Hotword], tokenizer: &Tokenizer, vocab: usize) -> Result<Boost, EngineError> {
    let unknown = tokenizer.id("<unk>");
    let mut phrases = Vec::with_capacity(hotwords.len());
    for h in hotwords {
        let bad = |rule| EngineError::BadRequest { what: "hotword", value: format!("'{}'", h.phrase), rule };
        let tokens = tokenizer.encode(h.phrase.trim());
        if tokens.is_empty() {
            return Err(bad("write a word"));
        }
        if tokens.iter().any(|&t| Some(t) == unknown || t as usize >= vocab) {
            return Err(bad("the model's tokens cannot spell it: use letters that it knows"));
        }
        phrases.push((tokens, h.weight));
    }
    Boost::new(phrases, BoostRule::default()).map_err(|e| EngineError::Search(e.to_string()))
}

/// Reads an ARPA file over the model's tokens.
pub(super) fn language_model(
    path: &Path,
    tokenizer: &Tokenizer,
    vocab: usize,
) -> Result<Arc<Ngram>, EngineError> {
    let file = File::open(path).map_err(|source| EngineError::Io { path: path.to_owned(), source })?;
    let pieces: Vec<&str> = (0..vocab as u32).map(|id| tokenizer.piece(id).unwrap_or_default()).collect();
    let model = Ngram::read(BufReader::new(file), &pieces)
        .map_err(|e| EngineError::Search(format!("{}: {e}", path.display())))?;
    Ok(Arc::new(model))
}
