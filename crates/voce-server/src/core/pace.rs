//! A rolling minimum rate: time spent waiting is a debt, bytes pay it off, and more debt than the grace is too slow.

use std::time::Duration;

/// How far behind its rate something is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    grace: Duration,
    /// Bytes a second.
    rate: u32,
    debt: Duration,
}

impl Pace {
    pub(crate) fn new(grace: Duration, rate: u32) -> Self {
        Self { grace, rate, debt: Duration::ZERO }
    }

    /// How much longer it may be waited for.
    pub(crate) fn left(&self) -> Duration {
        self.grace.saturating_sub(self.debt)
    }

    /// Bytes came after a wait. What came sooner than it had to is not kept for later.
    pub(crate) fn count(&mut self, waited: Duration, bytes: usize) {
        if self.debt.is_zero() && waited.is_zero() {
            return;
        }
        let paid = Duration::from_secs_f64(bytes as f64 / f64::from(self.rate));
        self.debt = (self.debt + waited).saturating_sub(paid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_before_does_not_pay_for_silence() {
        let second = Duration::from_secs(1);
        let mut pace = Pace::new(5 * second, 1024);
        pace.count(second, 25 << 20);
        assert_eq!(pace.left(), 5 * second);
        // Half of the rate: half of each second is missing.
        for _ in 0..4 {
            pace.count(second, 512);
        }
        assert_eq!(pace.left(), 3 * second);
        // At the rate it stays there, above it the debt is paid.
        pace.count(second, 1024);
        assert_eq!(pace.left(), 3 * second);
        pace.count(second, 4096);
        assert_eq!(pace.left(), 5 * second);
        pace.count(6 * second, 0);
        assert_eq!(pace.left(), Duration::ZERO);
    }
}
