//! WAV in, read straight through so that pipes work: PCM of 8 to 32 bits, float of 32 and 64, mu-law and
//! A-law. Lengths in the header are taken as upper bounds at most, because streaming writers cannot know them.

use std::io::{BufReader, Read};

use super::source::{Input, read_frames};
use super::{Backend, DecodeReport, RawEncoding, Spec};
use crate::AudioError;

/// Most bytes read per block.
const BLOCK_BYTES: usize = 16 * 1024;
/// Data lengths from here on are what streaming writers put for "unknown".
const OPEN_LENGTH: u32 = 0x7000_0000;

/// Whether a stream starts as a WAV file.
pub(super) fn is_wav(head: &[u8]) -> bool {
    (head.starts_with(b"RIFF") || head.starts_with(b"RF64")) && head.get(8..12) == Some(b"WAVE")
}

#[derive(Debug, Clone, Copy)]
enum Sample {
    U8,
    F64,
    Raw(RawEncoding),
}

impl Sample {
    fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F64 => 8,
            Self::Raw(raw) => raw.bytes(),
        }
    }

    fn decode_into(self, bytes: &[u8], out: &mut Vec<f32>) {
        match self {
            Self::U8 => out.extend(bytes.iter().map(|&b| (f32::from(b) - 128.0) / 128.0)),
            Self::F64 => out.extend(bytes.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b) as f32)),
            Self::Raw(raw) => raw.decode_into(bytes, out),
        }
    }
}

pub(super) struct Wav {
    input: BufReader<Input>,
    spec: Spec,
    sample: Sample,
    /// Data bytes still promised; `None` when the header leaves it open.
    left: Option<u64>,
    /// Bytes read; between blocks, the start of a frame.
    bytes: Vec<u8>,
}

impl Wav {
    pub(super) fn open(input: Input) -> Result<Self, AudioError> {
        let mut input = BufReader::new(input);
        let mut take = |n: usize| -> Result<Vec<u8>, AudioError> {
            let mut bytes = Vec::new();
            (&mut input)
                .take(n as u64)
                .read_to_end(&mut bytes)
                .map_err(|e| AudioError::reading("the audio", e))?;
            if bytes.len() == n { Ok(bytes) } else { Err(AudioError::Truncated) }
        };
        let riff = take(12)?;
        let riff_open = matches!(u32_at(&riff, 4), 0 | u32::MAX);
        let mut format = None;
        let left = loop {
            let chunk = take(8)?;
            let length = u32_at(&chunk, 4);
            // Chunks are padded to even lengths.
            let padded = length as usize + (length & 1) as usize;
            match &chunk[..4] {
                b"fmt " => {
                    let wanted = padded.min(40);
                    format = Some(parse_format(&take(wanted)?)?);
                    skip(&mut take, padded - wanted)?;
                }
                b"data" if length >= OPEN_LENGTH || (length == 0 && riff_open) => break None,
                b"data" => break Some(u64::from(length)),
                _ => skip(&mut take, padded)?,
            }
        };
        let Some((spec, sample)) = format else {
            return Err(AudioError::corrupt("wav without a format before its data"));
        };
        Ok(Self { input, spec, sample, left, bytes: Vec::new() })
    }
}

fn skip(take: &mut impl FnMut(usize) -> Result<Vec<u8>, AudioError>, mut n: usize) -> Result<(), AudioError> {
    while n > 0 {
        n -= take(n.min(BLOCK_BYTES))?.len();
    }
    Ok(())
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn parse_format(fmt: &[u8]) -> Result<(Spec, Sample), AudioError> {
    if fmt.len() < 16 {
        return Err(AudioError::corrupt("wav format chunk too short"));
    }
    // An extensible header holds the real tag at the start of its GUID.
    let tag = if u16_at(fmt, 0) == 0xfffe { u16_at(fmt, 24) } else { u16_at(fmt, 0) };
    let (channels, align, bits) = (u16_at(fmt, 2), u16_at(fmt, 12), u16_at(fmt, 14));
    let width = align.checked_div(channels).unwrap_or(bits.div_ceil(8));
    let sample = match (tag, width) {
        (1, 1) => Sample::U8,
        (1, 2) => Sample::Raw(RawEncoding::S16le),
        (1, 3) => Sample::Raw(RawEncoding::S24le),
        (1, 4) => Sample::Raw(RawEncoding::S32le),
        (3, 4) => Sample::Raw(RawEncoding::F32le),
        (3, 8) => Sample::F64,
        (6, 1) => Sample::Raw(RawEncoding::Alaw),
        (7, 1) => Sample::Raw(RawEncoding::Mulaw),
        _ => return Err(AudioError::unsupported(format!("wav codec {tag} with {bits} bits"))),
    };
    Ok((Spec { rate: u32_at(fmt, 4), channels: usize::from(channels) }, sample))
}

impl Backend for Wav {
    fn spec(&self) -> Option<Spec> {
        Some(self.spec)
    }

    fn next(&mut self, out: &mut Vec<f32>, report: &mut DecodeReport) -> Result<Option<Spec>, AudioError> {
        let frame = self.sample.bytes() * self.spec.channels;
        let held = self.bytes.len();
        let block = (BLOCK_BYTES / frame).max(1) * frame;
        let promised = self.left.map_or(usize::MAX, |left| left.saturating_add(held as u64) as usize);
        let want = block.min(promised);
        read_frames(&mut self.input, &mut self.bytes, frame, want)
            .map_err(|e| AudioError::reading("the audio", e))?;
        let whole = self.bytes.len() / frame * frame;
        if let Some(left) = &mut self.left {
            report.truncated |= whole == 0 && want > self.bytes.len();
            *left -= (self.bytes.len() - held) as u64;
        }
        self.sample.decode_into(&self.bytes[..whole], out);
        self.bytes.drain(..whole);
        Ok(if whole == 0 { None } else { Some(self.spec) })
    }
}
