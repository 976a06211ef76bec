//! Admission: slots are finite, and who finds none is told so at once, or waits in a short line if the server was set up so.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
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
    waiting: AtomicUsize,
    metrics: Metrics,
}

/// A slot; dropping it gives it back.
pub(crate) struct Permit {
    _slot: OwnedSemaphorePermit,
    kind: Kind,
    metrics: Metrics,
}

impl Gate {
    pub(crate) fn new(kind: Kind, total: usize, line: usize, patience: Duration, metrics: Metrics) -> Self {
        let total = total.max(1);
        metrics.slots_total.get_or_create(&kind.label()).inc_by(total as i64);
        // The series is there from the start, at zero.
        let _ = metrics.streams_active.get_or_create(&kind.label());
        let slots = Arc::new(Semaphore::new(total));
        Self { slots, total, kind, line, patience, waiting: AtomicUsize::new(0), metrics }
    }

    /// A slot now, or in the line's time.
    pub(crate) async fn enter(&self) -> Result<Permit, ServerError> {
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            return Ok(self.admit(slot));
        }
        let busy = || ServerError::Busy { what: self.kind.word(), slots: self.total };
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.line {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(busy());
        }
        let guard = Leaves(&self.waiting);
        let begun = Instant::now();
        let got = tokio::time::timeout(self.patience, self.slots.clone().acquire_owned()).await;
        drop(guard);
        self.metrics.queue_seconds.observe(begun.elapsed().as_secs_f64());
        match got {
            Ok(Ok(slot)) => Ok(self.admit(slot)),
            _ => Err(busy()),
        }
    }

    fn admit(&self, slot: OwnedSemaphorePermit) -> Permit {
        self.metrics.streams_active.get_or_create(&self.kind.label()).inc();
        Permit { _slot: slot, kind: self.kind, metrics: self.metrics.clone() }
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

struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.metrics.streams_active.get_or_create(&self.kind.label()).dec();
    }
}
