//! One recognition stream: audio is fed as there is room, events come out, neither waits for the other.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::Sleep;
use voce_engine::{EngineError, StageTime};

use super::{AudioIn, EventSource, HearRequest, ListenEvent, Report, Stream};
use crate::core::admission::Permit;
use crate::core::aside;
use crate::core::error::ServerError;
use crate::core::journal::Tap;
use crate::core::limits::LEAST_AUDIO;
use crate::core::metrics::{Kind, Metrics};
use crate::core::otlp::Field;
use crate::core::telemetry::Telemetry;
use crate::core::trace::{StreamEnd, StreamTrace};

/// What a stream did.
#[derive(Debug)]
pub(crate) enum Step {
    /// It said something.
    Event(ListenEvent),
    /// It failed; it has ended.
    Failed(ServerError),
    /// All audio so far has been taken: there is room for more.
    Room,
    /// It was saved, and all events so far were told.
    Saved(Saved),
    /// It has ended.
    Ended,
}

/// What there is of a session's stream to go on with elsewhere.
#[derive(Debug)]
pub(crate) enum Saved {
    Stream(SavedStream),
    /// No stream was open.
    NoStream,
    /// It cannot be saved, and goes on.
    Cannot,
}

/// A stream between two messages, for another machine.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SavedStream {
    /// What it was asked for.
    pub(crate) request: HearRequest,
    /// Samples so far.
    pub(crate) samples: u64,
    /// The engine's state.
    pub(crate) snapshot: Vec<u8>,
}

/// A stream with its slot. One that is dropped before its end holds the slot until the model has let go of it.
pub(crate) struct Hearing {
    request: HearRequest,
    audio: Option<Box<dyn AudioIn>>,
    rate: u32,
    /// There until it is dropped.
    events: Option<Box<dyn EventSource>>,
    pending: Vec<f32>,
    taken: usize,
    /// What is to be done when the pending audio has been taken.
    after: Vec<After>,
    permit: Arc<Permit>,
    metrics: Metrics,
    trace: Option<StreamTrace>,
    tap: Option<Tap>,
    error: Option<&'static str>,
    begun: Option<Instant>,
    samples: u64,
    /// Samples that another machine has heard.
    heard_before: u64,
    /// Another machine goes on with it.
    is_moved: bool,
    words: bool,
    ended: bool,
    watch: Watch,
    saving: Saving,
}

/// How far a stream's state has come that was asked for.
enum Saving {
    No,
    Asked(oneshot::Receiver<Result<Vec<u8>, EngineError>>),
    /// It is here; events before it may still have to be told.
    Here(Option<Vec<u8>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Report(Report),
    Finish,
}

/// Whether a stream brings enough audio to keep its slot. Looked at once in a while, never with a message.
struct Watch {
    patience: Duration,
    alarm: Pin<Box<Sleep>>,
    /// Samples when it was last looked at.
    samples: u64,
}

impl Hearing {
    pub(super) fn new(
        request: &HearRequest,
        (audio, events): Stream,
        permit: Arc<Permit>,
        patience: Duration,
        telemetry: &Telemetry,
        model: &str,
    ) -> Self {
        let (journal, rate) = (telemetry.journal.as_ref(), audio.rate());
        Self {
            request: request.clone(),
            audio: Some(audio),
            rate,
            events: Some(events),
            pending: Vec::new(),
            taken: 0,
            after: Vec::new(),
            permit,
            metrics: telemetry.metrics.clone(),
            trace: telemetry.tracing.stream("hear", model),
            tap: journal.and_then(|j| j.stream(Kind::Hearing, model, rate)),
            error: None,
            begun: None,
            samples: 0,
            heard_before: 0,
            is_moved: false,
            words: false,
            ended: false,
            watch: Watch { patience, alarm: Box::pin(tokio::time::sleep(patience)), samples: 0 },
            saving: Saving::No,
        }
    }

    /// A stream that has heard `samples` elsewhere.
    pub(super) fn after(mut self, samples: u64) -> Self {
        self.samples = samples;
        self.watch.samples = samples;
        self.heard_before = samples;
        self.begun = Instant::now().checked_sub(Duration::from_secs_f64(self.seconds()));
        self.words = true;
        self
    }

    /// Asks for the stream's state after the audio so far, of which [none may wait](Self::has_room); it comes as a step.
    pub(super) fn save(&mut self) {
        let (reply, answer) = oneshot::channel();
        let asked = self.audio.as_mut().is_some_and(|audio| {
            audio.snapshot(Box::new(move |snapshot| {
                let _ = reply.send(snapshot);
            }))
        });
        self.saving = if asked { Saving::Asked(answer) } else { Saving::Here(None) };
    }

    /// The stream goes on elsewhere: it was not broken off.
    pub(super) fn moved(mut self) {
        self.ended = true;
        self.is_moved = true;
    }

    /// Adds audio. Callers add more only when there [`is room`](Self::has_room), so that what waits is bounded.
    pub(crate) fn push(&mut self, samples: &[f32]) {
        if self.audio.is_none() || samples.is_empty() {
            return;
        }
        self.begun.get_or_insert_with(Instant::now);
        self.samples += samples.len() as u64;
        if let Some(tap) = &mut self.tap {
            tap.audio(samples);
        }
        if self.pending.is_empty() && self.after.is_empty() {
            // The usual case: the stream takes a frame at once and nothing is copied.
            let audio = self.audio.as_mut();
            let taken = audio.map_or(Ok(0), |a| a.try_push(samples)).unwrap_or(samples.len());
            self.pending.extend_from_slice(&samples[taken.min(samples.len())..]);
        } else {
            self.pending.extend_from_slice(samples);
        }
    }

    /// Whether all audio so far has been taken.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.is_empty() && self.after.is_empty()
    }

    /// Whether its audio has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.audio.is_none()
    }

    /// Samples per second that it takes.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Seconds of audio so far.
    pub(crate) fn seconds(&self) -> f64 {
        self.samples as f64 / f64::from(self.rate)
    }

    /// Tells what was said in the audio so far; the stream goes on as if nobody had asked.
    pub(crate) fn report(&mut self, report: Report) {
        self.later(After::Report(report));
    }

    /// Ends the stream after the audio so far.
    pub(crate) fn finish(&mut self) {
        self.later(After::Finish);
    }

    fn later(&mut self, what: After) {
        self.after.push(what);
        self.settle();
    }

    /// Does what was asked for once no audio waits.
    fn settle(&mut self) {
        if !self.pending.is_empty() {
            return;
        }
        for what in self.after.drain(..) {
            match (what, &mut self.audio) {
                (After::Report(report), Some(audio)) => audio.report(report),
                (After::Finish, audio) => {
                    if let Some(audio) = audio.take() {
                        audio.finish();
                    }
                }
                (After::Report(_), None) => {}
            }
        }
    }

    /// Waits for the next event or for room. May be dropped and called again without losing anything.
    pub(crate) async fn step(&mut self) -> Step {
        std::future::poll_fn(|cx| self.poll_step(cx)).await
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Step> {
        if !self.pending.is_empty() && self.feed(cx) {
            self.settle();
            return Poll::Ready(Step::Room);
        }
        // Looked at before the events: those that came before it are there by then.
        if let Saving::Asked(answer) = &mut self.saving
            && let Poll::Ready(answer) = Pin::new(answer).poll(cx)
        {
            self.saving = Saving::Here(answer.ok().and_then(Result::ok));
        }
        let event = match &mut self.events {
            Some(events) => events.poll_event(cx),
            None => Poll::Ready(None),
        };
        match event {
            Poll::Pending if matches!(self.saving, Saving::Here(_)) => {
                let Saving::Here(snapshot) = std::mem::replace(&mut self.saving, Saving::No) else {
                    return Poll::Pending;
                };
                let (request, samples) = (self.request.clone(), self.samples);
                let stream = |snapshot| Saved::Stream(SavedStream { request, samples, snapshot });
                Poll::Ready(Step::Saved(snapshot.map_or(Saved::Cannot, stream)))
            }
            Poll::Pending if self.is_idle(cx) => {
                self.metrics.cancel("idle");
                Poll::Ready(self.fail(ServerError::Idle))
            }
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Ready(Step::Ended)
            }
            Poll::Ready(Some(Err(error))) => {
                self.ended = true;
                Poll::Ready(self.fail(error))
            }
            Poll::Ready(Some(Ok(event))) => {
                self.observe(&event);
                Poll::Ready(Step::Event(event))
            }
        }
    }

    fn fail(&mut self, error: ServerError) -> Step {
        self.metrics.error(error.code());
        self.error = Some(error.code());
        Step::Failed(error)
    }

    /// Whether the client has had its time and has brought hardly any audio, although there was room for it.
    fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        while self.watch.alarm.as_mut().poll(cx).is_ready() {
            let brought = self.samples - std::mem::replace(&mut self.watch.samples, self.samples);
            let least = LEAST_AUDIO.as_secs_f64() * f64::from(self.rate);
            if self.audio.is_some() && self.has_room() && (brought as f64) < least {
                return true;
            }
            self.watch.alarm.as_mut().reset(tokio::time::Instant::now() + self.watch.patience);
        }
        false
    }

    /// Ends the stream, and waits until the model has let go of it.
    pub(crate) async fn close(mut self) {
        self.audio = None;
        self.pending.clear();
        if let Some(events) = self.events.as_mut().filter(|e| !self.ended && e.ends_without_audio()) {
            drain(events).await;
        }
        self.ended = true;
    }

    /// Feeds what waits; true once nothing does.
    fn feed(&mut self, cx: &mut Context<'_>) -> bool {
        while self.taken < self.pending.len() {
            let Some(audio) = &mut self.audio else { break };
            match audio.poll_ready(cx) {
                Poll::Pending => return false,
                Poll::Ready(Err(_)) => break,
                Poll::Ready(Ok(())) => match audio.try_push(&self.pending[self.taken..]) {
                    Ok(n) => self.taken += n,
                    Err(_) => break,
                },
            }
        }
        // A stream that hung up says why by its events; its audio is of no use any more.
        self.pending.clear();
        self.taken = 0;
        true
    }

    /// Keeps an utterance, where that is asked for.
    fn keep(&mut self, event: &ListenEvent) {
        if let (Some(tap), ListenEvent::Final(s)) = (&mut self.tap, event) {
            tap.line(&json!({
                "text": s.text, "start": s.start, "end": s.end, "tokens": s.tokens, "frames": s.frames,
            }));
        }
    }

    fn observe(&mut self, event: &ListenEvent) {
        self.keep(event);
        let Some(begun) = self.begun else { return };
        let end = match event {
            ListenEvent::Word(word) => word.end,
            ListenEvent::Partial(s) | ListenEvent::Final(s) if !s.words.is_empty() => s.end,
            _ => return,
        };
        let wall = begun.elapsed().as_secs_f64();
        if !std::mem::replace(&mut self.words, true) {
            self.metrics.first_word.observe(wall);
        }
        self.metrics.lag_seconds.observe((wall - end).max(0.0));
    }
}

/// Reads a stream to its end, which comes by itself.
async fn drain(events: &mut Box<dyn EventSource>) {
    while std::future::poll_fn(|cx| events.poll_event(cx)).await.is_some_and(|event| event.is_ok()) {}
}

impl Drop for Hearing {
    fn drop(&mut self) {
        self.metrics.audio("in", (self.samples - self.heard_before) as f64 / f64::from(self.rate));
        if !self.ended && self.error.is_none() {
            self.metrics.cancel("client_gone");
        }
        let error = self.error.or((!self.ended).then_some("client_gone"));
        if let Some(tap) = &mut self.tap {
            tap.summary(json!({"seconds": self.samples as f64 / f64::from(self.rate), "error": error}));
        }
        let Some(mut events) = self.events.take() else { return };
        if let Some(trace) = self.trace.take() {
            let mut stages = events.stages();
            if !stages.iter().any(|(name, _)| *name == "queue") {
                stages.push(("queue", StageTime { count: 1, ..StageTime::default() }));
            }
            let fields = vec![("voce.audio_seconds", Field::Float(self.seconds()))];
            trace.end(StreamEnd { waited: self.permit.take_waited(), stages: &stages, fields, error });
        }
        // The slot is free for others when the model's own is: it lets go of a stream between two steps.
        self.audio = None;
        if (!self.ended || self.is_moved)
            && events.ends_without_audio()
            && tokio::runtime::Handle::try_current().is_ok()
        {
            let permit = self.permit.clone();
            aside::spawn(async move {
                drain(&mut events).await;
                drop((events, permit));
            });
        }
    }
}
