//! Events on their way from the model to a reader: bounded, cancellable, never blocking the model.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::event::ListenEvent;
use super::histogram::Histogram;
use super::inlet::Inlet;
use crate::EngineError;
use crate::wake::{Waker, lock};

/// Events beyond which a stream pauses until they are read.
pub const MAX_EVENTS: usize = 1024;

#[derive(Default)]
struct Queue {
    events: VecDeque<ListenEvent>,
    done: Option<Result<(), EngineError>>,
    stats: ListenStats,
    /// The task that waits for events, where the reader is one.
    task: Option<std::task::Waker>,
}

impl Queue {
    /// What a reader gets now, and whether a stream that had paused may go on; `None` when it must wait.
    fn take(&mut self) -> Option<(Option<Result<ListenEvent, EngineError>>, bool)> {
        if let Some(event) = self.events.pop_front() {
            return Some((Some(Ok(event)), self.events.len() + 1 == MAX_EVENTS));
        }
        match &mut self.done {
            Some(Ok(())) => Some((None, false)),
            Some(done) => Some((std::mem::replace(done, Ok(())).err().map(Err), false)),
            None => None,
        }
    }
}

/// The model's side of a stream's events.
pub(super) struct Outlet {
    queue: Mutex<Queue>,
    ready: Condvar,
    cancelled: AtomicBool,
    waker: Arc<Waker>,
    begun: Instant,
}

impl Outlet {
    pub(super) fn new(waker: Arc<Waker>) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            ready: Condvar::new(),
            cancelled: AtomicBool::new(false),
            waker,
            begun: Instant::now(),
        })
    }

    /// Adds events, and leaves `events` empty. A partial that nobody has read gives way to what follows it.
    pub(super) fn push(&self, events: &mut Vec<ListenEvent>) {
        if events.is_empty() {
            return;
        }
        let mut q = lock(&self.queue);
        if q.done.is_some() {
            events.clear();
            return;
        }
        for event in events.drain(..) {
            let has_words = match &event {
                ListenEvent::Word(_) => true,
                ListenEvent::Partial(s) | ListenEvent::Final(s) => !s.words.is_empty(),
                ListenEvent::Endpoint { .. } => false,
            };
            if has_words {
                q.stats.first_word.get_or_insert_with(|| self.begun.elapsed());
            }
            if matches!(event, ListenEvent::Partial(_) | ListenEvent::Final(_))
                && matches!(q.events.back(), Some(ListenEvent::Partial(_)))
            {
                q.events.pop_back();
            }
            q.stats.words += usize::from(matches!(event, ListenEvent::Word(_)));
            q.events.push_back(event);
        }
        self.tell(q);
    }

    /// Ends the stream; the first word counts.
    pub(super) fn finish(&self, result: Result<(), EngineError>) {
        let mut q = lock(&self.queue);
        q.stats.total = self.begun.elapsed();
        q.done.get_or_insert(result);
        self.tell(q);
    }

    /// Unlocks the queue and wakes its reader, thread or task.
    fn tell(&self, mut q: MutexGuard<'_, Queue>) {
        let task = q.task.take();
        drop(q);
        self.ready.notify_one();
        if let Some(task) = task {
            task.wake();
        }
    }

    pub(super) fn is_full(&self) -> bool {
        lock(&self.queue).events.len() >= MAX_EVENTS
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self, f: impl FnOnce(&mut ListenStats)) {
        f(&mut lock(&self.queue).stats);
    }
}

/// Times and counts of one stream.
#[derive(Clone, Debug, Default)]
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
    /// Encoder frames.
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
    pub(super) outlet: Arc<Outlet>,
    pub(super) inlet: Arc<Inlet>,
}

impl TranscriptStream {
    /// Times and counts so far.
    pub fn stats(&self) -> ListenStats {
        let mut stats = lock(&self.outlet.queue).stats.clone();
        stats.audio = self.inlet.seconds();
        stats
    }

    /// The next event for a task that must not block; its waker is called when there is one, or the end.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, EngineError>>> {
        let mut q = lock(&self.outlet.queue);
        match q.take() {
            Some((item, wake)) => {
                drop(q);
                if wake {
                    self.outlet.waker.wake();
                }
                Poll::Ready(item)
            }
            None => {
                q.task = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Iterator for TranscriptStream {
    type Item = Result<ListenEvent, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut q = lock(&self.outlet.queue);
        loop {
            if let Some((item, wake)) = q.take() {
                drop(q);
                if wake {
                    self.outlet.waker.wake();
                }
                return item;
            }
            q = self.outlet.ready.wait(q).unwrap_or_else(|e| e.into_inner());
        }
    }
}

impl Drop for TranscriptStream {
    fn drop(&mut self) {
        self.outlet.cancelled.store(true, Ordering::Relaxed);
        // The sender learns at once that nobody listens; the model when it next looks.
        self.inlet.hang_up();
        self.outlet.waker.wake();
    }
}
