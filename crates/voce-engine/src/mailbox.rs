//! What a model makes on its way to a reader: bounded, cancellable, never blocking the model. The reader is a
//! thread that waits or a task that is woken.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::EngineError;
use crate::wake::{Waker, lock};

/// A stream's items, its end, and its times and counts.
pub(crate) struct Mailbox<T, S> {
    inside: Mutex<Inside<T, S>>,
    ready: Condvar,
    cancelled: AtomicBool,
    waker: Arc<Waker>,
    begun: Instant,
    /// Weight from which the model stops making more.
    high: usize,
}

/// What is under the lock.
pub(crate) struct Inside<T, S> {
    items: VecDeque<T>,
    weight: usize,
    done: Option<Result<(), EngineError>>,
    /// The task that waits, where the reader is one.
    task: Option<std::task::Waker>,
    weigh: fn(&T) -> usize,
    /// Cuts a piece off an item that a reader takes in several.
    cut: fn(&mut T) -> Option<T>,
    /// Times and counts.
    pub(crate) stats: S,
    /// Since the request.
    pub(crate) elapsed: Duration,
}

impl<T, S> Inside<T, S> {
    /// Adds an item.
    pub(crate) fn push(&mut self, item: T) {
        self.weight += (self.weigh)(&item);
        self.items.push_back(item);
    }

    /// The newest item that nobody has read.
    pub(crate) fn newest(&self) -> Option<&T> {
        self.items.back()
    }

    /// Takes the newest item back.
    pub(crate) fn withdraw(&mut self) {
        if let Some(item) = self.items.pop_back() {
            self.weight -= (self.weigh)(&item);
        }
    }
}

type Taken<T> = Option<Result<T, EngineError>>;

impl<T, S: Default> Mailbox<T, S> {
    /// An empty mailbox that is full at weight `high`; `waker` is the model thread's.
    pub(crate) fn new(waker: Arc<Waker>, high: usize, weigh: fn(&T) -> usize) -> Self {
        Self::with_cut(waker, high, weigh, |_| None)
    }

    /// As [`Mailbox::new`], where a reader takes what `cut` takes off an item, until that gives none.
    pub(crate) fn with_cut(
        waker: Arc<Waker>,
        high: usize,
        weigh: fn(&T) -> usize,
        cut: fn(&mut T) -> Option<T>,
    ) -> Self {
        let inside = Inside {
            items: VecDeque::new(),
            weight: 0,
            done: None,
            task: None,
            weigh,
            cut,
            stats: S::default(),
            elapsed: Duration::ZERO,
        };
        Self {
            inside: Mutex::new(inside),
            ready: Condvar::new(),
            cancelled: AtomicBool::new(false),
            waker,
            begun: Instant::now(),
            high,
        }
    }
}

impl<T, S> Mailbox<T, S> {
    /// Lets `f` add items, unless the stream has ended, and wakes the reader.
    pub(crate) fn put(&self, f: impl FnOnce(&mut Inside<T, S>)) {
        let mut q = lock(&self.inside);
        if q.done.is_some() {
            return;
        }
        q.elapsed = self.begun.elapsed();
        f(&mut q);
        self.tell(q);
    }

    /// Ends the stream; only the first call has an effect. `f` gets the time since the request.
    pub(crate) fn finish(&self, result: Result<(), EngineError>, f: impl FnOnce(&mut S, Duration)) {
        let mut q = lock(&self.inside);
        f(&mut q.stats, self.begun.elapsed());
        q.done.get_or_insert(result);
        self.tell(q);
    }

    /// Unlocks and wakes the reader, thread or task.
    fn tell(&self, mut q: MutexGuard<'_, Inside<T, S>>) {
        let task = q.task.take();
        drop(q);
        self.ready.notify_one();
        if let Some(task) = task {
            task.wake();
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        lock(&self.inside).weight >= self.high
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// How long after the request a moment is.
    pub(crate) fn since(&self, moment: Instant) -> Duration {
        moment.saturating_duration_since(self.begun)
    }

    /// Changes times and counts.
    pub(crate) fn record(&self, f: impl FnOnce(&mut S)) {
        f(&mut lock(&self.inside).stats);
    }

    /// Times and counts so far.
    pub(crate) fn stats(&self) -> S
    where
        S: Clone,
    {
        lock(&self.inside).stats.clone()
    }

    /// The reader is gone: the model learns it when it next looks.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    /// What a reader gets now, and whether the model may go on since; `None` when the reader must wait.
    fn take(&self, q: &mut Inside<T, S>) -> Option<(Taken<T>, bool)> {
        if let Some(front) = q.items.front_mut() {
            let item = match (q.cut)(front) {
                Some(piece) => piece,
                None => q.items.pop_front()?,
            };
            let was_full = q.weight >= self.high;
            q.weight -= (q.weigh)(&item);
            return Some((Some(Ok(item)), was_full && q.weight < self.high));
        }
        match &mut q.done {
            Some(Ok(())) => Some((None, false)),
            Some(done) => Some((std::mem::replace(done, Ok(())).err().map(Err), false)),
            None => None,
        }
    }

    fn give(&self, q: MutexGuard<'_, Inside<T, S>>, (item, wake): (Taken<T>, bool)) -> Taken<T> {
        drop(q);
        if wake {
            self.waker.wake();
        }
        item
    }

    /// Waits for the next item; `None` is the end.
    pub(crate) fn next(&self) -> Taken<T> {
        let mut q = lock(&self.inside);
        loop {
            if let Some(taken) = self.take(&mut q) {
                return self.give(q, taken);
            }
            q = self.ready.wait(q).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// The next item for a task that must not block; its waker is called when there is one, or the end.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<Taken<T>> {
        let mut q = lock(&self.inside);
        match self.take(&mut q) {
            Some(taken) => Poll::Ready(self.give(q, taken)),
            None => {
                q.task = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
