//! Listeners over the small recognisers of `voce-models`, and what the published packages heard with them.

use std::path::{Path, PathBuf};

use serde_json::Value;
use voce_engine::EngineError;
use voce_engine::listener::{
    AudioSender, ListenEvent, ListenRequest, Listener, ListenerOptions, Segment, TranscriptStream, Word,
};
use voce_engine::store::{Settings, Store};
use voce_nn::Precision;

/// The folder of the small recognisers.
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/fastconformer")
}

pub(crate) fn store() -> Store {
    Store::new(Settings::from_vars(|name| (name == "HOME").then(|| "/nowhere".into())).unwrap())
}

/// f32 on one thread.
pub(crate) fn exact(slots: usize) -> ListenerOptions {
    ListenerOptions::default().with_precision(Some(Precision::F32)).with_threads(1).with_slots(slots)
}

pub(crate) fn open(name: &str, slots: usize) -> Listener {
    let path = fixtures().join(name);
    Listener::open(&store(), path.to_str().unwrap(), &exact(slots)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// What the published package said.
pub(crate) fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixtures().join(name).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub(crate) fn numbers(value: &Value) -> Vec<usize> {
    value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

/// Samples of a 16-bit clip.
pub(crate) fn clip(name: &str) -> Vec<f32> {
    let bytes = std::fs::read(fixtures().join("audio").join(name)).unwrap();
    let data = bytes.windows(4).position(|w| w == b"data").unwrap() + 8;
    bytes[data..].as_chunks::<2>().0.iter().map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0).collect()
}

/// Everything a stream said.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Heard {
    pub(crate) segments: Vec<Segment>,
    pub(crate) words: Vec<Word>,
    pub(crate) ends: Vec<(f64, &'static str)>,
    pub(crate) partials: usize,
    pub(crate) progress: Vec<(f64, Option<f64>)>,
}

impl Heard {
    pub(crate) fn tokens(&self) -> Vec<usize> {
        self.segments.iter().flat_map(|s| &s.tokens).map(|&t| t as usize).collect()
    }

    pub(crate) fn frames(&self) -> Vec<usize> {
        self.segments.iter().flat_map(|s| &s.frames).copied().collect()
    }

    pub(crate) fn add(&mut self, event: ListenEvent) {
        match event {
            ListenEvent::Final(s) => self.segments.push(s),
            ListenEvent::Word(w) => self.words.push(w),
            ListenEvent::Endpoint { at, reason } => self.ends.push((at, reason.name())),
            ListenEvent::Partial(_) => self.partials += 1,
            ListenEvent::Progress { at, spoken } => self.progress.push((at, spoken)),
            other => panic!("nobody asked for {other:?}"),
        }
    }
}

/// The rest of a stream.
#[track_caller]
pub(crate) fn rest(stream: &mut TranscriptStream) -> Heard {
    until_end(stream).unwrap()
}

pub(crate) fn until_end(stream: &mut TranscriptStream) -> Result<Heard, EngineError> {
    let mut heard = Heard::default();
    for event in stream.by_ref() {
        heard.add(event?);
    }
    Ok(heard)
}

/// Listens as soon as a slot is free.
pub(crate) fn when_free(listener: &Listener, request: &ListenRequest) -> (AudioSender, TranscriptStream) {
    loop {
        match listener.listen(request) {
            Ok(stream) => return stream,
            Err(EngineError::Busy(_)) => std::thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    }
}

/// Goes on with a saved stream as soon as a slot is free.
pub(crate) fn resume_when_free(
    listener: &Listener,
    saved: &[u8],
    request: &ListenRequest,
) -> (AudioSender, TranscriptStream) {
    loop {
        match listener.resume(saved, request) {
            Ok(stream) => return stream,
            Err(EngineError::Busy(_)) => std::thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    }
}

/// Hears a whole clip.
#[track_caller]
pub(crate) fn hear(listener: &Listener, request: &ListenRequest, audio: &[f32]) -> Heard {
    let (sender, mut stream) = when_free(listener, request);
    feed(sender, audio, &[usize::MAX]);
    rest(&mut stream)
}

/// Pushes audio in pieces of these sizes, over and over, on a thread of its own.
pub(crate) fn feed(mut sender: AudioSender, audio: &[f32], sizes: &[usize]) {
    let (audio, sizes) = (audio.to_vec(), sizes.to_vec());
    std::thread::spawn(move || {
        let mut rest = &audio[..];
        for size in sizes.iter().cycle() {
            let (piece, later) = rest.split_at((*size).min(rest.len()));
            if sender.push(piece).is_err() {
                return;
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        sender.finish();
    });
}

/// A request with this chunk.
pub(crate) fn chunk(ms: u32) -> ListenRequest {
    ListenRequest::default().with_chunk_ms(Some(ms))
}

/// Random numbers that are the same in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % n
    }
}
