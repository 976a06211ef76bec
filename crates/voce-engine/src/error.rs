//! What can go wrong between a request and its audio.

use std::path::PathBuf;

use voce_audio::AudioError;
use voce_models::codec::CodecError;
use voce_models::dialogue::DialogueError;
use voce_models::hearing::HearingError;
use voce_models::pocket::ConfigError;
use voce_models::speech::{SpeechError, VoiceError};
use voce_models::{fastconformer, qwen};
use voce_nn::WeightError;
use voce_runtime::RuntimeError;
use voce_text::{TextError, TokenizerError};

use crate::store::{StoreError, Task};

/// Errors of the engine; each has a short code for scripts and metrics.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    /// A configuration cannot be read or run.
    #[error("{path}: {reason}")]
    ModelConfig {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// More codebooks than a codec has, or none.
    #[error("{asked} codebooks: this codec has {has}, of which the first ones can be used")]
    Codebooks {
        /// As asked for.
        asked: usize,
        /// Those there are.
        has: usize,
    },
    /// No configuration was found.
    #[error(
        "{0}: no Pocket TTS configuration (a .yaml file) here: give a folder with config.yaml, model.safetensors and a tokenizer"
    )]
    NoConfig(PathBuf),
    /// A recogniser's configuration cannot be read or run.
    #[error("{path}: {source}")]
    Recogniser {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        source: fastconformer::ConfigError,
    },
    /// A configuration of a snapshot cannot be read or run.
    #[error("{path}: {source}")]
    SpeechConfig {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong.
        source: qwen::ConfigError,
    },
    /// No recogniser was found.
    #[error(
        "{0}: no recogniser here: give a .nemo file, or a folder with config.json, model.safetensors and tokenizer.json"
    )]
    NoRecogniser(PathBuf),
    /// A model that is for something else.
    #[error("'{id}' is {}", other_task(*.task))]
    OtherTask {
        /// The model.
        id: String,
        /// What it is for.
        task: Task,
    },
    /// A model of a family that is known by name alone.
    #[error("'{id}' is a {title} model, which this build cannot run yet")]
    NotYet {
        /// The model.
        id: String,
        /// What such models are called.
        title: &'static str,
    },
    /// A part of other models, such as a codec.
    #[error("'{id}' is a {title}, a part of other models: it neither speaks nor hears by itself")]
    OnlyAPart {
        /// The files.
        id: String,
        /// What such parts are called.
        title: &'static str,
    },
    /// A model whose codec cannot be used by itself, or that has none.
    #[error(
        "'{id}' is a {title} model, and its codec cannot be used by itself: give a Qwen3-TTS model or its speech_tokenizer folder, or a Mimi"
    )]
    NoCodec {
        /// The model.
        id: String,
        /// What such models are called.
        title: &'static str,
    },
    /// Samples or codes that a codec cannot take.
    #[error("{0}")]
    Codec(#[from] CodecError),
    /// A file that holds no codes.
    #[error("{path}: {reason}: give a file with an integer tensor 'codes' of codebooks by frames")]
    NoCodes {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
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
    Weights(WeightError),
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
    /// The model cannot clone: whoever asked is told what can.
    #[error(
        "{id} cannot clone a voice: use one of its own ({}), or a model that can, such as Pocket TTS \
         (`voce pull pocket --cloning`)",
        list(.voices)
    )]
    NoCloning {
        /// The model.
        id: String,
        /// Voices that it has.
        voices: Vec<String>,
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
    /// A precision that CPUs have no kernels for.
    #[error(
        "fp8 runs on GPUs alone and this would run on the CPU: use --precision int8, or a GPU with --device cuda"
    )]
    NoFp8,
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
    /// A size of model that nobody knows.
    #[error("'{asked}' is no shape for {task}: use {}", .has.join(", "))]
    BadShape {
        /// As asked for.
        asked: String,
        /// What the model was to do.
        task: Task,
        /// Those there are.
        has: Vec<&'static str>,
    },
    /// The model cannot speak as it was asked to.
    #[error("{0}")]
    Speech(SpeechError),
    /// The model cannot hold the conversation as it was asked to.
    #[error("{0}")]
    Dialogue(DialogueError),
    /// A passage grew beyond the memory of its device.
    #[error("the passage is too long for the device's memory: ask for fewer frames, or use fewer slots")]
    PassageTooLong,
    /// A device has too little memory for the slots that were asked for.
    #[error(
        "no memory on the device for {slots} slots of {} KiB: {fit} would fit; use fewer slots, or another device",
        each >> 10
    )]
    NoRoom {
        /// What was asked for.
        slots: usize,
        /// What there is room for.
        fit: usize,
        /// Bytes of a slot.
        each: usize,
    },
    /// Too many requests wait.
    #[error("all is busy: {0} requests are waiting or under way, try again later")]
    Busy(usize),
    /// The model thread is gone.
    #[error("the model has stopped: {0}")]
    Stopped(String),
    /// What the model did for one stream went wrong; the others go on.
    #[error("this stream broke off by a fault of the program: the log has more, other streams go on")]
    Broken,
    /// The model cannot step in chunks of this length.
    #[error("{}", chunk_text(*.asked, .has))]
    Chunk {
        /// Milliseconds asked for.
        asked: u32,
        /// Those it can do; none if it takes whole utterances.
        has: Vec<u32>,
    },
    /// The model does not hear this language.
    #[error("{}", language_text(.asked, .has))]
    Language {
        /// As asked for.
        asked: String,
        /// Those it hears; none where that is not known.
        has: Vec<String>,
    },
    /// Phrases or a language model cannot be used.
    #[error("{0}")]
    Search(String),
    /// The sender of a stream was dropped before it was finished.
    #[error("the audio broke off: the stream was not finished")]
    Abandoned,
    /// A stream's saved state cannot be used.
    #[error("the stream cannot go on from this snapshot: {0}")]
    Snapshot(String),
}

fn other_task(task: Task) -> &'static str {
    match task {
        Task::Speech => "a voice model: use `voce say`, or give a recogniser",
        Task::Hearing => "a recogniser: use `voce hear`, or give a voice model",
        Task::Dialogue => "a dialogue model: it does not only speak or only hear",
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none here".into() } else { names.join(", ") }
}

fn chunk_text(asked: u32, has: &[u32]) -> String {
    if has.is_empty() {
        return format!(
            "chunks of {asked} ms: this model hears whole utterances only; for streaming use a cache-aware model \
             such as nemotron-speech-streaming-en-0.6b or stt_en_fastconformer_hybrid_large_streaming_multi"
        );
    }
    let has: Vec<String> = has.iter().map(u32::to_string).collect();
    format!("chunks of {asked} ms: this model has {} ms", has.join(", "))
}

fn language_text(asked: &str, has: &[String]) -> String {
    if has.is_empty() {
        return format!(
            "language '{asked}': this model does not say which languages it hears: leave the language out, or list \
             them in the model's config.json, as \"languages\": [\"en\"]"
        );
    }
    format!("language '{asked}': this model hears {}", has.join(", "))
}

impl EngineError {
    /// Whether there was nothing to say in a text.
    pub fn is_empty_text(&self) -> bool {
        matches!(self, EngineError::Text(TextError::Empty))
    }

    /// A short code for scripts and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            EngineError::Store(e) => e.code(),
            EngineError::Config { .. } | EngineError::NoConfig(_) => "bad_config",
            EngineError::Recogniser { .. }
            | EngineError::ModelConfig { .. }
            | EngineError::NoRecogniser(_)
            | EngineError::SpeechConfig { .. } => "bad_config",
            EngineError::NoCodec { .. } => "cannot_run",
            EngineError::Codec(_) | EngineError::NoCodes { .. } => "bad_codes",
            EngineError::OtherTask { .. } => "other_task",
            EngineError::NotYet { .. } | EngineError::OnlyAPart { .. } => "cannot_run",
            EngineError::MissingFile { .. } => "missing_file",
            EngineError::Io { .. } => "io",
            EngineError::Weights(_) => "bad_weights",
            EngineError::Tokenizer { .. } | EngineError::TokenizerSize { .. } => "bad_tokenizer",
            EngineError::Text(_) => "bad_text",
            EngineError::Voice { .. } => "bad_voice",
            EngineError::NoCloning { .. } => "no_cloning",
            EngineError::UnknownVoice { .. } => "unknown_voice",
            EngineError::Audio { source, .. } => source.code(),
            EngineError::Runtime(_) | EngineError::NoFp8 => "runtime",
            EngineError::Codebooks { .. }
            | EngineError::BadRequest { .. }
            | EngineError::BadShape { .. }
            | EngineError::Speech(_)
            | EngineError::Dialogue(_) => "bad_request",
            EngineError::PassageTooLong => "no_room",
            EngineError::NoRoom { .. } => "no_room",
            EngineError::Busy(_) => "busy",
            EngineError::Stopped(_) => "stopped",
            EngineError::Broken => "internal",
            EngineError::Chunk { .. } | EngineError::Language { .. } => "bad_request",
            EngineError::Search(_) => "bad_request",
            EngineError::Abandoned => "abandoned",
            EngineError::Snapshot(_) => "bad_snapshot",
        }
    }
}

impl From<SpeechError> for EngineError {
    fn from(e: SpeechError) -> Self {
        match e {
            SpeechError::Value { what, value, rule } => Self::BadRequest { what, value, rule },
            other => Self::Speech(other),
        }
    }
}

impl From<DialogueError> for EngineError {
    fn from(e: DialogueError) -> Self {
        match e {
            DialogueError::Value { what, value, rule } => Self::BadRequest { what, value, rule },
            other => Self::Dialogue(other),
        }
    }
}

impl From<WeightError> for EngineError {
    fn from(e: WeightError) -> Self {
        match e {
            WeightError::Device(e) => e.into(),
            other => EngineError::Weights(other),
        }
    }
}

impl From<HearingError> for EngineError {
    fn from(e: HearingError) -> Self {
        match e {
            HearingError::Value { what, value, rule } => EngineError::BadRequest { what, value, rule },
            HearingError::Chunk { asked, has } => EngineError::Chunk { asked, has },
            HearingError::Language { asked, has } => EngineError::Language { asked, has },
            HearingError::Search(text) => EngineError::Search(text),
            HearingError::Snapshot(text) => EngineError::Snapshot(text),
            // Whatever else a family cannot do is its word on a request.
            other => EngineError::Search(other.to_string()),
        }
    }
}

impl From<voce_runtime::cuda::CudaError> for EngineError {
    fn from(e: voce_runtime::cuda::CudaError) -> Self {
        EngineError::Runtime(e.into())
    }
}
