//! Events on their way from the model to a reader.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::event::ListenEvent;
use super::histogram::Histogram;
use super::inlet::Inlet;
use super::told::{Scribe, Told};
use crate::mailbox::Mailbox;
use crate::wake::Waker;
use crate::{EngineError, StageTime};

/// Events beyond which a stream pauses until they are read.
pub const MAX_EVENTS: usize = 1024;

/// The model's side of a stream's events.
pub(super) struct Outlet(Mailbox<Told, ListenStats>);

impl Outlet {
    pub(super) fn new(waker: Arc<Waker>) -> Arc<Self> {
        Arc::new(Self(Mailbox::new(waker, MAX_EVENTS, Told::events)))
    }

    /// Adds what is to be told, and leaves `all` empty. A partial or a progress that nobody has read gives way to
    /// what follows it.
    pub(super) fn push(&self, all: &mut Vec<Told>) {
        if all.is_empty() {
            return;
        }
        self.0.put(|q| {
            for told in all.drain(..) {
                if let Told::More(piece) | Told::Partial(piece) = &told
                    && !piece.words.is_empty()
                {
                    let elapsed = q.elapsed;
                    q.stats.first_word.get_or_insert(elapsed);
                }
                let stale = matches!(
                    (&told, q.newest()),
                    (Told::Partial(_) | Told::Final { .. }, Some(Told::Partial(_)))
                        | (Told::Progress { .. }, Some(Told::Progress { .. }))
                );
                if stale {
                    q.withdraw();
                }
                if let Told::More(piece) = &told {
                    q.stats.words += piece.words.len();
                }
                q.push(told);
            }
        });
        // A stream that has ended takes none.
        all.clear();
    }

    /// Ends the stream; the first word counts.
    pub(super) fn finish(&self, result: Result<(), EngineError>) {
        self.0.finish(result, |stats, elapsed| stats.total = elapsed);
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.is_full()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// How long after the request a moment is.
    pub(super) fn since(&self, moment: Instant) -> Duration {
        self.0.since(moment)
    }

    pub(super) fn record(&self, f: impl FnOnce(&mut ListenStats)) {
        self.0.record(f);
    }
}

/// Times and counts of one stream.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ListenStats {
    /// Seconds of audio that came in.
    pub audio: f64,
    /// Seconds of audio that went through the model.
    pub consumed: f64,
    /// From the request to the first word.
    pub first_word: Option<Duration>,
    /// From the request to the end of the stream.
    pub total: Duration,
    /// Steps that this stream was part of.
    pub steps: usize,
    /// How long those steps took, all their streams together.
    pub step_times: Histogram,
    /// This stream's share of those steps, by frames.
    pub step_time: Duration,
    /// From the request until the model took it up.
    pub queue: Duration,
    /// What the model computed.
    pub encode: StageTime,
    /// Finding tokens.
    pub decode: StageTime,
    /// Frames of the model.
    pub frames: usize,
    /// Words told.
    pub words: usize,
    /// Utterances ended.
    pub segments: usize,
}

impl ListenStats {
    /// Seconds of audio that wait for the model.
    pub fn lag(&self) -> f64 {
        (self.audio - self.consumed).max(0.0)
    }
}

/// The reader's side: an iterator of events that ends with the stream. Dropping it frees the slot within a step.
pub struct TranscriptStream {
    outlet: Arc<Outlet>,
    pub(super) inlet: Arc<Inlet>,
    scribe: Scribe,
}

impl TranscriptStream {
    pub(super) fn new(outlet: Arc<Outlet>, inlet: Arc<Inlet>, scribe: Scribe) -> Self {
        Self { outlet, inlet, scribe }
    }

    /// Times and counts so far.
    pub fn stats(&self) -> ListenStats {
        ListenStats { audio: self.inlet.seconds(), ..self.outlet.0.stats() }
    }

    /// The next event for a task that must not block; its waker is called when there is one, or the end.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, EngineError>>> {
        loop {
            if let Some(word) = self.scribe.next_word() {
                return Poll::Ready(Some(Ok(word)));
            }
            match self.outlet.0.poll(cx) {
                Poll::Ready(Some(Ok(told))) => match self.scribe.take(told) {
                    Some(event) => return Poll::Ready(Some(Ok(event))),
                    None => continue,
                },
                Poll::Ready(Some(Err(e))) => return Poll::Ready(Some(Err(e))),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Iterator for TranscriptStream {
    type Item = Result<ListenEvent, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(word) = self.scribe.next_word() {
                return Some(Ok(word));
            }
            match self.outlet.0.next()? {
                Ok(told) => match self.scribe.take(told) {
                    Some(event) => return Some(Ok(event)),
                    None => continue,
                },
                Err(e) => return Some(Err(e)),
            }
        }
    }
}

#[cfg(feature = "futures")]
impl futures_core::Stream for TranscriptStream {
    type Item = Result<ListenEvent, EngineError>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.get_mut().poll_event(cx)
    }
}

impl Drop for TranscriptStream {
    fn drop(&mut self) {
        // The sender learns at once that nobody listens; the model when it next looks.
        self.inlet.hang_up();
        self.outlet.0.cancel();
    }
}
