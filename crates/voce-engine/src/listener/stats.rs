//! The work of a listener's model threads.

use std::time::Duration;

use super::histogram::Histogram;

/// Work of all model threads so far.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Steps.
    pub steps: usize,
    /// How long they took.
    pub step_times: Histogram,
    /// Frames of the model.
    pub frames: usize,
    /// Chunks or windows.
    pub chunks: usize,
    /// Time in taking rows from streams, or in making them where a device does it.
    pub front: Duration,
    /// Time in what the model computes of them.
    pub encode: Duration,
    /// Time in finding tokens.
    pub decode: Duration,
    /// Time in all steps.
    pub total: Duration,
    /// The stages that `encode` and `decode` are the times of.
    phases: [&'static str; 2],
}

impl ListenerStats {
    /// Nothing yet, of a model with these stages.
    pub(super) fn of(phases: [&'static str; 2]) -> Self {
        Self { phases, ..Self::default() }
    }

    /// What there is so far, which is then nothing.
    pub(super) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::of(self.phases))
    }

    /// Time in the stage of this name, of those in [`stages`](super::ListenerInfo::stages); none for stages that have
    /// no time of their own.
    pub fn stage(&self, name: &str) -> Duration {
        let [encode, decode] = self.phases;
        if name == encode {
            self.encode
        } else if name == decode {
            self.decode
        } else {
            Duration::ZERO
        }
    }
}
