//! `Step` messages: one for each frame that was decoded, with how sure it is that the speaker has paused.

/// Seconds of a frame of the protocol.
pub(super) const FRAME: f64 = 0.08;
/// Pauses that clients ask about, in seconds.
const LENGTHS: [f64; 4] = [0.5, 1.0, 2.0, 3.0];

/// How far a stream is, in frames, and when its speaker last said something.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    told: u64,
}

/// One frame.
#[derive(Debug, PartialEq)]
pub(super) struct Frame {
    /// Its number in this stream.
    pub(super) index: u64,
    /// For each length: 1 where the speaker has been silent for longer, 0 where not, and between them within a
    /// frame of it.
    pub(super) pauses: [f32; 4],
}

impl Pauses {
    /// Goes on after this many frames.
    pub(super) fn after(told: u64) -> Self {
        Self { told }
    }

    /// Frames so far.
    pub(super) fn told(&self) -> u64 {
        self.told
    }

    /// The frames that are new when `at` seconds are decoded and the newest word so far ended at `spoken`.
    pub(super) fn advance(&mut self, at: f64, spoken: Option<f64>) -> impl Iterator<Item = Frame> + use<> {
        // Rounding must not take a frame away.
        let done = (at / FRAME + 1e-6) as u64;
        let frames = self.told..done.max(self.told);
        self.told = frames.end;
        frames.map(move |index| Frame { index, pauses: pauses((index + 1) as f64 * FRAME, spoken) })
    }
}

fn pauses(now: f64, spoken: Option<f64>) -> [f32; 4] {
    // Nobody has spoken yet: that is a pause of any length.
    let Some(spoken) = spoken else { return [1.0; 4] };
    LENGTHS.map(|length| (1.0 / (1.0 + (-(now - spoken - length) / (FRAME / 4.0)).exp())) as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_is_told_once() {
        let mut pauses = Pauses::default();
        let mut told = Vec::new();
        for at in [0.0, 0.079, 0.08, 0.56, 0.56, 0.5, 1.2] {
            told.extend(pauses.advance(at, None).map(|f| f.index));
        }
        assert_eq!(told, (0..15).collect::<Vec<_>>());
    }

    #[test]
    fn a_pause_grows_through_the_lengths() {
        let at = |seconds: f64| super::pauses(seconds, Some(1.0)).map(|p| p > 0.5);
        assert_eq!(at(0.9), [false; 4]);
        assert_eq!(at(1.4), [false; 4]);
        assert_eq!(at(1.6), [true, false, false, false]);
        assert_eq!(at(3.1), [true, true, true, false]);
        assert_eq!(at(4.1), [true; 4]);
        assert_eq!(super::pauses(0.08, None), [1.0; 4]);
        assert!(super::pauses(1e9, Some(-1e9)).iter().all(|p| p.is_finite()));
    }
}
