//! Loads the speech tokenizer and the speaker encoder of a Qwen3-TTS fixture, and what the published package computed.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend;
use voce_models::qwen::codec::{CodecConfig, CodecDecoder, CodecEncoder};
use voce_models::qwen::speaker::{SpeakerConfig, SpeakerEncoder};
use voce_nn::weights::{SafetensorsFile, ShardedSafetensors};
use voce_nn::{Formats, Loader, Precision, Weights};

/// Every small model.
pub const CASES: [&str; 5] = ["base_1b7", "base_0b6", "custom_0b6", "custom_1b7", "design_1b7"];

/// One fixture folder at one precision.
pub struct Case {
    pub dir: PathBuf,
    pub config: CodecConfig,
    pub formats: Formats,
    pub loader: Loader,
    dump: SafetensorsFile,
}

impl Case {
    pub fn f32(name: &str) -> Self {
        Self::new(name, Precision::F32)
    }

    pub fn new(name: &str, precision: Precision) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen").join(name);
        let open = |f: &str| SafetensorsFile::open(&dir.join(f)).unwrap();
        let text = std::fs::read_to_string(dir.join("speech_tokenizer/config.json")).unwrap();
        Self {
            config: CodecConfig::from_json(&text).unwrap(),
            formats: backend::formats(precision),
            loader: backend::loader(Arc::new(open("speech_tokenizer/model.safetensors"))),
            dump: open("dump.safetensors"),
            dir,
        }
    }

    pub fn decoder(&self) -> CodecDecoder {
        CodecDecoder::load(&self.loader, &self.config, self.formats).unwrap()
    }

    pub fn encoder(&self) -> CodecEncoder {
        CodecEncoder::load(&self.loader, &self.config, self.formats).unwrap()
    }

    /// The speaker encoder, which lies with the talker; of Base alone.
    pub fn speaker(&self) -> SpeakerEncoder {
        let text = std::fs::read_to_string(self.dir.join("config.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let config: SpeakerConfig = serde_json::from_value(json["speaker_encoder_config"].clone()).unwrap();
        config.check().unwrap();
        let index = self.dir.join("model.safetensors.index.json");
        let source: Arc<dyn Weights> = if index.exists() {
            Arc::new(ShardedSafetensors::open(&index).unwrap())
        } else {
            Arc::new(SafetensorsFile::open(&self.dir.join("model.safetensors")).unwrap())
        };
        let loader = backend::loader(source);
        SpeakerEncoder::load(&loader.sub("speaker_encoder"), &config, self.formats).unwrap()
    }

    /// A dumped tensor's values.
    pub fn dump(&self, name: &str) -> Vec<f32> {
        self.dump.get(name, &[]).unwrap().unwrap_or_else(|| panic!("no '{name}' in the dump")).values
    }

    /// Dumped codes, frame by frame.
    pub fn codes(&self, name: &str) -> Vec<u32> {
        let values = self.dump.integers(name).unwrap().unwrap_or_else(|| panic!("no '{name}' in the dump"));
        let books = self.config.codebooks();
        let frames = values.len() / books;
        (0..values.len()).map(|i| values[i % books * frames + i / books] as u32).collect()
    }

    /// A dumped stage as rows of channels: `[C, T]` stages are turned, `[T, C]` ones are not.
    pub fn rows(&self, name: &str) -> Option<Vec<f32>> {
        let t = self.dump.get(name, &[]).unwrap()?;
        if name.rsplit('/').next().unwrap().starts_with("transformer.") {
            return Some(t.values);
        }
        let [c, n] = t.shape[..] else { panic!("{name} has shape {:?}", t.shape) };
        Some((0..n * c).map(|i| t.values[i % c * n + i / c]).collect())
    }

    /// The samples of `ref.wav`.
    pub fn reference(&self) -> Vec<f32> {
        let bytes = std::fs::read(self.dir.join("ref.wav")).unwrap();
        bytes[44..].chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
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

/// Signal-to-noise ratio in decibels.
pub fn snr(got: &[f32], want: &[f32]) -> f64 {
    let signal: f64 = want.iter().map(|&w| w as f64 * w as f64).sum();
    let noise: f64 = got.iter().zip(want).map(|(&g, &w)| (g as f64 - w as f64).powi(2)).sum();
    10.0 * (signal / noise.max(1e-30)).log10()
}
