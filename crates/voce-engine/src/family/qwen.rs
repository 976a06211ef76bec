//! Qwen3-TTS from files: the folder of a Hugging Face snapshot as it is published.

pub(super) mod describe;
pub(super) mod speech_tokenizer;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use voce_models::qwen::codec::{self, CodecConfig};
use voce_models::qwen::{
    ConfigError, GenerationConfig, Qwen, QwenConfig, QwenParts, Sound, SoundParts, codec_of, named,
    random_weights,
};
use voce_nn::weights::{SafetensorsFile, ShardedSafetensors};
use voce_nn::{Loader, Precision, Weights};
use voce_text::Tokenizer;

use super::{OpenedSpeech, Shelf, plain_tokenizer};
use crate::EngineError;
use crate::device::Place;
use crate::lane::default_threads;
use crate::packed;
use crate::store::catalogue::Shape;
use crate::store::{Store, Task};

/// Largest configuration read.
const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// The folder of the codec.
const CODEC: &str = "speech_tokenizer";

/// Opens a model all of whose files are here.
pub(super) fn open(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    let files = Files::find(store, reference)?;
    let tokenizer = Tokenizer::from_folder(&files.folder)
        .map_err(|source| EngineError::Tokenizer { path: files.folder.clone(), source })?;
    let expected = files.config.text().vocab;
    if tokenizer.vocab_size() > expected {
        return Err(EngineError::TokenizerSize { expected, got: tokenizer.vocab_size() });
    }
    let generation = match read(&files.folder.join("generation_config.json")) {
        Ok(json) => GenerationConfig::from_json(&json).map_err(bad_config(&files.folder))?,
        Err(EngineError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            GenerationConfig::default()
        }
        Err(e) => return Err(e),
    };
    let (talker, mut paths) = weights(&files.folder)?;
    let (codec, codec_paths) = weights(&files.folder.join(CODEC))?;
    paths.extend(codec_paths);
    let formats = place.formats(precision)?;
    let packed = packed::cache(store, &paths, formats).filter(|_| place.device.is_none());
    let loader = |source: Arc<dyn Weights>| {
        let mut loader = Loader::new(source);
        if let Some(cache) = &packed {
            loader = loader.with_cache(cache.clone());
        }
        place.loader(loader)
    };
    let sound = SoundParts {
        config: files.codec,
        formats,
        encoder: place.loader(Loader::new(codec.clone())),
        speaker: place.loader(Loader::new(talker.clone())),
    };
    let sound = Sound::load(&loader(codec), sound)?;
    let parts = QwenParts { config: files.config, generation, tokenizer, sound, formats };
    let model = Qwen::load(&mut place.exec(default_threads())?, &loader(talker), parts)?;
    let shelf = Shelf { default: files.default_voice, ..Shelf::default() };
    Ok(OpenedSpeech { speech: Arc::new(model), shelf, packed })
}

/// A model of a published size with random weights.
pub(super) fn random(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    let unknown = || crate::unknown_shape(Task::Speech, shape.name);
    let config = named(shape.name).ok_or_else(unknown)?;
    let formats = place.formats(precision)?;
    let loader = place.loader(Loader::new(random_weights(seed)));
    let codec = place.loader(Loader::new(codec::random_weights(seed)));
    let sound = SoundParts {
        config: codec_of().ok_or_else(unknown)?,
        formats,
        encoder: codec.clone(),
        speaker: loader.clone(),
    };
    let parts = QwenParts {
        sound: Sound::load(&codec, sound)?,
        tokenizer: plain_tokenizer(config.text().vocab),
        generation: GenerationConfig::default(),
        config,
        formats,
    };
    let model = Qwen::load(&mut place.exec(default_threads())?, &loader, parts)?;
    Ok(OpenedSpeech { speech: Arc::new(model), shelf: Shelf::default(), packed: None })
}

/// The files of a Qwen3-TTS model.
struct Files {
    folder: PathBuf,
    config: QwenConfig,
    codec: CodecConfig,
    default_voice: Option<String>,
}

impl Files {
    /// Finds a model's files and reads its configurations.
    fn find(store: &Store, reference: &str) -> Result<Self, EngineError> {
        let located = store.find(reference)?;
        let config = located.config.clone().unwrap_or_else(|| located.root.join("config.json"));
        let folder = config.parent().unwrap_or(Path::new("")).to_owned();
        let parsed = QwenConfig::from_json(&read(&config)?).map_err(bad_config(&config))?;
        let path = folder.join(CODEC).join("config.json");
        let codec = codec_config(&path)?;
        Sound::check(&parsed, &codec).map_err(bad_config(&path))?;
        Ok(Self {
            folder,
            config: parsed,
            codec,
            default_voice: located.entry.and_then(|e| Some(e.voices?.default.to_owned())),
        })
    }
}

/// The configuration of a codec.
fn codec_config(path: &Path) -> Result<CodecConfig, EngineError> {
    if !path.is_file() {
        let tried = path.display().to_string();
        return Err(EngineError::MissingFile { name: format!("{CODEC}/config.json"), tried });
    }
    let unsupported = |e: codec::CodecConfigError| ConfigError::Unsupported(e.to_string());
    CodecConfig::from_json(&read(path)?).map_err(|e| bad_config(path)(unsupported(e)))
}

/// Opens the weights of a folder: one file, or shards with their index. Says which they are.
fn weights(folder: &Path) -> Result<(Arc<dyn Weights>, Vec<PathBuf>), EngineError> {
    let index = folder.join("model.safetensors.index.json");
    if index.is_file() {
        let shards = ShardedSafetensors::open(&index)?;
        return Ok((Arc::new(shards), vec![index]));
    }
    let path = folder.join("model.safetensors");
    if !path.is_file() {
        let tried = path.display().to_string();
        return Err(EngineError::MissingFile { name: "model.safetensors".into(), tried });
    }
    Ok((Arc::new(SafetensorsFile::open(&path)?), vec![path]))
}

fn bad_config(path: &Path) -> impl FnOnce(ConfigError) -> EngineError {
    move |source| EngineError::SpeechConfig { path: path.to_owned(), source }
}

fn read(path: &Path) -> Result<String, EngineError> {
    let io = |source| EngineError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    let bad = |reason: String| bad_config(path)(ConfigError::Unsupported(reason));
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(bad(format!("it is larger than {MAX_CONFIG_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| bad("it is not UTF-8".into()))
}
