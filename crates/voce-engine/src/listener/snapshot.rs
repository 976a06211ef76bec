//! A stream's whole state as bytes: front end, rows that wait, encoder, search and text.

use voce_models::transducer::Token;

use super::mel_tail::MelTail;
use super::utterance;
use super::windows::Joiner;
use crate::EngineError;

/// First bytes; the last one is the version.
const MAGIC: [u8; 8] = *b"vocelis1";
/// Most samples that a front end keeps.
const MAX_TAIL: usize = 4096;

/// A stream between two steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Saved {
    /// Look-ahead in frames, and the language's slot.
    pub shape: [usize; 2],
    /// Samples so far.
    pub samples: u64,
    /// Mel rows and encoder frames of this part.
    pub taken: usize,
    pub searched: usize,
    pub tail: MelTail,
    /// Mel rows that make no chunk yet.
    pub rows: Vec<f32>,
    pub utterance: utterance::Saved,
    pub joiner: Joiner,
    pub encoder: Vec<u8>,
    pub search: Vec<u8>,
}

impl Saved {
    /// As bytes, for the model with this fingerprint.
    pub(super) fn to_bytes(&self, fingerprint: u64) -> Vec<u8> {
        let mut w = Writer(MAGIC.to_vec());
        w.number(fingerprint);
        self.shape.iter().for_each(|&n| w.size(n));
        w.number(self.samples);
        w.size(self.taken);
        w.size(self.searched);
        w.size(self.tail.made);
        w.floats(&self.tail.samples);
        w.floats(&self.rows);
        let u = &self.utterance;
        w.tokens(&u.tokens);
        w.size(u.told);
        w.size(u.shown.len());
        u.shown.iter().for_each(|&id| w.number(u64::from(id)));
        w.number(u64::from(u.later));
        w.number(u.seconds.to_bits());
        w.size(u.ended);
        w.tokens(&self.joiner.open);
        w.size(self.joiner.next);
        w.bytes(&self.encoder);
        w.bytes(&self.search);
        w.0
    }

    /// Reads bytes; nothing in them is believed.
    pub(super) fn from_bytes(bytes: &[u8], model: &Expected) -> Result<Self, EngineError> {
        Self::read(bytes, model).map_err(|e| EngineError::Snapshot(e.into()))
    }

    fn read(bytes: &[u8], model: &Expected) -> Result<Self, &'static str> {
        let mut r = Reader(bytes);
        if r.take(MAGIC.len())? != MAGIC {
            return Err("it was not written by this version");
        }
        if r.number()? != model.fingerprint {
            return Err("it is of another model or precision");
        }
        let shape = [r.size()?, r.size()?];
        let samples = r.number()?;
        let (taken, searched) = (r.size()?, r.size()?);
        let made = r.size()?;
        let tail = MelTail { samples: r.floats()?, made };
        if tail.samples.len() > MAX_TAIL || tail.samples.iter().any(|s| !s.is_finite()) {
            return Err("its samples are no audio");
        }
        let rows = r.floats()?;
        if !rows.len().is_multiple_of(model.bins) || rows.len() / model.bins > model.capacity {
            return Err("its rows do not fit");
        }
        if rows.iter().any(|v| !v.is_finite()) {
            return Err("its rows are no audio");
        }
        let tokens = r.tokens(model.vocab)?;
        let told = r.size()?;
        let count = r.size()?;
        if count > r.0.len() / 8 {
            return Err("it is cut short");
        }
        let mut shown = Vec::with_capacity(count);
        for _ in 0..count {
            shown.push(u32::try_from(r.number()?).map_err(|_| "a token is out of range")?);
        }
        let later = r.number()? != 0;
        let seconds = f64::from_bits(r.number()?);
        if !(0.0..1e9).contains(&seconds) || told > tokens.len() {
            return Err("a number is out of range");
        }
        let utterance = utterance::Saved { tokens, told, shown, later, seconds, ended: r.size()? };
        let joiner = Joiner { open: r.tokens(model.vocab)?, next: r.size()? };
        let encoder = r.bytes()?.to_vec();
        let search = r.bytes()?.to_vec();
        if !r.0.is_empty() {
            return Err("it is too long");
        }
        Ok(Self { shape, samples, taken, searched, tail, rows, utterance, joiner, encoder, search })
    }
}

/// What a snapshot has to fit.
pub(super) struct Expected {
    pub fingerprint: u64,
    pub bins: usize,
    /// Rows that wait at most.
    pub capacity: usize,
    pub vocab: usize,
}

struct Writer(Vec<u8>);

impl Writer {
    fn number(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    fn size(&mut self, v: usize) {
        self.number(v as u64);
    }

    fn floats(&mut self, values: &[f32]) {
        self.size(values.len());
        values.iter().for_each(|v| self.0.extend_from_slice(&v.to_le_bytes()));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.size(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    fn tokens(&mut self, tokens: &[Token]) {
        self.size(tokens.len());
        for t in tokens {
            self.number(u64::from(t.id));
            self.size(t.frame);
            self.size(t.duration);
            self.0.extend_from_slice(&t.log_prob.to_le_bytes());
            self.0.extend_from_slice(&t.confidence.to_le_bytes());
        }
    }
}

/// Bytes of a token.
const TOKEN: usize = 32;
/// No stream lasts longer, in rows, frames or tokens.
const MOST: u64 = 1 << 40;

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], &'static str> {
        let (head, tail) = self.0.split_at_checked(n).ok_or("it is cut short")?;
        self.0 = tail;
        Ok(head)
    }

    fn number(&mut self) -> Result<u64, &'static str> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| "it is cut short")?))
    }

    fn size(&mut self) -> Result<usize, &'static str> {
        let n = self.number()?;
        if n < MOST { Ok(n as usize) } else { Err("a number is out of range") }
    }

    fn float(&mut self) -> Result<f32, &'static str> {
        Ok(f32::from_le_bytes(self.take(4)?.try_into().map_err(|_| "it is cut short")?))
    }

    fn floats(&mut self) -> Result<Vec<f32>, &'static str> {
        let n = self.size()?;
        let bytes = self.take(n.checked_mul(4).ok_or("it is cut short")?)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    fn bytes(&mut self) -> Result<&'a [u8], &'static str> {
        let n = self.size()?;
        self.take(n)
    }

    fn tokens(&mut self, vocab: usize) -> Result<Vec<Token>, &'static str> {
        let n = self.size()?;
        if n > self.0.len() / TOKEN {
            return Err("it is cut short");
        }
        let mut tokens = Vec::with_capacity(n);
        for _ in 0..n {
            let id = self.number()?;
            if id >= vocab as u64 {
                return Err("a token is out of range");
            }
            let (frame, duration) = (self.size()?, self.size()?);
            let (log_prob, confidence) = (self.float()?, self.float()?);
            tokens.push(Token { id: id as u32, frame, duration, log_prob, confidence });
        }
        Ok(tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Saved {
        let token = Token { id: 3, frame: 70, duration: 2, log_prob: -0.25, confidence: 0.5 };
        Saved {
            shape: [6, 1],
            samples: 99_999,
            taken: 40,
            searched: 5,
            tail: MelTail { samples: vec![0.5; 777], made: 2 },
            rows: vec![-1.0; 4 * 7],
            utterance: utterance::Saved {
                tokens: vec![token; 3],
                told: 2,
                shown: vec![1, 2, 3],
                later: true,
                seconds: 1.25,
                ended: 1,
            },
            joiner: Joiner { open: vec![token], next: 432 },
            encoder: vec![1, 2, 3],
            search: vec![4],
        }
    }

    #[test]
    fn bytes_and_back() {
        let model = Expected { fingerprint: 7, bins: 4, capacity: 10, vocab: 5 };
        let bytes = saved().to_bytes(7);
        assert_eq!(Saved::from_bytes(&bytes, &model).unwrap(), saved());
        for n in 0..bytes.len() {
            assert!(Saved::from_bytes(&bytes[..n], &model).is_err(), "{n}");
        }
        let long = [&bytes[..], &[0]].concat();
        assert!(Saved::from_bytes(&long, &model).is_err());
        assert!(Saved::from_bytes(&saved().to_bytes(8), &model).is_err());
        // Whatever is damaged, reading ends with a word or with a state, never otherwise.
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0xff;
            let _ = Saved::from_bytes(&bad, &model);
        }
    }
}
