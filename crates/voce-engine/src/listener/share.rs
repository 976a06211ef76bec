//! How much of a step goes to streams whose audio is ahead of the clock, such as files, while others are live: as much as
//! keeps steps short.

use std::time::Duration;

/// How long a step should take at most while somebody is live: half a frame of 80 ms.
const STEP_TIME: Duration = Duration::from_millis(40);
/// What a step's figures keep of their weight with every step that follows.
const FADE: f64 = 0.8;
/// Seconds by which a stream's audio may be ahead of the clock before it is no live speech; chunks that are longer count
/// twice.
const AHEAD_SECONDS: f64 = 1.0;
/// How long a stream must have kept to the clock before others are held back for it; two chunks where these are longer.
const PROOF: Duration = Duration::from_millis(250);
/// How long a stream may bring nothing and still be live.
const SILENCE: Duration = Duration::from_secs(2);

/// What a stream's audio has to do with the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Its audio comes as it is spoken.
    Live,
    /// Its audio is ahead of the clock: a file, or somebody who catches up.
    Ahead,
    /// Nobody can tell: it is new, or brings nothing.
    Unknown,
}

impl Pace {
    /// The pace of a stream whose first audio came `since` ago and its last audio `silent` ago.
    pub(super) fn of(audio: f64, since: Duration, silent: Duration, chunk_seconds: f64) -> Self {
        if audio > since.as_secs_f64() + AHEAD_SECONDS.max(2.0 * chunk_seconds) {
            Self::Ahead
        } else if since < PROOF.max(Duration::from_secs_f64(2.0 * chunk_seconds)) || silent > SILENCE {
            Self::Unknown
        } else {
            Self::Live
        }
    }
}

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
    fn speech_keeps_to_the_clock_and_files_do_not() {
        let ms = Duration::from_millis;
        let pace = |audio, since, silent| Pace::of(audio, ms(since), ms(silent), 0.08);
        assert_eq!(pace(0.5, 0, 0), Pace::Unknown);
        assert_eq!(pace(0.5, 250, 0), Pace::Live);
        assert_eq!(pace(1.1, 0, 0), Pace::Ahead);
        // Packets of a second are live; a file whose start was slow is not, once it runs.
        assert_eq!(pace(10.9, 10_000, 0), Pace::Live);
        assert_eq!(pace(11.1, 10_000, 0), Pace::Ahead);
        assert_eq!(pace(3.0, 10_000, 2_001), Pace::Unknown);
        assert_eq!(Pace::of(2.2, ms(0), ms(0), 1.12), Pace::Unknown);
        assert_eq!(Pace::of(2.3, ms(0), ms(0), 1.12), Pace::Ahead);
        // Of long chunks one cannot tell as soon.
        assert_eq!(Pace::of(1.4, ms(1119), ms(0), 0.56), Pace::Unknown);
        assert_eq!(Pace::of(1.4, ms(1120), ms(0), 0.56), Pace::Live);
    }
}
