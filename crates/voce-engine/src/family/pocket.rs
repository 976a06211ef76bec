//! Pocket TTS from files: configuration, weights, tokeniser and voices.

pub(super) mod describe;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use voce_models::pocket::{OwnConfig, Pocket, PocketConfig, PocketParts, SeparateFiles, random_weights};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Loader, Precision, Weights};
use voce_text::Tokenizer;

use super::{OpenedSpeech, Shelf, plain_tokenizer};
use crate::EngineError;
use crate::device::Place;
use crate::packed;
use crate::store::catalogue::{self, Shape};
use crate::store::{Entry, OWN_CONFIG, Store};

/// Opens a model all of whose files are here.
pub(super) fn open(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    let files = Files::find(store, reference)?;
    let tokenizer = files.tokenizer()?;
    let expected = files.config.flow_lm.lookup_table.n_bins;
    if tokenizer.vocab_size() != expected {
        return Err(EngineError::TokenizerSize { expected, got: tokenizer.vocab_size() });
    }
    let (source, paths) = files.weights()?;
    let own = files.own()?;
    let formats = place.formats(precision)?;
    let packed = packed::cache(store, &paths, formats).filter(|_| place.device.is_none());
    let mut loader = Loader::new(source.clone());
    if let Some(cache) = &packed {
        loader = loader.with_cache(cache.clone());
    }
    let parts = PocketParts {
        config: files.config,
        tokenizer,
        language: files.language,
        own,
        formats,
        later: place.loader(Loader::new(source)),
    };
    let model = Pocket::load(&place.loader(loader), parts)?;
    let shelf = Shelf { files: files.voices, default: files.default_voice };
    Ok(OpenedSpeech { speech: Arc::new(model), shelf, packed })
}

/// A model of a published size with random weights.
pub(super) fn random(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    let yaml = shape.like.and_then(catalogue::find).and_then(Entry::config_text).unwrap_or_default();
    let config = PocketConfig::from_yaml(&yaml)
        .map_err(|source| EngineError::Config { path: shape.name.into(), source })?;
    let loader = place.loader(Loader::new(random_weights(seed)));
    let parts = PocketParts {
        tokenizer: plain_tokenizer(config.flow_lm.lookup_table.n_bins),
        config,
        language: None,
        own: OwnConfig::default(),
        formats: place.formats(precision)?,
        later: loader.clone(),
    };
    let model = Pocket::load(&loader, parts)?;
    Ok(OpenedSpeech { speech: Arc::new(model), shelf: Shelf::default(), packed: None })
}

/// The files of a Pocket TTS model.
struct Files {
    config: PocketConfig,
    root: PathBuf,
    weights: Vec<PathBuf>,
    tokenizer: Option<PathBuf>,
    voices: BTreeMap<String, PathBuf>,
    default_voice: Option<String>,
    language: Option<String>,
}

impl Files {
    /// Finds a model's files and reads its configuration.
    fn find(store: &Store, reference: &str) -> Result<Self, EngineError> {
        let located = store.find(reference)?;
        let (yaml, path) = match (&located.config, located.entry.and_then(Entry::config_text)) {
            (Some(path), _) => (read(path)?, path.clone()),
            (None, Some(text)) => (text, located.root.clone()),
            (None, None) => return Err(EngineError::NoConfig(located.root)),
        };
        let config = PocketConfig::from_yaml(&yaml).map_err(|source| EngineError::Config { path, source })?;
        Ok(Self {
            config,
            root: located.root,
            weights: located.weights,
            tokenizer: located.tokenizer,
            voices: located.voices,
            default_voice: located.entry.and_then(|e| Some(e.voices?.default.to_owned())),
            language: located.entry.map(|e| e.language().to_owned()),
        })
    }

    /// A file the configuration names: where it says, else by its last name in the model's folder.
    fn named(&self, name: &str) -> Result<PathBuf, EngineError> {
        let plain = name.split_once('@').map_or(name, |(path, _)| path);
        let last = plain.rsplit('/').next().unwrap_or(plain);
        let candidates = [self.root.join(name), self.root.join(last)];
        candidates
            .iter()
            .find(|p| p.is_file())
            .or_else(|| self.weights.iter().find(|p| p.ends_with(last)))
            .cloned()
            .ok_or_else(|| EngineError::MissingFile {
                name: name.to_owned(),
                tried: candidates[1].display().to_string(),
            })
    }

    /// Opens the weights: one file, or the two of the older layout. Says which they are.
    fn weights(&self) -> Result<(Arc<dyn Weights>, Vec<PathBuf>), EngineError> {
        let c = &self.config;
        let separate = |flow_lm: PathBuf, mimi: PathBuf| {
            let weights = SeparateFiles {
                flow_lm: SafetensorsFile::open(&flow_lm)?,
                mimi: SafetensorsFile::open(&mimi)?,
            };
            Ok((Arc::new(weights) as Arc<dyn Weights>, vec![flow_lm, mimi]))
        };
        if let (Some(lm), Some(mimi)) = (&c.flow_lm.weights_path, &c.mimi.weights_path) {
            return separate(self.named(lm)?, self.named(mimi)?);
        }
        let named = [&c.weights_path, &c.weights_path_without_voice_cloning];
        let found = named.into_iter().flatten().find_map(|name| self.named(name).ok());
        let path = match (found, &self.weights[..], named) {
            (Some(path), ..) => path,
            (None, [only], _) => only.clone(),
            (None, _, [Some(name), _] | [_, Some(name)]) => return Err(self.named(name).unwrap_err()),
            (None, ..) => self.named("model.safetensors")?,
        };
        match &c.mimi.weights_path {
            // The codec's own file replaces that of the bundle.
            Some(mimi) => separate(path, self.named(mimi)?),
            None => Ok((Arc::new(SafetensorsFile::open(&path)?), vec![path])),
        }
    }

    /// What the folder says beside the configuration, if anything.
    fn own(&self) -> Result<OwnConfig, EngineError> {
        let path = self.root.join(OWN_CONFIG);
        if !path.is_file() {
            return Ok(OwnConfig::default());
        }
        OwnConfig::from_yaml(&read(&path)?).map_err(|source| EngineError::Config { path, source })
    }

    /// Opens the tokeniser.
    fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
        let name = &self.config.flow_lm.lookup_table.tokenizer_path;
        let path = match self.named(name) {
            Ok(path) => path,
            Err(e) => self.tokenizer.clone().ok_or(e)?,
        };
        Tokenizer::from_file(&path).map_err(|source| EngineError::Tokenizer { path, source })
    }
}

fn read(path: &Path) -> Result<String, EngineError> {
    std::fs::read_to_string(path).map_err(|source| EngineError::Io { path: path.to_owned(), source })
}
