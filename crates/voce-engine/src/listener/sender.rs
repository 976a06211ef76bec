//! The sender's side of a stream: samples in, rows of the model's front end to the model.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use voce_models::hearing::Front;

use super::inlet::{HungUp, Inlet, Mark};
use crate::EngineError;

/// Samples beyond this are no audio in -1..1, not even one with the wrong scale.
const LOUDEST: f32 = 1e6;
/// Samples that become rows at once: how long the model waits for the rest.
const PIECE: usize = 16_000;

/// Takes a stream's audio: mono, -1..1, at the [rate](super::ListenerInfo::sample_rate) of the model. To be finished; a
/// sender that is dropped before breaks the stream off.
pub struct AudioSender {
    inlet: Arc<Inlet>,
    front: Box<dyn Front>,
    values: Vec<f32>,
    samples: u64,
    sample_rate: usize,
    finished: bool,
    front_time: Duration,
}

impl AudioSender {
    pub(super) fn new(inlet: Arc<Inlet>, front: Box<dyn Front>, samples: u64, sample_rate: usize) -> Self {
        let (values, front_time) = (Vec::new(), Duration::ZERO);
        Self { inlet, front, values, samples, sample_rate, finished: false, front_time }
    }

    /// Takes all samples; waits while the queue (ten seconds) is full.
    pub fn push(&mut self, mut samples: &[f32]) -> Result<(), HungUp> {
        while !samples.is_empty() {
            self.inlet.wait_for_room()?;
            let taken = self.try_push(samples)?;
            samples = &samples[taken..];
        }
        Ok(())
    }

    /// Samples, to the nearest row of the front end, that the model has yet to take.
    pub fn waiting(&self) -> usize {
        self.inlet.waiting()
    }

    /// Takes as many samples as there is room for, and says how many.
    pub fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp> {
        let mut taken = 0;
        if samples.len() > PIECE {
            self.inlet.expect(samples.len());
        }
        while taken < samples.len() {
            let room = self.inlet.room()?.saturating_mul(self.inlet.hop()).min(PIECE);
            let piece = &samples[taken..(taken + room).min(samples.len())];
            if piece.is_empty() {
                break;
            }
            self.check(piece)?;
            let begun = Instant::now();
            self.values.clear();
            let rows = self.front.push(piece, &mut self.values);
            self.front_time += begun.elapsed();
            self.samples += piece.len() as u64;
            self.inlet.push(&self.values, rows, piece.len());
            taken += piece.len();
        }
        Ok(taken)
    }

    /// A sample that is no number ends this stream, and no other.
    fn check(&self, samples: &[f32]) -> Result<(), HungUp> {
        // Without a way out in the middle, many are looked at in one instruction.
        let good = |s: &f32| s.abs() <= LOUDEST;
        if samples.iter().fold(true, |all, s| all & good(s)) {
            return Ok(());
        }
        let sample = samples.iter().find(|s| !good(s)).unwrap_or(&f32::NAN);
        self.inlet.refuse(EngineError::BadRequest {
            what: "audio",
            value: sample.to_string(),
            rule: "samples are numbers from -1 to 1",
        });
        Err(HungUp)
    }

    /// Ready once there is room for samples.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        self.inlet.poll_room(cx)
    }

    /// Ends the utterance at this point of the audio: its final comes without waiting for more, even if it is
    /// empty, and what follows is heard as if it were the begin of a stream.
    pub fn end_utterance(&mut self) {
        self.flush();
        self.inlet.mark(Mark::End { samples: self.samples });
    }

    /// Ends the stream: what is in flight is heard, then the events end.
    pub fn finish(mut self) {
        self.flush();
        self.finished = true;
        self.inlet.mark(Mark::Finish);
    }

    fn flush(&mut self) {
        self.values.clear();
        let rows = self.front.finish(&mut self.values);
        self.inlet.push(&self.values, rows, 0);
    }

    /// The stream's state once all audio so far was heard, for [`super::Listener::resume`]. The stream goes on.
    pub fn snapshot(&mut self) -> Result<Vec<u8>, EngineError> {
        let (reply, answer) = sync_channel(1);
        self.snapshot_to(move |snapshot| {
            // Nobody may wait for it any more.
            let _ = reply.try_send(snapshot);
        });
        answer.recv().unwrap_or_else(|_| Err(EngineError::Stopped("the stream has ended".into())))
    }

    /// As [`AudioSender::snapshot`] for a task that must not block: `reply` is called on the model's thread, after
    /// everything heard so far was told, and dropped where the stream ends before.
    pub fn snapshot_to(&mut self, reply: impl FnOnce(Result<Vec<u8>, EngineError>) + Send + 'static) {
        let reply = Box::new(reply);
        self.inlet.mark(Mark::Snapshot { front: self.front.save(), samples: self.samples, reply });
    }

    /// Seconds of audio so far.
    pub fn seconds(&self) -> f64 {
        self.samples as f64 / self.sample_rate as f64
    }

    /// Time spent in the front end.
    pub fn front_time(&self) -> Duration {
        self.front_time
    }
}

impl Drop for AudioSender {
    fn drop(&mut self) {
        if !self.finished {
            self.inlet.abandon();
        }
    }
}
