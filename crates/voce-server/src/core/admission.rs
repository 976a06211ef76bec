//! Admission: slots are finite, and who finds none is told so at once, or waits in a short line if the server was set up so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::budget::{Budget, Over, Purse, Share};
use super::caller::Caller;
use super::error::ServerError;
use super::metrics::{Kind, Metrics};

/// The door to one model's slots.
pub(crate) struct Gate {
    slots: Arc<Semaphore>,
    total: usize,
    /// Who has how many of them.
    shares: Arc<Purse>,
    kind: Kind,
    /// Requests that may wait, and how long.
    line: usize,
    patience: Duration,
    waiting: Mutex<Line>,
    metrics: Metrics,
}

/// How many streams a model has slots for, how many more may wait for one, and how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) slots: usize,
    pub(crate) line: usize,
    pub(crate) patience: Duration,
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
    _share: Share,
    kind: Kind,
    metrics: Metrics,
    /// Microseconds in line that nobody has told yet.
    waited: AtomicU64,
}

impl Gate {
    pub(crate) fn new(kind: Kind, room: Room, budget: &Budget, metrics: Metrics) -> Self {
        let Room { slots: total, line, patience } = room;
        let total = total.max(1);
        let shares = budget.slots(kind.slots(), total);
        metrics.slots_total.get_or_create(&kind.label()).inc_by(total as i64);
        // The series is there from the start, at zero.
        let _ = metrics.streams_active.get_or_create(&kind.label());
        let slots = Arc::new(Semaphore::new(total));
        Self { slots, total, shares, kind, line, patience, waiting: Mutex::default(), metrics }
    }

    /// A slot now, or in the line's time.
    pub(crate) async fn enter(&self) -> Result<Permit, ServerError> {
        let share = self.shares.take(&Caller::current(), 1).map_err(|by| self.over(by))?;
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            return Ok(self.admit(slot, share, Duration::ZERO));
        }
        let begun = Instant::now();
        let ticket = {
            let mut line = self.waiting();
            if line.tickets.len() >= self.line {
                return Err(self.busy());
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
            Ok(Ok(slot)) => Ok(self.admit(slot, share, begun.elapsed())),
            _ => Err(self.busy()),
        }
    }

    /// Refuses a caller who would find no slot now, before he has brought anything. A slot is taken with the first data.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        self.shares.check(&Caller::current(), 1).map_err(|by| self.over(by))?;
        let is_full = self.slots.available_permits() == 0 && self.waiting().tickets.len() >= self.line;
        if is_full { Err(self.busy()) } else { Ok(()) }
    }

    fn busy(&self) -> ServerError {
        ServerError::Busy { what: self.kind.word(), slots: self.total }
    }

    fn over(&self, by: Over) -> ServerError {
        ServerError::Share { by: by.word(), what: self.kind.word() }
    }

    /// The shares of its callers.
    pub(crate) fn shares(&self) -> &Purse {
        &self.shares
    }

    fn waiting(&self) -> MutexGuard<'_, Line> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, slot: OwnedSemaphorePermit, share: Share, waited: Duration) -> Permit {
        self.metrics.streams_active.get_or_create(&self.kind.label()).inc();
        let waited = AtomicU64::new(waited.as_micros() as u64);
        Permit { _slot: slot, _share: share, kind: self.kind, metrics: self.metrics.clone(), waited }
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
