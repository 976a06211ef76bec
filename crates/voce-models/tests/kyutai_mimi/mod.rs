//! Loads a small Mimi and what the published package computed from it.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backend;
use voce_models::mimi::{KyutaiMimiConfig, Mimi, published};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Formats, Loader, Precision, Weights};

/// Every small codec.
pub const CASES: [&str; 2] = ["mimi_plain", "mimi_odd"];

/// A folder of Kyutai's fixtures.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kyutai").join(name)
}

/// One fixture folder.
pub struct Case {
    pub dir: PathBuf,
    pub config: KyutaiMimiConfig,
    pub formats: Formats,
    pub loader: Loader,
    pub dump: Dump,
}

/// Tensors of a file.
pub struct Dump(SafetensorsFile);

impl Dump {
    pub fn open(path: &Path) -> Self {
        Self(SafetensorsFile::open(path).unwrap())
    }

    pub fn shape(&self, name: &str) -> Vec<usize> {
        self.0.shape(name).unwrap_or_else(|| panic!("no '{name}' in the dump"))
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.0.get(name, &[]).unwrap().unwrap_or_else(|| panic!("no '{name}' in the dump")).values
    }

    pub fn numbers(&self, name: &str) -> Vec<i64> {
        self.0.integers(name).unwrap().unwrap_or_else(|| panic!("no '{name}' in the dump"))
    }
}

impl Case {
    pub fn f32(name: &str) -> Self {
        // The same tests are built once more to run on a device.
        if env!("CARGO_CRATE_NAME").ends_with("_device") {
            backend::on_device();
        }
        let dir = folder(name);
        let text = std::fs::read_to_string(dir.join("mimi_config.json")).unwrap();
        Self {
            config: KyutaiMimiConfig::from_json(&text).unwrap(),
            formats: backend::formats(Precision::F32),
            loader: backend::loader(Arc::new(SafetensorsFile::open(&dir.join("mimi.safetensors")).unwrap())),
            dump: Dump::open(&dir.join("dump.safetensors")),
            dir,
        }
    }

    pub fn codebooks(&self) -> usize {
        self.config.quantizer.n_q
    }

    pub fn mimi(&self) -> Mimi {
        self.mimi_with(self.codebooks())
    }

    pub fn mimi_with(&self, codebooks: usize) -> Mimi {
        Mimi::load(&self.loader, &self.config, codebooks, self.formats).unwrap()
    }

    /// The loader under the names that the codec's parts are loaded by.
    pub fn named(&self) -> Loader {
        published(&self.loader)
    }
}

/// Fails unless `got` is `want` within `tolerance` of the largest value.
#[track_caller]
pub fn check(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    let e = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max) / scale;
    assert!(e < tolerance, "{what}: off by {e:e}");
}

/// Fails unless a frame's codes are the package's, up to the first whose margin is a near tie.
#[track_caller]
pub fn check_codes(what: &str, got: &[u32], want: &[i64], margins: &[f32], first: usize) -> usize {
    let mut compared = 0;
    for part in [0..first, first..got.len()] {
        for book in part {
            if margins[book] < NEAR {
                break;
            }
            assert_eq!(i64::from(got[book]), want[book], "{what}: codebook {book}, margin {}", margins[book]);
            compared += 1;
        }
    }
    compared
}

/// Entries that are no further apart than this may change places by rounding.
const NEAR: f32 = 2e-4;

/// Random numbers for tests.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % n
    }

    pub fn sample(&mut self) -> f32 {
        self.below(2001) as f32 / 2000.0 - 0.5
    }
}
