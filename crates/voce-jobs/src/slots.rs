//! A model's slots, counted out to threads: reading inputs and keeping results needs none.

use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// How often somebody who waits for a slot looks whether to go on waiting.
const LOOK: Duration = Duration::from_millis(50);

/// Free slots.
pub struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

impl Slots {
    /// As many as the model has.
    pub fn new(count: usize) -> Self {
        Self { free: Mutex::new(count), freed: Condvar::new() }
    }

    /// Waits for a slot; none once `stop` says so.
    pub fn take(&self, stop: impl Fn() -> bool) -> Option<Taken<'_>> {
        let mut free = self.free();
        loop {
            if stop() {
                return None;
            }
            if *free > 0 {
                *free -= 1;
                return Some(Taken(self));
            }
            free = self.freed.wait_timeout(free, LOOK).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn free(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A slot, until it is dropped.
pub struct Taken<'a>(&'a Slots);

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_comes_back() {
        let slots = Slots::new(1);
        let first = slots.take(|| false).unwrap();
        assert!(slots.take(|| true).is_none());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| slots.take(|| false).is_some());
            drop(first);
            assert!(second.join().unwrap());
        });
        assert!(slots.take(|| false).is_some());
    }
}
