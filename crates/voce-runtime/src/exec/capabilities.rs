//! What an executor is good at: the questions that models ask instead of where it runs.

use super::Exec;
use crate::memory::WeightArena;

impl Exec {
    /// Whether host and ops share memory: an op has run when its call returns, and rows are read and written at no cost.
    /// Otherwise ops are recorded, rows have to travel, and a look at one waits for all ops so far.
    pub fn shares_memory(&self) -> bool {
        self.cuda.is_none()
    }

    /// Whether one op over many rows beats several over few: each op costs a launch, and most rows come for nothing.
    /// Otherwise few rows at a time stay in the caches.
    pub fn wants_batches(&self) -> bool {
        self.cuda.is_some()
    }

    /// Whether a step of a size that came before costs less than one of a new size: batches are then best padded to few
    /// sizes.
    pub fn wants_few_sizes(&self) -> bool {
        self.cuda.is_some()
    }

    /// Whether it has the ops by which searches decide where their logits are: [`Exec::greedy_begin`] and
    /// [`Exec::beams_begin`] with those that follow them.
    pub fn decides_searches(&self) -> bool {
        self.cuda.is_some()
    }

    /// Whether some residual blocks are one op: [`Exec::residual`].
    pub fn fuses_residuals(&self) -> bool {
        self.cuda.is_some()
    }

    /// Whether a step of `streams` streams occupies the whole device until it is done, so that no other work runs beside it.
    pub fn fills_device(&self, streams: usize) -> bool {
        streams == 1 && self.cuda.as_ref().is_some_and(|cuda| cuda.takes_frames())
    }

    /// Threads for the host's own work between ops, by [`Exec::together`]: one where ops run on the host themselves.
    pub fn host_threads(&self) -> usize {
        if self.shares_memory() { 1 } else { self.threads() }
    }

    /// Multiprocessors that ops run on; none where threads run them.
    pub fn processors(&self) -> Option<usize> {
        self.device().map(|d| d.info().processors as usize)
    }

    /// Bytes that are free where buffers and states live, if that is not the host's memory. To be asked seldom: it takes
    /// a call of the driver.
    pub fn free_memory(&self) -> Option<u64> {
        self.device().and_then(|d| d.memory().ok()).map(|(free, _)| free)
    }

    /// Bytes that this process holds there.
    pub fn held_memory(&self) -> usize {
        self.device().map_or(0, |d| d.used())
    }

    /// Where weights go that this executor's ops read.
    pub fn arena(&self) -> WeightArena {
        self.device().map_or_else(WeightArena::new, |d| WeightArena::on(d.clone()))
    }
}
