//! Loads a folder of Kyutai's fixtures: a small random model and what the published package computed from it.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend;
use voce_models::kyutai::{Condition, KyutaiConfig, NONE};
use voce_models::mimi::{KyutaiMimiConfig, Mimi};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Formats, Loader, Precision, Weights};

/// One fixture folder in f32.
pub struct Case {
    pub dir: PathBuf,
    pub config: KyutaiConfig,
    pub formats: Formats,
    pub loader: Loader,
    dump: SafetensorsFile,
}

impl Case {
    pub fn open(name: &str) -> Self {
        Self::with(name, "model.safetensors")
    }

    /// The same with weights of another file.
    pub fn with(name: &str, weights: &str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kyutai").join(name);
        let open = |f: &str| SafetensorsFile::open(&dir.join(f)).unwrap();
        let source: Arc<dyn Weights> = Arc::new(open(weights));
        Self {
            config: KyutaiConfig::from_json(&std::fs::read_to_string(dir.join("config.json")).unwrap())
                .unwrap(),
            formats: backend::formats(Precision::F32),
            loader: backend::loader(source),
            dump: open("dump.safetensors"),
            dir,
        }
    }

    /// The codec of a whole folder, with this many codebooks.
    pub fn mimi(&self, codebooks: usize) -> Mimi {
        let text = std::fs::read_to_string(self.dir.join("mimi_config.json")).unwrap();
        let source: Arc<dyn Weights> =
            Arc::new(SafetensorsFile::open(&self.dir.join("mimi.safetensors")).unwrap());
        let config = KyutaiMimiConfig::from_json(&text).unwrap();
        Mimi::load(&backend::loader(source), &config, codebooks, self.formats).unwrap()
    }

    /// A dumped tensor's values.
    pub fn dump(&self, name: &str) -> Vec<f32> {
        self.dump.get(name, &[]).unwrap().unwrap_or_else(|| panic!("no '{name}' in the dump")).values
    }

    /// A dumped tensor's shape.
    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.dump.shape(name).unwrap_or_else(|| panic!("no '{name}' in the dump"))
    }

    /// A dumped tensor's numbers; those below nothing are [`NONE`].
    pub fn tokens(&self, name: &str) -> Vec<u32> {
        let numbers = self.dump.integers(name).unwrap().unwrap_or_else(|| panic!("no '{name}' in the dump"));
        numbers.iter().map(|&t| u32::try_from(t).unwrap_or(NONE)).collect()
    }

    /// Reads dumped tensors from another file of the folder.
    pub fn dumped_in(mut self, file: &str) -> Self {
        self.dump = SafetensorsFile::open(&self.dir.join(file)).unwrap();
        self
    }

    /// A file of the folder as JSON.
    pub fn json(&self, file: &str) -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(self.dir.join(file)).unwrap()).unwrap()
    }
}

/// What a stream of a backbone's fixture was conditioned on.
pub fn conditions(name: &str, stream: usize) -> Vec<Condition> {
    match name {
        "lm_plain" => {
            let value = [Some("low"), None, Some("high")][stream].map(str::to_owned);
            vec![Condition { name: "mood".into(), value }]
        }
        _ => Vec::new(),
    }
}

/// Fails unless `got` is `want` within `tolerance` of the largest value.
#[track_caller]
pub fn check(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    let off = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max) / scale;
    assert!(off < tolerance, "{what}: off by {off:e}");
}
