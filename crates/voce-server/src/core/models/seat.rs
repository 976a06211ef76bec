//! Where a stream is served: it counts at its replica until it is dropped, and learns when the replica is given up. A stream
//! registers its own waker with its own seat, so that streams share nothing while they run.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;

use futures_util::task::AtomicWaker;

/// The streams of one opened model.
#[derive(Default)]
pub(super) struct Crowd {
    live: AtomicUsize,
    gone: AtomicBool,
    /// Touched when streams come and go, never while they run.
    wakers: Mutex<Wakers>,
}

#[derive(Default)]
struct Wakers {
    next: u64,
    by_seat: HashMap<u64, Arc<AtomicWaker>>,
}

impl Crowd {
    fn wakers(&self) -> MutexGuard<'_, Wakers> {
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Streams that are served now.
    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Ends all streams: their model will not answer any more.
    pub(super) fn give_up(&self) {
        self.gone.store(true, Ordering::Release);
        self.wakers().by_seat.values().for_each(|w| w.wake());
    }
}

/// A stream's place at a replica.
pub(crate) struct Seat {
    crowd: Arc<Crowd>,
    replica: usize,
    number: u64,
    waker: Arc<AtomicWaker>,
}

impl Seat {
    pub(super) fn new(crowd: Arc<Crowd>, replica: usize) -> Self {
        crowd.live.fetch_add(1, Ordering::Relaxed);
        let waker = Arc::<AtomicWaker>::default();
        let number = {
            let mut wakers = crowd.wakers();
            wakers.next += 1;
            let number = wakers.next;
            wakers.by_seat.insert(number, waker.clone());
            number
        };
        Self { crowd, replica, number, waker }
    }

    /// The number of its replica.
    pub(crate) fn replica(&self) -> usize {
        self.replica
    }

    /// Whether the model was given up; the task is woken when that happens.
    pub(crate) fn is_gone(&self, cx: &mut Context<'_>) -> bool {
        if self.crowd.gone.load(Ordering::Acquire) {
            return true;
        }
        self.waker.register(cx.waker());
        self.crowd.gone.load(Ordering::Acquire)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.crowd.wakers().by_seat.remove(&self.number);
        self.crowd.live.fetch_sub(1, Ordering::Relaxed);
    }
}
