//! The bounded queue between a sound card's callback and the program. The card's side never waits for
//! anything but a short lock.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::no_device;
use crate::AudioError;

/// A card that neither takes nor gives a sample for this long is taken for dead.
const STALL: Duration = Duration::from_secs(5);

pub(super) struct Ring {
    what: &'static str,
    state: Mutex<State>,
    moved: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct State {
    samples: VecDeque<f32>,
    /// Samples through the card's side so far.
    passed: u64,
    lost: u64,
    failed: Option<String>,
}

impl Ring {
    pub(super) fn new(what: &'static str, capacity: usize) -> Self {
        Self { what, state: Mutex::default(), moved: Condvar::new(), capacity: capacity.max(1) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The card's side: an error that ends the stream, or a mere hiccup.
    pub(super) fn report(&self, error: &cpal::Error) {
        use cpal::ErrorKind::{DeviceChanged, RealtimeDenied, Xrun};
        if !matches!(error.kind(), DeviceChanged | RealtimeDenied | Xrun) {
            self.lock().failed = Some(error.to_string());
            self.moved.notify_all();
        }
    }

    /// The card's side of playing: gives `n` samples, silence where there are none.
    pub(super) fn pop(&self, n: usize, mut put: impl FnMut(usize, f32)) {
        let mut state = self.lock();
        for i in 0..n {
            put(i, state.samples.pop_front().unwrap_or(0.0));
        }
        state.passed += n as u64;
        self.moved.notify_all();
    }

    /// The card's side of recording: what does not fit is dropped and counted.
    pub(super) fn push_or_drop(&self, samples: impl Iterator<Item = f32>) {
        let mut state = self.lock();
        for s in samples {
            state.passed += 1;
            if state.samples.len() < self.capacity {
                state.samples.push_back(s);
            } else {
                state.lost += 1;
            }
        }
        self.moved.notify_all();
    }

    /// The program's side of playing: waits while the ring is full.
    pub(super) fn push(&self, mut samples: &[f32]) -> Result<(), AudioError> {
        while !samples.is_empty() {
            let mut state = self.wait(|s| s.samples.len() < self.capacity)?;
            let (now, later) = samples.split_at(samples.len().min(self.capacity - state.samples.len()));
            state.samples.extend(now);
            samples = later;
        }
        Ok(())
    }

    /// The program's side of playing: waits until all is played.
    pub(super) fn drain(&self) -> Result<(), AudioError> {
        self.wait(|s| s.samples.is_empty()).map(drop)
    }

    /// The program's side of recording: waits for samples and takes all there are.
    pub(super) fn take(&self, out: &mut Vec<f32>) -> Result<(), AudioError> {
        let mut state = self.wait(|s| !s.samples.is_empty())?;
        out.extend(state.samples.drain(..));
        Ok(())
    }

    pub(super) fn lost(&self) -> u64 {
        self.lock().lost
    }

    fn wait(&self, ready: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, AudioError> {
        let mut state = self.lock();
        loop {
            if let Some(detail) = &state.failed {
                return Err(no_device(self.what, detail));
            }
            if ready(&state) {
                return Ok(state);
            }
            let before = state.passed;
            let (next, timeout) =
                self.moved.wait_timeout(state, STALL).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timeout.timed_out() && state.passed == before {
                return Err(no_device(self.what, "it stopped moving"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_full_ring_holds_the_writer_and_keeps_the_order() {
        let ring = Arc::new(Ring::new("output", 8));
        let writer = ring.clone();
        let samples: Vec<f32> = (1..=100).map(|i| i as f32).collect();
        let sent = samples.clone();
        let thread = std::thread::spawn(move || writer.push(&sent).and_then(|()| writer.drain()));
        let mut heard = Vec::new();
        while heard.len() < samples.len() {
            ring.pop(3, |_, s| {
                if s != 0.0 {
                    heard.push(s);
                }
            });
        }
        thread.join().unwrap().unwrap();
        assert_eq!(heard, samples);
    }

    #[test]
    fn a_slow_reader_loses_samples_and_is_told() {
        let ring = Ring::new("input", 10);
        ring.push_or_drop((0..25).map(|i| i as f32));
        let mut out = Vec::new();
        ring.take(&mut out).unwrap();
        assert_eq!((out.len(), ring.lost()), (10, 15));
    }

    #[test]
    fn a_lost_device_ends_the_wait() {
        let ring = Ring::new("output", 4);
        ring.report(&cpal::Error::from(cpal::ErrorKind::Xrun));
        ring.push(&[0.0; 3]).unwrap();
        ring.report(&cpal::Error::from(cpal::ErrorKind::DeviceNotAvailable));
        assert_eq!(ring.push(&[0.0; 3]).unwrap_err().code(), "no_device");
    }
}
