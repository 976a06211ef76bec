//! Loads a small recogniser of Kyutai's and listens to what its ears tell.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::path::PathBuf;
use std::sync::Arc;

use super::backend;
use super::kyutai_mimi::{Dump, folder};
use voce_models::hearing::{
    Ear, EarRoom, Heard, Hearing, Heed, Offer, Planned, Reading, Rows, TrackRequest, Verdict,
};
use voce_models::kyutai::KyutaiConfig;
use voce_models::kyutai::stt::{Stt, SttParts};
use voce_models::mimi::KyutaiMimiConfig;
use voce_nn::Precision;
use voce_nn::weights::SafetensorsFile;
use voce_runtime::Exec;
use voce_text::Tokenizer;

/// Every small recogniser.
pub const CASES: [&str; 2] = ["stt_heads", "stt_late"];

/// A model folder, and what the package heard.
pub struct Case {
    pub dir: PathBuf,
    pub config: KyutaiConfig,
    pub mimi: KyutaiMimiConfig,
    pub dump: Dump,
    pub json: serde_json::Value,
}

impl Case {
    pub fn new(name: &str) -> Self {
        // The same tests are built once more to run on a device.
        if env!("CARGO_CRATE_NAME").ends_with("_device") {
            backend::on_device();
        }
        let dir = folder(name);
        let read = |f: &str| std::fs::read_to_string(dir.join(f)).unwrap();
        Self {
            config: KyutaiConfig::from_json(&read("config.json")).unwrap(),
            mimi: KyutaiMimiConfig::from_json(&read("mimi_config.json")).unwrap(),
            dump: Dump::open(&dir.join("dump.safetensors")),
            json: serde_json::from_str(&read("messages.json")).unwrap(),
            dir,
        }
    }

    pub fn load(&self, exec: &mut Exec) -> Stt {
        let open =
            |name: &str| backend::loader(Arc::new(SafetensorsFile::open(&self.dir.join(name)).unwrap()));
        let name = self.config.tokenizer_name.as_deref().unwrap();
        let parts = SttParts {
            config: self.config.clone(),
            mimi: self.mimi.clone(),
            tokenizer: Tokenizer::from_file(self.dir.join(name)).unwrap(),
            delay: None,
            temperature: None,
            precision: Precision::F32,
            formats: backend::formats(Precision::F32),
            languages: vec!["en".into(), "fr".into()],
        };
        Stt::load(parts, &open("model.safetensors"), &open("mimi-small@1.safetensors"), exec).unwrap()
    }

    /// The recording.
    pub fn audio(&self) -> Vec<f32> {
        let bytes = std::fs::read(self.dir.join("audio.wav")).unwrap();
        bytes[44..].chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
    }

    /// Text tokens of every step, as the package drew them.
    pub fn tokens(&self) -> Vec<u32> {
        self.dump.numbers("tokens").into_iter().map(|t| t as u32).collect()
    }

    /// Seconds of a frame.
    pub fn frame(&self) -> f64 {
        1.0 / self.mimi.frame_rate
    }
}

/// A plain request.
pub fn plain() -> TrackRequest<'static> {
    TrackRequest {
        chunk_ms: None,
        language: None,
        beam: 1,
        nbest: 0,
        hotwords: &[],
        lm: None,
        lm_weight: 0.3,
        temperature: None,
        seed: None,
    }
}

/// Rows of each slot that wait.
pub struct Queues(pub std::sync::Mutex<Vec<std::collections::VecDeque<f32>>>);

impl Rows for Queues {
    fn take(&self, planned: &Planned, out: &mut [f32]) {
        let queue = &mut self.0.lock().unwrap()[planned.slot];
        out.iter_mut().for_each(|v| *v = queue.pop_front().expect("a row that waits"));
    }
}

/// What was told of a slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Story {
    /// Every token that was drawn.
    pub drawn: Vec<u32>,
    /// Tokens that spell, with their frames.
    pub spelled: Vec<(u32, usize)>,
    /// Words by their tokens, the first token's frame, and the step that told them.
    pub words: Vec<(Vec<u32>, usize, usize)>,
    /// Ends of words, and the step that told them.
    pub ends: Vec<(usize, usize)>,
    /// Pauses of each frame.
    pub pauses: Vec<Vec<f32>>,
    pub frames: usize,
    pub concluded: usize,
    open: Vec<(u32, usize)>,
}

/// Everybody's stories.
pub struct Notes(pub Vec<Story>);

impl Heed for Notes {
    fn until(&self, _: usize, left: usize) -> usize {
        left
    }

    fn heard(&mut self, slot: usize, heard: Heard<'_>) -> Verdict {
        let story = &mut self.0[slot];
        story.frames += heard.frames;
        for t in heard.certain {
            story.spelled.push((t.id, t.frame));
            story.open.push((t.id, t.frame));
        }
        Verdict::GoOn
    }

    fn heard_whole(&mut self, _: usize, _: Heard<'_>) {}

    fn concluded(&mut self, slot: usize, _: Heard<'_>, _: Vec<Reading>) {
        self.0[slot].concluded += 1;
    }

    fn word_spelled(&mut self, slot: usize) {
        let story = &mut self.0[slot];
        let tokens = std::mem::take(&mut story.open);
        let step = story.drawn.len() - 1;
        story.words.push((tokens.iter().map(|t| t.0).collect(), tokens[0].1, step));
    }

    fn word_ended(&mut self, slot: usize, frame: usize) {
        let story = &mut self.0[slot];
        story.ends.push((frame, story.drawn.len() - 1));
    }

    fn drew(&mut self, slot: usize, token: u32) {
        self.0[slot].drawn.push(token);
    }

    fn pauses(&mut self, slot: usize, probabilities: &[f32]) {
        self.0[slot].pauses.push(probabilities.to_vec());
    }
}

/// Rows of a recording.
pub fn rows(stt: &Stt, audio: &[f32]) -> Vec<f32> {
    let (mut front, mut out) = (stt.front(), Vec::new());
    for piece in audio.chunks(701) {
        front.push(piece, &mut out);
    }
    front.finish(&mut out);
    out
}

/// One stream alone, `most` frames a step at most.
pub fn alone(stt: &Stt, exec: &mut Exec, audio: &[f32], most: usize) -> Story {
    alone_as(stt, exec, audio, most, &plain())
}

/// The same with a request.
pub fn alone_as(stt: &Stt, exec: &mut Exec, audio: &[f32], most: usize, ask: &TrackRequest<'_>) -> Story {
    let track = stt.track(ask, None).unwrap();
    let mut ear = stt.ear(EarRoom { slots: 1, slot_frames: most, frames: most });
    ear.start(exec, 0, &track).unwrap();
    let values = rows(stt, audio);
    let mut left = values.len() / stt.info().frame_size;
    let queues = Queues(vec![values.into()].into());
    let mut notes = Notes(vec![Story::default()]);
    while left > 0 {
        let planned = ear.plan(0, Offer { rows: left, closes: true }, most).unwrap();
        step(&mut *ear, exec, &[planned], &queues, &mut notes);
        left -= planned.advance;
        assert_eq!(planned.closes, left == 0);
    }
    ear.flush(exec, &[0], &mut notes);
    notes.0.remove(0)
}

/// A step of an ear.
pub fn step(ear: &mut dyn Ear, exec: &mut Exec, planned: &[Planned], rows: &dyn Rows, heed: &mut dyn Heed) {
    ear.take(exec, planned, rows);
    ear.encode(exec, planned);
    ear.decode(exec, planned, heed);
}
