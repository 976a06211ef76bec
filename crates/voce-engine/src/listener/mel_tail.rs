//! The sender's front end, and what of it a snapshot keeps: the samples that rows to come still need.

use voce_audio::mel::{MEL_HOP, MelStream, MelTables, MelWindows};
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
    maker: Maker,
    tail: MelTail,
}

/// What comes out of samples.
enum Maker {
    /// Mel rows.
    Rows(Box<MelStream>),
    /// Windows, of which a device makes the rows.
    Windows(MelWindows),
}

impl Maker {
    fn process(&mut self, samples: &[f32], out: &mut Vec<f32>) -> usize {
        match self {
            Self::Rows(rows) => rows.process(samples, out),
            Self::Windows(windows) => windows.process(samples, out),
        }
    }
}

impl Mel {
    /// A front end that makes mel rows, or, for a device, cuts the windows that it makes them of.
    pub(super) fn new(config: &MelConfig, on_device: bool) -> Self {
        let rows = || Maker::Rows(Box::new(MelStream::with_tables(tables(config))));
        let maker = if on_device { Maker::Windows(MelWindows::default()) } else { rows() };
        Self { maker, tail: MelTail::default() }
    }

    /// A front end that goes on where another stood.
    pub(super) fn resume(config: &MelConfig, on_device: bool, tail: MelTail) -> Self {
        let mut mel = Self::new(config, on_device);
        let made = mel.maker.process(&tail.samples, &mut Vec::new());
        debug_assert_eq!(made, tail.made, "frames depend on the samples alone");
        if let Maker::Windows(windows) = mel.maker {
            mel.maker = Maker::Windows(windows.resumed());
        }
        Self { tail, ..mel }
    }

    /// Takes samples and appends what they complete: rows, or what is new in their windows. Returns how many.
    pub(super) fn process(&mut self, samples: &[f32], out: &mut Vec<f32>) -> usize {
        let rows = self.maker.process(samples, out);
        let tail = &mut self.tail;
        tail.made += rows;
        // A multiple of the hop, so that frames stay where they are.
        let gone = tail.made.saturating_sub(WARM_UP);
        tail.made -= gone;
        let old = tail.samples.len().min(gone * MEL_HOP);
        tail.samples.drain(..old);
        tail.samples.extend_from_slice(&samples[gone * MEL_HOP - old..]);
        rows
    }

    /// Ends the utterance: appends its last rows or windows, and starts afresh.
    pub(super) fn finish(&mut self, out: &mut Vec<f32>) -> usize {
        self.tail = MelTail::default();
        match &mut self.maker {
            Maker::Rows(rows) => rows.finish(out),
            Maker::Windows(windows) => windows.finish(out),
        }
    }

    pub(super) fn tail(&self) -> MelTail {
        self.tail.clone()
    }
}

/// The numbers of a model's front end.
pub(super) fn tables(config: &MelConfig) -> MelTables {
    let tables = MelTables::new(config.bins);
    if config.bf16_filters { tables.with_bf16_filters() } else { tables }
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
        let cuts = [0, 1, 159, 199, 200, 361, 1999, 5003, 16_000];
        for (on_device, cut) in [false, true].into_iter().flat_map(|d| cuts.map(|c| (d, c))) {
            let mut whole = Vec::new();
            let mut mel = Mel::new(&config, on_device);
            let mut rows = mel.process(&wave, &mut whole);
            rows += mel.finish(&mut whole);
            assert_eq!(rows, wave.len() / MEL_HOP);
            let mut parts = Vec::new();
            let mut mel = Mel::new(&config, on_device);
            mel.process(&wave[..cut / 2], &mut parts);
            mel.process(&wave[cut / 2..cut], &mut parts);
            let tail = mel.tail();
            assert!(tail.samples.len() < 1000);
            let mut mel = Mel::resume(&config, on_device, tail);
            let before = parts.len();
            let more = mel.process(&wave[cut..], &mut parts) + mel.finish(&mut parts);
            // A resumed front end says once more what its next window shares with the one before.
            if on_device && before > 0 && more > 0 {
                let shared = parts.drain(before..before + MelWindows::OVERLAP).collect::<Vec<_>>();
                assert_eq!(shared, parts[before - MelWindows::OVERLAP..before]);
            }
            assert_eq!(parts.len(), whole.len(), "{cut}");
            assert!(parts.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{cut}");
        }
    }
}
