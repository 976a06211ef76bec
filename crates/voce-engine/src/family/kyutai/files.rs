//! Which file of a Kyutai repository plays which part: `config.json` names them.

use std::fs::File;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use voce_models::kyutai::KyutaiConfig;
use voce_models::mimi::{KyutaiMimiConfig, published};
use voce_nn::weights::{SafetensorsFile, ShardedSafetensors};
use voce_nn::{Formats, Loader, PackedCache, Weights};
use voce_text::Tokenizer;

use crate::EngineError;
use crate::device::Place;
use crate::family::languages::languages;
use crate::packed;
use crate::store::Store;

/// Largest configuration read.
const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// Names that the published packages take where a configuration gives none.
const LM: &str = "model.safetensors";
const MIMI: &str = "tokenizer-e351c8d8-checkpoint125.safetensors";
const TOKENIZER: &str = "tokenizer_spm_32k_3.model";
/// The codec's configuration beside its file; the published file has none.
const MIMI_CONFIG: &str = "mimi_config.json";

/// The files of a language model with its codec.
pub(in crate::family) struct Files {
    pub folder: PathBuf,
    pub config: KyutaiConfig,
    /// The language model's weights.
    pub lm: PathBuf,
    pub mimi: MimiFile,
    /// The tokeniser of the text.
    pub tokenizer: PathBuf,
    /// Languages that it hears, as its configuration or its name says.
    pub languages: Vec<String>,
}

/// Weights of a language model and of its codec, and the matrices of them that are kept packed.
pub(in crate::family) struct Sources {
    pub lm: Loader,
    pub codec: Loader,
    pub mimi: KyutaiMimiConfig,
    pub packed: Option<Arc<PackedCache>>,
}

/// The codec's file, and its configuration where one lies beside it.
pub(in crate::family) struct MimiFile {
    pub path: PathBuf,
    config: Option<PathBuf>,
}

impl Files {
    /// Refuses what no recogniser here can be.
    pub(in crate::family) fn check_hearing(&self) -> Result<(), EngineError> {
        self.config.check_hearing().map_err(|e| bad_config(&self.folder.join("config.json"), e))
    }

    /// Finds a model's files and reads its configuration.
    pub(in crate::family) fn find(store: &Store, reference: &str) -> Result<Self, EngineError> {
        let located = store.find(reference)?;
        let path = located.config.clone().unwrap_or_else(|| located.root.join("config.json"));
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        // The first repositories of Moshi have no configuration: theirs is the published package's own.
        let (config, json, languages) = match path.is_file() {
            false if folder.join(LM).is_file() => (KyutaiConfig::default(), Value::Null, Vec::new()),
            _ => {
                let text = read(&path)?;
                let config = KyutaiConfig::from_json(&text).map_err(|e| bad_config(&path, e))?;
                let json = serde_json::from_str(&text).map_err(|e| bad_config(&path, e))?;
                (config, json, languages(&located, Some(&text)))
            }
        };
        let named = |key: &str| json.get(key).and_then(Value::as_str);
        // Repositories that name no codec still have one, and only one.
        let only = |like: &dyn Fn(&str) -> bool| {
            let file = |path: &&PathBuf| path.file_name().and_then(|n| n.to_str()).is_some_and(like);
            let mut found = located.weights.iter().filter(file);
            found.next().filter(|_| found.next().is_none()).cloned()
        };
        let lm = match named("moshi_name") {
            Some(name) => inside(&folder, name)?,
            None => folder.join(LM),
        };
        let is_mimi = |name: &str| name.starts_with("mimi") || name.starts_with("tokenizer");
        let mimi = match named("mimi_name") {
            Some(name) => inside(&folder, name)?,
            None => only(&is_mimi).unwrap_or_else(|| folder.join(MIMI)),
        };
        let tokenizer = match named("tokenizer_name") {
            Some(name) => inside(&folder, name)?,
            None => located.tokenizer.clone().unwrap_or_else(|| folder.join(TOKENIZER)),
        };
        let beside = match named("mimi_config_name") {
            Some(name) => Some(there(inside(&folder, name)?)?),
            None => Some(folder.join(MIMI_CONFIG)).filter(|path| path.is_file()),
        };
        let mimi = MimiFile { path: there(mimi)?, config: beside };
        Ok(Self { lm: there(lm)?, mimi, tokenizer: there(tokenizer)?, folder, config, languages })
    }

    /// Where the weights of the language model and of its codec, of which it needs this many codebooks, are loaded from.
    pub(in crate::family) fn sources(
        &self,
        store: &Store,
        place: &Place,
        formats: Formats,
        codebooks: usize,
    ) -> Result<Sources, EngineError> {
        let (codec, mimi) = self.mimi.open()?;
        if codebooks > mimi.quantizer.n_q {
            return Err(EngineError::Codebooks { asked: codebooks, has: mimi.quantizer.n_q });
        }
        let paths = [self.lm.clone(), self.mimi.path.clone()];
        let packed = packed::cache(store, &paths, formats).filter(|_| place.device.is_none());
        let loader = |source: Arc<dyn Weights>| {
            let loader = Loader::new(source);
            place.loader(match &packed {
                Some(cache) => loader.with_cache(cache.clone()),
                None => loader,
            })
        };
        Ok(Sources { lm: loader(self.weights()?), codec: loader(codec), mimi, packed })
    }

    /// The language model's weights.
    pub(in crate::family) fn weights(&self) -> Result<Arc<dyn Weights>, EngineError> {
        let index = self.folder.join("model.safetensors.index.json");
        if !self.lm.is_file() && index.is_file() {
            return Ok(Arc::new(ShardedSafetensors::open(&index)?));
        }
        Ok(voce_nn::weights::open(&self.lm)?)
    }

    /// The tokeniser, which has the configuration's number of tokens.
    pub(in crate::family) fn tokenizer(&self) -> Result<Tokenizer, EngineError> {
        let bad = |source| EngineError::Tokenizer { path: self.tokenizer.clone(), source };
        let tokenizer = Tokenizer::from_file(&self.tokenizer).map_err(bad)?;
        let (expected, got) = (self.config.text_out(), tokenizer.vocab_size());
        if got != expected { Err(EngineError::TokenizerSize { expected, got }) } else { Ok(tokenizer) }
    }
}

impl MimiFile {
    /// A codec by itself: a file, or a folder with one.
    pub(in crate::family) fn find(store: &Store, reference: &str) -> Result<Self, EngineError> {
        let located = store.find(reference)?;
        let [path] = &located.weights[..] else {
            let tried = located.root.display().to_string();
            return Err(EngineError::MissingFile {
                name: "the one .safetensors file of a Mimi".into(),
                tried,
            });
        };
        let config = Some(located.root.join(MIMI_CONFIG)).filter(|path| path.is_file());
        Ok(Self { path: path.clone(), config })
    }

    /// The weights, and the configuration that they have or that their shapes tell.
    pub(in crate::family) fn open(&self) -> Result<(Arc<dyn Weights>, KyutaiMimiConfig), EngineError> {
        let weights: Arc<dyn Weights> = Arc::new(SafetensorsFile::open(&self.path)?);
        let config = match &self.config {
            Some(path) => KyutaiMimiConfig::from_json(&read(path)?).map_err(|e| bad_config(path, e))?,
            None => {
                let loader = published(&Loader::new(weights.clone()));
                KyutaiMimiConfig::from_tensors(&loader).map_err(|e| bad_config(&self.path, e))?
            }
        };
        Ok((weights, config))
    }
}

/// A file that a configuration names, which lies in the model's folder.
fn inside(folder: &Path, name: &str) -> Result<PathBuf, EngineError> {
    // A file of another repository is looked for under its own name.
    let name = name.strip_prefix("hf://").map_or(name, |url| url.rsplit('/').next().unwrap_or(url));
    let path = Path::new(name);
    let is_inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    if name.is_empty() || !is_inside {
        return Err(bad_config(&folder.join("config.json"), format!("it names '{name}' outside its folder")));
    }
    Ok(folder.join(path))
}

/// A file that has to be there.
fn there(path: PathBuf) -> Result<PathBuf, EngineError> {
    let index = path.with_file_name("model.safetensors.index.json");
    if path.is_file() || (path.ends_with(LM) && index.is_file()) {
        return Ok(path);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(EngineError::MissingFile { name, tried: path.display().to_string() })
}

fn bad_config(path: &Path, reason: impl std::fmt::Display) -> EngineError {
    EngineError::ModelConfig { path: path.to_owned(), reason: reason.to_string() }
}

fn read(path: &Path) -> Result<String, EngineError> {
    let io = |source| EngineError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        return Err(bad_config(path, format!("it is larger than {MAX_CONFIG_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| bad_config(path, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Settings;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/kyutai").join(name)
    }

    fn store() -> Store {
        Store::new(Settings::from_vars(|name| (name == "HOME").then(|| "/nowhere".into())).unwrap())
    }

    /// A copy of a fixture's folder, to be damaged.
    fn copy(name: &str) -> tempfile::TempDir {
        let to = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(fixture(name)).unwrap() {
            let from = entry.unwrap().path();
            std::fs::copy(&from, to.path().join(from.file_name().unwrap())).unwrap();
        }
        to
    }

    fn message(path: &Path) -> String {
        match Files::find(&store(), path.to_str().unwrap()) {
            Ok(_) => panic!("{} was accepted", path.display()),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn published_folders_open_with_all_their_parts() {
        for name in ["stt_heads", "stt_late"] {
            let files = Files::find(&store(), fixture(name).to_str().unwrap()).unwrap();
            files.weights().unwrap();
            assert_eq!(files.tokenizer().unwrap().vocab_size(), files.config.text_out());
            assert_eq!(files.mimi.open().unwrap().1.frame_rate, 12.5);
        }
    }

    #[test]
    fn a_folder_that_names_nothing_has_its_files_by_their_looks() {
        let d = copy("stt_heads");
        let path = d.path().join("config.json");
        let mut json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for key in ["mimi_name", "tokenizer_name", "mimi_config_name"] {
            json.as_object_mut().unwrap().remove(key);
        }
        std::fs::write(&path, json.to_string()).unwrap();
        let files = Files::find(&store(), d.path().to_str().unwrap()).unwrap();
        assert!(files.mimi.path.ends_with("mimi-small@1.safetensors"));
        assert!(files.tokenizer.ends_with("tokenizer_small_48.model"));
        assert_eq!(files.mimi.open().unwrap().1.transformer.context, 12, "the configuration beside it");
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_said() {
        let d = copy("stt_heads");
        std::fs::remove_file(d.path().join("mimi-small@1.safetensors")).unwrap();
        assert!(message(d.path()).contains("mimi-small@1.safetensors"));
        let d = copy("stt_heads");
        let path = d.path().join("config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        for (name, says) in [("../mimi.safetensors", "outside"), ("/etc/passwd", "outside"), ("", "outside")]
        {
            std::fs::write(&path, text.replace("mimi-small@1.safetensors", name)).unwrap();
            assert!(message(d.path()).contains(says), "{name}");
        }
        std::fs::write(&path, text.replace("rms_norm_f32", "layer_norm")).unwrap();
        assert!(message(d.path()).contains("layer_norm"));
        std::fs::write(&path, &text).unwrap();
        std::fs::copy(
            fixture("stt_late/tokenizer_small_40.model"),
            d.path().join("tokenizer_small_48.model"),
        )
        .unwrap();
        let error = Files::find(&store(), d.path().to_str().unwrap()).unwrap().tokenizer().unwrap_err();
        assert!(error.to_string().contains("48") && error.to_string().contains("40"), "{error}");
    }
}
