//! A stream's whole state as bytes: what the engine knows of it, its front end, its ear and its words.

use std::collections::VecDeque;

use voce_models::hearing::HearingInfo;
use voce_models::saved::{Reader, Unfit, Writer};

use super::early::Early;
use super::gain::Gain;
use super::quiet::{Meter, Quiet};
use super::slot::MAX_PASSES;
use super::utterance;
use crate::EngineError;

/// First bytes; the last one is the version.
const MAGIC: [u8; 8] = *b"vocelis3";
/// Most tokens of an utterance.
const MAX_TOKENS: usize = 1 << 17;

/// A stream between two steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Saved {
    /// Samples so far.
    pub samples: u64,
    /// Frames of this part that were decoded.
    pub decoded: usize,
    pub utterance: utterance::Saved,
    /// Where the signal was quiet, and the frame under way.
    pub quiet: Quiet,
    pub meter: Meter,
    /// How soft speech is raised, where it is.
    pub gain: Option<Gain>,
    /// Places that are reported when the stream has passed them.
    pub passes: VecDeque<(usize, f64)>,
    /// The front end, for the model to read.
    pub front: Vec<u8>,
    /// The ear, for the model to read.
    pub ear: Vec<u8>,
}

impl Saved {
    /// As bytes, for the model with this fingerprint.
    pub(super) fn to_bytes(&self, fingerprint: u64) -> Vec<u8> {
        let mut w = Writer::new(MAGIC);
        w.number(fingerprint);
        w.number(self.samples);
        w.size(self.decoded);
        let u = &self.utterance;
        w.tokens(&u.tokens);
        w.size(u.told);
        w.size(u.shown.0);
        w.size(u.shown.1.len());
        u.shown.1.iter().for_each(|&id| w.number(u64::from(id)));
        w.number(u64::from(u.later));
        w.double(u.seconds);
        w.size(u.ended);
        u.early.save(&mut w);
        self.quiet.save(&mut w);
        self.meter.save(&mut w);
        w.size(usize::from(self.gain.is_some()));
        self.gain.iter().for_each(|gain| gain.save(&mut w));
        w.size(self.passes.len());
        self.passes.iter().for_each(|(frame, at)| {
            w.size(*frame);
            w.double(*at);
        });
        w.bytes(&self.front);
        w.bytes(&self.ear);
        w.into_bytes()
    }

    /// Reads bytes for a model with this fingerprint and this many tokens; nothing in them is believed.
    pub(super) fn from_bytes(
        bytes: &[u8],
        fingerprint: u64,
        about: &HearingInfo,
        vocab: usize,
    ) -> Result<Self, EngineError> {
        Self::read(bytes, fingerprint, [about.frame_size, about.sample_rate], vocab)
            .map_err(|e| EngineError::Snapshot(e.to_string()))
    }

    fn read(bytes: &[u8], fingerprint: u64, about: [usize; 2], vocab: usize) -> Result<Self, Unfit> {
        let [frame, sample_rate] = about;
        let mut r = Reader::new(bytes, MAGIC)?;
        if r.number()? != fingerprint {
            return Err(Unfit("it is of another model, of other weights or of another precision"));
        }
        let (samples, decoded) = (r.number()?, r.position()?);
        if samples > 1 << 50 {
            return Err(Unfit("a number is out of range"));
        }
        let tokens = r.tokens(vocab, MAX_TOKENS)?;
        let told = r.count(tokens.len())?;
        let mut shown = (r.count(MAX_TOKENS)?, Vec::new());
        for _ in 0..r.count(MAX_TOKENS)? {
            shown.1.push(r.count(u32::MAX as usize)? as u32);
        }
        let later = r.number()? != 0;
        let seconds = r.double()?;
        if !(0.0..1e9).contains(&seconds) {
            return Err(Unfit("a time is out of range"));
        }
        let ended = r.position()?;
        let early = Early::restore(vocab, &mut r)?;
        let utterance = utterance::Saved { tokens, told, shown, later, seconds, ended, early };
        let (quiet, meter) = (Quiet::restore(&mut r)?, Meter::restore(frame, &mut r)?);
        let raises = r.count(1)? == 1;
        let gain = raises.then(|| Gain::restore(sample_rate, &mut r)).transpose()?;
        let mut passes = VecDeque::new();
        for _ in 0..r.count(MAX_PASSES)? {
            passes.push_back((r.position()?, r.double()?));
        }
        let (front, ear) = (r.bytes()?.to_vec(), r.bytes()?.to_vec());
        r.finish()?;
        Ok(Self { samples, decoded, utterance, quiet, meter, gain, passes, front, ear })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voce_models::hearing::Token;

    fn quiet() -> Quiet {
        let mut quiet = Quiet::default();
        quiet.extend([-20.0, -60.0]);
        quiet
    }

    fn meter() -> Meter {
        let mut meter = Meter::new(80);
        meter.push(&[0.5; 3], &mut Vec::new());
        meter
    }

    fn saved() -> Saved {
        let token = Token { id: 3, frame: 70, duration: 2, log_prob: -0.25, confidence: 0.5 };
        Saved {
            samples: 99_999,
            decoded: 5,
            utterance: utterance::Saved {
                tokens: vec![token; 3],
                told: 2,
                shown: (2, vec![1, 2, 3]),
                later: true,
                seconds: 1.25,
                ended: 1,
                early: Early::new(&[token], 75, true),
            },
            quiet: quiet(),
            meter: meter(),
            gain: Some(Gain::new(16_000)),
            passes: VecDeque::from([(80, 6.4)]),
            front: vec![9; 7],
            ear: vec![1, 2, 3],
        }
    }

    #[test]
    fn bytes_and_back() {
        let bytes = saved().to_bytes(7);
        let read = |bytes: &[u8]| Saved::read(bytes, 7, [80, 16_000], 5);
        assert_eq!(read(&bytes).unwrap(), saved());
        for n in 0..bytes.len() {
            assert!(read(&bytes[..n]).is_err(), "{n}");
        }
        let long = [&bytes[..], &[0]].concat();
        assert!(read(&long).is_err());
        assert!(read(&saved().to_bytes(8)).is_err());
        // Whatever is damaged, reading ends with a word or with a state, never otherwise.
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0xff;
            let _ = read(&bad);
        }
    }
}
