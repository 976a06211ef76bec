//! Both ends of a conversation: samples on their way in, audio and text on their way out, each bounded.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::EngineError;
use crate::mailbox::Mailbox;
use crate::wake::{Waker, lock};

/// Seconds of audio that wait for the model before the sender must wait, and for the reader before the model does.
const AHEAD_SECONDS: usize = 10;
/// What a piece of text weighs, in samples.
const TEXT_WEIGHT: usize = 1;

/// What comes out of a conversation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TalkEvent {
    /// A frame of audio, mono, at the model's sample rate.
    Audio(Vec<f32>),
    /// Text of what the model says.
    Text(String),
    /// The text token and the codes of a frame, before its audio; none from models that draw no such.
    Tokens(Vec<u32>),
}

/// Times and counts of one conversation.
#[derive(Clone, Debug, Default)]
pub struct TalkStats {
    /// From the request until it had a slot.
    pub queue: Duration,
    /// From the request to the first audio.
    pub first_audio: Option<Duration>,
    /// Frames heard.
    pub frames: usize,
    /// This conversation's share of the steps' time.
    pub busy: Duration,
}

/// The conversation is over: its events say why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the conversation has ended: its events say why")]
pub struct HungUp;

#[derive(Default)]
struct Heard {
    samples: VecDeque<f32>,
    /// No more samples come.
    finished: bool,
    hung_up: bool,
    task: Option<std::task::Waker>,
}

/// A conversation between its two users and the model.
pub(super) struct Line {
    heard: Mutex<Heard>,
    room: Condvar,
    capacity: usize,
    waker: Arc<Waker>,
    said: Mailbox<TalkEvent, TalkStats>,
}

impl Line {
    pub(super) fn new(waker: Arc<Waker>, sample_rate: usize) -> Arc<Self> {
        let weigh = |event: &TalkEvent| match event {
            TalkEvent::Audio(samples) => samples.len(),
            TalkEvent::Text(_) | TalkEvent::Tokens(_) => TEXT_WEIGHT,
        };
        let capacity = AHEAD_SECONDS * sample_rate;
        let said = Mailbox::new(waker.clone(), capacity, weigh);
        Arc::new(Self { heard: Mutex::default(), room: Condvar::new(), capacity, waker, said })
    }

    // The model's side.

    /// Takes a frame of samples, if there is one; what is left at the end is filled up with silence.
    pub(super) fn take(&self, frame: usize, out: &mut Vec<f32>) -> bool {
        let mut heard = lock(&self.heard);
        let there = heard.samples.len();
        if there < frame && !(heard.finished && there > 0) {
            return false;
        }
        let end = out.len() + frame;
        out.extend(heard.samples.drain(..there.min(frame)));
        out.resize(end, 0.0);
        let task = heard.task.take();
        drop(heard);
        self.room.notify_one();
        if let Some(task) = task {
            task.wake();
        }
        true
    }

    /// Whether all that was said to the model has been taken, and no more comes.
    pub(super) fn is_over(&self) -> bool {
        let heard = lock(&self.heard);
        heard.finished && heard.samples.is_empty()
    }

    pub(super) fn say(&self, event: TalkEvent) {
        self.said.put(|q| {
            let elapsed = q.elapsed;
            if matches!(event, TalkEvent::Audio(_)) {
                q.stats.first_audio.get_or_insert(elapsed);
            }
            q.push(event);
        });
    }

    pub(super) fn record(&self, f: impl FnOnce(&mut TalkStats)) {
        self.said.record(f);
    }

    pub(super) fn since(&self, moment: Instant) -> Duration {
        self.said.since(moment)
    }

    pub(super) fn is_full(&self) -> bool {
        self.said.is_full()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.said.is_cancelled()
    }

    /// Ends the conversation; only the first call has an effect.
    pub(super) fn end(&self, result: Result<(), EngineError>) {
        self.said.finish(result, |_, _| {});
        let mut heard = lock(&self.heard);
        heard.hung_up = true;
        heard.samples = VecDeque::new();
        let task = heard.task.take();
        drop(heard);
        self.room.notify_all();
        if let Some(task) = task {
            task.wake();
        }
    }

    // The sender's side.

    fn put(&self, samples: &[f32]) -> Result<usize, HungUp> {
        let mut heard = lock(&self.heard);
        if heard.hung_up {
            return Err(HungUp);
        }
        let taken = samples.len().min(self.capacity.saturating_sub(heard.samples.len()));
        heard.samples.extend(&samples[..taken]);
        drop(heard);
        if taken > 0 {
            self.waker.wake();
        }
        Ok(taken)
    }
}

/// Takes what the user says: mono, -1..1, at the model's sample rate. Dropping it ends the conversation once all of it
/// was heard.
pub struct TalkSender {
    pub(super) line: Arc<Line>,
}

impl TalkSender {
    /// Takes all samples; waits while ten seconds of them are waiting.
    pub fn push(&mut self, mut samples: &[f32]) -> Result<(), HungUp> {
        self.check(samples)?;
        while !samples.is_empty() {
            let taken = self.line.put(samples)?;
            samples = &samples[taken..];
            let mut heard = lock(&self.line.heard);
            while !samples.is_empty() && !heard.hung_up && heard.samples.len() >= self.line.capacity {
                heard = self.line.room.wait(heard).unwrap_or_else(|e| e.into_inner());
            }
        }
        Ok(())
    }

    /// Takes as many samples as there is room for, and says how many.
    pub fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp> {
        self.check(samples)?;
        self.line.put(samples)
    }

    /// Ready once there is room for samples.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        let mut heard = lock(&self.line.heard);
        if heard.hung_up {
            return Poll::Ready(Err(HungUp));
        }
        if heard.samples.len() < self.line.capacity {
            return Poll::Ready(Ok(()));
        }
        heard.task = Some(cx.waker().clone());
        Poll::Pending
    }

    /// No more samples come: the conversation ends once all of them were heard.
    pub fn finish(&mut self) {
        lock(&self.line.heard).finished = true;
        self.line.waker.wake();
    }

    /// Ready once the conversation has ended and its slot is free.
    pub fn poll_hung_up(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut heard = lock(&self.line.heard);
        if heard.hung_up {
            return Poll::Ready(());
        }
        heard.task = Some(cx.waker().clone());
        Poll::Pending
    }

    /// A sample that is no number ends this conversation, and no other.
    fn check(&self, samples: &[f32]) -> Result<(), HungUp> {
        let Some(bad) = samples.iter().find(|s| !s.is_finite()) else { return Ok(()) };
        self.line.end(Err(EngineError::BadRequest {
            what: "audio",
            value: bad.to_string(),
            rule: "samples are numbers from -1 to 1",
        }));
        self.line.waker.wake();
        Err(HungUp)
    }
}

impl Drop for TalkSender {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The reader's side: an iterator of events. Dropping it ends the conversation within a frame.
pub struct TalkStream {
    pub(super) line: Arc<Line>,
}

impl TalkStream {
    /// Times and counts so far.
    pub fn stats(&self) -> TalkStats {
        self.line.said.stats()
    }

    /// The next event for a task that must not block; its waker is called when there is one, or the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<TalkEvent, EngineError>>> {
        self.line.said.poll(cx)
    }
}

impl Iterator for TalkStream {
    type Item = Result<TalkEvent, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.line.said.next()
    }
}

#[cfg(feature = "futures")]
impl futures_core::Stream for TalkStream {
    type Item = Result<TalkEvent, EngineError>;

    fn poll_next(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(self.get_mut(), cx)
    }
}

impl Drop for TalkStream {
    fn drop(&mut self) {
        self.line.said.cancel();
    }
}
