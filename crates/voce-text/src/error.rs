//! The errors of this crate: what was wrong with a tokeniser file, and what was wrong with a text.

use std::path::PathBuf;

/// Why a tokeniser file could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// The file could not be read.
    #[error("cannot read tokeniser file {path}: {source}")]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is too large to be a tokeniser.
    #[error("tokeniser file {path} is larger than {limit} bytes; is it the right file?")]
    TooLarge {
        /// The file asked for.
        path: PathBuf,
        /// The most bytes that are read.
        limit: u64,
    },
    /// The bytes are neither a `tokenizer.json` nor a SentencePiece model.
    #[error("not a tokeniser file: expected a tokenizer.json or a SentencePiece .model")]
    UnknownFormat,
    /// The bytes are not valid JSON.
    #[error("tokenizer.json is not valid JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A part of the file is missing or has the wrong shape.
    #[error("broken tokeniser file: {0}; download it again")]
    Broken(String),
    /// The file asks for something this crate does not do.
    #[error("unsupported tokeniser {part} `{name}`")]
    Unsupported {
        /// Which part of the tokeniser: model, normaliser, pre-tokeniser, decoder, ...
        part: &'static str,
        /// The name the file gives it.
        name: String,
    },
}

impl TokenizerError {
    pub(crate) fn broken(what: impl Into<String>) -> Self {
        Self::Broken(what.into())
    }

    pub(crate) fn unsupported(part: &'static str, name: impl Into<String>) -> Self {
        Self::Unsupported { part, name: name.into() }
    }
}

/// Why a text cannot be spoken as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// Nothing is left to say.
    #[error("there is nothing to say in the text; give at least one word")]
    Empty,
    /// Letters that the model was not made for.
    #[error("{}", letters_text(.letters, .speaks.as_deref()))]
    Letters {
        /// Those of the text, each once.
        letters: Vec<char>,
        /// The language that the model speaks, in lower-case English, where known.
        speaks: Option<String>,
    },
    /// A pause tag whose duration cannot be read.
    #[error("cannot read the duration in `{tag}`; write e.g. [pause:300ms] or <break time=\"1.5s\"/>")]
    PauseDuration {
        /// The tag as written.
        tag: String,
    },
    /// A pause tag that asks for too long a pause.
    #[error("the pause `{tag}` is longer than {max_seconds} s; use several shorter ones")]
    PauseTooLong {
        /// The tag as written.
        tag: String,
        /// The longest pause allowed.
        max_seconds: u64,
    },
    /// Pause tags that ask for too much silence together.
    #[error("the pauses of the text are longer than {max_seconds} s together; use fewer or shorter ones")]
    PausesTooLong {
        /// The longest that all pauses of one request may be together.
        max_seconds: u64,
    },
    /// Bytes that are not UTF-8.
    #[error("the text is not valid UTF-8 at byte {offset}; convert it to UTF-8 first")]
    InvalidUtf8 {
        /// Offset of the first bad byte from the start of the stream.
        offset: u64,
    },
    /// The input ended inside a character.
    #[error(
        "the text ends inside a UTF-8 character that starts at byte {offset}; the input may be cut short"
    )]
    TruncatedUtf8 {
        /// Offset of the unfinished character from the start of the stream.
        offset: u64,
    },
}

/// Letters that an error names at most.
const NAMED_LETTERS: usize = 12;

fn letters_text(letters: &[char], speaks: Option<&str>) -> String {
    let named: Vec<String> = letters.iter().take(NAMED_LETTERS).map(char::to_string).collect();
    let more = if letters.len() > NAMED_LETTERS { " ..." } else { "" };
    let language = speaks.map(|name| name.split(['_', '-']).next().unwrap_or(name));
    let voice = language.map_or("this voice".to_owned(), |name| {
        let first = name.chars().next().into_iter().flat_map(char::to_uppercase);
        format!("this voice speaks {} and", first.chain(name.chars().skip(1)).collect::<String>())
    });
    let named = named.join(" ");
    format!(
        "{voice} does not know the letters {named}{more}: write the text in letters that it knows, or use a model of its language"
    )
}
