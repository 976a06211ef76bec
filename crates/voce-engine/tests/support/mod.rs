//! Speakers over the small models of `voce-models`, and what the published package said with them.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::path::PathBuf;

use voce_engine::speaker::{Overlap, Speaker, SpeakerOptions, SpeechStream};
use voce_engine::store::{Patience, Settings, Store};
use voce_engine::{EngineError, SpeakRequest, Voice};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Precision, Weights};

/// The small models with a `say` block.
pub const SAYING: [&str; 6] = ["lsd4", "wide_speaker", "separate", "drifting", "drifting_gqa", "pointwise"];
/// Every small model.
pub const CASES: [&str; 8] =
    ["lsd", "lsd4", "wide_speaker", "separate", "drifting", "drifting_gqa", "pointwise", "flow_matching"];
/// A threshold that no logit reaches: the model never ends by itself.
pub const ENDLESS: Option<f32> = Some(1e9);
/// Samples that a stream holds before its request pauses, at 2400 Hz and 192 samples a frame.
pub const AHEAD_FRAMES: usize = 250;

/// A case's folder.
pub fn folder(case: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/pocket").join(case)
}

/// A store with nothing in it.
pub struct Empty {
    dir: tempfile::TempDir,
    pub store: Store,
}

impl Empty {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(Settings {
            hub_cache: dir.path().join("hub"),
            voce_home: dir.path().join("voce"),
            endpoint: "http://127.0.0.1:9".into(),
            token: None,
            offline: true,
            keep_packed: None,
            patience: Patience::default(),
        });
        Self { dir, store }
    }
}

/// A speaker and its folder's voice.
pub struct Talker {
    pub speaker: Speaker,
    pub store: Empty,
    pub voice: Voice,
    pub steps: usize,
    pub json: serde_json::Value,
    dump: SafetensorsFile,
}

/// f32 on one thread.
pub fn exact() -> SpeakerOptions {
    SpeakerOptions::default()
        .with_precision(Some(Precision::F32))
        .with_threads(1)
        .with_overlap(Overlap::InTurn)
}

/// f32 on two threads, a stage each.
pub fn beside() -> SpeakerOptions {
    exact().with_threads(2).with_overlap(Overlap::Beside)
}

impl Talker {
    pub fn new(case: &str, options: &SpeakerOptions) -> Self {
        let (store, dir) = (Empty::new(), folder(case));
        let speaker = Speaker::open(&store.store, dir.to_str().unwrap(), options).unwrap();
        let voice = speaker.voice("voice").unwrap();
        let json = std::fs::read_to_string(dir.join("dump.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let steps = json["sampler_decode_steps"].as_u64().unwrap() as usize;
        let dump = SafetensorsFile::open(&dir.join("dump.safetensors")).unwrap();
        Self { speaker, store, voice, steps, json, dump }
    }

    /// A request of the folder's voice without noise or normalisation.
    pub fn request(&self) -> SpeakRequest {
        SpeakRequest::default()
            .with_voice(self.voice.clone().into())
            .with_temperature(Some(0.0))
            .with_steps(self.steps)
            .with_normalize(false)
    }

    /// The text and the request of the `say` block.
    pub fn said(&self) -> (String, SpeakRequest) {
        let say = &self.json["say"];
        let mut request = self.request();
        let option = |name: &str| say["options"][name].as_u64().map(|n| n as usize);
        request.max_tokens = option("max_tokens").unwrap_or(request.max_tokens);
        request.frames_after_eos = option("frames_after_eos");
        let mut text = say["text"].as_str().unwrap().to_owned();
        for (chunk, _, fits) in self.said_chunks() {
            if !fits {
                let found = if text.contains(&chunk) { &*chunk } else { chunk.trim_end_matches('.') };
                text = text.replacen(found, "", 1);
            }
        }
        (text, request)
    }

    /// Text and frames of each chunk of the `say` block, and whether it is as short as asked: the package leaves a clause
    /// whole that is longer, and the engine does not.
    fn said_chunks(&self) -> Vec<(String, usize, bool)> {
        let say = &self.json["say"];
        let most = say["options"]["max_tokens"].as_u64().unwrap_or(50) as usize;
        let chunk = |c: &serde_json::Value| {
            let (text, frames) = (c["chunk"].as_str().unwrap().to_owned(), c["frames"].as_u64().unwrap());
            (text, frames as usize, c["tokens"].as_array().unwrap().len() <= most)
        };
        say["chunks"].as_array().unwrap().iter().map(chunk).collect()
    }

    /// Frames of each chunk of what is [`said`](Self::said).
    pub fn said_frames(&self) -> Vec<usize> {
        self.said_chunks().into_iter().filter(|(_, _, fits)| *fits).map(|(_, frames, _)| frames).collect()
    }

    /// What the package made of it.
    pub fn said_audio(&self) -> Vec<f32> {
        let (all, chunks) = (self.dump("say/audio"), self.said_chunks());
        let frame = all.len() / chunks.iter().map(|(_, frames, _)| frames).sum::<usize>();
        let mut rest = &all[..];
        let mut kept = Vec::new();
        for (_, frames, fits) in chunks {
            let (chunk, after) = rest.split_at(frames * frame);
            kept.extend_from_slice(if fits { chunk } else { &[] });
            rest = after;
        }
        kept
    }

    pub fn dump(&self, name: &str) -> Vec<f32> {
        self.dump.get(name, &[]).unwrap().unwrap_or_else(|| panic!("no '{name}' in the dump")).values
    }

    pub fn say(&self, text: &str, request: &SpeakRequest) -> Vec<f32> {
        audio(&mut self.speaker.speak(text, request).unwrap())
    }
}

/// Everything that is left of a stream.
#[track_caller]
pub fn audio(stream: &mut SpeechStream) -> Vec<f32> {
    let (audio, end) = until_end(stream);
    end.unwrap();
    audio
}

/// Everything that is left of a stream, and how it ended.
pub fn until_end(stream: &mut SpeechStream) -> (Vec<f32>, Result<(), EngineError>) {
    let mut audio = Vec::new();
    for item in stream.by_ref() {
        match item {
            Ok(chunk) => audio.extend(chunk.samples),
            Err(e) => return (audio, Err(e)),
        }
    }
    (audio, Ok(()))
}

/// Largest difference relative to the largest expected magnitude.
#[track_caller]
pub fn rel(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len(), "length");
    let scale = want.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
    got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0f32, f32::max) / scale
}

/// Signal-to-noise ratio in decibels.
#[track_caller]
pub fn snr(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len(), "length");
    let signal: f64 = want.iter().map(|&w| w as f64 * w as f64).sum();
    let noise: f64 = got.iter().zip(want).map(|(&g, &w)| (g as f64 - w as f64).powi(2)).sum();
    10.0 * (signal / noise.max(1e-30)).log10()
}

/// Whether two runs have the same bits; `assert_eq` would print them all.
#[track_caller]
pub fn same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let at = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits());
    assert!(at.is_none(), "{what}: sample {at:?} of {} differs", want.len());
}

/// Random numbers that are the same in every run.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % n
    }
}
