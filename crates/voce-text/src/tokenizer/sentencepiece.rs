//! SentencePiece `.model` files: the protobuf, the vocabulary, encoding and decoding.

use super::bpe::Bpe;
use super::byte_run::ByteRun;
use super::charsmap::CharsMap;
use super::proto::{Fields, Value};
use super::sp_normalizer::SpNormalizer;
use super::trie::Trie;
use super::unigram::{Rounding, Score, Scratch, Unigram};
use super::{SPACE_SYMBOL, piece_byte};
use crate::TokenizerError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    Defined,
    Unused,
    Byte,
}

#[derive(Debug)]
struct Piece {
    text: String,
    score: f32,
    kind: Kind,
}

#[derive(Debug)]
enum Model {
    Unigram(Unigram),
    Bpe(Bpe),
}

/// A loaded SentencePiece model.
#[derive(Debug)]
pub(crate) struct SentencePiece {
    pieces: Vec<Piece>,
    model: Model,
    normalizer: SpNormalizer,
    /// Unknown, control and byte pieces, which text never matches.
    reserved: Trie,
    /// Every other piece.
    ordinary: Trie,
    defined: Trie,
    unknown_id: u32,
    byte_ids: Option<Box<[u32; 256]>>,
    unknown_surface: String,
}

/// The parts of the file, before they are checked against each other.
struct File {
    pieces: Vec<Piece>,
    model_type: u64,
    byte_fallback: bool,
    unknown_surface: String,
    normalizer: SpNormalizer,
}

impl File {
    fn parse(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut file = Self {
            pieces: Vec::new(),
            model_type: 1,
            byte_fallback: false,
            unknown_surface: " \u{2047} ".to_owned(),
            normalizer: SpNormalizer {
                map: None,
                add_dummy_prefix: true,
                remove_extra_whitespaces: true,
                escape_whitespaces: true,
                whitespace_as_suffix: false,
            },
        };
        for field in Fields(bytes) {
            match field? {
                (1, value) => file.pieces.push(parse_piece(value.bytes()?)?),
                (2, value) => file.trainer(value.bytes()?)?,
                (3, value) => file.normalizer(value.bytes()?)?,
                (5, value) => reject_denormalizer(value.bytes()?)?,
                _ => {}
            }
        }
        Ok(file)
    }

    fn trainer(&mut self, bytes: &[u8]) -> Result<(), TokenizerError> {
        for field in Fields(bytes) {
            match field? {
                (3, value) => self.model_type = value.varint()?,
                (24, value) => self.normalizer.whitespace_as_suffix = value.varint()? != 0,
                (35, value) => self.byte_fallback = value.varint()? != 0,
                (44, value) => self.unknown_surface = value.text()?.to_owned(),
                _ => {}
            }
        }
        Ok(())
    }

    fn normalizer(&mut self, bytes: &[u8]) -> Result<(), TokenizerError> {
        for field in Fields(bytes) {
            match field? {
                (2, Value::Bytes(blob)) if !blob.is_empty() => {
                    self.normalizer.map = Some(CharsMap::parse(blob)?);
                }
                (3, value) => self.normalizer.add_dummy_prefix = value.varint()? != 0,
                (4, value) => self.normalizer.remove_extra_whitespaces = value.varint()? != 0,
                (5, value) => self.normalizer.escape_whitespaces = value.varint()? != 0,
                _ => {}
            }
        }
        Ok(())
    }
}

fn parse_piece(bytes: &[u8]) -> Result<Piece, TokenizerError> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: Kind::Normal };
    for field in Fields(bytes) {
        match field? {
            (1, value) => piece.text = value.text()?.to_owned(),
            (2, value) => piece.score = value.float()?,
            (3, value) => {
                piece.kind = match value.varint()? {
                    1 => Kind::Normal,
                    2 => Kind::Unknown,
                    3 => Kind::Control,
                    4 => Kind::Defined,
                    5 => Kind::Unused,
                    6 => Kind::Byte,
                    other => return Err(TokenizerError::broken(format!("unknown piece type {other}"))),
                }
            }
            _ => {}
        }
    }
    if piece.text.is_empty() {
        return Err(TokenizerError::broken("an empty piece"));
    }
    if piece.score.is_nan() {
        return Err(TokenizerError::broken(format!("the score of piece `{}` is not a number", piece.text)));
    }
    Ok(piece)
}

fn reject_denormalizer(bytes: &[u8]) -> Result<(), TokenizerError> {
    for field in Fields(bytes) {
        if let (2, Value::Bytes(blob)) = field?
            && !blob.is_empty()
        {
            return Err(TokenizerError::unsupported("denormaliser", "precompiled_charsmap"));
        }
    }
    Ok(())
}

impl SentencePiece {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let File { pieces, model_type, byte_fallback, unknown_surface, normalizer } = File::parse(bytes)?;
        let of = |wanted: fn(Kind) -> bool| {
            Trie::new(
                pieces
                    .iter()
                    .enumerate()
                    .filter(move |(_, piece)| wanted(piece.kind))
                    .map(|(id, piece)| (piece.text.as_str(), id as u32)),
            )
        };
        let is_reserved = |kind| matches!(kind, Kind::Unknown | Kind::Control | Kind::Byte);
        let reserved = of(|kind| matches!(kind, Kind::Unknown | Kind::Control | Kind::Byte));
        let ordinary = of(|kind| matches!(kind, Kind::Normal | Kind::Defined | Kind::Unused));
        let defined = of(|kind| kind == Kind::Defined);
        for (id, piece) in pieces.iter().enumerate() {
            let map = if is_reserved(piece.kind) { &reserved } else { &ordinary };
            if map.get(piece.text.as_bytes()) != Some(id as u32) {
                return Err(TokenizerError::broken(format!("piece `{}` is there twice", piece.text)));
            }
        }
        let mut unknown = pieces.iter().enumerate().filter(|(_, piece)| piece.kind == Kind::Unknown);
        let (Some((unknown_id, _)), None) = (unknown.next(), unknown.next()) else {
            return Err(TokenizerError::broken("the vocabulary needs exactly one unknown piece"));
        };
        let unknown_id = unknown_id as u32;
        let byte_ids = byte_fallback.then(|| byte_ids(&reserved)).transpose()?;
        let model = match model_type {
            1 => Model::Unigram(unigram(&pieces, unknown_id)?),
            2 => Model::Bpe(Bpe {
                pieces: of(|kind| matches!(kind, Kind::Normal | Kind::Defined | Kind::Unused)),
                defined: of(|kind| kind == Kind::Defined),
                scores: pieces.iter().map(|piece| piece.score).collect(),
                unused: pieces.iter().map(|piece| piece.kind == Kind::Unused).collect(),
            }),
            3 => return Err(TokenizerError::unsupported("model", "SentencePiece WORD")),
            4 => return Err(TokenizerError::unsupported("model", "SentencePiece CHAR")),
            other => return Err(TokenizerError::unsupported("model", format!("SentencePiece type {other}"))),
        };
        Ok(Self {
            pieces,
            model,
            normalizer,
            reserved,
            ordinary,
            defined,
            unknown_id,
            byte_ids,
            unknown_surface,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(crate) fn piece(&self, id: u32) -> Option<&str> {
        self.pieces.get(id as usize).map(|piece| piece.text.as_str())
    }

    /// Whether an id stands for text by itself, and not for a byte or for what nobody knows.
    pub(crate) fn is_ordinary(&self, id: u32) -> bool {
        let kind = self.pieces.get(id as usize).map(|piece| piece.kind);
        matches!(kind, Some(Kind::Normal | Kind::Defined | Kind::Unused))
    }

    pub(crate) fn id(&self, piece: &str) -> Option<u32> {
        self.reserved.get(piece.as_bytes()).or_else(|| self.ordinary.get(piece.as_bytes()))
    }

    pub(crate) fn encode(&self, text: &str) -> Vec<u32> {
        let text = self.normalizer.normalize(text, &self.defined);
        let mut ids = Vec::with_capacity(text.len() / 3);
        let mut after_unknown = false;
        let mut put = |surface: &str, id: u32| {
            let unknown = id == self.unknown_id;
            match &self.byte_ids {
                Some(bytes) if unknown => ids.extend(surface.bytes().map(|byte| bytes[usize::from(byte)])),
                _ if unknown && after_unknown => {}
                _ => ids.push(id),
            }
            after_unknown = unknown;
        };
        match &self.model {
            Model::Unigram(model) => {
                for span in model.segment(&text, &mut Scratch::default()) {
                    put(&text[span.start..span.end], span.id);
                }
            }
            Model::Bpe(model) => {
                for (start, end) in model.segment(&text) {
                    let surface = &text[start..end];
                    put(surface, self.id(surface).unwrap_or(self.unknown_id));
                }
            }
        }
        ids
    }

    /// Appends what `id` adds to the text.
    pub(crate) fn decode_step(&self, state: &mut DecodeState, id: u32, text: &mut String) {
        let Some(piece) = self.pieces.get(id as usize) else { return };
        let before = text.len();
        if piece.kind == Kind::Byte
            && let Some(byte) = piece_byte(&piece.text)
        {
            state.bytes.push(byte, text);
            state.any_text |= text.len() > before;
            return;
        }
        state.bytes.finish(text);
        state.any_text |= text.len() > before;
        let at_start = !state.any_text && !state.space_taken;
        match piece.kind {
            Kind::Control => {}
            Kind::Unknown => text.push_str(&self.unknown_surface),
            _ => {
                let mut surface = piece.text.as_str();
                let strips = self.normalizer.add_dummy_prefix || self.normalizer.remove_extra_whitespaces;
                if at_start
                    && strips
                    && let Some(rest) = surface.strip_prefix(SPACE_SYMBOL)
                {
                    surface = rest;
                    state.space_taken = !self.normalizer.remove_extra_whitespaces;
                }
                text.extend(surface.chars().map(|letter| if letter == SPACE_SYMBOL { ' ' } else { letter }));
            }
        }
        state.any_text |= text.len() > before;
    }
}

fn byte_ids(reserved: &Trie) -> Result<Box<[u32; 256]>, TokenizerError> {
    let mut ids = Box::new([0; 256]);
    for (byte, id) in ids.iter_mut().enumerate() {
        let piece = format!("<0x{byte:02X}>");
        *id = reserved
            .get(piece.as_bytes())
            .ok_or_else(|| TokenizerError::broken(format!("byte fallback is on but `{piece}` is missing")))?;
    }
    Ok(ids)
}

fn unigram(pieces: &[Piece], unknown_id: u32) -> Result<Unigram, TokenizerError> {
    let normal = || pieces.iter().filter(|piece| piece.kind == Kind::Normal).map(|piece| piece.score);
    let least = normal().fold(f32::MAX, f32::min);
    // The original starts its maximum at the smallest positive number, not at the lowest one.
    let per_byte = normal().fold(f32::MIN_POSITIVE, f32::max);
    let matched = |kind| matches!(kind, Kind::Normal | Kind::Defined);
    let keys = pieces.iter().enumerate().filter(|(_, piece)| matched(piece.kind));
    let trie = Trie::new(keys.map(|(id, piece)| (piece.text.as_str(), id as u32)));
    if trie.is_empty() {
        return Err(TokenizerError::broken("the vocabulary has no ordinary piece"));
    }
    Ok(Unigram {
        trie,
        scores: pieces
            .iter()
            .map(|piece| match piece.kind {
                Kind::Defined => Score::Defined { per_byte },
                _ => Score::Log(f64::from(piece.score)),
            })
            .collect(),
        unknown_id,
        unknown_score: Unigram::unknown_score(f64::from(least), Rounding::Single),
        rounding: Rounding::Single,
    })
}

/// Where a decoder stands in its text.
#[derive(Debug, Default)]
pub(crate) struct DecodeState {
    bytes: ByteRun,
    any_text: bool,
    space_taken: bool,
}

impl DecodeState {
    pub(crate) fn finish(mut self, text: &mut String) {
        self.bytes.finish(text);
    }

    pub(crate) fn is_mid_character(&self) -> bool {
        !self.bytes.is_empty()
    }
}
