//! One conversation: what the user says is fed as there is room, what the model says comes out, and neither waits for the
//! other.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::Sleep;
use voce_engine::talker::{TalkEvent, TalkSender, TalkStream};
use voce_engine::{EngineError, StageTime};

use super::Partner;
use crate::core::admission::Permit;
use crate::core::aside;
use crate::core::error::ServerError;
use crate::core::journal::Tap;
use crate::core::limits::LEAST_AUDIO;
use crate::core::metrics::{Kind, ModelLabel};
use crate::core::models::{Seat, Served as _};
use crate::core::otlp::Field;
use crate::core::reader::Reader;
use crate::core::trace::{StreamEnd, StreamTrace};

/// What a conversation did.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The model said something.
    Event(TalkEvent),
    /// It failed; it has ended.
    Failed(ServerError),
    /// All audio so far has been taken: there is room for more.
    Room,
    /// It has ended.
    Ended,
}

/// A model's answer to a request for a conversation.
pub(super) struct Begun {
    pub(super) audio: TalkSender,
    pub(super) events: TalkStream,
    /// Samples per second, both ways.
    pub(super) rate: u32,
}

/// A conversation with its slot. One that is dropped before its end holds the slot until the model has let go of it.
pub(crate) struct Conversation {
    /// There until it is dropped.
    audio: Option<TalkSender>,
    events: Option<TalkStream>,
    rate: u32,
    pending: Vec<f32>,
    partner: Arc<Partner>,
    seat: Option<Seat>,
    permit: Option<Permit>,
    trace: Option<StreamTrace>,
    /// What the user says, and what the model says, where streams are kept.
    taps: (Option<Tap>, Option<Tap>),
    error: Option<&'static str>,
    begun: Instant,
    heard: u64,
    said: u64,
    ended: bool,
    reader: Reader,
    watch: Watch,
}

/// Whether the user brings enough audio to keep the slot. Looked at once in a while, never with a message.
struct Watch {
    patience: Duration,
    alarm: Pin<Box<Sleep>>,
    /// Samples when it was last looked at.
    heard: u64,
}

impl Conversation {
    pub(super) fn new(partner: &Arc<Partner>, begun: Begun, seat: Seat, permit: Permit) -> Self {
        let Begun { audio, events, rate } = begun;
        let (limits, telemetry) = (&partner.budget.limits, &partner.telemetry);
        let tap = || telemetry.journal.as_ref().and_then(|j| j.stream(Kind::Dialogue, partner.id(), rate));
        let patience = limits.slot_idle;
        Self {
            audio: Some(audio),
            events: Some(events),
            rate,
            pending: Vec::new(),
            partner: partner.clone(),
            seat: Some(seat),
            permit: Some(permit),
            trace: telemetry.tracing.stream("talk", partner.id()),
            taps: (tap(), tap()),
            error: None,
            begun: Instant::now(),
            heard: 0,
            said: 0,
            ended: false,
            reader: Reader::new(limits.reader_grace),
            watch: Watch { patience, alarm: Box::pin(tokio::time::sleep(patience)), heard: 0 },
        }
    }

    /// Samples per second, both ways.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// Adds what the user says. Callers add more only when there [`is room`](Self::has_room), so that what waits is
    /// bounded.
    pub(crate) fn push(&mut self, samples: &[f32]) {
        self.heard += samples.len() as u64;
        if let Some(tap) = &mut self.taps.0 {
            tap.audio(samples);
        }
        let Some(audio) = self.audio.as_mut().filter(|_| self.pending.is_empty()) else {
            return self.pending.extend_from_slice(samples);
        };
        // Why a conversation has ended is told by its events.
        let taken = audio.try_push(samples).unwrap_or(samples.len());
        self.pending.extend_from_slice(&samples[taken.min(samples.len())..]);
    }

    /// Whether all audio so far has been taken.
    pub(crate) fn has_room(&self) -> bool {
        self.pending.is_empty()
    }

    /// Waits for what the model says next or for room. May be dropped and called again without losing anything.
    pub(crate) async fn step(&mut self) -> Turn {
        std::future::poll_fn(|cx| self.poll_step(cx)).await
    }

    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        if self.reader.asks() && !self.ended {
            self.partner.telemetry.metrics.cancel("slow_reader");
            return Poll::Ready(self.fail(ServerError::SlowReader));
        }
        if !self.pending.is_empty() && self.feed(cx) {
            return Poll::Ready(Turn::Room);
        }
        let event = match &mut self.events {
            Some(events) if !self.ended => events.poll_next(cx),
            _ => Poll::Ready(None),
        };
        match event {
            Poll::Pending if self.seat.as_ref().is_some_and(|seat| seat.is_gone(cx)) => {
                Poll::Ready(self.fail(EngineError::Stopped("a step of it hangs".into()).into()))
            }
            Poll::Pending if self.is_idle(cx) => {
                self.partner.telemetry.metrics.cancel("idle");
                Poll::Ready(self.fail(ServerError::Idle))
            }
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Ready(Turn::Ended)
            }
            Poll::Ready(Some(Err(error))) => {
                if let (EngineError::Stopped(_), Some(seat)) = (&error, &self.seat) {
                    self.partner.replicas.bury(seat.replica());
                }
                Poll::Ready(self.fail(error.into()))
            }
            Poll::Ready(Some(Ok(event))) => {
                self.observe(&event);
                Poll::Ready(Turn::Event(event))
            }
        }
    }

    /// Feeds what waits; true once nothing does.
    fn feed(&mut self, cx: &mut Context<'_>) -> bool {
        while let Some(audio) = self.audio.as_mut().filter(|_| !self.pending.is_empty()) {
            let taken = match audio.poll_ready(cx) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) => audio.try_push(&self.pending).unwrap_or(self.pending.len()),
                // The events tell why.
                Poll::Ready(Err(_)) => self.pending.len(),
            };
            self.pending.drain(..taken);
        }
        true
    }

    fn fail(&mut self, error: ServerError) -> Turn {
        self.ended = true;
        self.error = Some(error.code());
        Turn::Failed(error)
    }

    /// Whether the user has had the time and has brought hardly any audio, although there was room for it.
    fn is_idle(&mut self, cx: &mut Context<'_>) -> bool {
        while self.watch.alarm.as_mut().poll(cx).is_ready() {
            let brought = self.heard - std::mem::replace(&mut self.watch.heard, self.heard);
            if self.pending.is_empty() && (brought as f64) < LEAST_AUDIO.as_secs_f64() * f64::from(self.rate)
            {
                return true;
            }
            self.watch.alarm.as_mut().reset(tokio::time::Instant::now() + self.watch.patience);
        }
        false
    }

    fn observe(&mut self, event: &TalkEvent) {
        match event {
            TalkEvent::Audio(samples) => {
                if self.said == 0 {
                    let waited = self.begun.elapsed().as_secs_f64();
                    self.partner.telemetry.metrics.first_audio.observe(waited);
                }
                self.said += samples.len() as u64;
                self.reader.takes(Duration::from_secs_f64(samples.len() as f64 / f64::from(self.rate)));
                if let Some(tap) = &mut self.taps.1 {
                    tap.audio(samples);
                }
            }
            TalkEvent::Text(text) => {
                if let Some(tap) = &mut self.taps.1 {
                    let at = self.said as f64 / f64::from(self.rate);
                    tap.line(&json!({"text": text, "at": at}));
                }
            }
            _ => {}
        }
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        let seconds = |samples: u64| samples as f64 / f64::from(self.rate);
        let (heard, said) = (seconds(self.heard), seconds(self.said));
        let metrics = &self.partner.telemetry.metrics;
        metrics.audio("in", heard);
        metrics.audio("out", said);
        if !self.ended {
            metrics.cancel("client_gone");
        }
        let error = self.error.or((!self.ended).then_some("client_gone"));
        let stats = self.events.take().map(|events| events.stats()).unwrap_or_default();
        if stats.frames > 0 {
            let label = ModelLabel { model: self.partner.id().into() };
            let step = stats.busy.as_secs_f64() / stats.frames as f64;
            metrics.step_seconds.get_or_create(&label).observe(step);
        }
        let summary = json!({"heard_seconds": heard, "said_seconds": said, "error": error});
        for tap in [&mut self.taps.0, &mut self.taps.1].into_iter().flatten() {
            tap.summary(summary.clone());
        }
        let waited = self.permit.as_ref().map_or(Duration::ZERO, Permit::take_waited);
        if let Some(trace) = self.trace.take() {
            let (mut queue, mut step) = <(StageTime, StageTime)>::default();
            queue.add(stats.queue, stats.queue, stats.queue);
            step.add(self.begun.elapsed(), stats.busy, stats.busy);
            let fields = vec![
                ("voce.audio_seconds", Field::Float(heard)),
                ("voce.frames", Field::Int(stats.frames as i64)),
            ];
            trace.end(StreamEnd { waited, stages: &[("queue", queue), ("step", step)], fields, error });
        }
        self.partner.replicas.left();
        // The slot is free for others when the model's own is: it lets go of a conversation between two steps.
        let (audio, seat, permit) = (self.audio.take(), self.seat.take(), self.permit.take());
        if let (Some(mut audio), Some(seat), Ok(_)) = (audio, seat, tokio::runtime::Handle::try_current()) {
            aside::spawn(async move {
                let over = |cx: &mut Context<'_>| match audio.poll_hung_up(cx) {
                    Poll::Pending if !seat.is_gone(cx) => Poll::Pending,
                    _ => Poll::Ready(()),
                };
                std::future::poll_fn(over).await;
                drop(permit);
            });
        }
    }
}
