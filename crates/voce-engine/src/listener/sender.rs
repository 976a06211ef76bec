//! The sender's side of a stream: samples in, rows of the model's front end to the model.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use voce_models::hearing::{Front, HearingInfo};

use super::gain::Gain;
use super::inlet::{Ahead, HungUp, Inlet, Mark, Report, Taken};
use super::quiet::Meter;
use crate::EngineError;

/// Samples beyond this are no audio in -1..1, not even one with the wrong scale.
const LOUDEST: f32 = 1e6;
/// Samples that become rows at once: how long the model waits for the rest.
const PIECE: usize = 16_000;
/// Milliseconds of silence that are put behind a place where all that can be heard is told.
const BEHIND_MS: usize = 640;

/// Takes a stream's audio: mono, -1..1, at the [rate](super::ListenerInfo::sample_rate) of the model. To be finished; a
/// sender that is dropped before breaks the stream off.
pub struct AudioSender {
    inlet: Arc<Inlet>,
    intake: Intake,
    /// Silence that is put behind a place of which all is told, in samples.
    silence: usize,
    /// The model takes whole utterances.
    offline: bool,
    values: Vec<f32>,
    levels: Vec<f32>,
    raised: Vec<f32>,
    sample_rate: usize,
    finished: bool,
    front_time: Duration,
}

/// What a sender knows of the samples so far.
pub(super) struct Intake {
    pub front: Box<dyn Front>,
    pub meter: Meter,
    pub gain: Option<Gain>,
    pub samples: u64,
}

impl AudioSender {
    pub(super) fn new(inlet: Arc<Inlet>, intake: Intake, about: &HearingInfo) -> Self {
        // Tokens come after their audio: some models say themselves how much, and put that behind it.
        let silence = if about.delay > 0 { 0 } else { about.sample_rate * BEHIND_MS / 1000 };
        Self {
            inlet,
            intake,
            silence,
            offline: about.offline(),
            values: Vec::new(),
            levels: Vec::new(),
            raised: Vec::new(),
            sample_rate: about.sample_rate,
            finished: false,
            front_time: Duration::ZERO,
        }
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
            self.levels.clear();
            let heard = match &mut self.intake.gain {
                Some(gain) => {
                    self.raised.clear();
                    gain.push(piece, &mut self.raised);
                    &self.raised
                }
                None => piece,
            };
            let rows = self.intake.front.push(heard, &mut self.values);
            self.intake.meter.push(piece, &mut self.levels);
            self.front_time += begun.elapsed();
            self.intake.samples += piece.len() as u64;
            self.inlet.push(&self.values, rows, &self.levels, piece.len());
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
    /// empty, and what follows is heard as at the start of a stream. In the middle of speech that costs words:
    /// [`AudioSender::report`] does not.
    pub fn end_utterance(&mut self) {
        self.flush();
        self.inlet.mark(Mark::End { samples: self.intake.samples });
    }

    /// Tells what was said up to this point of the audio, as a forced end and a final, even if that is empty; the stream goes
    /// on as if nobody had asked, and tells no word twice. Models that take whole utterances end this one.
    pub fn report(&mut self, report: Report) {
        if self.offline {
            return self.end_utterance();
        }
        let samples = self.intake.samples;
        let mut ahead = Ahead { level: self.intake.meter.rest(), ..Ahead::default() };
        if report != Report::Passed {
            ahead.rows = self.intake.front.rest(self.silence, &mut ahead.values);
        }
        self.inlet.mark(Mark::Report { report, samples, ahead });
    }

    /// Ends the stream: what is in flight is heard, then the events end.
    pub fn finish(mut self) {
        self.flush();
        self.finished = true;
        self.inlet.mark(Mark::Finish);
    }

    fn flush(&mut self) {
        self.values.clear();
        let rows = self.intake.front.finish(&mut self.values);
        let level = self.intake.meter.finish();
        self.inlet.push(&self.values, rows, level.as_slice(), 0);
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
        let Intake { front, meter, gain, samples } = &self.intake;
        let taken =
            Taken { front: front.save(), meter: meter.clone(), gain: gain.clone(), samples: *samples };
        self.inlet.mark(Mark::Snapshot { taken, reply: Box::new(reply) });
    }

    /// Seconds of audio so far.
    pub fn seconds(&self) -> f64 {
        self.intake.samples as f64 / self.sample_rate as f64
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
