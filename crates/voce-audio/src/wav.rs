//! Mono WAV out, 16-bit or float. The header goes out first with open lengths, so that a pipe can play it
//! at once, and gets the true ones at the end where the output can be patched.

use std::path::Path;

use crate::output::{AtomicFile, Output, Pipe};
use crate::{AudioError, AudioSink};

/// How a WAV file stores a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WavSample {
    /// Signed 16-bit.
    S16,
    /// 32-bit float.
    F32,
}

/// The length that stands for "not known yet".
const OPEN_LENGTH: u32 = u32::MAX;

/// A sample as 16-bit: clamped to -1..1, times 32767, cut towards zero; NaN becomes 0.
pub fn f32_to_i16(sample: f32) -> i16 {
    (sample.clamp(-1.0, 1.0) * 32767.0) as i16
}

/// Appends samples as little-endian 16-bit.
pub fn put_s16le(samples: &[f32], bytes: &mut Vec<u8>) {
    bytes.extend(samples.iter().flat_map(|&s| f32_to_i16(s).to_le_bytes()));
}

/// A WAV header; `samples` of `None` leaves the lengths open, for pipes.
pub fn wav_header(sample_rate: u32, format: WavSample, samples: Option<u32>) -> Vec<u8> {
    let (tag, width): (u16, u16) = match format {
        WavSample::S16 => (1, 2),
        WavSample::F32 => (3, 4),
    };
    let mut h = Vec::with_capacity(58);
    let data = samples.map(|n| n.saturating_mul(u32::from(width)));
    // Float files carry an (empty) extension and a fact chunk.
    let is_float = format == WavSample::F32;
    let before_data: u32 = if is_float { 4 + 8 + 18 + 12 + 8 } else { 4 + 8 + 16 + 8 };
    h.extend_from_slice(b"RIFF");
    h.extend(data.map_or(OPEN_LENGTH, |d| d.saturating_add(before_data)).to_le_bytes());
    h.extend_from_slice(b"WAVEfmt ");
    h.extend(if is_float { 18u32 } else { 16 }.to_le_bytes());
    h.extend(tag.to_le_bytes());
    h.extend(1u16.to_le_bytes());
    h.extend(sample_rate.to_le_bytes());
    h.extend((sample_rate.saturating_mul(u32::from(width))).to_le_bytes());
    h.extend(width.to_le_bytes());
    h.extend((width * 8).to_le_bytes());
    if is_float {
        h.extend(0u16.to_le_bytes());
        h.extend_from_slice(b"fact");
        h.extend(4u32.to_le_bytes());
        h.extend(samples.unwrap_or(OPEN_LENGTH).to_le_bytes());
    }
    h.extend_from_slice(b"data");
    h.extend(data.unwrap_or(OPEN_LENGTH).to_le_bytes());
    h
}

/// Writes mono WAV to any output.
pub struct WavWriter<O: Output> {
    output: O,
    sample_rate: u32,
    format: WavSample,
    samples: u64,
    limit: u64,
    bytes: Vec<u8>,
}

impl WavWriter<AtomicFile> {
    /// A WAV file that appears under `path` when finished, and not before.
    pub fn create(path: &Path, sample_rate: u32, format: WavSample) -> Result<Self, AudioError> {
        Self::new(AtomicFile::create(path)?, sample_rate, format)
    }
}

impl<W: std::io::Write + Send> WavWriter<Pipe<W>> {
    /// A WAV stream whose header leaves the length open.
    pub fn stream(writer: W, sample_rate: u32, format: WavSample) -> Result<Self, AudioError> {
        Self::new(Pipe::new(writer), sample_rate, format)
    }
}

impl<O: Output> WavWriter<O> {
    /// Writes the header to `output`.
    pub fn new(mut output: O, sample_rate: u32, format: WavSample) -> Result<Self, AudioError> {
        let header = wav_header(sample_rate, format, None);
        output.put(&header)?;
        let width = if format == WavSample::S16 { 2 } else { 4 };
        // Only a file must hold its length; a pipe may run for days.
        let sized = output.patch(0, &[])?;
        let limit = if sized { (u64::from(u32::MAX) - header.len() as u64) / width } else { u64::MAX };
        Ok(Self { output, sample_rate, format, samples: 0, limit, bytes: Vec::new() })
    }

    /// Gives the output back.
    pub fn into_output(self) -> O {
        self.output
    }
}

impl<O: Output> AudioSink for WavWriter<O> {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        self.samples += samples.len() as u64;
        if self.samples > self.limit {
            return Err(AudioError::OutputFull);
        }
        self.bytes.clear();
        match self.format {
            WavSample::S16 => put_s16le(samples, &mut self.bytes),
            WavSample::F32 => self.bytes.extend(samples.iter().flat_map(|s| s.to_le_bytes())),
        }
        self.output.put(&self.bytes)
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        self.output.flush()
    }

    fn finish(&mut self) -> Result<(), AudioError> {
        if let Ok(samples) = u32::try_from(self.samples) {
            self.output.patch(0, &wav_header(self.sample_rate, self.format, Some(samples)))?;
        }
        self.output.commit()
    }
}
