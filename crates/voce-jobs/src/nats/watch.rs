//! Watches over a job while a worker does it: progress, checkpoints, and when to stop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::metrics::Figures;
use super::place::Place;
use crate::checkpoint::Checkpoint;
use crate::hear::Watch;

/// How long a worker that was told to stop lets its jobs come to a checkpoint.
const DRAIN: Duration = Duration::from_secs(10);

/// Watches over a job for as long as it is done.
pub(super) struct JobWatch {
    pub(super) id: String,
    pub(super) place: Place,
    pub(super) handle: Handle,
    pub(super) figures: Arc<Figures>,
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) draining: Arc<AtomicBool>,
    pub(super) drain_begun: Mutex<Option<Instant>>,
    /// Whether a checkpoint was kept since the worker was told to stop.
    pub(super) drained: AtomicBool,
    pub(super) every: Duration,
    pub(super) last: Mutex<Instant>,
    /// Milliseconds of audio so far.
    pub(super) told: Arc<AtomicU64>,
    /// Samples a second of checkpoints.
    pub(super) rate: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Watch for JobWatch {
    fn stop(&self) -> bool {
        if self.cancelled.load(Ordering::Relaxed) {
            return true;
        }
        if !self.draining.load(Ordering::Relaxed) {
            return false;
        }
        let begun = *lock(&self.drain_begun).get_or_insert_with(Instant::now);
        self.drained.load(Ordering::Relaxed) || begun.elapsed() > DRAIN
    }

    fn at(&self, seconds: f64) {
        let now = (seconds * 1e3) as u64;
        let before = self.told.fetch_max(now, Ordering::Relaxed);
        self.figures.audio_ms.fetch_add(now.saturating_sub(before), Ordering::Relaxed);
    }

    fn wants_checkpoint(&self) -> bool {
        let draining = self.draining.load(Ordering::Relaxed) && !self.drained.load(Ordering::Relaxed);
        let mut last = lock(&self.last);
        let due = draining || last.elapsed() >= self.every;
        if due {
            *last = Instant::now();
        }
        due
    }

    fn keep(&self, checkpoint: &Checkpoint) {
        match self.handle.block_on(self.place.keep_checkpoint(&self.id, &checkpoint.to_bytes())) {
            Ok(()) => {
                self.figures.checkpoints.fetch_add(1, Ordering::Relaxed);
                self.drained.store(self.draining.load(Ordering::Relaxed), Ordering::Relaxed);
                tracing::info!(job = self.id, samples = checkpoint.samples, "checkpoint");
            }
            Err(error) => tracing::warn!(job = self.id, %error, "no checkpoint"),
        }
    }

    fn found(&self) -> Option<Checkpoint> {
        let bytes = self.handle.block_on(self.place.checkpoint(&self.id))?;
        let found = Checkpoint::from_bytes(&bytes);
        if let Some(found) = &found {
            // What was heard before was another worker's work.
            self.told.store(found.samples * 1000 / self.rate.max(1), Ordering::Relaxed);
            self.figures.resumed.fetch_add(1, Ordering::Relaxed);
            tracing::info!(job = self.id, "goes on from a checkpoint");
        }
        found
    }
}
