//! Waking a model thread, and locks that outlive a panic.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Wakes the model thread.
#[derive(Default)]
pub(crate) struct Waker {
    raised: Mutex<bool>,
    condvar: Condvar,
}

impl Waker {
    pub(crate) fn wake(&self) {
        // Who was woken before and has not looked since is not woken again: that would be a call of the system each time.
        if !std::mem::replace(&mut *lock(&self.raised), true) {
            self.condvar.notify_one();
        }
    }

    /// Waits to be woken, or for so long where a time is given. Returns whether it was woken.
    pub(crate) fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut raised = lock(&self.raised);
        while !*raised {
            let Some(time) = at_most else {
                raised = self.condvar.wait(raised).unwrap_or_else(|e| e.into_inner());
                continue;
            };
            let waited = self.condvar.wait_timeout(raised, time).unwrap_or_else(|e| e.into_inner());
            raised = waited.0;
            if waited.1.timed_out() {
                break;
            }
        }
        std::mem::take(&mut *raised)
    }
}

/// The lock, whatever happened to its last holder.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}
