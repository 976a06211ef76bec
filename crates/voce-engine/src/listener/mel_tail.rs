//! The sender's front end, and what of it a snapshot keeps: the samples that frames to come still need.

use voce_audio::mel::{MEL_HOP, MelStream};
use voce_models::fastconformer::MelConfig;

/// Frames that a rebuilt front end gets wrong, because silence stands before its first sample.
const WARM_UP: usize = 2;

/// Where a front end stands: raw samples from a frame's centre on, and how many frames they have given.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MelTail {
    /// Samples of the utterance from `WARM_UP` frames before the next one on.
    pub samples: Vec<f32>,
    /// Frames that these samples gave already.
    pub made: usize,
}

/// A front end that can tell where it stands.
pub(super) struct Mel {
    stream: MelStream,
    tail: MelTail,
}

impl Mel {
    pub(super) fn new(config: &MelConfig) -> Self {
        Self { stream: front_end(config), tail: MelTail::default() }
    }

    /// A front end that goes on where another stood.
    pub(super) fn resume(config: &MelConfig, tail: MelTail) -> Self {
        let mut stream = front_end(config);
        let mut again = Vec::new();
        let made = stream.process(&tail.samples, &mut again);
        debug_assert_eq!(made, tail.made, "frames depend on the samples alone");
        Self { stream, tail }
    }

    /// Takes samples and appends the rows they complete.
    pub(super) fn process(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.tail.made += self.stream.process(samples, out);
        self.tail.samples.extend_from_slice(samples);
        // A multiple of the hop, so that frames stay where they are.
        let gone = self.tail.made.saturating_sub(WARM_UP);
        self.tail.samples.drain(..gone * MEL_HOP);
        self.tail.made -= gone;
    }

    /// Ends the utterance: appends its last rows, and starts afresh.
    pub(super) fn finish(&mut self, out: &mut Vec<f32>) {
        self.stream.finish(out);
        self.tail = MelTail::default();
    }

    pub(super) fn tail(&self) -> MelTail {
        self.tail.clone()
    }
}

fn front_end(config: &MelConfig) -> MelStream {
    let stream = MelStream::new(config.bins);
    if config.bf16_filters { stream.with_bf16_filters() } else { stream }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voce_models::fastconformer::MelNormalize;

    #[test]
    fn a_resumed_front_end_gives_the_same_rows() {
        let wave: Vec<f32> =
            (0..16_000).map(|i| (i as f32 * 0.37).sin() * (i as f32 * 0.011).cos()).collect();
        let config =
            MelConfig { sample_rate: 16_000, bins: 80, normalize: MelNormalize::None, bf16_filters: true };
        for cut in [0, 1, 159, 199, 200, 361, 1999, 5003, 16_000] {
            let mut whole = Vec::new();
            let mut mel = Mel::new(&config);
            mel.process(&wave, &mut whole);
            mel.finish(&mut whole);
            let mut parts = Vec::new();
            let mut mel = Mel::new(&config);
            mel.process(&wave[..cut / 2], &mut parts);
            mel.process(&wave[cut / 2..cut], &mut parts);
            let tail = mel.tail();
            assert!(tail.samples.len() < 1000);
            let mut mel = Mel::resume(&config, tail);
            mel.process(&wave[cut..], &mut parts);
            mel.finish(&mut parts);
            assert_eq!(parts.len(), whole.len(), "{cut}");
            assert!(parts.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{cut}");
        }
    }
}
