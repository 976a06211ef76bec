//! How slowly speech is taken: time that the reader takes is a debt, and what it takes pays for it.

use std::time::{Duration, Instant};

use super::limits::SLOWEST_READER;

/// Whoever speech is given to.
pub(crate) struct Reader {
    /// When the last samples were given.
    given: Option<Instant>,
    debt: Duration,
    grace: Duration,
}

impl Reader {
    /// A reader who may be this far behind.
    pub(crate) fn new(grace: Duration) -> Self {
        Self { given: None, debt: Duration::ZERO, grace }
    }

    /// The reader asks for more. Whether it is too slow.
    pub(crate) fn asks(&mut self) -> bool {
        let took = self.given.take().map_or(Duration::ZERO, |given| given.elapsed());
        self.asks_after(took)
    }

    fn asks_after(&mut self, took: Duration) -> bool {
        self.debt += took;
        self.debt > self.grace
    }

    /// The reader is given speech of this length.
    pub(crate) fn takes(&mut self, length: Duration) {
        self.debt = self.debt.saturating_sub(length.mul_f64(SLOWEST_READER));
        self.given = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speech_is_taken_at_half_of_its_speed_at_least() {
        let ms = Duration::from_millis;
        let reader = |per_frame: u64| {
            let mut reader = Reader::new(ms(1000));
            // Frames of 80 ms.
            (0..1000).position(|_| {
                reader.takes(ms(80));
                reader.asks_after(ms(per_frame))
            })
        };
        assert_eq!((reader(0), reader(80), reader(160)), (None, None, None));
        // Ten milliseconds of each frame are missing.
        assert_eq!(reader(170), Some(84));
        // One who pauses for longer than the grace is not waited for.
        assert_eq!(reader(1001), Some(0));
    }
}
