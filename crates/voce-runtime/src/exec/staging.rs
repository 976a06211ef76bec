//! Host memory from which much data goes to a device in each step.

use std::sync::{Arc, Mutex};

use super::Exec;
use crate::cuda::{Device, Memory};
use crate::memory::AlignedVec;

/// Bytes from which host memory is locked in place, so that a device fetches from it by itself.
const LOCKED_FROM: usize = 1 << 20;

/// Values on their way to a device: written with [`Exec::stage`], read by the op that takes them.
#[derive(Debug)]
pub struct Staging {
    pub(crate) host: AlignedVec<f32>,
    /// Values of the last step.
    pub(crate) len: usize,
    /// Whose copies the host memory is locked for.
    locked: Option<Arc<Device>>,
    pub(crate) device: Mutex<Option<Memory>>,
}

impl Default for Staging {
    fn default() -> Self {
        Self { host: AlignedVec::zeroed(0), len: 0, locked: None, device: Mutex::default() }
    }
}

impl Staging {
    /// Makes room. Nothing may be on its way any more.
    pub(crate) fn grow(&mut self, len: usize, device: &Arc<Device>) {
        if self.host.len() >= len {
            return;
        }
        self.release();
        self.host = AlignedVec::zeroed(len.next_power_of_two());
        // Memory that cannot be locked is copied once more on its way.
        if self.host.len() * 4 >= LOCKED_FROM && device.lock_host(&self.host) {
            self.locked = Some(device.clone());
        }
    }

    fn release(&mut self) {
        if let Some(device) = self.locked.take() {
            device.unlock_host(&self.host);
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.release();
    }
}

impl Exec {
    /// Host memory for `len` values that the next op which takes them sends to the device.
    pub fn stage<'s>(&mut self, staging: &'s mut Staging, len: usize) -> &'s mut [f32] {
        match &mut self.cuda {
            Some(cuda) => cuda.stage(staging, len),
            None => staging.host.reserve_zeroed(len),
        }
        staging.len = len;
        &mut staging.host[..len]
    }
}
