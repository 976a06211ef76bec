//! Loads a recogniser fixture: a small random model and what the published package computed from it.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend;
use voce_models::fastconformer::{
    Encoder, EncoderState, FastConformerConfig, MelNormalize, StreamShape, canonical,
};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Formats, Loader, Precision, Weights};
use voce_runtime::{Buffer, Exec, FrameSpan};

/// One fixture folder at one precision.
pub struct Case {
    pub config: FastConformerConfig,
    pub formats: Formats,
    pub loader: Loader,
    pub json: serde_json::Value,
    expected: SafetensorsFile,
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/fastconformer")
}

impl Case {
    pub fn new(name: &str, precision: Precision) -> Self {
        let dir = folder().join(name);
        let read = |f: &str| std::fs::read_to_string(dir.join(f)).ok();
        let processors = ["processor_config.json", "preprocessor_config.json"].map(read);
        let processors: Vec<&str> = processors.iter().flatten().map(String::as_str).collect();
        let config = FastConformerConfig::from_hf_json(&read("config.json").unwrap(), &processors).unwrap();
        let source: Arc<dyn Weights> =
            Arc::new(SafetensorsFile::open(&dir.join("model.safetensors")).unwrap());
        Self {
            config,
            formats: backend::formats(precision),
            loader: backend::loader(canonical(source)),
            json: serde_json::from_str(&read("expected.json").unwrap()).unwrap(),
            expected: SafetensorsFile::open(&dir.join("expected.safetensors")).unwrap(),
        }
    }

    pub fn encoder(&self, exec: &mut Exec) -> Encoder {
        Encoder::load(&self.loader, &self.config, self.formats, exec).unwrap()
    }

    /// What the package computed under a name, if it was kept.
    pub fn kept(&self, name: &str) -> Option<Vec<f32>> {
        Some(self.expected.get(name, &[]).unwrap()?.values)
    }

    pub fn expected(&self, name: &str) -> Vec<f32> {
        self.kept(name).unwrap_or_else(|| panic!("no '{name}' in the fixture"))
    }

    /// Mel rows of the case's clip, as the model wants them.
    pub fn mel(&self) -> Buffer {
        self.mel_of(self.json["audio"].as_str().unwrap())
    }

    pub fn mel_of(&self, clip: &str) -> Buffer {
        let bins = self.config.mel.bins;
        let mut mel = voce_audio::mel::log_mel(&samples(clip), bins);
        if self.config.mel.normalize == MelNormalize::PerFeature {
            voce_audio::mel::normalise_per_feature(&mut mel, bins);
        }
        let mut rows = Buffer::new(mel.len() / bins, bins);
        rows.head_mut(mel.len() / bins).copy_from_slice(&mel);
        rows
    }
}

/// Samples of a 16-bit clip.
pub fn samples(clip: &str) -> Vec<f32> {
    let bytes = std::fs::read(folder().join(clip)).unwrap();
    let data = bytes.windows(4).position(|w| w == b"data").unwrap() + 8;
    bytes[data..].as_chunks::<2>().0.iter().map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0).collect()
}

/// Largest difference over the largest expected magnitude.
pub fn error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "as many values");
    let scale = want.iter().fold(1e-9f32, |m, v| m.max(v.abs()));
    got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / scale
}

/// Signal to noise in decibels.
pub fn snr(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "as many values");
    let power: f64 = want.iter().map(|&v| f64::from(v).powi(2)).sum();
    let noise: f64 = got.iter().zip(want).map(|(&a, &b)| f64::from(a - b).powi(2)).sum();
    10.0 * (power / noise.max(1e-30)).log10()
}

/// Rows `range` of a buffer.
pub fn rows(from: &Buffer, range: std::ops::Range<usize>) -> Buffer {
    let mut part = Buffer::new(range.len().max(1), from.cols());
    for (to, r) in range.enumerate() {
        part.row_mut(to).copy_from_slice(from.row(r));
    }
    part
}

/// The look-aheads that the package was run with.
pub fn look_aheads(case: &Case) -> Vec<usize> {
    case.json["runs"].as_array().unwrap().iter().map(|r| r["lookahead"].as_u64().unwrap() as usize).collect()
}

/// Runs a clip in steps of `chunks[i]` chunks and calls `each` after each step.
pub fn stream(
    exec: &mut Exec,
    encoder: &Encoder,
    mel: &Buffer,
    shape: StreamShape,
    chunks: &[usize],
    mut each: impl FnMut(&mut Exec, usize, &EncoderState, &[f32]),
) -> Vec<f32> {
    let most = chunks.iter().max().unwrap() * (shape.look_ahead + 1);
    let mut state = encoder.state(2, most + 1);
    encoder.start(&mut state, 1, shape);
    let (mut at, mut out) = (0, Vec::new());
    for (i, &chunks) in chunks.iter().cycle().enumerate() {
        let n = encoder.mel_rows(shape.look_ahead, chunks, at == 0).min(mel.rows() - at);
        let span = FrameSpan { slot: 1, rows: n, last: at + n == mel.rows() };
        let expected = state.yields(1, n, span.last);
        let (x, spans) = encoder.step(exec, &mut state, &rows(mel, at..at + n), &[span]);
        assert_eq!(spans[0].rows, expected);
        exec.fetch(x, expected);
        let made = x.head(expected).to_vec();
        each(exec, i, &state, &made);
        out.extend(made);
        at += n;
        if span.last {
            return out;
        }
    }
    unreachable!()
}
