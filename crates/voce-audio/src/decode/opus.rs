//! Opus packets to samples: the identification header of RFC 7845 and one stream of mono or stereo packets,
//! whichever container they came in.

use ropus::{Channels, DecodeMode, Decoder};

use super::DecodeReport;
use crate::AudioError;

/// Opus always decodes at this rate here.
pub(super) const OPUS_RATE: u32 = 48_000;
/// The longest packet: 120 ms.
const MAX_PACKET_FRAMES: usize = 5_760;

/// The part of `OpusHead` that decoding needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpusHead {
    pub(super) channels: usize,
    pub(super) pre_skip: u16,
    gain_q8: i16,
}

impl OpusHead {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, AudioError> {
        let [
            b'O',
            b'p',
            b'u',
            b's',
            b'H',
            b'e',
            b'a',
            b'd',
            version,
            channels,
            p0,
            p1,
            _,
            _,
            _,
            _,
            g0,
            g1,
            family,
            ..,
        ] = *bytes
        else {
            return Err(AudioError::corrupt("no opus header"));
        };
        if version & 0xf0 != 0 {
            return Err(AudioError::unsupported(format!("opus header version {version}")));
        }
        if family != 0 || !matches!(channels, 1 | 2) {
            return Err(AudioError::unsupported(format!(
                "multistream opus, mapping family {family} with {channels} channels: mix it to stereo"
            )));
        }
        Ok(Self {
            channels: usize::from(channels),
            pre_skip: u16::from_le_bytes([p0, p1]),
            gain_q8: i16::from_le_bytes([g0, g1]),
        })
    }
}

/// A stream of Opus packets being decoded, without its pre-skip.
pub(super) struct OpusPackets {
    decoder: Decoder,
    head: OpusHead,
    gain: f32,
    /// Frames of pre-skip still to be dropped.
    skip: usize,
    pcm: Vec<f32>,
}

impl OpusPackets {
    pub(super) fn new(head: OpusHead) -> Result<Self, AudioError> {
        let layout = if head.channels == 1 { Channels::Mono } else { Channels::Stereo };
        let decoder =
            Decoder::new(OPUS_RATE, layout).map_err(|e| AudioError::corrupt(format!("opus: {e}")))?;
        Ok(Self {
            decoder,
            head,
            gain: 10f32.powf(f32::from(head.gain_q8) / (20.0 * 256.0)),
            skip: usize::from(head.pre_skip),
            pcm: vec![0.0; MAX_PACKET_FRAMES * head.channels],
        })
    }

    pub(super) fn channels(&self) -> usize {
        self.head.channels
    }

    /// Appends one packet's samples and returns its length in frames, pre-skip included.
    pub(super) fn decode(&mut self, packet: &[u8], out: &mut Vec<f32>, report: &mut DecodeReport) -> usize {
        if packet.is_empty() {
            report.bad_packets += 1;
            return 0;
        }
        let Ok(frames) = self.decoder.decode_float(packet, &mut self.pcm, DecodeMode::Normal) else {
            report.bad_packets += 1;
            return 0;
        };
        let dropped = self.skip.min(frames);
        self.skip -= dropped;
        let kept = &self.pcm[dropped * self.head.channels..frames * self.head.channels];
        out.extend(kept.iter().map(|s| s * self.gain));
        frames
    }
}
