//! A model for tests: it takes plain samples at 24 kHz and hears in each frame the token whose number its first sample is,
//! some frames later; it tells pauses and where words end. Nothing in the listener knows it.

use std::collections::VecDeque;
use std::io::BufRead;
use std::sync::{Arc, Mutex};

use voce_models::hearing::{
    Ear, EarRoom, Footprint, Front, Heard, Hearing, HearingError, HearingInfo, Heed, Offer, Planned,
    RowLayout, Rows, Token, Track, TrackRequest, Verdict,
};
use voce_models::saved::{Reader, Writer};
use voce_models::transducer::Ngram;
use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError};
use voce_text::Tokenizer;

use crate::wake::lock;

/// Samples of a frame.
pub(super) const FRAME: usize = 1920;
/// Samples per second.
pub(super) const RATE: usize = 24_000;
const MAGIC: [u8; 8] = *b"vocedbl1";

/// What the ears of a model were asked to do.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Slot and frames of each stream of each step.
    pub steps: Vec<Vec<(usize, usize)>>,
    /// Streams of each step that nobody heard.
    pub warmed: Vec<usize>,
    /// Steps that were asked for before the one before them was told.
    pub ahead: usize,
}

/// The model.
pub(super) struct Double {
    info: HearingInfo,
    tokenizer: Tokenizer,
    /// Whether its ears run ahead.
    ahead: bool,
    pub log: Arc<Mutex<Log>>,
}

/// A tokeniser of these pieces, the last of which is the token that ends utterances.
fn tokenizer(pieces: &[&str]) -> Tokenizer {
    let vocab: Vec<_> = pieces.iter().map(|p| (*p, -1.0)).collect();
    let metaspace = serde_json::json!({
        "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always", "split": false
    });
    let last = pieces.len() - 1;
    let special = serde_json::json!({
        "id": last, "content": pieces[last], "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true
    });
    let json = serde_json::json!({
        "version": "1.0", "added_tokens": [special], "normalizer": null, "pre_tokenizer": metaspace,
        "post_processor": null, "decoder": metaspace,
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": vocab},
    });
    Tokenizer::from_json_bytes(json.to_string().as_bytes()).unwrap()
}

impl Double {
    /// A model whose tokens 1 to 5 are `▁a`, `b`, `?`, `▁c` and the end of an utterance, and come `delay` frames late.
    pub(super) fn new(delay: usize) -> Arc<Self> {
        let pieces = ["<unk>", "\u{2581}a", "b", "?", "\u{2581}c", "<EOU>"];
        let info = HearingInfo {
            family: "double",
            sample_rate: RATE,
            layout: RowLayout { hop: FRAME, step: FRAME, overlap: 0 },
            frame_size: FRAME,
            chunks_ms: vec![80],
            least_frames: 1,
            most_frames: 1,
            window: 1,
            delay,
            word_ends: false,
            pauses: vec![0.5, 1.0],
            raises: false,
            languages: Vec::new(),
            takes_language: false,
            head: "double",
            vocab: pieces.len(),
            durations: delay > 0,
            end_token: Some(5),
            one_lane: false,
            phases: ["encoder", "search"],
            stages: Vec::new(),
        };
        Arc::new(Self { info, tokenizer: tokenizer(&pieces), ahead: false, log: Arc::default() })
    }

    /// The same with ears that run ahead.
    pub(super) fn ahead(delay: usize) -> Arc<Self> {
        let double = Self::new(delay);
        Arc::new(Self { ahead: true, ..Arc::into_inner(double).expect("nobody else has it") })
    }
}

impl Hearing for Double {
    fn info(&self) -> &HearingInfo {
        &self.info
    }

    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn track(&self, ask: &TrackRequest<'_>, _: Option<&[u8]>) -> Result<Track, HearingError> {
        ask.check()?;
        if ask.beam > 1 {
            return Err(HearingError::Unsupported { family: "double", option: "beam" });
        }
        Ok(Track::new(1, None, ()))
    }

    fn language_model(&self, _: &mut dyn BufRead) -> Result<Arc<Ngram>, HearingError> {
        Err(HearingError::Unsupported { family: "double", option: "language model" })
    }

    fn front(&self) -> Box<dyn Front> {
        Box::new(Samples(Vec::new()))
    }

    fn resume_front(&self, saved: &[u8]) -> Result<Box<dyn Front>, HearingError> {
        let read = || {
            let mut r = Reader::new(saved, MAGIC)?;
            let samples = r.floats(FRAME)?;
            r.finish().map(|()| samples)
        };
        let samples = read().map_err(|e| HearingError::Snapshot(e.to_string()))?;
        Ok(Box::new(Samples(samples)))
    }

    fn ear(&self, room: EarRoom) -> Box<dyn Ear> {
        Box::new(DoubleEar {
            delay: self.info.delay,
            slots: (0..room.slots).map(|_| Listening::default()).collect(),
            taken: Vec::new(),
            under_way: VecDeque::new(),
            ahead: self.ahead,
            started: 0,
            log: self.log.clone(),
        })
    }

    fn footprint(&self, _: EarRoom) -> Footprint {
        Footprint::default()
    }

    fn fingerprint(&self) -> u64 {
        7
    }
}

/// Samples that make no frame yet.
struct Samples(Vec<f32>);

impl Front for Samples {
    fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> usize {
        self.0.extend_from_slice(samples);
        let rows = self.0.len() / FRAME;
        out.extend(self.0.drain(..rows * FRAME));
        rows
    }

    fn finish(&mut self, out: &mut Vec<f32>) -> usize {
        let rows = self.0.len().div_ceil(FRAME);
        self.0.resize(rows * FRAME, 0.0);
        out.append(&mut self.0);
        rows
    }

    fn rest(&self, silence: usize, out: &mut Vec<f32>) -> usize {
        let mut front = Self(self.0.clone());
        front.push(&vec![0.0; silence], out) + front.finish(out)
    }

    fn save(&self) -> Vec<u8> {
        let mut w = Writer::new(MAGIC);
        w.floats(&self.0);
        w.into_bytes()
    }
}

/// What a slot knows.
#[derive(Default)]
struct Listening {
    /// What the last frames said, which nobody was told yet.
    late: Vec<f32>,
    decoded: usize,
    /// Whether a word is under way.
    in_word: bool,
    /// Which of all streams it is.
    number: usize,
}

/// What a step has taken: whose, which of all streams that was, and its samples.
type Taken = Vec<(usize, usize, Vec<f32>)>;

struct DoubleEar {
    delay: usize,
    slots: Vec<Listening>,
    taken: Taken,
    /// Steps that were not told yet.
    under_way: VecDeque<Taken>,
    ahead: bool,
    started: usize,
    log: Arc<Mutex<Log>>,
}

impl DoubleEar {
    /// A frame of a slot: its sample is told once `delay` others have come after it.
    fn hear(&mut self, slot: usize, sample: f32, heed: &mut dyn Heed) {
        let s = &mut self.slots[slot];
        s.late.push(sample);
        if s.late.len() <= self.delay || heed.until(slot, 1) == 0 {
            return;
        }
        let (id, frame) = (s.late.remove(0) as u32, s.decoded);
        s.decoded += 1;
        let token = Token { id, frame, duration: 1, log_prob: -0.5, confidence: 0.5 };
        let certain = if id > 0 { &[token][..] } else { &[] };
        let ended = s.in_word && id == 0;
        s.in_word = id > 0;
        if ended && self.delay > 0 {
            heed.word_ended(slot, frame);
        }
        heed.pauses(slot, &[if id == 0 { 0.75 } else { 0.25 }, 0.125]);
        if heed.heard(slot, Heard { frames: 1, certain, guess: &[] }) == Verdict::End {
            heed.concluded(slot, Heard::default(), Vec::new());
        }
    }
}

impl Ear for DoubleEar {
    fn reserve(&mut self, _: &mut Exec) -> Result<Reserved, RuntimeError> {
        Ok(Reserved::default())
    }

    fn start(&mut self, _: &mut Exec, slot: usize, _: &Track) -> Result<(), RuntimeError> {
        self.started += 1;
        self.slots[slot] = Listening { number: self.started, ..Listening::default() };
        Ok(())
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = Listening::default();
    }

    fn wants(&self, _: usize) -> usize {
        1
    }

    fn plan(&self, slot: usize, offer: Offer, frames: usize) -> Option<Planned> {
        let rows = offer.rows.min(frames.max(1));
        let closes = offer.closes && rows == offer.rows;
        (rows > 0).then_some(Planned { slot, kept: 0, rows, advance: rows, frames: rows, closes })
    }

    fn take(&mut self, _: &mut Exec, planned: &[Planned], rows: &dyn Rows) {
        self.taken.clear();
        for p in planned {
            let mut values = vec![0.0; p.rows * FRAME];
            rows.take(p, &mut values);
            let samples = values.chunks_exact(FRAME).map(|row| row[0]).collect();
            self.taken.push((p.slot, self.slots[p.slot].number, samples));
        }
        lock(&self.log).steps.push(planned.iter().map(|p| (p.slot, p.rows)).collect());
    }

    fn encode(&mut self, _: &mut Exec, _: &[Planned]) {}

    fn runs_ahead(&self) -> bool {
        self.ahead
    }

    fn begin(&mut self, _: &mut Exec, _: &[Planned]) {
        lock(&self.log).ahead += usize::from(!self.under_way.is_empty());
        self.under_way.push_back(std::mem::take(&mut self.taken));
        assert!(self.under_way.len() <= if self.ahead { 2 } else { 1 });
    }

    fn decode(&mut self, _: &mut Exec, _: &[Planned], heed: &mut dyn Heed) {
        for (slot, number, samples) in self.under_way.pop_front().expect("a step that was begun") {
            if self.slots[slot].number == number {
                samples.into_iter().for_each(|sample| self.hear(slot, sample, heed));
            }
        }
    }

    fn flush(&mut self, _: &mut Exec, slots: &[usize], heed: &mut dyn Heed) {
        for &slot in slots {
            assert!(self.under_way.is_empty(), "all steps are told before the end");
            (0..self.delay).for_each(|_| self.hear(slot, 0.0, heed));
            heed.concluded(slot, Heard::default(), Vec::new());
        }
    }

    fn save(&mut self, _: &mut Exec, slot: usize, waiting: &[f32]) -> Vec<u8> {
        assert!(waiting.is_empty() && self.under_way.is_empty(), "every row is stepped before a snapshot");
        let s = &self.slots[slot];
        let mut w = Writer::new(MAGIC);
        w.floats(&s.late);
        w.size(s.decoded);
        w.size(usize::from(s.in_word));
        w.into_bytes()
    }

    fn restore(&mut self, _: &mut Exec, slot: usize, _: &Track, saved: &[u8]) -> Result<(), HearingError> {
        let number = self.slots[slot].number;
        let read = || {
            let mut r = Reader::new(saved, MAGIC)?;
            let s = Listening {
                late: r.floats(self.delay)?,
                decoded: r.position()?,
                in_word: r.count(1)? == 1,
                number,
            };
            r.finish().map(|()| s)
        };
        self.slots[slot] = read().map_err(|e| HearingError::Snapshot(e.to_string()))?;
        Ok(())
    }

    fn warm(&mut self, _: &mut Exec, streams: usize, _: &Track) {
        lock(&self.log).warmed.push(streams);
    }
}
