//! Admission: slots are finite, and who finds none is told so at once, or waits in a short line if the server was set up so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ServerError;
use super::metrics::{Kind, Metrics};

/// The door to one model's slots.
pub(crate) struct Gate {
    slots: Arc<Semaphore>,
    total: usize,
    kind: Kind,
    /// Requests that may wait, and how long.
    line: usize,
    patience: Duration,
    waiting: Mutex<Line>,
    metrics: Metrics,
}

/// Who waits, and since when.
#[derive(Default)]
struct Line {
    next: u64,
    tickets: Vec<(u64, Instant)>,
}

/// How much a gate has to do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) used: usize,
    pub(crate) total: usize,
    pub(crate) waiting: usize,
    /// How long the first in line has waited.
    pub(crate) age: Duration,
}

/// A slot; dropping it gives it back.
pub(crate) struct Permit {
    _slot: OwnedSemaphorePermit,
    kind: Kind,
    metrics: Metrics,
    /// Microseconds in line that nobody has told yet.
    waited: AtomicU64,
}

impl Gate {
    pub(crate) fn new(kind: Kind, total: usize, line: usize, patience: Duration, metrics: Metrics) -> Self {
        let total = total.max(1);
        metrics.slots_total.get_or_create(&kind.label()).inc_by(total as i64);
        // The series is there from the start, at zero.
        let _ = metrics.streams_active.get_or_create(&kind.label());
        let slots = Arc::new(Semaphore::new(total));
        Self { slots, total, kind, line, patience, waiting: Mutex::default(), metrics }
    }

    /// A slot now, or in the line's time.
    pub(crate) async fn enter(&self) -> Result<Permit, ServerError> {
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            return Ok(self.admit(slot, Duration::ZERO));
        }
        let busy = || ServerError::Busy { what: self.kind.word(), slots: self.total };
        let begun = Instant::now();
        let ticket = {
            let mut line = self.waiting();
            if line.tickets.len() >= self.line {
                return Err(busy());
            }
            line.next += 1;
            let ticket = line.next;
            line.tickets.push((ticket, begun));
            ticket
        };
        let guard = Leaves(self, ticket);
        let got = tokio::time::timeout(self.patience, self.slots.clone().acquire_owned()).await;
        drop(guard);
        self.metrics.queue_seconds.observe(begun.elapsed().as_secs_f64());
        match got {
            Ok(Ok(slot)) => Ok(self.admit(slot, begun.elapsed())),
            _ => Err(busy()),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, Line> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, slot: OwnedSemaphorePermit, waited: Duration) -> Permit {
        self.metrics.streams_active.get_or_create(&self.kind.label()).inc();
        let waited = AtomicU64::new(waited.as_micros() as u64);
        Permit { _slot: slot, kind: self.kind, metrics: self.metrics.clone(), waited }
    }

    /// What its model does.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// How much there is to do.
    pub(crate) fn load(&self) -> Load {
        let line = self.waiting();
        let age = line.tickets.first().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        Load { used: self.used(), total: self.total, waiting: line.tickets.len(), age }
    }

    /// Slots in all.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> usize {
        self.total - self.slots.available_permits().min(self.total)
    }
}

struct Leaves<'a>(&'a Gate, u64);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.waiting().tickets.retain(|(ticket, _)| *ticket != self.1);
    }
}

impl Permit {
    /// The time in line; a second stream in the same slot has not waited.
    pub(crate) fn take_waited(&self) -> Duration {
        Duration::from_micros(self.waited.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.metrics.streams_active.get_or_create(&self.kind.label()).dec();
    }
}
