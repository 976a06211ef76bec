//! Where a stream's signal is quiet: how loud each of its frames is, beside the noise below it and the speech above it.
//! Frames are counted in samples, so that nothing depends on how the audio was cut into messages.

use std::collections::VecDeque;

use voce_models::saved::{Reader, Unfit, Writer};

/// The level of frames without any sound, in dB of full scale, and one up to which a frame has none.
const SILENT: f32 = -100.0;
const FAINT: f32 = -90.0;
/// By how much the noise floor rises in a frame above it, and the peak falls in a frame below it, in dB.
const RISE: f32 = 0.1;
const FALL: f32 = 0.1;
/// A frame is quiet that is no more than this above the noise floor, or this far below the peak of speech, in dB...
const OVER_FLOOR: f32 = 8.0;
const UNDER_PEAK: f32 = 30.0;
/// ...and in any case so far below the peak: where noise is that loud, nothing is quiet.
const LEAST_DROP: f32 = 12.0;
/// Most frames of a saved stream that were not decoded.
const MAX_FRAMES: usize = 1 << 12;

/// Measures the frames of a stream where its samples come in.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Meter {
    frame: usize,
    /// Samples of the frame under way, their sum and that of their squares.
    taken: usize,
    sum: f64,
    squares: f64,
}

impl Meter {
    pub(super) fn new(frame: usize) -> Self {
        Self { frame, taken: 0, sum: 0.0, squares: 0.0 }
    }

    /// Takes samples, and appends the level of each frame that they complete.
    pub(super) fn push(&mut self, mut samples: &[f32], levels: &mut Vec<f32>) {
        while !samples.is_empty() {
            let (now, rest) = samples.split_at(samples.len().min(self.frame - self.taken));
            for &s in now {
                let s = f64::from(s);
                self.sum += s;
                self.squares += s * s;
            }
            self.taken += now.len();
            if self.taken == self.frame {
                levels.extend(self.finish());
            }
            samples = rest;
        }
    }

    /// The level of the frame under way, if there is one; the next sample begins another.
    pub(super) fn finish(&mut self) -> Option<f32> {
        let n = self.taken as f64;
        let level = (self.taken > 0).then(|| {
            let mean = self.sum / n;
            let power = (self.squares / n - mean * mean).max(0.0);
            (10.0 * (power + 1e-10).log10()) as f32
        });
        *self = Self::new(self.frame);
        level
    }

    /// Samples of the frame under way.
    pub(super) fn taken(&self) -> usize {
        self.taken
    }

    /// The level of the frame under way, if there is one.
    pub(super) fn rest(&self) -> Option<f32> {
        self.clone().finish()
    }

    pub(super) fn save(&self, w: &mut Writer) {
        w.size(self.taken);
        w.double(self.sum);
        w.double(self.squares);
    }

    pub(super) fn restore(frame: usize, r: &mut Reader<'_>) -> Result<Self, Unfit> {
        let (taken, sum, squares) = (r.count(frame - 1)?, r.double()?, r.double()?);
        if sum.is_infinite() || !(0.0..1e18).contains(&squares) {
            return Err(Unfit("a level is out of range"));
        }
        Ok(Self { frame, taken, sum, squares })
    }
}

/// The noise below and the speech above, as they were heard so far.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Range {
    floor: f32,
    peak: f32,
}

impl Range {
    /// Whether a frame of this level is quiet.
    fn take(&mut self, level: f32) -> bool {
        self.floor = level.min(self.floor + RISE);
        self.peak = level.max(self.peak - FALL);
        self.is_quiet(level)
    }

    fn is_quiet(&self, level: f32) -> bool {
        let limit = (self.peak - UNDER_PEAK).max(self.floor + OVER_FLOOR);
        level <= FAINT || level < limit.min(self.peak - LEAST_DROP)
    }
}

/// How long the signal was quiet at the frames of a part of a stream, from the newest decoded one on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Quiet {
    range: Option<Range>,
    /// The number of the first frame that is kept.
    first: usize,
    /// Quiet frames in a row up to and with each frame.
    runs: VecDeque<usize>,
}

impl Quiet {
    /// Takes the levels of more frames.
    pub(super) fn extend(&mut self, levels: impl IntoIterator<Item = f32>) {
        for level in levels {
            let range = self.range.get_or_insert(Range { floor: level, peak: level });
            let run = self.runs.back().copied().unwrap_or(0);
            self.runs.push_back(if range.take(level) { run + 1 } else { 0 });
        }
    }

    /// Quiet frames in a row before a frame. Where the signal has ended, nothing is said.
    pub(super) fn before(&self, frame: usize) -> usize {
        let last = self.first + self.runs.len();
        let known = frame.min(last).checked_sub(self.first + 1);
        known.and_then(|i| self.runs.get(i)).map_or(0, |run| run + frame.saturating_sub(last))
    }

    /// Whether a frame that is not there yet is quiet up to now.
    pub(super) fn is_quiet(&self, level: f32) -> bool {
        self.range.is_some_and(|range| range.is_quiet(level))
    }

    /// Lets go of all frames before the last one before `frame`.
    pub(super) fn forget(&mut self, frame: usize) {
        let gone = frame.saturating_sub(self.first + 1).min(self.runs.len().saturating_sub(1));
        self.runs.drain(..gone);
        self.first += gone;
    }

    /// Another part of the stream begins.
    pub(super) fn begin_part(&mut self) {
        self.first = 0;
        self.runs.clear();
    }

    pub(super) fn save(&self, w: &mut Writer) {
        w.size(usize::from(self.range.is_some()));
        let Range { floor, peak } = self.range.unwrap_or(Range { floor: SILENT, peak: SILENT });
        w.float(floor);
        w.float(peak);
        w.size(self.first);
        w.size(self.runs.len());
        self.runs.iter().for_each(|&run| w.size(run));
    }

    pub(super) fn restore(r: &mut Reader<'_>) -> Result<Self, Unfit> {
        let is_known = r.count(1)? == 1;
        let range = Range { floor: r.float()?, peak: r.float()? };
        let first = r.position()?;
        let frames = r.count(MAX_FRAMES)?;
        let runs = (0..frames).map(|_| r.position()).collect::<Result<_, _>>()?;
        Ok(Self { range: is_known.then_some(range), first, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 1280;

    /// A second of a tone at this many dB below full scale.
    fn tone(db: f32) -> Vec<f32> {
        let amplitude = 10f32.powf(db / 20.0) * std::f32::consts::SQRT_2;
        (0..16_000).map(|i| amplitude * (i as f32 * 0.3).sin() + 0.25).collect()
    }

    fn levels(samples: &[f32], piece: usize) -> Vec<f32> {
        let (mut meter, mut out) = (Meter::new(FRAME), Vec::new());
        samples.chunks(piece).for_each(|s| meter.push(s, &mut out));
        out.extend(meter.finish());
        out
    }

    #[test]
    fn levels_do_not_depend_on_pieces_or_on_a_constant() {
        let samples = [tone(-20.0), tone(-60.0), vec![0.0; 4000]].concat();
        let whole = levels(&samples, usize::MAX);
        assert_eq!(whole.len(), samples.len().div_ceil(FRAME));
        assert!((whole[3] + 20.0).abs() < 0.2 && (whole[20] + 60.0).abs() < 0.2, "{whole:?}");
        assert_eq!(whole.last(), Some(&SILENT));
        for piece in [1, 160, 999, FRAME] {
            assert_eq!(levels(&samples, piece), whole, "{piece}");
        }
    }

    #[test]
    fn pauses_are_quiet_in_silence_and_in_noise_and_soft_speech_is_not() {
        // Speech at -20 dB, with noise at -70, -40 and -35 dB in its pauses, and all of that 40 dB softer.
        for (speech, soft, noise, want) in [
            (-20.0, -33.0, -70.0, true),
            (-20.0, -30.0, -40.0, true),
            (-20.0, -24.0, -35.0, true),
            (-60.0, -70.0, -89.0, true),
            (-20.0, -24.0, -28.0, false),
        ] {
            let mut quiet = Quiet::default();
            quiet.extend([noise; 20]);
            quiet.extend([speech, soft, speech, soft, soft, speech]);
            assert_eq!(quiet.before(26), 0, "{speech} {soft} {noise}");
            quiet.extend([noise; 5]);
            assert_eq!(quiet.before(31), if want { 5 } else { 0 }, "{speech} {soft} {noise}");
        }
    }

    #[test]
    fn what_is_forgotten_and_saved_says_the_same_afterwards() {
        let mut quiet = Quiet::default();
        quiet.extend([-20.0, -20.0, SILENT, SILENT, -20.0, SILENT]);
        let all: Vec<usize> = (0..9).map(|f| quiet.before(f)).collect();
        assert_eq!(all, [0, 0, 0, 1, 2, 0, 1, 2, 3]);
        quiet.forget(4);
        assert_eq!((4..9).map(|f| quiet.before(f)).collect::<Vec<_>>(), all[4..]);
        let mut w = Writer::new(*b"vocetest");
        quiet.save(&mut w);
        let bytes = w.into_bytes();
        let mut r = Reader::new(&bytes, *b"vocetest").unwrap();
        assert_eq!(Quiet::restore(&mut r), Ok(quiet));
    }
}
