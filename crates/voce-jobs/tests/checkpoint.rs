//! A recording that goes on from a checkpoint is heard as if nobody had interrupted it.
#![allow(missing_docs)]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use voce_engine::listener::{Listener, ListenerOptions};
use voce_jobs::{Checkpoint, HearSettings, Heard, JobError, Unit, Watch, hear, open_audio};

const RATE: u32 = 16_000;
const SECONDS: u32 = 60;

/// Noise that comes and goes like syllables, as a WAV file.
fn recording(path: &Path) {
    let mut state = 0x2545_f491u32;
    let mut low = 0.0f32;
    let samples = RATE * SECONDS;
    let mut bytes = b"RIFF".to_vec();
    bytes.extend((36 + 2 * samples).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    bytes.extend(RATE.to_le_bytes());
    bytes.extend((2 * RATE).to_le_bytes());
    bytes.extend(b"\x02\0\x10\0data");
    bytes.extend((2 * samples).to_le_bytes());
    for i in 0..samples {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        low = 0.9 * low + state as f32 / u32::MAX as f32 - 0.5;
        let t = i as f32 / RATE as f32;
        let loud = (t * 4.0 * std::f32::consts::TAU).sin().max(0.0) * (t * 0.7).sin().abs();
        bytes.extend(((low * loud * 3000.0) as i16).to_le_bytes());
    }
    std::fs::write(path, bytes).unwrap();
}

/// Lets a recording be heard up to a number of checkpoints, from one on.
struct Interrupted {
    from: Option<Checkpoint>,
    most: usize,
    kept: Mutex<Vec<Checkpoint>>,
    looks: AtomicUsize,
}

impl Watch for Interrupted {
    fn stop(&self) -> bool {
        self.kept.lock().unwrap().len() >= self.most
    }
    fn wants_checkpoint(&self) -> bool {
        // Often: a slow machine looks seldom.
        self.looks.fetch_add(1, Ordering::Relaxed) % 2 == 1
    }
    fn keep(&self, checkpoint: &Checkpoint) {
        // As it comes back from wherever it is kept.
        self.kept.lock().unwrap().push(Checkpoint::from_bytes(&checkpoint.to_bytes()).unwrap());
    }
    fn found(&self) -> Option<Checkpoint> {
        self.from.clone()
    }
}

struct Undisturbed;

impl Watch for Undisturbed {}

fn heard(listener: &Listener, unit: &Unit, watch: &dyn Watch) -> Result<Heard, JobError> {
    let settings = HearSettings { endpoint_ms: Some(400), ..Default::default() };
    let audio = open_audio(unit, listener.info().sample_rate as u32)?;
    hear(listener, unit, &settings.request(), audio, watch)
}

#[test]
fn a_recording_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.wav");
    recording(&path);
    let unit = Unit::file(&path);
    let listener = Listener::random("nano-ear", 7, &ListenerOptions::default().with_threads(1)).unwrap();
    let want = heard(&listener, &unit, &Undisturbed).unwrap();
    assert!(want.segments.iter().filter(|s| !s.text.is_empty()).count() > 1, "nothing to lose: {want:?}");
    assert_eq!(want.seconds, f64::from(SECONDS));
    let (mut from, mut interruptions) = (None, 0);
    let got = loop {
        let most = 1 + interruptions % 3;
        let watch = Interrupted { from, most, kept: Mutex::default(), looks: AtomicUsize::new(0) };
        match heard(&listener, &unit, &watch) {
            Ok(heard) => break heard,
            Err(JobError::Stopped) => {
                interruptions += 1;
                from = watch.kept.lock().unwrap().last().cloned();
                assert!(interruptions < 1000, "no way forward");
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert!(interruptions >= 2, "interrupted {interruptions} times");
    assert_eq!(got, want);
}

#[test]
fn a_checkpoint_of_another_model_starts_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("long.wav");
    recording(&path);
    let unit = Unit::file(&path);
    let listener = Listener::random("nano-ear", 7, &ListenerOptions::default().with_threads(1)).unwrap();
    let want = heard(&listener, &unit, &Undisturbed).unwrap();
    let from = Some(Checkpoint { samples: 1000, snapshot: vec![1, 2, 3], ..Default::default() });
    let watch = Interrupted { from, most: usize::MAX, kept: Mutex::default(), looks: AtomicUsize::new(0) };
    assert_eq!(heard(&listener, &unit, &watch).unwrap(), want);
}
