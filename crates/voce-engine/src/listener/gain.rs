//! A gain for soft speech, before anything hears it: slow, bounded, and exactly none where speech is as loud as it usually is.
//!
//! Frames of 20 ms whose level lies well above the noise floor count as speech, and the loudest of late say how loud it is.
//! Speech below [`SOFT`] is raised to it; noise and silence alone are never raised, and nothing is made softer. A frame's
//! gain is decided by the frames before it, and frames are counted in samples: nothing depends on messages.

use voce_models::saved::{Reader, Unfit, Writer};

use super::quiet::Meter;

/// Frames a second.
const FRAMES: usize = 50;
/// The level in dB of full scale that softer speech is raised to, and the most dB that it is raised by.
const SOFT: f32 = -34.0;
const MOST: f32 = 40.0;
/// By how much a frame of speech is above the noise floor, and above which level it lies at least, in dB.
const OVER_FLOOR: f32 = 10.0;
const LEAST: f32 = -85.0;
/// Frames of speech before it is known how loud it is.
const KNOWN: usize = 5;
/// By how much in a frame the noise floor rises, the level of speech falls while somebody speaks, and the gain rises.
const FLOOR_RISE: f32 = 0.06;
const SPEECH_FALL: f32 = 0.1;
const GAIN_RISE: f32 = 8.0;

/// A stream's gain.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gain {
    meter: Meter,
    frame: usize,
    /// The noise floor and the level of speech, in dB, and frames of speech so far, up to those that are needed.
    floor: Option<f32>,
    speech: f32,
    known: usize,
    /// The gain at the start and at the end of the frame under way, in dB.
    from: f32,
    to: f32,
}

impl Gain {
    pub(super) fn new(sample_rate: usize) -> Self {
        let frame = (sample_rate / FRAMES).max(1);
        Self { meter: Meter::new(frame), frame, floor: None, speech: LEAST, known: 0, from: 0.0, to: 0.0 }
    }

    /// Appends samples as they are to be heard.
    pub(super) fn push(&mut self, mut samples: &[f32], out: &mut Vec<f32>) {
        let mut levels = Vec::new();
        while !samples.is_empty() {
            let (now, rest) = samples.split_at(samples.len().min(self.frame - self.meter.taken()));
            self.raise(now, out);
            self.meter.push(now, &mut levels);
            if let Some(level) = levels.pop() {
                self.learn(level);
            }
            samples = rest;
        }
    }

    /// Appends samples of the frame under way.
    fn raise(&self, samples: &[f32], out: &mut Vec<f32>) {
        if self.from == 0.0 && self.to == 0.0 {
            return out.extend_from_slice(samples);
        }
        let (from, to) = (factor(self.from), factor(self.to));
        let (step, taken) = ((to - from) / self.frame as f32, self.meter.taken());
        out.extend(samples.iter().enumerate().map(|(i, s)| s * (from + (taken + i) as f32 * step)));
    }

    /// Decides the gain at the end of the next frame, now that the level of the last one is known.
    fn learn(&mut self, level: f32) {
        let floor = level.min(self.floor.unwrap_or(level) + FLOOR_RISE);
        self.floor = Some(floor);
        if level > LEAST.max(floor + OVER_FLOOR) {
            self.speech = level.max(self.speech - SPEECH_FALL);
            self.known = (self.known + 1).min(KNOWN);
        }
        let wanted = if self.known < KNOWN { 0.0 } else { (SOFT - self.speech).clamp(0.0, MOST) };
        self.from = self.to;
        self.to = wanted.min(self.to + GAIN_RISE);
    }

    pub(super) fn save(&self, w: &mut Writer) {
        self.meter.save(w);
        w.size(usize::from(self.floor.is_some()));
        w.size(self.known);
        [self.floor.unwrap_or(0.0), self.speech, self.from, self.to].into_iter().for_each(|v| w.float(v));
    }

    pub(super) fn restore(sample_rate: usize, r: &mut Reader<'_>) -> Result<Self, Unfit> {
        let new = Self::new(sample_rate);
        let meter = Meter::restore(new.frame, r)?;
        let (has_floor, known) = (r.count(1)? == 1, r.count(KNOWN)?);
        let (floor, speech, from, to) = (r.float()?, r.float()?, r.float()?, r.float()?);
        if !(0.0..=MOST).contains(&from) || !(0.0..=MOST).contains(&to) {
            return Err(Unfit("a gain is out of range"));
        }
        Ok(Self { meter, floor: has_floor.then_some(floor), speech, known, from, to, ..new })
    }
}

/// What samples are multiplied by.
fn factor(db: f32) -> f32 {
    10f32.powf(db / 20.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: usize = 16_000;

    /// So many seconds of syllables at this level, in dB, over noise at another.
    fn speech(seconds: usize, db: f32, noise: f32) -> Vec<f32> {
        let mut dice = 1u32;
        let mut roll = move || {
            dice ^= dice << 13;
            dice ^= dice >> 17;
            dice ^= dice << 5;
            dice as f32 / u32::MAX as f32 - 0.5
        };
        let sample = |i: usize| {
            let voiced = !(i / 3_200_usize).is_multiple_of(3);
            let tone = if voiced { factor(db) * 1.4 * (i as f32 * 0.07).sin() } else { 0.0 };
            tone + factor(noise) * 3.4 * roll()
        };
        (0..seconds * RATE).map(sample).collect()
    }

    fn raised(samples: &[f32], piece: usize) -> Vec<f32> {
        let (mut gain, mut out) = (Gain::new(RATE), Vec::new());
        samples.chunks(piece).for_each(|s| gain.push(s, &mut out));
        out
    }

    fn level(samples: &[f32]) -> f32 {
        let mut levels = Vec::new();
        Meter::new(1600).push(samples, &mut levels);
        levels.into_iter().fold(-100.0, f32::max)
    }

    #[test]
    fn usual_speech_passes_bit_for_bit_and_noise_is_never_raised() {
        for samples in
            [speech(4, -15.0, -60.0), speech(4, -32.0, -70.0), speech(4, -90.0, -60.0), vec![0.0; 9_999]]
        {
            let out = raised(&samples, 777);
            assert!(out.iter().zip(&samples).all(|(a, b)| a.to_bits() == b.to_bits()));
            assert_eq!(out.len(), samples.len());
        }
    }

    #[test]
    fn soft_speech_is_raised_soon_and_so_far_and_no_further() {
        for (db, want) in [(-60.0, -34.0), (-70.0, -34.0), (-80.0, -40.0)] {
            let samples = speech(4, db, -95.0);
            let out = raised(&samples, 160);
            assert!((level(&out[2 * RATE..]) - want).abs() < 2.0, "{db}: {}", level(&out[2 * RATE..]));
            assert!(out.iter().all(|s| s.abs() < 1.0));
        }
        // Somebody comes closer, and goes away again.
        let samples = [speech(3, -60.0, -95.0), speech(3, -15.0, -95.0), speech(20, -60.0, -95.0)].concat();
        let out = raised(&samples, 160);
        assert!((level(&out[4 * RATE..6 * RATE]) + 15.0).abs() < 1.0, "usual speech is left as it is");
        assert!(level(&out[24 * RATE..]) > -40.0);
    }

    #[test]
    fn pieces_and_saving_change_no_bit() {
        let samples = speech(3, -62.0, -90.0);
        let whole = raised(&samples, usize::MAX);
        for piece in [1, 159, 320, 4_001] {
            assert_eq!(raised(&samples, piece), whole, "{piece}");
        }
        for cut in [0, 1, 320, 20_001] {
            let (mut gain, mut out) = (Gain::new(RATE), Vec::new());
            gain.push(&samples[..cut], &mut out);
            let mut w = Writer::new(*b"vocetest");
            gain.save(&mut w);
            let bytes = w.into_bytes();
            let mut r = Reader::new(&bytes, *b"vocetest").unwrap();
            let mut again = Gain::restore(RATE, &mut r).unwrap();
            assert_eq!(again, gain);
            again.push(&samples[cut..], &mut out);
            assert_eq!(out, whole, "{cut}");
        }
    }
}
