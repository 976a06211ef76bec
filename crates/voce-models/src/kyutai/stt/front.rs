//! Samples to frames of samples: what a recogniser over a codec is given, with the silence that some models want first.

use crate::hearing::Front;
use crate::saved::{Reader, Unfit, Writer};

/// First bytes of a saved front end; the last is the version.
const MAGIC: [u8; 8] = *b"vocekfr1";

/// Samples that make no frame yet.
#[derive(Clone, Debug)]
pub(super) struct Frames {
    frame: usize,
    /// Samples of silence before the first sample.
    prefix: usize,
    begun: bool,
    rest: Vec<f32>,
}

impl Frames {
    pub(super) fn new(frame: usize, prefix: usize) -> Self {
        Self { frame, prefix, begun: false, rest: Vec::new() }
    }

    /// Goes on where [`Front::save`] was called.
    pub(super) fn resume(frame: usize, prefix: usize, saved: &[u8]) -> Result<Self, Unfit> {
        let mut r = Reader::new(saved, MAGIC)?;
        let begun = r.count(1)? == 1;
        let rest = r.floats(frame - 1)?;
        r.finish()?;
        Ok(Self { frame, prefix, begun, rest })
    }

    fn give(&mut self, out: &mut Vec<f32>) -> usize {
        let rows = self.rest.len() / self.frame;
        out.extend(self.rest.drain(..rows * self.frame));
        rows
    }
}

impl Front for Frames {
    fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> usize {
        if !self.begun && !samples.is_empty() {
            self.begun = true;
            self.rest.resize(self.prefix, 0.0);
        }
        self.rest.extend_from_slice(samples);
        self.give(out)
    }

    fn finish(&mut self, out: &mut Vec<f32>) -> usize {
        // Silence fills the last frame.
        self.rest.resize(self.rest.len().next_multiple_of(self.frame), 0.0);
        self.begun = false;
        self.give(out)
    }

    fn rest(&self, silence: usize, out: &mut Vec<f32>) -> usize {
        let mut front = self.clone();
        // What was never begun has no silence before it, either.
        let samples = if self.begun { silence } else { 0 };
        front.push(&vec![0.0; samples], out) + front.finish(out)
    }

    fn save(&self) -> Vec<u8> {
        let mut w = Writer::new(MAGIC);
        w.size(usize::from(self.begun));
        w.floats(&self.rest);
        w.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_after_the_silence_before_them() {
        let mut front = Frames::new(4, 6);
        let mut out = Vec::new();
        assert_eq!(front.finish(&mut out), 0);
        assert_eq!(front.push(&[], &mut out), 0);
        assert_eq!(front.push(&[1.0, 2.0, 3.0], &mut out), 2);
        assert_eq!(out, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0]);
        let mut again = Frames::resume(4, 6, &front.save()).unwrap();
        out.clear();
        assert_eq!(again.push(&[4.0], &mut out), 0);
        assert_eq!(again.finish(&mut out), 1);
        assert_eq!(out, [3.0, 4.0, 0.0, 0.0]);
        // Another part begins with silence again.
        assert_eq!(again.push(&[5.0, 6.0], &mut out), 2);
        assert!(Frames::resume(4, 6, b"nothing").is_err());
    }
}
