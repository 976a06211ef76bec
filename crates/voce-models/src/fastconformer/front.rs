//! The front end of a stream: mel rows, or the windows of samples that a device makes them of; and what a snapshot keeps
//! of it, the samples that rows to come still need.

use voce_audio::mel::{MEL_HOP, MelStream, MelTables, MelWindows};

use super::config::MelConfig;
use crate::hearing::{Front, RowLayout};
use crate::saved::{Reader, Unfit, Writer};

/// First bytes of a saved front end; the last is the version.
const MAGIC: [u8; 8] = *b"vocemel1";
/// Most samples that a front end keeps.
const MAX_TAIL: usize = 4096;
/// Frames that a rebuilt front end gets wrong, because silence stands before its first sample.
const WARM_UP: usize = 2;

/// Where a front end stands: raw samples from a frame's centre on, and how many frames they have given.
#[derive(Clone, Debug, Default, PartialEq)]
struct MelTail {
    /// Samples of the utterance from `WARM_UP` frames before the next one on.
    samples: Vec<f32>,
    /// Frames that these samples gave already.
    made: usize,
}

/// A front end that can tell where it stands.
pub(super) struct MelFront {
    maker: Maker,
    tail: MelTail,
}

/// What comes out of samples.
#[derive(Clone)]
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

    fn finish(&mut self, out: &mut Vec<f32>) -> usize {
        match self {
            Self::Rows(rows) => rows.finish(out),
            Self::Windows(windows) => windows.finish(out),
        }
    }
}

impl MelFront {
    /// A front end that makes mel rows, or, for a device, cuts the windows that it makes them of.
    pub(super) fn new(config: &MelConfig, on_device: bool) -> Self {
        let rows = || Maker::Rows(Box::new(MelStream::with_tables(tables(config))));
        let maker = if on_device { Maker::Windows(MelWindows::default()) } else { rows() };
        Self { maker, tail: MelTail::default() }
    }

    /// A front end that goes on where [`Front::save`] was called.
    pub(super) fn resume(config: &MelConfig, on_device: bool, saved: &[u8]) -> Result<Self, Unfit> {
        let mut r = Reader::new(saved, MAGIC)?;
        let made = r.count(MAX_TAIL / MEL_HOP)?;
        let tail = MelTail { made, samples: r.floats(MAX_TAIL)? };
        r.finish()?;
        let mut mel = Self::new(config, on_device);
        if mel.maker.process(&tail.samples, &mut Vec::new()) != tail.made {
            return Err(Unfit("its samples make another number of rows than it says"));
        }
        if let Maker::Windows(windows) = mel.maker {
            mel.maker = Maker::Windows(windows.resumed());
        }
        Ok(Self { tail, ..mel })
    }
}

impl Front for MelFront {
    fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> usize {
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

    fn finish(&mut self, out: &mut Vec<f32>) -> usize {
        self.tail = MelTail::default();
        self.maker.finish(out)
    }

    fn rest(&self, silence: usize, out: &mut Vec<f32>) -> usize {
        let mut maker = self.maker.clone();
        maker.process(&vec![0.0; silence], out) + maker.finish(out)
    }

    fn save(&self) -> Vec<u8> {
        let mut w = Writer::new(MAGIC);
        w.size(self.tail.made);
        w.floats(&self.tail.samples);
        w.into_bytes()
    }
}

/// How the rows lie that a front end makes.
pub(super) fn layout(config: &MelConfig, on_device: bool) -> RowLayout {
    if on_device {
        RowLayout { hop: MEL_HOP, step: MEL_HOP, overlap: MelWindows::OVERLAP }
    } else {
        RowLayout { hop: MEL_HOP, step: config.bins, overlap: 0 }
    }
}

/// The numbers of a model's front end.
pub(super) fn tables(config: &MelConfig) -> MelTables {
    let tables = MelTables::new(config.bins);
    if config.bf16_filters { tables.with_bf16_filters() } else { tables }
}

#[cfg(test)]
mod tests {
    use super::super::MelNormalize;
    use super::*;

    #[test]
    fn a_resumed_front_end_gives_the_same_rows() {
        let wave: Vec<f32> =
            (0..16_000).map(|i| (i as f32 * 0.37).sin() * (i as f32 * 0.011).cos()).collect();
        let config =
            MelConfig { sample_rate: 16_000, bins: 80, normalize: MelNormalize::None, bf16_filters: true };
        let cuts = [0, 1, 159, 199, 200, 361, 1999, 5003, 16_000];
        for (on_device, cut) in [false, true].into_iter().flat_map(|d| cuts.map(|c| (d, c))) {
            let mut whole = Vec::new();
            let mut mel = MelFront::new(&config, on_device);
            let mut rows = mel.push(&wave, &mut whole);
            rows += mel.finish(&mut whole);
            assert_eq!(rows, wave.len() / MEL_HOP);
            let mut parts = Vec::new();
            let mut mel = MelFront::new(&config, on_device);
            mel.push(&wave[..cut / 2], &mut parts);
            mel.push(&wave[cut / 2..cut], &mut parts);
            let saved = mel.save();
            assert!(saved.len() < 4000 + 24);
            let mut mel = MelFront::resume(&config, on_device, &saved).unwrap();
            assert_eq!(mel.save(), saved);
            let before = parts.len();
            let more = mel.push(&wave[cut..], &mut parts) + mel.finish(&mut parts);
            // A resumed front end says once more what its next window shares with the one before.
            if on_device && before > 0 && more > 0 {
                let shared = parts.drain(before..before + MelWindows::OVERLAP).collect::<Vec<_>>();
                assert_eq!(shared, parts[before - MelWindows::OVERLAP..before]);
            }
            assert_eq!(parts.len(), whole.len(), "{cut}");
            assert!(parts.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{cut}");
        }
    }
    #[test]
    fn saved_front_ends_are_not_believed() {
        let config =
            MelConfig { sample_rate: 16_000, bins: 80, normalize: MelNormalize::None, bf16_filters: false };
        let with = |made: usize, samples: &[f32]| {
            let mut w = Writer::new(MAGIC);
            w.size(made);
            w.floats(samples);
            w.into_bytes()
        };
        for on_device in [false, true] {
            let resume = |bytes: &[u8]| MelFront::resume(&config, on_device, bytes);
            assert!(resume(&with(0, &[])).is_ok());
            for bad in [with(1, &[]), with(0, &[0.0; MAX_TAIL + 1]), with(2, &[f32::NAN; 700]), vec![1, 2]] {
                assert!(resume(&bad).is_err());
            }
        }
    }
}
