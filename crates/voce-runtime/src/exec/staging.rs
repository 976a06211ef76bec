//! Host memory from which much data goes to a device in each step.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::Exec;
use crate::cuda::{Device, Memory, Pinned};
use crate::memory::AlignedVec;

/// Bytes from which host memory is pinned, so that a device fetches from it by itself.
const PINNED_FROM: usize = 1 << 20;

/// Values on their way to a device: written with [`Exec::stage`], read by the op that takes them.
#[derive(Debug)]
pub struct Staging {
    /// Dropped before the host memory, which it pins.
    pinned: Option<Pinned>,
    pub(crate) host: AlignedVec<f32>,
    /// Values of the last step.
    pub(crate) len: usize,
    pub(crate) device: Mutex<Option<Memory>>,
    /// The queue that last took the values; 0 for none.
    taken_by: AtomicU64,
    /// Whether its device may still be copying from the host memory.
    copying: AtomicBool,
}

impl Default for Staging {
    fn default() -> Self {
        Self {
            pinned: None,
            host: AlignedVec::zeroed(0),
            len: 0,
            device: Mutex::default(),
            taken_by: AtomicU64::new(0),
            copying: AtomicBool::new(false),
        }
    }
}

impl Staging {
    /// Notes which queue has taken the values. With `apart` they travel in a copy of their own, which a device makes from
    /// pinned memory some time after the call.
    pub(crate) fn is_taken_by(&self, queue: u64, apart: bool) {
        self.taken_by.store(queue, Ordering::Relaxed);
        self.copying.store(apart && self.pinned.is_some(), Ordering::Relaxed);
    }

    /// If `queue` was the last to take values: whether its device may still be copying them, so that the caller has to wait
    /// for it.
    pub(crate) fn was_taken_by(&mut self, queue: u64) -> Option<bool> {
        (*self.taken_by.get_mut() == queue).then(|| std::mem::take(self.copying.get_mut()))
    }

    /// Ends the use by another queue: waits for its copy, and leaves it the device memory that its ops still read.
    pub(crate) fn leave(&mut self) {
        if let (true, Some(pinned)) = (std::mem::take(self.copying.get_mut()), &self.pinned) {
            pinned.wait();
        }
        *self.device.get_mut().unwrap_or_else(|e| e.into_inner()) = None;
    }

    /// Makes room. Nothing may be on its way any more.
    pub(crate) fn grow(&mut self, len: usize, device: &Arc<Device>) {
        if self.host.len() >= len {
            return;
        }
        self.pinned = None;
        self.host = AlignedVec::zeroed(len.next_power_of_two());
        // Memory that cannot be pinned is copied once more on its way.
        if self.host.len() * 4 >= PINNED_FROM {
            self.pinned = Pinned::new(device, &self.host);
        }
    }
}

impl Exec {
    /// Host memory for `len` values that the next op which takes them sends to the device. What was sent before has
    /// arrived when this returns, whichever executor sent it.
    pub fn stage<'s>(&mut self, staging: &'s mut Staging, len: usize) -> &'s mut [f32] {
        match &mut self.cuda {
            Some(cuda) => cuda.stage(staging, len),
            None => {
                staging.leave();
                if staging.host.len() < len {
                    staging.pinned = None;
                }
                staging.host.reserve_zeroed(len);
            }
        }
        staging.len = len;
        &mut staging.host[..len]
    }
}
