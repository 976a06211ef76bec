//! Saved streams as bytes: how they are written, and read by someone who believes nothing in them.

use crate::hearing::Token;

/// No stream lasts longer, in frames, rows or tokens: years of audio, and still whole numbers of 32 bits.
pub const MAX_POSITION: usize = 1 << 30;
/// Bytes of a token.
const TOKEN_BYTES: usize = 32;

/// Saved bytes that do not fit, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(pub &'static str);

type Result<T> = std::result::Result<T, Unfit>;

/// Writes numbers, values and tokens one after the other.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Begins with eight bytes that say what follows.
    pub fn new(magic: [u8; 8]) -> Self {
        Self(magic.to_vec())
    }

    /// Everything so far.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A number.
    pub fn number(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    /// A number of things.
    pub fn size(&mut self, v: usize) {
        self.number(v as u64);
    }

    /// A score or a time.
    pub fn double(&mut self, v: f64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    /// A value.
    pub fn float(&mut self, v: f32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }

    /// Values whose number the reader knows.
    pub fn values(&mut self, values: &[f32]) {
        self.0.reserve(4 * values.len());
        values.iter().for_each(|v| self.float(*v));
    }

    /// The upper halves of values, whose number the reader knows.
    pub fn halves(&mut self, values: &[f32]) {
        self.0.reserve(2 * values.len());
        values.iter().for_each(|v| self.0.extend_from_slice(&((v.to_bits() >> 16) as u16).to_le_bytes()));
    }

    /// Values, and how many they are.
    pub fn floats(&mut self, values: &[f32]) {
        self.size(values.len());
        self.values(values);
    }

    /// Bytes, and how many they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.size(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// A token.
    pub fn token(&mut self, t: &Token) {
        self.number(u64::from(t.id));
        self.size(t.frame);
        self.size(t.duration);
        self.float(t.log_prob);
        self.float(t.confidence);
    }

    /// Tokens, and how many they are.
    pub fn tokens(&mut self, tokens: &[Token]) {
        self.size(tokens.len());
        tokens.iter().for_each(|t| self.token(t));
    }
}

/// Reads what a [`Writer`] wrote.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads bytes that begin as they must.
    pub fn new(bytes: &'a [u8], magic: [u8; 8]) -> Result<Self> {
        let mut reader = Self(bytes);
        if reader.take(magic.len())? == magic {
            Ok(reader)
        } else {
            Err(Unfit("it was not written by this version"))
        }
    }

    /// Fails if something is left.
    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(Unfit("it is too long")) }
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Unfit("it is cut short"))?;
        self.0 = tail;
        Ok(head)
    }

    /// A number.
    pub fn number(&mut self) -> Result<u64> {
        let bytes = self.take(8)?.try_into().map_err(|_| Unfit("it is cut short"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A number that is no larger than `most`.
    pub fn count(&mut self, most: usize) -> Result<usize> {
        let n = self.number()?;
        if n <= most as u64 { Ok(n as usize) } else { Err(Unfit("a number is out of range")) }
    }

    /// A number of frames, rows or tokens of a stream.
    pub fn position(&mut self) -> Result<usize> {
        self.count(MAX_POSITION)
    }

    /// A score: a number, or that of what cannot be.
    pub fn double(&mut self) -> Result<f64> {
        let v = f64::from_bits(self.number()?);
        if v.is_nan() || v == f64::INFINITY { Err(Unfit("a score is no number")) } else { Ok(v) }
    }

    /// A finite value.
    pub fn float(&mut self) -> Result<f32> {
        let bytes = self.take(4)?.try_into().map_err(|_| Unfit("it is cut short"))?;
        finite(f32::from_le_bytes(bytes))
    }

    /// So many finite values.
    pub fn values(&mut self, n: usize) -> Result<Vec<f32>> {
        let bytes = self.take(n.checked_mul(4).ok_or(Unfit("it is cut short"))?)?;
        bytes.as_chunks::<4>().0.iter().map(|b| finite(f32::from_le_bytes(*b))).collect()
    }

    /// So many finite values, of which the upper halves were written.
    pub fn halves(&mut self, n: usize) -> Result<Vec<f32>> {
        let bytes = self.take(n.checked_mul(2).ok_or(Unfit("it is cut short"))?)?;
        let wide = |b: &[u8; 2]| finite(f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16));
        bytes.as_chunks::<2>().0.iter().map(wide).collect()
    }

    /// Finite values, at most `most`.
    pub fn floats(&mut self, most: usize) -> Result<Vec<f32>> {
        let n = self.count(most)?;
        self.values(n)
    }

    /// Values that need not be numbers, at most `most`.
    pub fn any_floats(&mut self, most: usize) -> Result<Vec<f32>> {
        let n = self.count(most)?;
        let bytes = self.take(4 * n)?;
        Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
    }

    /// Bytes.
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.count(self.0.len())?;
        self.take(n)
    }

    /// A token of a vocabulary.
    pub fn token(&mut self, vocab: usize) -> Result<Token> {
        let id = self.number()?;
        if id >= vocab as u64 {
            return Err(Unfit("a token is out of range"));
        }
        let (frame, duration) = (self.position()?, self.position()?);
        Ok(Token { id: id as u32, frame, duration, log_prob: self.float()?, confidence: self.float()? })
    }

    /// Tokens of a vocabulary, at most `most`.
    pub fn tokens(&mut self, vocab: usize, most: usize) -> Result<Vec<Token>> {
        let n = self.count(most.min(self.0.len() / TOKEN_BYTES))?;
        (0..n).map(|_| self.token(vocab)).collect()
    }
}

fn finite(v: f32) -> Result<f32> {
    if v.is_finite() { Ok(v) } else { Err(Unfit("a value is no number")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: [u8; 8] = *b"vocetest";

    #[test]
    fn what_is_written_is_read() {
        let token = Token { id: 6, frame: MAX_POSITION, duration: 2, log_prob: -0.5, confidence: 0.25 };
        let mut w = Writer::new(MAGIC);
        w.number(u64::MAX);
        w.double(f64::NEG_INFINITY);
        w.floats(&[1.5, -2.0]);
        w.halves(&[0.5]);
        w.bytes(b"abc");
        w.tokens(&[token; 2]);
        let bytes = w.into_bytes();
        let read = |bytes: &[u8]| -> Result<Vec<Token>> {
            let mut r = Reader::new(bytes, MAGIC)?;
            assert_eq!(r.number()?, u64::MAX);
            assert_eq!(r.double()?, f64::NEG_INFINITY);
            assert_eq!(r.floats(2)?, [1.5, -2.0]);
            assert_eq!(r.halves(1)?, [0.5]);
            assert_eq!(r.bytes()?, b"abc");
            let tokens = r.tokens(7, 2)?;
            r.finish()?;
            Ok(tokens)
        };
        assert_eq!(read(&bytes).unwrap(), [token; 2]);
        (0..bytes.len()).for_each(|n| assert!(read(&bytes[..n]).is_err(), "{n}"));
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn what_no_writer_writes_is_refused() {
        let with = |write: &dyn Fn(&mut Writer)| {
            let mut w = Writer::new(MAGIC);
            write(&mut w);
            w.into_bytes()
        };
        let bytes = with(&|w| w.size(MAX_POSITION + 1));
        assert!(Reader::new(&bytes, MAGIC).unwrap().position().is_err());
        let bytes = with(&|w| w.floats(&[f32::NAN]));
        assert!(Reader::new(&bytes, MAGIC).unwrap().floats(1).is_err());
        assert!(Reader::new(&bytes, MAGIC).unwrap().any_floats(1).unwrap()[0].is_nan());
        assert!(Reader::new(&bytes, MAGIC).unwrap().any_floats(0).is_err());
        let bytes = with(&|w| w.halves(&[f32::INFINITY]));
        assert!(Reader::new(&bytes, MAGIC).unwrap().halves(1).is_err());
        let bytes = with(&|w| w.floats(&[0.0; 3]));
        assert!(Reader::new(&bytes, MAGIC).unwrap().floats(2).is_err());
        let bytes = with(&|w| w.double(f64::INFINITY));
        assert!(Reader::new(&bytes, MAGIC).unwrap().double().is_err());
        // A count that promises more than there is reserves nothing.
        let bytes = with(&|w| w.number(u64::MAX / 2));
        assert!(Reader::new(&bytes, MAGIC).unwrap().bytes().is_err());
        assert!(Reader::new(&bytes, MAGIC).unwrap().tokens(7, usize::MAX).is_err());
        assert!(Reader::new(&bytes, *b"vocetess").is_err());
    }
}
