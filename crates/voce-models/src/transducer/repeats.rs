//! The guard against repetition as a device has it: for each cycle, how long the labels so far have gone round in it.

use voce_runtime::transducer::{MAX_CYCLE, Repeats};

use super::{SearchOptions, Token};

impl SearchOptions {
    /// The guard's longest cycle and the rounds that it lets through, zeros without one; none where a device cannot
    /// look for such long cycles.
    pub(super) fn guard_on_device(&self) -> Option<(u32, u32)> {
        match self.repeat_guard {
            None => Some((0, 0)),
            Some(g) if g.cycle <= MAX_CYCLE => {
                Some((g.cycle as u32, u32::try_from(g.repeats).unwrap_or(u32::MAX)))
            }
            Some(_) => None,
        }
    }

    /// What the guard knows of some labels, the last first.
    pub(super) fn past<'t>(&self, recent: impl Iterator<Item = &'t Token> + Clone) -> Repeats {
        let mut past = Repeats::default();
        let Some(guard) = self.repeat_guard else { return past };
        let recent = recent.map(|t| t.id);
        past.labels.iter_mut().zip(recent.clone()).for_each(|(to, label)| *to = label);
        for (cycle, count) in (1..=guard.cycle).zip(&mut past.counts) {
            let pairs = recent.clone().zip(recent.clone().skip(cycle));
            let most = cycle.saturating_mul(guard.repeats);
            *count = pairs.take(most).take_while(|(a, b)| a == b).count() as u32;
        }
        past
    }
}

#[cfg(test)]
mod tests {
    use super::super::RepeatGuard;
    use super::*;

    #[test]
    fn a_device_refuses_what_the_guard_refuses() {
        let guard = RepeatGuard { cycle: 3, repeats: 2 };
        let options = SearchOptions { repeat_guard: Some(guard), ..SearchOptions::default() };
        let mut refused = 0;
        // All short sequences of two labels, and what may come next.
        for bits in 0..1u32 << 9 {
            let id = |i: u32| bits >> i & 1;
            let tokens: Vec<Token> = (0..8)
                .map(|i| Token { id: id(i), frame: 0, duration: 1, log_prob: 0.0, confidence: 1.0 })
                .collect();
            let past = options.past(tokens.iter().rev());
            let next = id(8);
            let device = (0..guard.cycle)
                .any(|c| past.labels[c] == next && past.counts[c] + 1 >= ((c + 1) * guard.repeats) as u32);
            let before = |i: usize| tokens.len().checked_sub(i + 1).map(|at| tokens[at].id);
            assert_eq!(device, guard.refuses(before, next), "{bits:b}");
            refused += usize::from(device);
        }
        assert!(refused > 20);
    }

    #[test]
    fn long_cycles_are_the_hosts() {
        let options = |cycle| SearchOptions {
            repeat_guard: Some(RepeatGuard { cycle, repeats: 2 }),
            ..SearchOptions::default()
        };
        assert_eq!(options(MAX_CYCLE).guard_on_device(), Some((8, 2)));
        assert_eq!(options(MAX_CYCLE + 1).guard_on_device(), None);
        assert_eq!(SearchOptions::default().guard_on_device(), Some((0, 0)));
    }
}
