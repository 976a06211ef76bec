//! Tokenisers: text to ids and back, from the files that models are published with.
//!
//! Two backends stand behind [`Tokenizer`]: SentencePiece `.model` files (unigram and BPE), and Hugging Face
//! `tokenizer.json` files with a Unigram or BPE model, or the files of a byte-level BPE without one. All give the ids that the original libraries give. What a file
//! asks for and this module does not know is an error at load, never a silent difference. Loading needs memory in
//! proportion to the file: no length that a file states is allocated before the bytes are seen.

mod added;
mod bpe;
mod byte_level;
mod byte_run;
mod charsmap;
mod decoder;
mod hf;
mod hf_bpe;
mod hf_normalizer;
mod hf_split;
mod proto;
mod sentencepiece;
mod sp_normalizer;
mod trie;
mod unigram;
mod vocab_list;

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::TokenizerError;
use hf::Hf;
use sentencepiece::SentencePiece;

/// The space symbol inside pieces.
const SPACE_SYMBOL: char = '\u{2581}';

#[derive(Debug)]
enum Backend {
    SentencePiece(SentencePiece),
    Hf(Hf),
}

/// The largest tokeniser file that is read.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, TokenizerError> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes));
    read.map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > limit {
        return Err(TokenizerError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

/// A tokeniser; cloning it is cheap and shares the vocabulary.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Backend>);

impl Tokenizer {
    /// Loads a file, told apart by its content: JSON starts with a brace, everything else is a SentencePiece model.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let path = path.as_ref();
        Self::from_bytes(&read_limited(path, MAX_FILE_BYTES)?)
    }

    /// Loads the content of a file of either kind.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            Some(b'{') => Self::from_json_bytes(bytes),
            Some(_) => Self::from_model_bytes(bytes),
            None => Err(TokenizerError::UnknownFormat),
        }
    }

    /// Loads the content of a Hugging Face `tokenizer.json`.
    pub fn from_json_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Ok(Self(Arc::new(Backend::Hf(Hf::parse(bytes)?))))
    }

    /// Loads the content of a SentencePiece `.model`.
    pub fn from_model_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Ok(Self(Arc::new(Backend::SentencePiece(SentencePiece::parse(bytes)?))))
    }

    /// Loads a list of pieces, one to a line: `tokenizer.vocab`, with scores, or `vocab.txt`, where `##` begins what goes on
    /// inside a word. Decoding is exact; such a list does not say how text is cut, so encoding is a likely guess.
    pub fn from_vocab_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Self::from_json_bytes(vocab_list::as_json(bytes)?.to_string().as_bytes())
    }

    /// Loads a byte-level BPE of Qwen's from the folder that has its `vocab.json`, `merges.txt` and
    /// `tokenizer_config.json`.
    pub fn from_folder(folder: impl AsRef<Path>) -> Result<Self, TokenizerError> {
        let read = |name| read_limited(&folder.as_ref().join(name), MAX_FILE_BYTES);
        Self::from_byte_level(&read("vocab.json")?, &read("merges.txt")?, &read("tokenizer_config.json")?)
    }

    /// Loads the contents of the files that [`Tokenizer::from_folder`] names.
    pub fn from_byte_level(vocab: &[u8], merges: &[u8], config: &[u8]) -> Result<Self, TokenizerError> {
        let (model, added) = byte_level::parts(vocab, merges, config)?;
        Ok(Self(Arc::new(Backend::Hf(Hf::byte_level(&model, &added)?))))
    }

    /// The ids of `text`.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        match &*self.0 {
            Backend::SentencePiece(model) => model.encode(text),
            Backend::Hf(model) => model.encode(text),
        }
    }

    /// Bytes at the start of a text that is still arriving whose ids are the same whatever follows; none where a
    /// tokeniser cannot tell.
    pub fn settled(&self, text: &str) -> usize {
        match &*self.0 {
            Backend::SentencePiece(_) => 0,
            Backend::Hf(model) => model.settled(text),
        }
    }

    /// The text of `ids`; special tokens and ids outside the vocabulary are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        match &*self.0 {
            Backend::SentencePiece(model) => {
                let mut state = sentencepiece::DecodeState::default();
                let mut text = String::new();
                for &id in ids {
                    model.decode_step(&mut state, id, &mut text);
                }
                state.finish(&mut text);
                text
            }
            Backend::Hf(model) => model.decode(ids),
        }
    }

    /// A decoder that gives text as ids arrive.
    pub fn detokenizer(&self) -> Detokenizer {
        let state = match &*self.0 {
            Backend::SentencePiece(_) => StreamState::SentencePiece(sentencepiece::DecodeState::default()),
            Backend::Hf(model) => StreamState::Hf(model.decoder.stream()),
        };
        Detokenizer { tokenizer: self.clone(), state }
    }

    /// How many ids there are, added tokens included.
    pub fn vocab_size(&self) -> usize {
        match &*self.0 {
            Backend::SentencePiece(model) => model.len(),
            Backend::Hf(model) => model.len(),
        }
    }

    /// How many ids the model itself has, without tokens that were added to it.
    pub fn model_size(&self) -> usize {
        match &*self.0 {
            Backend::SentencePiece(model) => model.len(),
            Backend::Hf(model) => model.model_len(),
        }
    }

    /// The piece an id stands for.
    pub fn piece(&self, id: u32) -> Option<&str> {
        match &*self.0 {
            Backend::SentencePiece(model) => model.piece(id),
            Backend::Hf(model) => model.piece(id),
        }
    }

    /// Whether a letter has pieces of its own: neither the unknown one nor those of single bytes stand for it. A byte-level
    /// vocabulary, whose pieces are bytes, has every letter.
    pub fn has_letter(&self, letter: char) -> bool {
        let ids = self.encode(letter.encode_utf8(&mut [0; 4]));
        !ids.is_empty()
            && ids.iter().all(|&id| match &*self.0 {
                Backend::SentencePiece(model) => model.is_ordinary(id),
                Backend::Hf(model) => model.is_ordinary(id),
            })
    }

    /// The id of exactly this piece.
    pub fn id(&self, piece: &str) -> Option<u32> {
        match &*self.0 {
            Backend::SentencePiece(model) => model.id(piece),
            Backend::Hf(model) => model.id(piece),
        }
    }
}

/// Decodes ids one at a time; a character spread over several byte ids comes out with its last byte.
///
/// What it puts out, joined, is [`Tokenizer::decode`] of all ids, with one exception: where a `tokenizer.json`
/// decoder meets byte ids that are not UTF-8, whole-text decoding blanks out the whole run of bytes, while this
/// has already put out the characters before the bad byte.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    state: StreamState,
}

#[derive(Debug)]
enum StreamState {
    SentencePiece(sentencepiece::DecodeState),
    Hf(decoder::DecoderStream),
}

impl Detokenizer {
    /// Takes the next id and returns the text that is now certain, often empty.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        match (&mut self.state, &*self.tokenizer.0) {
            (StreamState::SentencePiece(state), Backend::SentencePiece(model)) => {
                model.decode_step(state, id, &mut text);
            }
            (StreamState::Hf(stream), Backend::Hf(model)) => {
                if let Some(token) = model.token_to_decode(id) {
                    stream.push(&model.decoder, token, &mut text);
                }
            }
            _ => {}
        }
        text
    }

    /// Ends the text: an unfinished character comes out as U+FFFD. The next id starts a new text.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        match (&mut self.state, &*self.tokenizer.0) {
            (StreamState::Hf(stream), Backend::Hf(model)) => {
                stream.finish(&model.decoder, &mut text);
                *stream = model.decoder.stream();
            }
            (StreamState::SentencePiece(state), _) => std::mem::take(state).finish(&mut text),
            _ => {}
        }
        text
    }

    /// Whether bytes of an unfinished character are held back.
    pub fn is_mid_character(&self) -> bool {
        match &self.state {
            StreamState::SentencePiece(state) => state.is_mid_character(),
            StreamState::Hf(stream) => stream.is_mid_character(),
        }
    }
}

/// The byte that a byte-fallback piece such as `<0x0A>` stands for.
fn piece_byte(piece: &str) -> Option<u8> {
    let digits = piece.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_the_limit() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/bpe_suffix.model");
        let size = std::fs::metadata(&path).unwrap().len();
        assert_eq!(read_limited(&path, size).unwrap().len() as u64, size);
        assert!(matches!(read_limited(&path, size - 1), Err(TokenizerError::TooLarge { .. })));
    }

    #[test]
    fn byte_pieces() {
        assert_eq!(piece_byte("<0x0A>"), Some(10));
        for other in ["<0x0>", "<0x0AA>", "<0x+1>", "0x0A", "<0x\u{e9}>"] {
            assert_eq!(piece_byte(other), None);
        }
    }
}
