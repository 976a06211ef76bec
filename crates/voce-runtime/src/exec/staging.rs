//! Host memory from which much data goes to a device in each step.

use std::sync::{Arc, Mutex};

use super::Exec;
use crate::cuda::{Device, Memory, Pinned};
use crate::memory::AlignedVec;

/// Bytes from which host memory is pinned, so that a device fetches from it by itself.
const PINNED_FROM: usize = 1 << 20;

/// Values on their way to a device: written with [`Exec::stage`], read by the op that takes them.
#[derive(Debug)]
pub struct Staging {
    /// Goes before the host memory, which it pins.
    pinned: Option<Pinned>,
    pub(crate) host: AlignedVec<f32>,
    /// Values of the last step.
    pub(crate) len: usize,
    pub(crate) device: Mutex<Option<Memory>>,
}

impl Default for Staging {
    fn default() -> Self {
        Self { pinned: None, host: AlignedVec::zeroed(0), len: 0, device: Mutex::default() }
    }
}

impl Staging {
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
