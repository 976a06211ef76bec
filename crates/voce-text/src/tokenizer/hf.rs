//! Hugging Face `tokenizer.json` files with a Unigram or a BPE model.

use std::borrow::Cow;

use serde_json::Value;

use super::added::{AddedTokens, Part};
use super::byte_level::Words;
use super::decoder::Decoder;
use super::hf_bpe::HfBpe;
use super::hf_normalizer::Normalizer;
use super::hf_split::Splitter;
use super::piece_byte;
use super::trie::Trie;
use super::unigram::{Rounding, Score, Scratch, Unigram};
use crate::TokenizerError;

/// A loaded `tokenizer.json`.
#[derive(Debug)]
pub(crate) struct Hf {
    pieces: Vec<String>,
    model: Model,
    normalizer: Option<Normalizer>,
    splitter: Option<Splitter>,
    added: AddedTokens,
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    pub(crate) decoder: Decoder,
}

#[derive(Debug)]
enum Model {
    Unigram { model: Unigram, byte_ids: Option<Box<[u32; 256]>> },
    Bpe(HfBpe),
}

impl Model {
    fn id(&self, piece: &str) -> Option<u32> {
        match self {
            Model::Unigram { model, .. } => model.trie.get(piece.as_bytes()),
            Model::Bpe(model) => model.id(piece),
        }
    }
}

/// The `type` of a step.
pub(crate) fn type_name<'v>(value: &'v Value, part: &'static str) -> Result<&'v str, TokenizerError> {
    value
        .get("type")
        .and_then(Value::as_str)
        .ok_or_else(|| TokenizerError::broken(format!("a {part} without a type")))
}

/// A boolean field, or its default.
pub(crate) fn flag(value: &Value, name: &str, default: bool) -> bool {
    value.get(name).and_then(Value::as_bool).unwrap_or(default)
}

/// A text field that must be there.
pub(crate) fn letters(value: &Value, name: &str) -> Result<String, TokenizerError> {
    let text = value.get(name).and_then(Value::as_str);
    text.map(str::to_owned)
        .ok_or_else(|| TokenizerError::broken(format!("`{name}` is missing or not a text")))
}

/// A list field that must be there.
pub(crate) fn list<'v>(value: &'v Value, name: &str) -> Result<&'v [Value], TokenizerError> {
    let list = value.get(name).and_then(Value::as_array);
    list.map(Vec::as_slice)
        .ok_or_else(|| TokenizerError::broken(format!("`{name}` is missing or not a list")))
}

fn optional<'v>(value: &'v Value, name: &str) -> Option<&'v Value> {
    value.get(name).filter(|value| !value.is_null())
}

impl Hf {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let file: Value = serde_json::from_slice(bytes)?;
        let model = optional(&file, "model").ok_or(TokenizerError::UnknownFormat)?;
        if optional(&file, "truncation").is_some() {
            return Err(TokenizerError::unsupported("setting", "truncation"));
        }
        if optional(&file, "padding")
            .is_some_and(|padding| padding.get("strategy") != Some(&"BatchLongest".into()))
        {
            return Err(TokenizerError::unsupported("setting", "padding to a fixed length"));
        }
        let normalizer = optional(&file, "normalizer").map(Normalizer::parse).transpose()?;
        let splitter = optional(&file, "pre_tokenizer").map(Splitter::parse).transpose()?;
        let decoder = Decoder::parse(optional(&file, "decoder"))?;
        let (prefix, suffix) =
            optional(&file, "post_processor").map(template).transpose()?.unwrap_or_default();
        let (pieces, model) = match type_name(model, "model")? {
            "Unigram" => {
                let (pieces, model, byte_ids) = unigram(model)?;
                (pieces, Model::Unigram { model, byte_ids })
            }
            "BPE" => {
                let (pieces, model) = HfBpe::parse(model)?;
                (pieces, Model::Bpe(model))
            }
            other => return Err(TokenizerError::unsupported("model", other)),
        };
        let added = AddedTokens::parse(
            file.get("added_tokens"),
            |piece| model.id(piece),
            pieces.len(),
            normalizer.as_ref(),
        )?;
        Ok(Self { pieces, model, normalizer, splitter, added, prefix, suffix, decoder })
    }

    /// A byte-level model with added tokens, both as a `tokenizer.json` has them.
    pub(crate) fn byte_level(model: &Value, added: &Value) -> Result<Self, TokenizerError> {
        let (pieces, model) = HfBpe::parse(model)?;
        let normalizer = Some(Normalizer::Nfc);
        let added =
            AddedTokens::parse(Some(added), |piece| model.id(piece), pieces.len(), normalizer.as_ref())?;
        Ok(Self {
            pieces,
            model: Model::Bpe(model),
            normalizer,
            splitter: Some(Splitter::Words(Box::new(Words::new()?))),
            added,
            prefix: Vec::new(),
            suffix: Vec::new(),
            decoder: Decoder::byte_level(),
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len() + self.added.count_from(self.pieces.len())
    }

    /// Pieces of the model, without tokens added to it.
    pub(crate) fn model_len(&self) -> usize {
        self.pieces.len()
    }

    /// Whether an id stands for text by itself, and not for a byte or for what nobody knows.
    pub(crate) fn is_ordinary(&self, id: u32) -> bool {
        let unknown = match &self.model {
            Model::Unigram { model, .. } => Some(model.unknown_id),
            Model::Bpe(model) => model.unknown_id(),
        };
        unknown != Some(id) && self.piece(id).is_some_and(|piece| piece_byte(piece).is_none())
    }

    pub(crate) fn piece(&self, id: u32) -> Option<&str> {
        self.added.piece(id).or_else(|| self.pieces.get(id as usize).map(String::as_str))
    }

    pub(crate) fn id(&self, piece: &str) -> Option<u32> {
        self.added.id(piece).or_else(|| self.model.id(piece))
    }

    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = self.prefix.clone();
        let mut scratch = Scratch::default();
        self.added.split_raw(text, &mut |part| match part {
            Part::Token(id) => ids.push(id),
            Part::Text { start: raw_start, text } => {
                let text = match &self.normalizer {
                    Some(normalizer) => normalizer.normalize(Cow::Borrowed(text)),
                    None => Cow::Borrowed(text),
                };
                self.added.split_normalized(&text, &mut |part| match part {
                    Part::Token(id) => ids.push(id),
                    Part::Text { start, text } => {
                        let mut put = |part: &str| self.segment(part, &mut scratch, &mut ids);
                        match &self.splitter {
                            Some(splitter) => splitter.split(text, raw_start == 0 && start == 0, &mut put),
                            None => put(text),
                        }
                    }
                });
            }
        });
        ids.extend_from_slice(&self.suffix);
        ids
    }

    /// Bytes of a text whose ids do not depend on what follows.
    pub(crate) fn settled(&self, text: &str) -> usize {
        match &self.splitter {
            Some(Splitter::Words(words)) => words.settled(text),
            _ => 0,
        }
    }

    fn segment(&self, text: &str, scratch: &mut Scratch, ids: &mut Vec<u32>) {
        match &self.model {
            Model::Unigram { model, byte_ids } => {
                segment_unigram(model, byte_ids.as_deref(), text, scratch, ids);
            }
            Model::Bpe(model) => model.encode(text, ids),
        }
    }

    /// The token the decoder is to see for `id`, if any.
    pub(crate) fn token_to_decode(&self, id: u32) -> Option<&str> {
        match self.added.decoded(id) {
            Some(token) => token,
            None => self.pieces.get(id as usize).map(String::as_str),
        }
    }

    pub(crate) fn decode(&self, ids: &[u32]) -> String {
        self.decoder
            .decode(ids.iter().filter_map(|&id| self.token_to_decode(id)).map(str::to_owned).collect())
    }
}

fn segment_unigram(
    model: &Unigram,
    byte_ids: Option<&[u32; 256]>,
    text: &str,
    scratch: &mut Scratch,
    ids: &mut Vec<u32>,
) {
    let spans = model.segment(text, scratch);
    let mut next = 0;
    while next < spans.len() {
        let span = spans[next];
        next += 1;
        if span.id != model.unknown_id {
            ids.push(span.id);
            continue;
        }
        // A run of unknown characters is one token, or its bytes.
        let mut end = span.end;
        while next < spans.len() && spans[next].id == model.unknown_id {
            end = spans[next].end;
            next += 1;
        }
        let surface = &text[span.start..end];
        match (model.trie.get(surface.as_bytes()), byte_ids) {
            (Some(id), _) => ids.push(id),
            (None, Some(bytes)) => ids.extend(surface.bytes().map(|byte| bytes[usize::from(byte)])),
            (None, None) => ids.push(model.unknown_id),
        }
    }
}

type UnigramParts = (Vec<String>, Unigram, Option<Box<[u32; 256]>>);

fn unigram(model: &Value) -> Result<UnigramParts, TokenizerError> {
    let mut pieces = Vec::new();
    let mut scores = Vec::new();
    let mut least = f64::INFINITY;
    for entry in list(model, "vocab")? {
        let (Some(piece), Some(score)) =
            (entry.get(0).and_then(Value::as_str), entry.get(1).and_then(Value::as_f64))
        else {
            return Err(TokenizerError::broken(format!(
                "vocabulary entry {} is not [piece, score]",
                pieces.len()
            )));
        };
        pieces.push(piece.to_owned());
        scores.push(Score::Log(score));
        least = least.min(score);
    }
    let unknown_id = model.get("unk_id").and_then(Value::as_u64).filter(|id| *id < pieces.len() as u64);
    let unknown_id =
        unknown_id.ok_or_else(|| TokenizerError::broken("`unk_id` is missing or out of range"))? as u32;
    let trie = Trie::new(pieces.iter().enumerate().map(|(id, piece)| (piece.as_str(), id as u32)));
    // The original falls back to bytes only where every byte of the unknown stretch has a piece; a vocabulary
    // with some of them is taken for broken here.
    let mut byte_ids = None;
    if flag(model, "byte_fallback", false) {
        let mut ids = Box::new([0; 256]);
        for (byte, id) in ids.iter_mut().enumerate() {
            let piece = format!("<0x{byte:02X}>");
            *id = trie.get(piece.as_bytes()).ok_or_else(|| {
                TokenizerError::broken(format!("byte fallback is on but `{piece}` is missing"))
            })?;
        }
        byte_ids = Some(ids);
    }
    let unknown_score = Unigram::unknown_score(least, Rounding::Double);
    let model = Unigram { trie, scores, unknown_id, unknown_score, rounding: Rounding::Double };
    Ok((pieces, model, byte_ids))
}

/// Reads a `TemplateProcessing` step as the ids it puts before and after a single text.
fn template(value: &Value) -> Result<(Vec<u32>, Vec<u32>), TokenizerError> {
    match type_name(value, "post-processor")? {
        "TemplateProcessing" => {}
        other => return Err(TokenizerError::unsupported("post-processor", other)),
    }
    let (mut before, mut after, mut seen) = (Vec::new(), Vec::new(), false);
    for step in list(value, "single")? {
        if step.get("Sequence").is_some() && !seen {
            seen = true;
        } else if let Some(token) = step.pointer("/SpecialToken/id").and_then(Value::as_str) {
            let ids = value
                .get("special_tokens")
                .and_then(|tokens| tokens.get(token))
                .and_then(|token| token.get("ids"));
            let ids = ids
                .and_then(Value::as_array)
                .and_then(|ids| {
                    ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
                })
                .ok_or_else(|| TokenizerError::broken(format!("template token `{token}` has no ids")))?;
            let mut ids: Vec<u32> = ids;
            if seen { after.append(&mut ids) } else { before.append(&mut ids) }
        } else {
            return Err(TokenizerError::broken("a template step is neither a token nor the one sequence"));
        }
    }
    if !seen {
        return Err(TokenizerError::broken("the template leaves the text out"));
    }
    Ok((before, after))
}
