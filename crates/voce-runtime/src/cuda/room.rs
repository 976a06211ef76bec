//! Memory that ops ask for: what happens where there is none, and rehearsals that ask for all of it beforehand.

use std::collections::HashMap;

use super::driver::Address;
use super::memory::Memory;
use super::queue::Queue;
use super::{Cuda, CudaError};

/// What a rehearsal took of a device's memory: see [`crate::Exec::rehearse`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Bytes that buffers, states and scratch now hold.
    pub given: usize,
    /// Bytes that the ops need beyond them, and the device does not have.
    pub missing: usize,
    /// Bytes that were free at the end.
    pub free: u64,
}

impl Reserved {
    /// Whether everything has its memory; otherwise the error to report.
    pub fn check(&self) -> Result<(), CudaError> {
        match self.missing as u64 {
            0 => Ok(()),
            asked => Err(CudaError::OutOfMemory { asked, free: self.free }),
        }
    }

    /// How many of `slots` streams would fit if what the ops need grew with their number. Since some of it does not,
    /// this is an estimate from above: rehearse again with what it says.
    pub fn fit(&self, slots: usize) -> usize {
        if self.missing == 0 {
            return slots;
        }
        let (have, need) = (self.given as u128 + u128::from(self.free), (self.given + self.missing) as u128);
        // Fewer than asked for, whatever else was freed meanwhile.
        usize::try_from(slots as u128 * have / need).map_or(0, |fit| fit.min(slots.saturating_sub(1)))
    }
}

/// A rehearsal under way.
#[derive(Default)]
pub(super) struct Rehearsal {
    given: usize,
    /// Bytes that could not be had, by the place that wants them: ops ask for the same memory again and again.
    missing: HashMap<usize, usize>,
}

impl Queue {
    /// Why nothing runs any more: the device is lost, or this queue lacked memory.
    pub(super) fn status(&self) -> Result<(), CudaError> {
        self.device.status()?;
        self.failed.as_ref().map_or(Ok(()), |e| Err(e.clone()))
    }

    /// Notes an error: lack of memory is this queue's, everything else the device's.
    pub(super) fn fail(&mut self, error: CudaError) {
        if error.is_out_of_memory() {
            self.failed.get_or_insert(error);
        } else {
            self.device.fail(error);
        }
    }

    /// Notes the error of a call.
    pub(super) fn check(&mut self, result: Result<(), CudaError>) {
        if let Err(e) = result {
            self.fail(e);
        }
    }

    /// Memory for the place `whose`. Where there is none that is this queue's error, or what a rehearsal finds.
    pub(super) fn alloc(&mut self, bytes: usize, whose: usize) -> Option<Memory> {
        match (self.device.alloc(bytes), &mut self.rehearsal) {
            (Ok(memory), rehearsal) => {
                if let Some(r) = rehearsal {
                    r.given += memory.bytes;
                }
                Some(memory)
            }
            (Err(CudaError::OutOfMemory { .. }), Some(r)) => {
                let most = r.missing.entry(whose).or_default();
                *most = bytes.max(*most);
                None
            }
            (Err(e), _) => {
                self.fail(e);
                None
            }
        }
    }

    /// Memory that holds these bytes from now on, for whatever runs on the device.
    pub(super) fn store(&mut self, bytes: &[u8], whose: usize) -> Option<Memory> {
        let memory = self.alloc(bytes.len(), whose)?;
        match self.device.write(memory.at, bytes) {
            Ok(()) => Some(memory),
            Err(e) => {
                self.fail(e);
                None
            }
        }
    }

    /// Memory of at least this size; what it held is lost when it grows. 0 where there is none: what is recorded with
    /// it never runs.
    pub(super) fn reserve(&mut self, memory: &mut Option<Memory>, bytes: usize) -> Address {
        if let Some(m) = memory
            && m.bytes >= bytes
        {
            self.own(m);
            return m.at;
        }
        let whose = std::ptr::from_ref(memory) as usize;
        self.alloc(bytes, whose).map_or(0, |new| memory.insert(new).at)
    }

    /// Panics where memory is another device's: its addresses mean nothing here.
    pub(super) fn own(&self, memory: &Memory) {
        assert!(std::sync::Arc::ptr_eq(&memory.device, &self.device), "memory stays on its device");
    }
}

impl Cuda {
    pub(crate) fn status(&self) -> Result<(), CudaError> {
        self.queue.status()
    }

    pub(crate) fn recover(&mut self) -> Result<(), CudaError> {
        self.queue.flush();
        self.queue.failed = None;
        self.queue.status()
    }

    /// Whether nothing runs because this is a rehearsal.
    pub(crate) fn rehearses(&self) -> bool {
        self.queue.rehearsal.is_some()
    }

    /// Whether what is fetched was computed.
    pub(crate) fn delivers(&self) -> bool {
        !self.rehearses() && self.queue.status().is_ok()
    }

    pub(crate) fn rehearsal_begins(&mut self) -> Result<(), CudaError> {
        assert!(self.queue.rehearsal.is_none(), "one rehearsal at a time");
        self.queue.flush();
        self.queue.status()?;
        self.queue.rehearsal = Some(Rehearsal::default());
        Ok(())
    }

    pub(crate) fn rehearsal_ends(&mut self) -> Result<Reserved, CudaError> {
        self.queue.flush();
        let Rehearsal { given, missing } = self.queue.rehearsal.take().unwrap_or_default();
        self.queue.status()?;
        let free = self.queue.device.memory()?.0;
        Ok(Reserved { given, missing: missing.into_values().sum(), free })
    }
}
