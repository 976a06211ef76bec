//! Durations counted in buckets of a sixteenth of an octave: quantiles without keeping every value.

use std::time::Duration;

/// Buckets per doubling.
const PER_OCTAVE: f64 = 16.0;
/// Buckets: from a microsecond to half an hour.
const BUCKETS: usize = 496;

/// How often something took how long.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u32]>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS].into(), total: 0 }
    }
}

impl Histogram {
    /// Counts one.
    pub fn add(&mut self, took: Duration) {
        let micros = (took.as_nanos() as f64 / 1e3).max(1.0);
        let bucket = (micros.log2() * PER_OCTAVE) as usize;
        let count = &mut self.counts[bucket.min(BUCKETS - 1)];
        *count = count.saturating_add(1);
        self.total += 1;
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.total
    }

    /// The time that a share `q` of them did not pass, to 2 %; zero of nothing.
    pub fn quantile(&self, q: f64) -> Duration {
        let rank = (q.clamp(0.0, 1.0) * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (i, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if count > 0 && seen >= rank {
                let middle = ((i as f64 + 0.5) / PER_OCTAVE).exp2();
                return Duration::from_nanos((middle * 1e3) as u64);
            }
        }
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near() {
        let mut h = Histogram::default();
        assert_eq!(h.quantile(0.5), Duration::ZERO);
        (1..=1000).for_each(|ms| h.add(Duration::from_millis(ms)));
        for (q, ms) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let got = h.quantile(q).as_secs_f64() * 1e3;
            assert!((got / ms - 1.0).abs() < 0.03, "{q}: {got}");
        }
        h.add(Duration::ZERO);
        h.add(Duration::from_secs(1 << 30));
        assert_eq!(h.count(), 1002);
    }
}
