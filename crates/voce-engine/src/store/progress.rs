//! What a pull tells its caller while it runs, and how the caller stops it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Something that happened during a pull.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The files are known; sent once, before the first byte.
    Planned {
        /// Files of the model.
        files: usize,
        /// Files that must be fetched.
        missing: usize,
        /// Bytes that must be fetched.
        bytes: u64,
    },
    /// Another process is fetching the file; the pull waits for it.
    Waiting {
        /// The file.
        file: &'a str,
    },
    /// A file's transfer begins.
    Started {
        /// The file.
        file: &'a str,
        /// Bytes kept from an earlier run.
        resumed: u64,
        /// The file's size.
        total: u64,
    },
    /// Bytes arrived.
    Bytes {
        /// The file.
        file: &'a str,
        /// Bytes of the file on disk.
        done: u64,
        /// The file's size.
        total: u64,
        /// Mean rate of this file's transfer.
        bytes_per_second: f64,
    },
    /// A request failed and will be tried again.
    Retrying {
        /// The file, or the repository while it is being looked up.
        file: &'a str,
        /// Failures in a row.
        attempt: u32,
        /// The wait before the next try.
        wait: Duration,
        /// What failed.
        reason: &'a str,
    },
    /// A file is in place.
    Finished {
        /// The file.
        file: &'a str,
        /// Its size.
        bytes: u64,
        /// Whether it was there already.
        cached: bool,
    },
}

/// A switch that stops a pull from another thread, also in the middle of a wait or a read.
///
/// Clones share the switch. What has arrived stays on disk and is resumed by the next pull.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cancelled: bool,
    next: u64,
    agents: Vec<(u64, ureq::Agent)>,
}

impl Cancel {
    /// A switch that is not thrown.
    pub fn new() -> Self {
        Self::default()
    }

    /// Throws the switch: requests in flight are cut and waits end.
    pub fn cancel(&self) {
        let mut state = self.state();
        state.cancelled = true;
        for (_, agent) in state.agents.drain(..) {
            agent.shutdown();
        }
        self.0.wake.notify_all();
    }

    /// Whether the switch was thrown.
    pub fn is_cancelled(&self) -> bool {
        self.state().cancelled
    }

    /// Waits, and returns early with `true` when the switch is thrown.
    pub(super) fn wait(&self, duration: Duration) -> bool {
        let until = Instant::now() + duration;
        let mut state = self.state();
        while !state.cancelled {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.0.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Cuts `agent`'s requests when the switch is thrown, for as long as the result lives.
    pub(super) fn attach(&self, agent: &ureq::Agent) -> Attached {
        let mut state = self.state();
        let id = state.next;
        state.next += 1;
        state.agents.push((id, agent.clone()));
        Attached { cancel: self.clone(), id }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps an HTTP agent tied to a [`Cancel`].
#[derive(Debug)]
pub(super) struct Attached {
    cancel: Cancel,
    id: u64,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.cancel.state().agents.retain(|(id, _)| *id != self.id);
    }
}
