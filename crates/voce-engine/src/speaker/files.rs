//! Which files a model is made of.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use voce_models::pocket::{PocketConfig, SeparateFiles};
use voce_nn::Weights;
use voce_nn::weights::SafetensorsFile;
use voce_text::Tokenizer;

use crate::EngineError;
use crate::store::Store;

/// The files of a Pocket TTS model.
pub(super) struct Files {
    pub config: PocketConfig,
    root: PathBuf,
    weights: Vec<PathBuf>,
    tokenizer: Option<PathBuf>,
    pub voices: BTreeMap<String, PathBuf>,
    pub default_voice: Option<String>,
    pub language: Option<String>,
}

impl Files {
    /// Finds a model's files and reads its configuration.
    pub(super) fn find(store: &Store, reference: &str) -> Result<Self, EngineError> {
        let located = store.find(reference)?;
        let (yaml, path) = match (&located.config, located.entry) {
            (Some(path), _) => (read(path)?, path.clone()),
            (None, Some(entry)) => (entry.config_yaml(), located.root.clone()),
            (None, None) => return Err(EngineError::NoConfig(located.root)),
        };
        let config = PocketConfig::from_yaml(&yaml).map_err(|source| EngineError::Config { path, source })?;
        Ok(Self {
            config,
            root: located.root,
            weights: located.weights,
            tokenizer: located.tokenizer,
            voices: located.voices,
            default_voice: located.entry.map(|e| e.default_voice.to_owned()),
            language: located.entry.map(|e| e.language.to_owned()),
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
    pub(super) fn weights(&self) -> Result<(Arc<dyn Weights>, Vec<PathBuf>), EngineError> {
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

    /// Opens the tokeniser.
    pub(super) fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
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

/// A tokeniser of letters and bytes for random weights, whose text means nothing.
pub(crate) fn plain_tokenizer(tokens: usize) -> Tokenizer {
    let mut vocab: Vec<(String, f32)> = vec![("<unk>".into(), 0.0)];
    vocab.extend((0..256).map(|b| (format!("<0x{b:02X}>"), 0.0)));
    // Words of one to four letters cover text with about four letters a token, as trained ones do.
    vocab.push(("\u{2581}".into(), -3.0));
    for punctuation in [".", ",", "!", "?", ";", ":", "'", "-"] {
        vocab.push((punctuation.into(), -3.0));
    }
    let letters: Vec<char> = ('a'..='z').collect();
    vocab.extend(letters.iter().map(|c| (c.to_string(), -6.0)));
    vocab.extend(letters.iter().map(|c| (c.to_uppercase().to_string(), -6.0)));
    for a in &letters {
        for b in &letters {
            vocab.push((format!("{a}{b}"), -7.0));
            vocab.push((format!("\u{2581}{a}{b}"), -7.5));
        }
    }
    for a in "etaoinshrdlu".chars() {
        for b in "etaoinshrdlu".chars() {
            for c in "etaoinshrdlu".chars() {
                vocab.push((format!("{a}{b}{c}"), -8.0));
            }
        }
    }
    vocab.truncate(tokens);
    while vocab.len() < tokens {
        vocab.push((format!("<pad{}>", vocab.len()), -99.0));
    }
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": false},
        "post_processor": null,
        "decoder": {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": false},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": vocab},
    });
    Tokenizer::from_json_bytes(json.to_string().as_bytes()).expect("the plain tokeniser is valid")
}
