//! Watches over a job of the folder while it is heard: progress, checkpoints, and when to stop.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use voce_jobs::{Checkpoint, Watch};

use super::JobFolder;
use crate::core::drain::Drain;
use crate::core::models::Seat;

/// How long a server that is on its way out lets a job come to a checkpoint.
const LAST_CHECKPOINT: Duration = Duration::from_secs(5);

/// Watches over one job.
pub(super) struct JobWatch {
    pub(super) jobs: Arc<JobFolder>,
    pub(super) id: String,
    /// Thrown when the job is cancelled.
    pub(super) cancelled: Arc<AtomicBool>,
    pub(super) drain: Drain,
    pub(super) seat: Seat,
    /// How often a checkpoint is kept.
    pub(super) every: Duration,
    state: Mutex<State>,
}

struct State {
    last: Instant,
    draining_since: Option<Instant>,
    /// A checkpoint was kept since the server is on its way out.
    is_safe: bool,
    resumed: bool,
}

impl JobWatch {
    pub(super) fn new(
        jobs: Arc<JobFolder>,
        id: String,
        cancelled: Arc<AtomicBool>,
        drain: Drain,
        seat: Seat,
        every: Duration,
    ) -> Self {
        let state = State { last: Instant::now(), draining_since: None, is_safe: false, resumed: false };
        Self { jobs, id, cancelled, drain, seat, every, state: Mutex::new(state) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the model was given up under it.
    pub(super) fn is_gone(&self) -> bool {
        self.seat.is_gone(&mut Context::from_waker(Waker::noop()))
    }

    /// Whether it went on from a checkpoint.
    pub(super) fn was_resumed(&self) -> bool {
        self.state().resumed
    }
}

impl Watch for JobWatch {
    fn stop(&self) -> bool {
        if self.cancelled.load(Ordering::Relaxed) || self.is_gone() {
            return true;
        }
        if !self.drain.is_draining() {
            return false;
        }
        let mut state = self.state();
        let since = *state.draining_since.get_or_insert_with(Instant::now);
        state.is_safe || since.elapsed() > LAST_CHECKPOINT
    }

    fn at(&self, seconds: f64) {
        self.jobs.heard(&self.id, seconds);
    }

    fn wants_checkpoint(&self) -> bool {
        let mut state = self.state();
        let is_due = state.last.elapsed() >= self.every || (self.drain.is_draining() && !state.is_safe);
        if is_due {
            state.last = Instant::now();
        }
        is_due
    }

    fn keep(&self, checkpoint: &Checkpoint) {
        match self.jobs.keep_checkpoint(&self.id, checkpoint) {
            Ok(()) => {
                tracing::info!(job = self.id, "checkpoint");
                self.state().is_safe = self.drain.is_draining();
            }
            Err(error) => tracing::warn!(job = self.id, %error, "no checkpoint"),
        }
    }

    fn found(&self) -> Option<Checkpoint> {
        let found = self.jobs.checkpoint(&self.id)?;
        tracing::info!(job = self.id, "goes on from a checkpoint");
        self.state().resumed = true;
        Some(found)
    }
}
