//! A stage's part in a stream: when it first and last worked, and for how long in all.

use std::time::Duration;

/// Work of one stage for one stream. Times count from the stream's request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Begin of the first piece of work.
    pub first: Duration,
    /// End of the last one.
    pub last: Duration,
    /// This stream's share of the work.
    pub busy: Duration,
    /// Pieces of work; a stage with none never ran.
    pub count: usize,
}

impl StageTime {
    /// Adds a piece of work that took `took` and ended at `end`, of which `share` is this stream's.
    pub fn add(&mut self, end: Duration, took: Duration, share: Duration) {
        if self.count == 0 {
            self.first = end.saturating_sub(took);
        }
        self.last = self.last.max(end);
        self.busy += share;
        self.count += 1;
    }
}
