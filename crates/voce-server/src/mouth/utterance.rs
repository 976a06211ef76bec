//! Speech on its way to a client, with its slot and what is told of it.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::Sleep;
use voce_engine::speaker::{SpeakStats, SpokenWord};
use voce_engine::{EngineError, SpeechStream, StageTime};

use super::Mouth;
use crate::core::admission::Permit;
use crate::core::error::ServerError;
use crate::core::journal::Tap;
use crate::core::metrics::{Kind, ModelLabel};
use crate::core::models::Seat;
use crate::core::otlp::Field;
use crate::core::reader::Reader;
use crate::core::trace::{StreamEnd, StreamTrace};

/// What is told of a request beside its audio.
pub(super) struct Told {
    trace: Option<StreamTrace>,
    tap: Option<Tap>,
    error: Option<&'static str>,
}

impl Told {
    pub(super) fn new(mouth: &Mouth) -> Self {
        Self { trace: mouth.telemetry.tracing.stream("speak", mouth.id()), tap: None, error: None }
    }

    /// Begins to keep the request, now that the model's rate is known.
    pub(super) fn keep(&mut self, mouth: &Mouth, rate: u32, line: Option<serde_json::Value>) {
        let (Some(journal), Some(line)) = (&mouth.telemetry.journal, line) else { return };
        self.tap = journal.stream(Kind::Speech, mouth.id(), rate);
        if let Some(tap) = &mut self.tap {
            tap.line(&line);
        }
    }

    fn end(&mut self, stats: &SpeakStats, seconds: f64, waited: Duration, error: Option<&'static str>) {
        if let Some(tap) = &mut self.tap {
            tap.summary(json!({
                "tokens": stats.tokens, "frames": stats.frames, "seconds": seconds, "error": error,
            }));
        }
        let Some(trace) = self.trace.take() else { return };
        let mut queue = StageTime::default();
        queue.add(stats.queue, stats.queue, stats.queue);
        let stages = [
            ("queue", queue),
            ("prefill", stats.prefill_span),
            ("synth", stats.synth_span),
            ("codec", stats.codec_span),
        ];
        let mut fields = vec![
            ("voce.audio_seconds", Field::Float(seconds)),
            ("voce.frames", Field::Int(stats.frames as i64)),
            ("voce.tokens", Field::Int(stats.tokens as i64)),
        ];
        if let Some(first) = stats.first_audio {
            fields.push(("voce.first_audio_seconds", Field::Float(first.as_secs_f64())));
        }
        trace.end(StreamEnd { waited, stages: &stages, fields, error });
    }
}

/// What a model's speech is like.
#[derive(Clone, Copy)]
pub(super) struct Sound {
    /// Samples per second.
    pub(super) rate: u32,
    /// Whether it tells when words are spoken.
    pub(super) tells_words: bool,
}

/// Speech on its way to a client. Dropping it frees its slot within a frame.
pub(crate) struct Utterance {
    stream: SpeechStream,
    rate: u32,
    tells_words: bool,
    mouth: Arc<Mouth>,
    seat: Seat,
    permit: Permit,
    begun: Instant,
    told: Told,
    samples: usize,
    /// Words of the last samples.
    words: Vec<SpokenWord>,
    /// When a listener who began at the first chunk will have heard all of it.
    playing: Option<Instant>,
    waited: bool,
    ended: bool,
    reader: Reader,
    idle: Idle,
}

/// Whether nothing is said because no text comes. Looked at once in a while.
struct Idle {
    patience: Duration,
    alarm: Pin<Box<Sleep>>,
    /// Samples when it was last looked at.
    samples: usize,
}

impl Utterance {
    pub(super) fn new(
        mouth: &Arc<Mouth>,
        stream: SpeechStream,
        sound: Sound,
        seat: Seat,
        permit: Permit,
        begun: Instant,
        told: Told,
    ) -> Self {
        let limits = &mouth.budget.limits;
        let alarm = Box::pin(tokio::time::sleep(limits.slot_idle));
        Self {
            reader: Reader::new(limits.reader_grace),
            idle: Idle { patience: limits.slot_idle, alarm, samples: 0 },
            stream,
            rate: sound.rate,
            tells_words: sound.tells_words,
            mouth: mouth.clone(),
            seat,
            permit,
            begun,
            told,
            samples: 0,
            words: Vec::new(),
            playing: None,
            waited: false,
            ended: false,
        }
    }

    /// Samples per second.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Words that the samples of the last [`Utterance::next`] begin or complete.
    pub(crate) fn take_words(&mut self) -> Vec<SpokenWord> {
        std::mem::take(&mut self.words)
    }

    /// Whether the model tells when words are spoken.
    pub(crate) fn tells_words(&self) -> bool {
        self.tells_words
    }

    pub(crate) fn stats(&self) -> SpeakStats {
        self.stream.stats()
    }

    /// The next samples; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<f32>, ServerError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Utterance::next`], for streams.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, ServerError>>> {
        if self.reader.asks() && !self.ended {
            self.mouth.metrics.cancel("slow_reader");
            return Poll::Ready(Some(Err(self.fail(ServerError::SlowReader))));
        }
        match self.stream.poll_next(cx) {
            Poll::Pending if !self.ended && self.seat.is_gone(cx) => {
                Poll::Ready(Some(Err(self.fail(EngineError::Stopped("a step of it hangs".into()).into()))))
            }
            Poll::Pending if !self.ended && self.is_idle(cx) => {
                self.mouth.metrics.cancel("idle");
                Poll::Ready(Some(Err(self.fail(ServerError::Idle))))
            }
            Poll::Pending => {
                self.waited = true;
                Poll::Pending
            }
            Poll::Ready(Some(Ok(chunk))) => {
                self.count(chunk.samples.len());
                if let Some(tap) = &mut self.told.tap {
                    tap.audio(&chunk.samples);
                }
                self.words = chunk.words;
                Poll::Ready(Some(Ok(chunk.samples)))
            }
            Poll::Ready(Some(Err(error))) => {
                if matches!(error, EngineError::Stopped(_)) {
                    self.mouth.replicas.bury(self.seat.replica());
                }
                Poll::Ready(Some(Err(self.fail(error.into()))))
            }
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Ready(None)
            }
        }
    }

    /// Whether there was nothing to be said for as long as a slot is held for that.
    fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        while self.idle.alarm.as_mut().poll(cx).is_ready() {
            if std::mem::replace(&mut self.idle.samples, self.samples) == self.samples {
                return true;
            }
            self.idle.alarm.as_mut().reset(tokio::time::Instant::now() + self.idle.patience);
        }
        false
    }

    /// Notes why the stream ends before its end.
    fn fail(&mut self, error: ServerError) -> ServerError {
        self.ended = true;
        self.mouth.metrics.error(error.code());
        self.told.error = Some(error.code());
        error
    }

    fn count(&mut self, samples: usize) {
        let now = Instant::now();
        let metrics = &self.mouth.metrics;
        if self.samples == 0 {
            metrics.first_audio.observe((now - self.begun).as_secs_f64());
        }
        let length = Duration::from_secs_f64(samples as f64 / f64::from(self.rate));
        let until = match self.playing {
            // Only audio that had to be waited for can be late: a slow reader is not the model's fault.
            Some(until) if self.waited && now > until => {
                metrics.underruns.inc();
                now
            }
            Some(until) => until.max(now),
            None => now,
        };
        self.playing = Some(until + length);
        self.reader.takes(length);
        self.waited = false;
        self.samples += samples;
    }
}

impl Drop for Utterance {
    fn drop(&mut self) {
        let metrics = &self.mouth.metrics;
        metrics.audio("out", self.samples as f64 / f64::from(self.rate));
        if !self.ended {
            metrics.cancel("client_gone");
        }
        let stats = self.stream.stats();
        metrics.passages_again.inc_by(stats.respoken as u64);
        metrics.passages_unended.inc_by(stats.unended as u64);
        if stats.unended > 0 {
            tracing::warn!(
                model = self.mouth.id(),
                passages = stats.unended,
                "speech did not end by itself: words may be missing"
            );
        }
        if stats.frames > 0 {
            let busy = stats.prefill + stats.stages.iter().map(|(_, time)| *time).sum::<Duration>();
            let label = ModelLabel { model: self.mouth.id().into() };
            metrics.step_seconds.get_or_create(&label).observe(busy.as_secs_f64() / stats.frames as f64);
        }
        let error = self.told.error.or((!self.ended).then_some("client_gone"));
        self.told.end(&stats, self.samples as f64 / f64::from(self.rate), self.permit.take_waited(), error);
        self.mouth.replicas.left();
    }
}
