//! When something that failed may be tried again: later each time, and not at the same time as others.

use std::time::{Duration, Instant};

use voce_engine::breaker::jittered;

/// The first wait before a model that cannot be opened is tried again, and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The wait of one thing that may fail.
#[derive(Default)]
pub(super) struct Backoff(Option<(Instant, Duration)>);

impl Backoff {
    /// Whether a try is due.
    pub(super) fn is_due(&self) -> bool {
        self.0.is_none_or(|(until, _)| Instant::now() >= until)
    }

    pub(super) fn failed(&mut self) {
        let next = self.0.map_or(FIRST_WAIT, |(_, last)| (last * 2).min(LONGEST_WAIT));
        self.0 = Some((Instant::now() + jittered(next), next));
    }

    pub(super) fn succeeded(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_waited_for_longer_each_time() {
        let mut backoff = Backoff::default();
        assert!(backoff.is_due());
        let wait = |backoff: &Backoff| backoff.0.unwrap().1;
        backoff.failed();
        assert!(!backoff.is_due() && wait(&backoff) == FIRST_WAIT);
        backoff.failed();
        assert_eq!(wait(&backoff), FIRST_WAIT * 2);
        (0..20).for_each(|_| backoff.failed());
        assert_eq!(wait(&backoff), LONGEST_WAIT);
        backoff.succeeded();
        assert!(backoff.is_due());
    }
}
