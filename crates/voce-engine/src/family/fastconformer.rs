//! FastConformer from files: a folder in Hugging Face's layout, or a `.nemo` archive.

pub(super) mod describe;

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use voce_models::fastconformer::{
    ConfigError, FastConformer, FastConformerConfig, FastConformerParts, canonical, random_weights,
};
use voce_nn::weights::{SafetensorsFile, ShardedSafetensors, TarFile, TorchFile};
use voce_nn::{Loader, Precision, Weights};
use voce_text::Tokenizer;
use voce_text::tokenizer::MAX_FILE_BYTES;

use super::languages::languages;
use super::{OpenedHearing, plain_tokenizer};
use crate::EngineError;
use crate::device::Place;
use crate::lane::default_threads;
use crate::packed;
use crate::store::catalogue::Shape;
use crate::store::{Located, Store, Task};

/// Largest configuration read; those of NeMo list the whole vocabulary three times.
const MAX_CONFIG_BYTES: u64 = 32 << 20;

/// Opens a recogniser all of whose files are here.
pub(super) fn open(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedHearing, EngineError> {
    let files = Files::find(store, reference)?;
    let cache =
        packed::cache(store, &files.paths, place.formats(precision)?).filter(|_| place.device.is_none());
    let mut loader = place.loader(Loader::new(files.weights.clone()));
    if let Some(cache) = &cache {
        loader = loader.with_cache(cache.clone());
    }
    Ok(OpenedHearing { packed: cache, ..files.load(&loader, place, precision)? })
}

/// A recogniser of a published shape with random weights, and a tokeniser whose text means nothing.
pub(super) fn random(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedHearing, EngineError> {
    let named = FastConformerConfig::named(shape.name);
    let config = named.ok_or_else(|| crate::unknown_shape(Task::Hearing, shape.name))?;
    let files = Files {
        weights: random_weights(seed, &config),
        tokenizer: plain_tokenizer(config.vocab),
        config,
        paths: Vec::new(),
        languages: Vec::new(),
    };
    let loader = place.loader(Loader::new(files.weights.clone()));
    files.load(&loader, place, precision)
}

/// A recogniser's configuration, its weights under canonical names, and its tokeniser.
struct Files {
    config: FastConformerConfig,
    weights: Arc<dyn Weights>,
    tokenizer: Tokenizer,
    /// The files that the weights are in; none for weights that are made up.
    paths: Vec<PathBuf>,
    /// Languages that it hears, as its configuration or its name says.
    languages: Vec<String>,
}

impl Files {
    /// Finds and opens a model's files; what they say of each other is checked.
    fn find(store: &Store, reference: &str) -> Result<Self, EngineError> {
        let located = store.find(reference)?;
        let nemo = located.weights.iter().find(|path| path.extension().is_some_and(|end| end == "nemo"));
        let mut files = match nemo {
            Some(path) => Self::archive(&located, path)?,
            None => Self::folder(&located)?,
        };
        let path = nemo.unwrap_or(&located.root).clone();
        files.config.settle(files.weights.as_ref()).map_err(bad_config(path))?;
        // Blank and padding are tokens that some tokenisers add after the model's own.
        let (least, most, wanted) =
            (files.tokenizer.model_size(), files.tokenizer.vocab_size(), files.config.vocab);
        if !(least..=most).contains(&wanted) {
            return Err(EngineError::TokenizerSize { expected: wanted, got: least });
        }
        Ok(files)
    }

    fn archive(located: &Located, path: &Path) -> Result<Self, EngineError> {
        let tar = TarFile::open(path)?;
        let yaml = text(path, tar.required("model_config.yaml")?.bytes(MAX_CONFIG_BYTES)?)?;
        let config = FastConformerConfig::from_nemo_yaml(&yaml).map_err(bad_config(path.to_owned()))?;
        let weights = canonical(Arc::new(TorchFile::read(tar.required("model_weights.ckpt")?)?));
        let ending = |end: &str| tar.names().find(|name| name.ends_with(end));
        let bytes = |name: &str| tar.required(name).and_then(|member| member.bytes(MAX_FILE_BYTES));
        let tokenizer = if let Some(name) = ending("tokenizer.model").or_else(|| ending(".model")) {
            Tokenizer::from_model_bytes(&bytes(name)?)
        } else if let Some(name) = ending(".vocab").or_else(|| ending("vocab.txt")) {
            Tokenizer::from_vocab_bytes(&bytes(name)?)
        } else {
            let tried = path.display().to_string();
            return Err(EngineError::MissingFile { name: "tokenizer.model".into(), tried });
        };
        let tokenizer =
            tokenizer.map_err(|source| EngineError::Tokenizer { path: path.to_owned(), source })?;
        Ok(Self {
            config,
            weights,
            tokenizer,
            paths: vec![path.to_owned()],
            languages: languages(located, None),
        })
    }

    fn folder(located: &Located) -> Result<Self, EngineError> {
        let is_json = |path: &&PathBuf| path.extension().is_some_and(|end| end == "json");
        let config = located.config.as_ref().filter(is_json);
        let config = config.cloned().unwrap_or_else(|| located.root.join("config.json"));
        if !config.is_file() {
            return Err(EngineError::NoRecogniser(located.root.clone()));
        }
        let folder = config.parent().unwrap_or(Path::new("")).to_owned();
        let mut processors = Vec::new();
        for name in ["processor_config.json", "preprocessor_config.json"] {
            let path = folder.join(name);
            if path.is_file() {
                processors.push(read(&path)?);
            }
        }
        let processors: Vec<&str> = processors.iter().map(String::as_str).collect();
        let json = read(&config)?;
        let languages = languages(located, Some(&json));
        let parsed = FastConformerConfig::from_hf_json(&json, &processors).map_err(bad_config(config))?;
        let weights = canonical(weights(&folder, &located.weights)?);
        let tokenizer = tokenizer(&folder, located.tokenizer.as_deref())?;
        Ok(Self { config: parsed, weights, tokenizer, paths: located.weights.clone(), languages })
    }

    /// Loads the weights.
    fn load(
        self,
        loader: &Loader,
        place: &Place,
        precision: Precision,
    ) -> Result<OpenedHearing, EngineError> {
        let parts = FastConformerParts {
            config: self.config,
            tokenizer: self.tokenizer,
            precision,
            formats: place.formats(precision)?,
            on_device: place.device.is_some(),
            languages: self.languages,
        };
        let model = FastConformer::load(parts, loader, &mut place.exec(default_threads())?)?;
        Ok(OpenedHearing { hearing: Arc::new(model), packed: None })
    }
}

fn bad_config(path: PathBuf) -> impl FnOnce(ConfigError) -> EngineError {
    move |source| EngineError::Recogniser { path, source }
}

fn read(path: &Path) -> Result<String, EngineError> {
    let io = |source| EngineError::Io { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io)?;
    file.take(MAX_CONFIG_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_CONFIG_BYTES {
        let reason = format!("larger than {MAX_CONFIG_BYTES} bytes");
        return Err(bad_config(path.to_owned())(ConfigError::Bad(reason)));
    }
    text(path, bytes)
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String, EngineError> {
    String::from_utf8(bytes)
        .map_err(|_| bad_config(path.to_owned())(ConfigError::Bad("it is not UTF-8".into())))
}

fn weights(folder: &Path, found: &[PathBuf]) -> Result<Arc<dyn Weights>, EngineError> {
    let (index, whole) = (folder.join("model.safetensors.index.json"), folder.join("model.safetensors"));
    if index.is_file() && !whole.is_file() {
        return Ok(Arc::new(ShardedSafetensors::open(&index)?));
    }
    match found {
        _ if whole.is_file() => Ok(Arc::new(SafetensorsFile::open(&whole)?)),
        [only] => Ok(Arc::new(SafetensorsFile::open(only)?)),
        _ => {
            let (name, tried) = ("model.safetensors".into(), whole.display().to_string());
            Err(EngineError::MissingFile { name, tried })
        }
    }
}

fn tokenizer(folder: &Path, found: Option<&Path>) -> Result<Tokenizer, EngineError> {
    let named = ["tokenizer.json", "tokenizer.model"].map(|name| folder.join(name));
    let path = named.iter().map(PathBuf::as_path).find(|path| path.is_file()).or(found);
    if let Some(path) = path {
        let bad = |source| EngineError::Tokenizer { path: path.to_owned(), source };
        return Tokenizer::from_file(path).map_err(bad);
    }
    let list = folder.join("vocab.txt");
    if !list.is_file() {
        let tried = named[0].display().to_string();
        return Err(EngineError::MissingFile { name: "tokenizer.json".into(), tried });
    }
    Tokenizer::from_vocab_bytes(read(&list)?.as_bytes())
        .map_err(|source| EngineError::Tokenizer { path: list.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Settings;
    use voce_models::fastconformer::{Attention, Head};

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/fastconformer").join(name)
    }

    fn open(path: &Path) -> Result<Files, EngineError> {
        let settings = Settings::from_vars(|name| (name == "HOME").then(|| "/nowhere".into())).unwrap();
        Files::find(&Store::new(settings), path.to_str().unwrap())
    }

    fn message(path: &Path) -> String {
        match open(path) {
            Ok(_) => panic!("{} was accepted", path.display()),
            Err(e) => e.to_string(),
        }
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

    #[test]
    fn languages_are_those_that_a_configuration_lists_or_a_published_name_stands_for() {
        assert!(open(&fixture("tdt")).unwrap().languages.is_empty());
        let d = copy("tdt");
        let named = d.path().join("parakeet-tdt_ctc-0.6b-ja");
        std::fs::create_dir(&named).unwrap();
        for entry in std::fs::read_dir(d.path()).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_file()) {
            std::fs::rename(&entry, named.join(entry.file_name().unwrap())).unwrap();
        }
        assert_eq!(open(&named).unwrap().languages, ["ja"]);
        // The hub's cache, and an archive.
        let commit = d.path().join("models--nvidia--parakeet-tdt-0.6b-v2/snapshots/0123");
        std::fs::create_dir_all(commit.parent().unwrap()).unwrap();
        std::fs::rename(&named, &commit).unwrap();
        assert_eq!(open(&commit).unwrap().languages, ["en"]);
        let archive = d.path().join("parakeet-tdt-0.6b-v3.nemo");
        std::fs::copy(fixture("nemo/tdt.nemo"), &archive).unwrap();
        assert!(open(&archive).unwrap().languages.contains(&"uk".to_owned()));
        // What a configuration says is believed before a name.
        let config = commit.join("config.json");
        let text = std::fs::read_to_string(&config).unwrap();
        std::fs::write(&config, text.replacen('{', r#"{"languages": ["de", "fr"],"#, 1)).unwrap();
        assert_eq!(open(&commit).unwrap().languages, ["de", "fr"]);
    }

    #[test]
    fn folders_of_every_kind_open_and_have_all_their_tensors() {
        for name in ["stream", "stream_left70", "stream_nobias", "ctc", "rnnt", "tdt", "prompt"] {
            let f = open(&fixture(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
            for (tensor, shape) in f.config.tensors() {
                match f.weights.get(&tensor, &shape).unwrap() {
                    Some(t) => assert_eq!(t.shape, shape, "{name}: {tensor}"),
                    None => assert!(tensor.ends_with("bias"), "{name}: {tensor} is missing"),
                }
            }
            assert_eq!(f.config.prompt.is_some(), name == "prompt");
        }
    }

    #[test]
    fn archives_open_as_what_they_are() {
        for name in ["stream", "hybrid", "tdt", "prompt"] {
            let f = open(&fixture(&format!("nemo/{name}.nemo"))).unwrap_or_else(|e| panic!("{name}: {e}"));
            for (tensor, shape) in f.config.tensors() {
                match f.weights.get(&tensor, &shape).unwrap() {
                    Some(t) => assert_eq!(t.shape, shape, "{name}: {tensor}"),
                    None => assert!(tensor.ends_with("bias"), "{name}: {tensor} is missing"),
                }
            }
            assert_eq!(f.tokenizer.vocab_size(), f.config.vocab, "{name}");
            assert_eq!(f.config.auxiliary_ctc, name == "hybrid");
            assert_eq!(f.config.prompt.is_some(), name == "prompt");
            assert_eq!(matches!(f.config.head, Head::Tdt { .. }), name == "tdt");
            assert_eq!(f.config.encoder.attention == Attention::Full, name == "tdt");
        }
    }

    #[test]
    fn an_archive_and_a_folder_of_one_model_say_the_same() {
        for name in ["stream", "tdt", "prompt"] {
            let (a, b) =
                (open(&fixture(name)).unwrap(), open(&fixture(&format!("nemo/{name}.nemo"))).unwrap());
            let mut same = b.config.clone();
            // The order of a list of languages means nothing.
            same.prompt = a.config.prompt.clone();
            assert_eq!(a.config, same, "{name}");
            for id in 0..a.config.vocab as u32 {
                assert_eq!(a.tokenizer.piece(id), b.tokenizer.piece(id), "{name}: {id}");
            }
            let text = "they hear the rain";
            assert_eq!(a.tokenizer.encode(text), b.tokenizer.encode(text), "{name}");
        }
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_said() {
        let d = copy("stream");
        std::fs::remove_file(d.path().join("tokenizer.json")).unwrap();
        assert!(message(d.path()).contains("tokenizer.json"));
        std::fs::copy(fixture("tdt/tokenizer.json"), d.path().join("tokenizer.json")).unwrap();
        let text = message(d.path());
        assert!(text.contains("58 tokens") && text.contains("56"), "{text}");
        std::fs::write(d.path().join("tokenizer.json"), "{").unwrap();
        assert!(message(d.path()).contains("tokenizer.json"));

        let d = copy("stream");
        std::fs::write(d.path().join("config.json"), r#"{"architectures": ["ParakeetForCTC"]}"#).unwrap();
        assert!(message(d.path()).contains("encoder_config"));
        std::fs::remove_file(d.path().join("config.json")).unwrap();
        let text = message(d.path());
        assert!(text.contains("config.json"), "{text}");

        let d = copy("stream");
        let path = d.path().join("model.safetensors");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 4]).unwrap();
        assert!(message(d.path()).contains("fetch it again"));
    }

    #[test]
    fn damaged_archives_are_errors() {
        let whole = std::fs::read(fixture("nemo/hybrid.nemo")).unwrap();
        let d = tempfile::tempdir().unwrap();
        let path = d.path().join("m.nemo");
        for part in [0, 1, 100, 600, 5000, whole.len() / 2, whole.len() - 20_000] {
            std::fs::write(&path, &whole[..part]).unwrap();
            let text = message(&path);
            assert!(text.contains("m.nemo"), "{text}");
        }
        // The same bytes, gzip'd, are the same model.
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gz, &whole).unwrap();
        std::fs::write(&path, gz.finish().unwrap()).unwrap();
        assert!(open(&path).is_ok());
    }

    #[test]
    fn shards_open_as_one() {
        let d = copy("ctc");
        let shard = "model-00001-of-00001.safetensors";
        std::fs::rename(d.path().join("model.safetensors"), d.path().join(shard)).unwrap();
        let names = SafetensorsFile::open(&d.path().join(shard)).unwrap();
        let map: serde_json::Map<String, serde_json::Value> =
            names.tensors().map(|(n, _)| (n.to_owned(), shard.into())).collect();
        let index = |map: &serde_json::Map<String, serde_json::Value>| {
            let json = serde_json::json!({"weight_map": map}).to_string();
            std::fs::write(d.path().join("model.safetensors.index.json"), json).unwrap();
        };
        index(&map);
        let f = open(d.path()).unwrap();
        assert!(f.weights.shape("encoder.pre_encode.out.weight").is_some());
        for bad in ["../model.safetensors", "/etc/passwd", "nothing.safetensors", ""] {
            let mut map = map.clone();
            map.insert("x".into(), bad.into());
            index(&map);
            let _ = message(d.path());
        }
        let mut more = map.clone();
        more.insert("ghost".into(), shard.into());
        index(&more);
        assert!(message(d.path()).contains("ghost"));
    }

    #[test]
    fn random_shapes_have_a_tokeniser_of_their_size() {
        let place = Place::new(&crate::device::Placement::Cpu, None).unwrap();
        let shape = crate::shape(Task::Hearing, "nano-ear").unwrap();
        let opened = random(shape, 1, &place, Precision::Int8).unwrap();
        assert_eq!(opened.hearing.tokenizer().vocab_size(), opened.hearing.info().vocab);
        for name in voce_models::fastconformer::SHAPES {
            assert!(FastConformerConfig::named(name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_same_weights_have_one_fingerprint_and_others_another() {
        let place = Place::new(&crate::device::Placement::Cpu, None).unwrap();
        let print = |name: &str, precision| {
            let settings = Settings::from_vars(|name| (name == "HOME").then(|| "/nowhere".into())).unwrap();
            let path = fixture(name);
            let opened = super::open(&Store::new(settings), path.to_str().unwrap(), &place, precision);
            opened.unwrap().hearing.fingerprint()
        };
        let stream = print("stream", Precision::F32);
        assert_eq!(stream, print("stream", Precision::F32));
        assert_eq!(stream, print("nemo/stream.nemo", Precision::F32), "an archive of the same weights");
        assert_ne!(stream, print("stream", Precision::Int8));
        assert_ne!(stream, print("stream_left70", Precision::F32));
        let shape = crate::shape(Task::Hearing, "nano-ear").unwrap();
        let random =
            |seed| super::random(shape, seed, &place, Precision::Int8).unwrap().hearing.fingerprint();
        assert_ne!(random(1), random(2), "other weights of the same shape");
    }
}
