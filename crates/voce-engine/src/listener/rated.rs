//! Live audio at the sender's own rate, for callers that must not block for ever.

use std::task::{Context, Poll, ready};

use voce_audio::Resampler;
use voce_audio::decode::{MAX_SAMPLE_RATE, MIN_SAMPLE_RATE};

use super::{AudioSender, HungUp, Report};
use crate::EngineError;

/// An [`AudioSender`] for audio of any sample rate: samples are [given](Self::give) to it, and [passed
/// on](Self::poll_flush) as there is room.
pub struct RatedSender {
    sender: AudioSender,
    resampler: Resampler,
    waiting: Vec<f32>,
    /// Of those, how many were passed on.
    passed: usize,
}

/// Refuses a sample rate that no audio has.
pub(super) fn check_rate(rate: u32) -> Result<(), EngineError> {
    match rate {
        MIN_SAMPLE_RATE..=MAX_SAMPLE_RATE => Ok(()),
        _ => Err(EngineError::BadRequest {
            what: "sample rate",
            value: rate.to_string(),
            rule: "use 4000 to 192000",
        }),
    }
}

impl RatedSender {
    /// A sender of audio that has `from` samples a second, for a model that takes `to`.
    pub fn new(sender: AudioSender, from: u32, to: u32) -> Result<Self, EngineError> {
        check_rate(from)?;
        Ok(Self { sender, resampler: Resampler::new(from, to), waiting: Vec::new(), passed: 0 })
    }

    /// Takes samples, mono, -1..1, which wait until they are passed on.
    pub fn give(&mut self, samples: &[f32]) {
        self.resampler.process(samples, &mut self.waiting);
    }

    /// Passes on what waits; ready when nothing does.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        while self.passed < self.waiting.len() {
            ready!(self.sender.poll_ready(cx))?;
            self.passed += self.sender.try_push(&self.waiting[self.passed..])?;
        }
        self.waiting.clear();
        self.passed = 0;
        Poll::Ready(Ok(()))
    }

    /// Appends what the resampler still holds to what waits: before an end.
    pub fn drain(&mut self) {
        self.resampler.finish(&mut self.waiting);
    }

    /// Ends the utterance at this point of what was passed on; see [`AudioSender::end_utterance`].
    pub fn end_utterance(&mut self) {
        self.sender.end_utterance();
    }

    /// Tells what was said up to this point of what was passed on; see [`AudioSender::report`].
    pub fn report(&mut self, report: Report) {
        self.sender.report(report);
    }

    /// Ends the stream: what was passed on is heard, then the events end.
    pub fn finish(self) {
        self.sender.finish();
    }

    /// Seconds of audio passed on so far.
    pub fn seconds(&self) -> f64 {
        self.sender.seconds()
    }
}
