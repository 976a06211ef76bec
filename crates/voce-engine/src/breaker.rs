//! A circuit breaker around something remote: after failures in a row nobody calls it for a while, then one call tries.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::wake::lock;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerRule {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long it stays open before one call may try.
    pub rest: Duration,
}

impl Default for BreakerRule {
    fn default() -> Self {
        Self { failures: 8, rest: Duration::from_secs(30) }
    }
}

/// What a breaker does with the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Lets it through.
    Closed,
    /// Lets one through to see.
    HalfOpen,
    /// Refuses it.
    Open,
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Closed, Self::HalfOpen, Self::Open];

    /// A short name for metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// A breaker's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerStats {
    /// What it does now.
    pub state: BreakerState,
    /// Calls that failed.
    pub failures: u64,
    /// Calls that it refused.
    pub refused: u64,
    /// Times it opened.
    pub opened: u64,
}

#[derive(Default)]
struct Inside {
    /// Failures since the last success.
    in_a_row: u32,
    /// Open until then.
    until: Option<Instant>,
    /// A call is out to see whether all is well again.
    trying: bool,
    failures: u64,
    refused: u64,
    opened: u64,
}

/// A circuit breaker.
pub struct Breaker {
    name: &'static str,
    rule: BreakerRule,
    inside: Mutex<Inside>,
}

/// A call that was let through; one that is dropped without a verdict counts as neither.
#[must_use]
pub struct Pass<'a>(&'a Breaker);

/// The breaker is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has failed too often: the next try is in {} s", .0.as_secs_f64().ceil())]
pub struct Resting(pub Duration);

impl std::fmt::Debug for Breaker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Breaker").field("name", &self.name).field("stats", &self.stats()).finish()
    }
}

impl Breaker {
    /// A closed breaker around what `name` says.
    pub fn new(name: &'static str, rule: BreakerRule) -> Self {
        Self { name, rule, inside: Mutex::default() }
    }

    /// What it is around.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Lets a call through, or says how long to wait.
    pub fn enter(&self) -> Result<Pass<'_>, Resting> {
        self.enter_at(Instant::now())
    }

    fn enter_at(&self, now: Instant) -> Result<Pass<'_>, Resting> {
        let mut b = lock(&self.inside);
        let Some(until) = b.until else { return Ok(Pass(self)) };
        if now < until || b.trying {
            b.refused += 1;
            return Err(Resting(until.saturating_duration_since(now)));
        }
        b.trying = true;
        Ok(Pass(self))
    }

    /// Its counts.
    pub fn stats(&self) -> BreakerStats {
        self.stats_at(Instant::now())
    }

    fn stats_at(&self, now: Instant) -> BreakerStats {
        let b = lock(&self.inside);
        let state = match b.until {
            None => BreakerState::Closed,
            Some(until) if now < until => BreakerState::Open,
            Some(_) => BreakerState::HalfOpen,
        };
        BreakerStats { state, failures: b.failures, refused: b.refused, opened: b.opened }
    }

    fn failed_at(&self, now: Instant) {
        let mut b = lock(&self.inside);
        b.failures += 1;
        b.in_a_row = b.in_a_row.saturating_add(1);
        if b.in_a_row >= self.rule.failures {
            // Calls that were under way when it opened do not keep it open for longer.
            if b.until.is_none() || b.trying {
                b.opened += 1;
                b.until = Some(now + jittered(self.rule.rest));
                tracing::warn!(stage = self.name, failures = b.in_a_row, "the breaker has opened");
            }
            b.trying = false;
        }
    }
}

impl Pass<'_> {
    /// The call went well.
    pub fn succeeded(self) {
        let mut b = lock(&self.0.inside);
        if b.until.take().is_some() {
            tracing::info!(stage = self.0.name, "the breaker has closed");
        }
        b.in_a_row = 0;
        b.trying = false;
    }

    /// The call failed in a way that the next one may as well.
    pub fn failed(self) {
        self.0.failed_at(Instant::now());
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        lock(&self.0.inside).trying = false;
    }
}

/// A wait between half and all of `wait`, so that those who failed together do not come back together.
pub fn jittered(wait: Duration) -> Duration {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    wait.mul_f64(0.5 + 0.5 * (random >> 11) as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: BreakerRule = BreakerRule { failures: 3, rest: Duration::from_secs(10) };

    #[test]
    fn opens_rests_tries_and_closes() {
        let (b, t) = (Breaker::new("x", RULE), Instant::now());
        let after = |s| t + Duration::from_secs(s);
        let fail = |now| {
            let pass = b.enter_at(now).unwrap();
            b.failed_at(now);
            drop(pass);
        };
        fail(t);
        fail(t);
        b.enter_at(t).unwrap().succeeded();
        fail(t);
        fail(t);
        assert_eq!(b.stats_at(t).state, BreakerState::Closed);
        fail(t);
        assert_eq!(b.stats_at(t).state, BreakerState::Open);
        let Resting(wait) = b.enter_at(t).err().unwrap();
        assert!((5..=10).contains(&wait.as_secs()), "{wait:?}");
        // One tries, the others still wait; it fails, and all wait again.
        assert_eq!(b.stats_at(after(11)).state, BreakerState::HalfOpen);
        let pass = b.enter_at(after(11)).unwrap();
        assert!(b.enter_at(after(11)).is_err());
        b.failed_at(after(11));
        drop(pass);
        assert_eq!(b.stats_at(after(11)).state, BreakerState::Open);
        // One is cancelled, the next one goes through.
        drop(b.enter_at(after(22)).unwrap());
        b.enter_at(after(22)).unwrap().succeeded();
        let stats = b.stats_at(after(22));
        assert_eq!(
            (stats.state, stats.failures, stats.refused, stats.opened),
            (BreakerState::Closed, 6, 2, 2)
        );
        fail(after(22));
        assert_eq!(b.stats_at(after(22)).state, BreakerState::Closed);
    }

    #[test]
    fn waits_differ_within_bounds() {
        let wait = Duration::from_secs(8);
        let waits: Vec<Duration> = (0..50).map(|_| jittered(wait)).collect();
        assert!(waits.iter().all(|w| (4.0..=8.0).contains(&w.as_secs_f64())));
        assert!(waits.iter().any(|w| *w != waits[0]));
    }
}
