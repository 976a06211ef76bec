//! How much of a step goes to streams that are behind, such as files, while others are live: as much as keeps steps short.

use std::time::Duration;

/// How long a step should take at most while somebody is live: half a frame of 80 ms.
const STEP_TIME: Duration = Duration::from_millis(40);
/// What a step's figures keep of their weight with every step that follows.
const FADE: f64 = 0.8;
/// Seconds of audio that wait for the model from which on a stream is behind; chunks that are longer count twice.
const BEHIND_SECONDS: f64 = 1.0;

/// The pace of the last steps.
#[derive(Debug, Default)]
pub(super) struct Share {
    seconds: f64,
    frames: f64,
}

impl Share {
    /// Records a step of `frames` frames.
    pub(super) fn record(&mut self, frames: usize, took: Duration) {
        self.seconds = self.seconds * FADE + took.as_secs_f64();
        self.frames = self.frames * FADE + frames as f64;
    }

    /// Frames that a step of [`STEP_TIME`] has room for, by the pace so far; one as long as nobody knows it.
    pub(super) fn frames(&self) -> usize {
        if self.seconds > 0.0 {
            ((self.frames / self.seconds * STEP_TIME.as_secs_f64()) as usize).max(1)
        } else {
            1
        }
    }
}

/// Whether a stream is behind of which `waiting` seconds of audio wait: more than live speech in packets would leave.
pub(super) fn is_behind(waiting: f64, chunk_seconds: f64) -> bool {
    waiting >= BEHIND_SECONDS.max(2.0 * chunk_seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_follows_the_pace() {
        let mut share = Share::default();
        assert_eq!(share.frames(), 1);
        // A millisecond a frame.
        share.record(10, Duration::from_millis(10));
        assert_eq!(share.frames(), 40);
        (0..50).for_each(|_| share.record(10, Duration::from_millis(100)));
        assert_eq!(share.frames(), 4);
        // A model that needs longer for one frame goes on with one.
        (0..50).for_each(|_| share.record(1, Duration::from_secs(1)));
        assert_eq!(share.frames(), 1);
    }

    #[test]
    fn packets_of_less_than_a_second_are_live() {
        assert!(!is_behind(0.99, 0.08) && is_behind(1.0, 0.08));
        assert!(!is_behind(2.23, 1.12) && is_behind(2.24, 1.12));
    }
}
