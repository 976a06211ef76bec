//! Where a piece of work is, as those see it who handed it in.

use serde::{Deserialize, Serialize};

/// Where a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// In the queue.
    Waiting,
    /// With a worker.
    Running,
    /// Its result is kept.
    Done,
    /// It has no result, and will not get one by itself.
    Failed,
    /// Nobody wants it any more.
    Cancelled,
}

impl Phase {
    /// All of them, in the order of a job's life.
    pub const ALL: [Self; 5] = [Self::Waiting, Self::Running, Self::Done, Self::Failed, Self::Cancelled];

    /// Whether nothing more will happen by itself.
    pub fn is_over(self) -> bool {
        matches!(self, Phase::Done | Phase::Failed | Phase::Cancelled)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Waiting => "waiting",
            Phase::Running => "running",
            Phase::Done => "done",
            Phase::Failed => "failed",
            Phase::Cancelled => "cancelled",
        }
    }
}
