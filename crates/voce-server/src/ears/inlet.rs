//! Raw audio of any rate and encoding, in pieces of any size, as what recognisers take.

use std::time::Instant;

use voce_audio::decode::mix_to_mono;
use voce_audio::{RawEncoding, Resampler};

use crate::core::error::ServerError;
use crate::core::trace::{Meter, Stage};

/// Rates that a client may send.
const RATES: std::ops::RangeInclusive<u32> = 4_000..=192_000;
/// Channels that a client may send.
const MAX_CHANNELS: usize = 8;

/// Turns bytes into samples; half a sample waits for its other half.
pub(crate) struct Inlet {
    encoding: RawEncoding,
    rate: u32,
    /// Rate of what comes out.
    to: u32,
    channels: usize,
    resampler: Resampler,
    carry: Vec<u8>,
    samples: Vec<f32>,
    mono: Vec<f32>,
    out: Vec<f32>,
    meter: Meter,
}

impl Inlet {
    /// Refuses a rate or a number of channels that nobody has.
    pub(crate) fn check(rate: u32, channels: usize) -> Result<(), ServerError> {
        if !RATES.contains(&rate) {
            return Err(ServerError::bad("sample_rate", format!("a rate of {rate} Hz: use 4000 to 192000")));
        }
        if !(1..=MAX_CHANNELS).contains(&channels) {
            return Err(ServerError::bad(
                "channels",
                format!("{channels} channels: use 1 to {MAX_CHANNELS}"),
            ));
        }
        Ok(())
    }

    /// For audio as a client sends it, into a stream that takes `to` samples per second.
    pub(crate) fn new(
        encoding: RawEncoding,
        rate: u32,
        channels: usize,
        to: u32,
    ) -> Result<Self, ServerError> {
        Self::check(rate, channels)?;
        let resampler = Resampler::new(rate, to);
        let (carry, samples, mono, out) = Default::default();
        let meter = Meter::new(Stage::Decode);
        Ok(Self { encoding, rate, to, channels, resampler, carry, samples, mono, out, meter })
    }

    /// The bytes that cost as much work as `samples` at the higher of the two rates.
    pub(super) fn bytes_of(&self, samples: usize) -> usize {
        self.floats_of(samples) * self.encoding.bytes() * self.channels
    }

    /// The decoded samples that cost as much work as `samples` at the higher of the two rates.
    pub(super) fn floats_of(&self, samples: usize) -> usize {
        let rate = u64::from(self.rate.min(self.to));
        (samples as u64 * rate / u64::from(self.to)) as usize
    }

    /// The samples that these bytes complete.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &[f32] {
        let begun = self.meter.begin();
        let frame = self.encoding.bytes() * self.channels;
        self.samples.clear();
        let joined;
        let mut rest = bytes;
        if !self.carry.is_empty() {
            self.carry.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.carry);
            rest = &joined;
        }
        let whole = rest.len() / frame * frame;
        self.encoding.decode_into(&rest[..whole], &mut self.samples);
        self.carry.extend_from_slice(&rest[whole..]);
        self.take(begun)
    }

    /// The same for samples that are samples already.
    pub(crate) fn floats(&mut self, samples: &[f32]) -> &[f32] {
        let begun = self.meter.begin();
        self.samples.clear();
        self.samples.extend_from_slice(samples);
        self.take(begun)
    }

    /// What the resampler still holds.
    pub(crate) fn finish(&mut self) -> &[f32] {
        self.out.clear();
        self.resampler.finish(&mut self.out);
        self.carry.clear();
        &self.out
    }

    fn take(&mut self, begun: Option<Instant>) -> &[f32] {
        for s in &mut self.samples {
            // No audio is louder than this, and no recogniser should see what is not a number.
            *s = if s.is_finite() { s.clamp(-8.0, 8.0) } else { 0.0 };
        }
        self.out.clear();
        if self.channels == 1 {
            self.resampler.process(&self.samples, &mut self.out);
        } else {
            self.mono.clear();
            mix_to_mono(&self.samples, self.channels, &mut self.mono);
            self.resampler.process(&self.mono, &mut self.out);
        }
        self.meter.end(begun);
        &self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_pieces_are_the_whole() {
        let bytes: Vec<u8> = (0..4000u32).flat_map(|i| ((i * 37 % 2000) as i16).to_le_bytes()).collect();
        let mut whole = Inlet::new(RawEncoding::S16le, 24_000, 1, 16_000).unwrap();
        let mut expected = whole.bytes(&bytes).to_vec();
        expected.extend_from_slice(whole.finish());
        let mut pieces = Inlet::new(RawEncoding::S16le, 24_000, 1, 16_000).unwrap();
        let mut got = Vec::new();
        for piece in bytes.chunks(7) {
            got.extend_from_slice(pieces.bytes(piece));
        }
        got.extend_from_slice(pieces.finish());
        assert_eq!(got, expected);
        assert_eq!(got.len(), 4000 * 2 / 3 + 1);
    }

    #[test]
    fn what_is_no_number_is_silence() {
        let mut inlet = Inlet::new(RawEncoding::F32le, 16_000, 1, 16_000).unwrap();
        assert_eq!(inlet.floats(&[f32::NAN, f32::INFINITY, 1e9, 0.5]), [0.0, 0.0, 8.0, 0.5]);
    }

    #[test]
    fn strange_rates_are_refused() {
        for (rate, channels) in [(0, 1), (3_999, 1), (655_350, 1), (16_000, 0), (16_000, 9)] {
            assert!(Inlet::new(RawEncoding::S16le, rate, channels, 16_000).is_err(), "{rate} {channels}");
        }
    }
}
