//! Audio on its way from the model to a reader: bounded, cancellable, never blocking the model.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::EngineError;
use crate::wake::{Waker, lock};

/// A piece of audio, mono, at the speaker's sample rate.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioChunk {
    /// Samples in -1..1, not clamped.
    pub samples: Vec<f32>,
}

#[derive(Default)]
struct Queue {
    chunks: VecDeque<Vec<f32>>,
    samples: usize,
    done: Option<Result<(), EngineError>>,
    stats: SpeakStats,
    /// The task that waits for audio, where the reader is one.
    task: Option<std::task::Waker>,
}

impl Queue {
    /// What a reader gets now, and whether the queue has just fallen below `high`; `None` when it must wait.
    fn take(&mut self, high: usize) -> Option<(Option<Result<AudioChunk, EngineError>>, bool)> {
        if let Some(samples) = self.chunks.pop_front() {
            let was_full = self.samples >= high;
            self.samples -= samples.len();
            return Some((Some(Ok(AudioChunk { samples })), was_full && self.samples < high));
        }
        match &mut self.done {
            Some(Ok(())) => Some((None, false)),
            Some(done) => Some((std::mem::replace(done, Ok(())).err().map(Err), false)),
            None => None,
        }
    }
}

/// The model's side of a stream.
pub(super) struct Output {
    queue: Mutex<Queue>,
    ready: Condvar,
    cancelled: AtomicBool,
    waker: Arc<Waker>,
    begun: Instant,
    /// Samples beyond which the model stops making more.
    high: usize,
}

impl Output {
    pub(super) fn new(waker: Arc<Waker>, high: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Mutex::default(),
            ready: Condvar::new(),
            cancelled: AtomicBool::new(false),
            waker,
            begun: Instant::now(),
            high,
        })
    }

    pub(super) fn push(&self, samples: Vec<f32>) {
        if samples.is_empty() {
            return;
        }
        let mut q = lock(&self.queue);
        if q.done.is_some() {
            return;
        }
        q.stats.first_audio.get_or_insert_with(|| self.begun.elapsed());
        q.stats.samples += samples.len();
        q.samples += samples.len();
        q.chunks.push_back(samples);
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
        lock(&self.queue).samples >= self.high
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn record(&self, f: impl FnOnce(&mut SpeakStats)) {
        f(&mut lock(&self.queue).stats);
    }
}

/// Times and counts of one request.
#[derive(Clone, Debug, Default)]
pub struct SpeakStats {
    /// From the request to its first audio.
    pub first_audio: Option<Duration>,
    /// From the request to its last audio.
    pub total: Duration,
    /// Samples made.
    pub samples: usize,
    /// Frames made.
    pub frames: usize,
    /// Chunks of text.
    pub chunks: usize,
    /// Tokens of text.
    pub tokens: usize,
    /// Time in text prefill.
    pub prefill: Duration,
    /// Time in the backbone.
    pub backbone: Duration,
    /// Time in the sampler head.
    pub head: Duration,
    /// Time in the codec.
    pub codec: Duration,
    /// Chunks that reached their frame limit without an end.
    pub unended: usize,
}

/// The reader's side: an iterator of audio chunks. Dropping it stops the work within a frame.
pub struct SpeechStream {
    pub(super) output: Arc<Output>,
}

impl SpeechStream {
    /// Times and counts so far.
    pub fn stats(&self) -> SpeakStats {
        lock(&self.output.queue).stats.clone()
    }

    /// The next chunk for a task that must not block; its waker is called when there is one, or the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AudioChunk, EngineError>>> {
        let out = &*self.output;
        let mut q = lock(&out.queue);
        match q.take(out.high) {
            Some((item, wake)) => {
                drop(q);
                if wake {
                    out.waker.wake();
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

impl Iterator for SpeechStream {
    type Item = Result<AudioChunk, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let out = &*self.output;
        let mut q = lock(&out.queue);
        loop {
            if let Some((item, wake)) = q.take(out.high) {
                drop(q);
                if wake {
                    out.waker.wake();
                }
                return item;
            }
            q = out.ready.wait(q).unwrap_or_else(|e| e.into_inner());
        }
    }
}

impl Drop for SpeechStream {
    fn drop(&mut self) {
        self.output.cancelled.store(true, Ordering::Relaxed);
        self.output.waker.wake();
    }
}
