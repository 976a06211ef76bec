//! Raw audio of any rate and encoding, in pieces of any size, as what recognisers take.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use voce_audio::decode::mix_to_mono;
use voce_audio::{RawEncoding, Resampler, ResamplerState};

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

/// An inlet between two messages, for another machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct InletState {
    #[serde(with = "super::encoding")]
    encoding: RawEncoding,
    rate: u32,
    channels: usize,
    carry: Vec<u8>,
    history: Vec<f32>,
    first: i64,
    given: u64,
    made: u64,
}

impl Inlet {
    /// Where it is in its stream.
    pub(crate) fn state(&self) -> InletState {
        let ResamplerState { history, first, given, made } = self.resampler.state();
        let (encoding, rate, channels, carry) = (self.encoding, self.rate, self.channels, self.carry.clone());
        InletState { encoding, rate, channels, carry, history, first, given, made }
    }

    /// Goes on where one was, into a stream that takes `to` samples per second; `None` where the state is none.
    pub(crate) fn resume(state: InletState, to: u32) -> Option<Self> {
        let InletState { encoding, rate, channels, carry, history, first, given, made } = state;
        let mut inlet = Self::new(encoding, rate, channels, to).ok()?;
        let fits = carry.len() < encoding.bytes() * channels;
        let restored = inlet.resampler.restore(ResamplerState { history, first, given, made });
        inlet.carry = carry;
        (fits && restored).then_some(inlet)
    }

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
    fn an_inlet_goes_on_from_its_state() {
        let bytes: Vec<u8> = (0..9000u32).flat_map(|i| ((i * 37 % 2000) as i16).to_le_bytes()).collect();
        use RawEncoding::{Alaw, F32le, Mulaw, S16le};
        for (encoding, channels) in [(S16le, 1), (S16le, 2), (F32le, 1), (Mulaw, 1), (Alaw, 2)] {
            let new = || Inlet::new(encoding, 24_000, channels, 16_000).unwrap();
            let mut whole = new();
            let mut expected = whole.bytes(&bytes).to_vec();
            expected.extend_from_slice(whole.finish());
            for cut in [0, 3, 4_001, 17_999] {
                let mut first = new();
                let mut got = first.bytes(&bytes[..cut]).to_vec();
                let mut second = Inlet::resume(first.state(), 16_000).unwrap();
                got.extend_from_slice(second.bytes(&bytes[cut..]));
                got.extend_from_slice(second.finish());
                assert!(got == expected, "{encoding:?} {channels} {cut}");
            }
        }
        let state = Inlet::new(RawEncoding::S16le, 24_000, 1, 16_000).unwrap().state();
        for bad in [
            InletState { rate: 1, ..state.clone() },
            InletState { channels: 9, ..state.clone() },
            InletState { carry: vec![0; 2], ..state.clone() },
            InletState { made: 1 << 60, ..state.clone() },
        ] {
            assert!(Inlet::resume(bad, 16_000).is_none());
        }
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
