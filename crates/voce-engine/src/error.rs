//! What can go wrong between a request and its audio.

use std::path::PathBuf;

use voce_audio::AudioError;
use voce_models::pocket::{ConfigError, VoiceError};
use voce_nn::WeightError;
use voce_runtime::RuntimeError;
use voce_text::{TextError, TokenizerError};

use crate::store::StoreError;

/// Errors of the engine; each has a short code for scripts and metrics.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The model's files are not there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The configuration cannot be read or run.
    #[error("{path}: {source}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ConfigError,
    },
    /// A file that the configuration names is not there.
    #[error(
        "the configuration names '{name}', and neither that nor {tried} exists: put the file there or pull the model again"
    )]
    MissingFile {
        /// As the configuration has it.
        name: String,
        /// Where it was looked for.
        tried: String,
    },
    /// No configuration was found.
    #[error(
        "{0}: no Pocket TTS configuration (a .yaml file) here: give a folder with config.yaml, model.safetensors and a tokenizer"
    )]
    NoConfig(PathBuf),
    /// A file cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        source: std::io::Error,
    },
    /// The weights do not fit the configuration.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The tokeniser cannot be read.
    #[error("{path}: {source}")]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: TokenizerError,
    },
    /// The tokeniser has another vocabulary than the configuration says.
    #[error("the tokenizer has {got} tokens, the configuration says {expected}: they do not belong together")]
    TokenizerSize {
        /// By the configuration.
        expected: usize,
        /// By the tokeniser.
        got: usize,
    },
    /// The text cannot be spoken.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The voice cannot be used.
    #[error("voice '{name}': {source}")]
    Voice {
        /// As asked for.
        name: String,
        /// What is wrong.
        source: VoiceError,
    },
    /// No such voice.
    #[error("unknown voice '{name}': known voices are {}; a .safetensors voice or an audio file works as well", list(.known))]
    UnknownVoice {
        /// As asked for.
        name: String,
        /// Those that exist.
        known: Vec<String>,
    },
    /// The voice's audio cannot be read.
    #[error("{path}: {source}")]
    Audio {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: AudioError,
    },
    /// Threads or kernels cannot be set up.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A request's number is out of range.
    #[error("{what} is {value}: {rule}")]
    BadRequest {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        rule: &'static str,
    },
    /// Too many requests wait.
    #[error("the speaker is busy: {0} requests are waiting, try again later")]
    Busy(usize),
    /// The model thread is gone.
    #[error("the speaker has stopped: {0}")]
    Stopped(String),
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none here".into() } else { names.join(", ") }
}

impl EngineError {
    /// A short code for scripts and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            EngineError::Store(e) => e.code(),
            EngineError::Config { .. } | EngineError::NoConfig(_) => "bad_config",
            EngineError::MissingFile { .. } => "missing_file",
            EngineError::Io { .. } => "io",
            EngineError::Weights(_) => "bad_weights",
            EngineError::Tokenizer { .. } | EngineError::TokenizerSize { .. } => "bad_tokenizer",
            EngineError::Text(_) => "bad_text",
            EngineError::Voice { .. } => "bad_voice",
            EngineError::UnknownVoice { .. } => "unknown_voice",
            EngineError::Audio { source, .. } => source.code(),
            EngineError::Runtime(_) => "runtime",
            EngineError::BadRequest { .. } => "bad_request",
            EngineError::Busy(_) => "busy",
            EngineError::Stopped(_) => "stopped",
        }
    }
}
