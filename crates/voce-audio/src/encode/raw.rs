//! Headerless samples out: integers, float, mu-law, A-law.

use super::AudioSink;
use crate::output::Output;
use crate::wav::{f32_to_i16, put_s16le};
use crate::{AudioError, RawEncoding, g711};

/// Appends samples in a headerless encoding to `bytes`.
pub fn encode_raw(samples: &[f32], encoding: RawEncoding, bytes: &mut Vec<u8>) {
    match encoding {
        RawEncoding::S16le => put_s16le(samples, bytes),
        RawEncoding::F32le => bytes.extend(samples.iter().flat_map(|s| s.to_le_bytes())),
        RawEncoding::Mulaw => bytes.extend(samples.iter().map(|&s| g711::i16_to_mulaw(f32_to_i16(s)))),
        RawEncoding::Alaw => bytes.extend(samples.iter().map(|&s| g711::i16_to_alaw(f32_to_i16(s)))),
        RawEncoding::S8 => bytes.extend(samples.iter().map(|&s| integer(s, 8) as u8)),
        RawEncoding::S24le => bytes.extend(samples.iter().flat_map(|&s| {
            let [a, b, c, _] = integer(s, 24).to_le_bytes();
            [a, b, c]
        })),
        RawEncoding::S32le => bytes.extend(samples.iter().flat_map(|&s| integer(s, 32).to_le_bytes())),
    }
}

/// A sample as an integer of `bits` bits; one beyond -1..1 becomes the largest.
fn integer(sample: f32, bits: u32) -> i32 {
    let scale = f64::from(1u32 << (bits - 1));
    (f64::from(sample) * scale).round().clamp(-scale, scale - 1.0) as i32
}

/// Writes headerless samples.
pub struct RawWriter<O: Output> {
    output: O,
    encoding: RawEncoding,
    bytes: Vec<u8>,
}

impl<O: Output> RawWriter<O> {
    /// Writes to `output`.
    pub fn new(output: O, encoding: RawEncoding) -> Self {
        Self { output, encoding, bytes: Vec::new() }
    }
}

impl<O: Output> AudioSink for RawWriter<O> {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        self.bytes.clear();
        encode_raw(samples, self.encoding, &mut self.bytes);
        self.output.put(&self.bytes)
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        self.output.flush()
    }

    fn finish(&mut self) -> Result<(), AudioError> {
        self.output.commit()
    }
}
