//! Headerless samples: signed integers of one to four bytes, 32-bit float and the two G.711 laws.

use super::source::{Input, read_frames};
use super::{Backend, DecodeReport, Spec};
use crate::{AudioError, g711};

/// Most bytes read per block.
const BLOCK_BYTES: usize = 16 * 1024;

/// How one headerless sample is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RawEncoding {
    /// Signed 16-bit, little endian.
    S16le,
    /// 32-bit float, little endian.
    F32le,
    /// G.711 mu-law.
    Mulaw,
    /// G.711 A-law.
    Alaw,
    /// Signed 8-bit.
    S8,
    /// Signed 24-bit, little endian, packed.
    S24le,
    /// Signed 32-bit, little endian.
    S32le,
}

impl RawEncoding {
    /// Bytes of one sample.
    pub fn bytes(self) -> usize {
        match self {
            Self::S16le => 2,
            Self::S24le => 3,
            Self::F32le | Self::S32le => 4,
            Self::Mulaw | Self::Alaw | Self::S8 => 1,
        }
    }

    /// Appends the samples in `bytes` to `out`; bytes past the last whole sample are left out.
    pub fn decode_into(self, bytes: &[u8], out: &mut Vec<f32>) {
        match self {
            Self::S16le => {
                let (samples, _) = bytes.as_chunks::<2>();
                out.extend(samples.iter().map(|&b| f32::from(i16::from_le_bytes(b)) / 32768.0));
            }
            Self::F32le => {
                let (samples, _) = bytes.as_chunks::<4>();
                out.extend(samples.iter().map(|&b| f32::from_le_bytes(b)));
            }
            Self::Mulaw => out.extend(bytes.iter().map(|&b| f32::from(g711::mulaw_to_i16(b)) / 32768.0)),
            Self::Alaw => out.extend(bytes.iter().map(|&b| f32::from(g711::alaw_to_i16(b)) / 32768.0)),
            Self::S8 => out.extend(bytes.iter().map(|&b| f32::from(b as i8) / 128.0)),
            Self::S24le => {
                let (samples, _) = bytes.as_chunks::<3>();
                let wide = |&[a, b, c]: &[u8; 3]| i32::from_le_bytes([0, a, b, c]) >> 8;
                out.extend(samples.iter().map(|s| wide(s) as f32 / 8_388_608.0));
            }
            Self::S32le => {
                let (samples, _) = bytes.as_chunks::<4>();
                out.extend(samples.iter().map(|&b| i32::from_le_bytes(b) as f32 / 2_147_483_648.0));
            }
        }
    }
}

/// The format of headerless, interleaved samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawFormat {
    /// How a sample is stored.
    pub encoding: RawEncoding,
    /// Samples per second and channel.
    pub sample_rate: u32,
    /// Channels.
    pub channels: usize,
}

pub(super) struct Raw {
    input: Input,
    format: RawFormat,
    /// Bytes read; between blocks, the start of a frame.
    bytes: Vec<u8>,
}

impl Raw {
    pub(super) fn new(input: Input, format: RawFormat) -> Self {
        Self { input, format, bytes: Vec::new() }
    }

    fn describe(&self) -> Spec {
        Spec { rate: self.format.sample_rate, channels: self.format.channels }
    }
}

impl Backend for Raw {
    fn spec(&self) -> Option<Spec> {
        Some(self.describe())
    }

    fn next(&mut self, out: &mut Vec<f32>, report: &mut DecodeReport) -> Result<Option<Spec>, AudioError> {
        let frame = self.format.encoding.bytes() * self.format.channels;
        let want = (BLOCK_BYTES / frame).max(1) * frame;
        read_frames(&mut self.input, &mut self.bytes, frame, want)
            .map_err(|e| AudioError::reading("the audio", e))?;
        let whole = self.bytes.len() / frame * frame;
        // Less than a frame comes only at the end.
        report.truncated |= whole == 0 && !self.bytes.is_empty();
        self.format.encoding.decode_into(&self.bytes[..whole], out);
        self.bytes.drain(..whole);
        Ok(if whole == 0 { None } else { Some(self.describe()) })
    }
}
