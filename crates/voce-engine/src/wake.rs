//! Waking a model thread, and locks that outlive a panic.

use std::sync::{Condvar, Mutex, MutexGuard};

/// Wakes the model thread.
#[derive(Default)]
pub(crate) struct Waker {
    raised: Mutex<bool>,
    condvar: Condvar,
}

impl Waker {
    pub(crate) fn wake(&self) {
        *lock(&self.raised) = true;
        self.condvar.notify_one();
    }

    pub(crate) fn wait(&self) {
        let mut raised = lock(&self.raised);
        while !*raised {
            raised = self.condvar.wait(raised).unwrap_or_else(|e| e.into_inner());
        }
        *raised = false;
    }
}

/// The lock, whatever happened to its last holder.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}
