//! Delays between streams: a frame's codes are drawn in different steps, and come together again some steps later.

use std::collections::VecDeque;

/// Puts together what belongs together: stream `k` is drawn `delays[k]` steps late.
#[derive(Clone, Debug)]
pub(super) struct Undelay {
    delays: Vec<usize>,
    longest: usize,
    /// The last steps' tokens, the oldest first.
    steps: VecDeque<Vec<u32>>,
}

impl Undelay {
    /// For streams with these delays.
    pub(super) fn new(delays: &[usize], longest: usize) -> Self {
        Self { delays: delays.to_vec(), longest, steps: VecDeque::new() }
    }

    /// Takes the tokens of a step, one of each stream. Gives those of the frame that is complete with it.
    pub(super) fn push(&mut self, tokens: &[u32]) -> Option<Vec<u32>> {
        if self.steps.len() > self.longest {
            self.steps.pop_front();
        }
        self.steps.push_back(tokens.to_vec());
        if self.steps.len() <= self.longest {
            return None;
        }
        Some(self.delays.iter().enumerate().map(|(k, &d)| self.steps[d][k]).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_complete_with_its_latest_stream() {
        let mut undelay = Undelay::new(&[0, 2, 1], 2);
        let step = |t: u32| [10 * t, 10 * t + 1, 10 * t + 2];
        assert_eq!(undelay.push(&step(0)), None);
        assert_eq!(undelay.push(&step(1)), None);
        assert_eq!(undelay.push(&step(2)), Some(vec![0, 21, 12]));
        assert_eq!(undelay.push(&step(3)), Some(vec![10, 31, 22]));
        assert_eq!(Undelay::new(&[0, 0], 0).push(&[4, 5]), Some(vec![4, 5]));
    }
}
