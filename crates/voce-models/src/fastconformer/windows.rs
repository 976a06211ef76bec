//! Long audio for offline models: overlapped windows, whose tokens are joined where both heard the same.

use crate::hearing::Token;

/// Encoder frames of a window: what a model hears at once, 41 seconds.
pub(super) const WINDOW: usize = 512;
/// Encoder frames that a window shares with the next: 6.4 seconds.
pub(super) const OVERLAP: usize = 80;
/// Frames by which two windows may differ about when the same token was said.
const TOLERANCE: usize = 6;

/// Joins the tokens of windows. Frames count from the part's begin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Joiner {
    /// Tokens of the last window that the next may still replace.
    pub open: Vec<Token>,
    /// First frame of the next window.
    pub next: usize,
}

impl Joiner {
    /// Whether no window has come yet.
    pub(super) fn is_fresh(&self) -> bool {
        *self == Self::default()
    }

    /// Takes a window's tokens, which count from its own begin, and appends to `certain` what no later window
    /// can change. `last` tells that no window follows.
    pub(super) fn take(&mut self, mut window: Vec<Token>, last: bool, certain: &mut Vec<Token>) {
        let begin = self.next;
        window.iter_mut().for_each(|t| t.frame += begin);
        let (keep, skip) = if begin == 0 { (0, 0) } else { cut(&self.open, &window, begin) };
        certain.extend(self.open.drain(..keep));
        self.open.clear();
        self.open.extend(window.drain(skip..));
        self.next = begin + WINDOW - OVERLAP;
        let settled = if last { self.open.len() } else { before(&self.open, self.next) };
        certain.extend(self.open.drain(..settled));
    }
}

/// Tokens before a frame.
fn before(tokens: &[Token], frame: usize) -> usize {
    tokens.iter().take_while(|t| t.frame < frame).count()
}

/// How many tokens of `left` to keep and of `right` to skip, where `right` begins at frame `begin`.
fn cut(left: &[Token], right: &[Token], begin: usize) -> (usize, usize) {
    let end = begin + OVERLAP;
    let shared = before(right, end);
    let near = |a: &Token, b: &Token| a.id == b.id && a.frame.abs_diff(b.frame) <= TOLERANCE;
    // The longest run that both have; the one nearest to the middle among equals.
    let middle = begin + OVERLAP / 2;
    let mut best: Option<(usize, usize, usize, usize)> = None;
    for i in 0..left.len() {
        for j in 0..shared {
            let run = left[i..].iter().zip(&right[j..shared]).take_while(|(a, b)| near(a, b)).count();
            if run == 0 {
                continue;
            }
            let distance = left[i + run / 2].frame.abs_diff(middle);
            if best.is_none_or(|(r, d, ..)| run > r || (run == r && distance < d)) {
                best = Some((run, distance, i, j));
            }
        }
    }
    match best {
        // Each window is at its worst where it has no context on one side: cut in the run's middle.
        Some((run, _, i, j)) => (i + run.div_ceil(2), j + run.div_ceil(2)),
        None => (before(left, middle), before(right, middle)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(list: &[(u32, usize)]) -> Vec<Token> {
        list.iter()
            .map(|&(id, frame)| Token { id, frame, duration: 1, log_prob: 0.0, confidence: 1.0 })
            .collect()
    }

    fn ids(tokens: &[Token]) -> Vec<u32> {
        tokens.iter().map(|t| t.id).collect()
    }

    #[test]
    fn windows_join_on_what_both_heard() {
        let step = WINDOW - OVERLAP;
        let mut joiner = Joiner::default();
        let mut certain = Vec::new();
        joiner.take(
            tokens(&[(1, 10), (2, 400), (3, step + 5), (4, step + 30), (5, step + 50), (9, step + 79)]),
            false,
            &mut certain,
        );
        assert_eq!(ids(&certain), [1, 2]);
        // The second window misheard its begin, the first its end.
        joiner.take(tokens(&[(8, 4), (4, 31), (5, 49), (6, 78), (7, 100)]), false, &mut certain);
        assert_eq!(ids(&certain), [1, 2, 3, 4, 5, 6, 7]);
        joiner.take(tokens(&[(1, OVERLAP)]), true, &mut certain);
        assert_eq!(ids(&certain), [1, 2, 3, 4, 5, 6, 7, 1]);
        assert!(certain.is_sorted_by_key(|t| t.frame));
    }

    #[test]
    fn without_agreement_the_middle_decides() {
        let step = WINDOW - OVERLAP;
        let mut joiner = Joiner::default();
        let mut certain = Vec::new();
        joiner.take(tokens(&[(1, step + 10), (2, step + 60)]), false, &mut certain);
        assert!(certain.is_empty());
        joiner.take(tokens(&[(3, 20), (4, 70)]), true, &mut certain);
        assert_eq!(ids(&certain), [1, 4]);
    }
}
