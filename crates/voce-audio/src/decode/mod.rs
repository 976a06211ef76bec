//! The one decode path: every route that takes audio from outside goes through [`Decoder`], which counts
//! bytes, seconds and samples while decoding and turns a decoder's panic into an error.

mod blanks;
mod container;
mod kinds;
mod limits;
mod mono;
mod ogg_opus;
mod ogg_pages;
mod opus;
mod raw;
mod source;
mod vorbis_books;
mod wav;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

pub use kinds::{EXTENSIONS, holds_audio, is_recording, names_audio};
pub use limits::*;
pub use mono::MonoStream;
pub use raw::{RawEncoding, RawFormat};
pub use source::Source;

use crate::AudioError;
use source::Health;

/// What was mended on the way; all zero for a sound file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DecodeReport {
    /// The stream ended in the middle of something; what came before was kept.
    pub truncated: bool,
    /// Packets that did not decode and were left out.
    pub bad_packets: u64,
    /// NaN or infinite samples, replaced by 0.
    pub non_finite: u64,
}

/// Decoded audio, held whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Audio {
    /// Interleaved samples.
    pub samples: Vec<f32>,
    /// Samples per second and channel.
    pub sample_rate: u32,
    /// Channels, at least 1.
    pub channels: usize,
    /// What was mended on the way.
    pub report: DecodeReport,
}

impl Audio {
    /// The mean of all channels.
    pub fn to_mono(&self) -> Vec<f32> {
        let mut mono = Vec::new();
        mix_to_mono(&self.samples, self.channels, &mut mono);
        mono
    }

    /// Length in seconds.
    pub fn seconds(&self) -> f64 {
        (self.samples.len() / self.channels) as f64 / f64::from(self.sample_rate)
    }
}

/// Appends the mean of the channels of an interleaved block to `mono`.
pub fn mix_to_mono(interleaved: &[f32], channels: usize, mono: &mut Vec<f32>) {
    match channels {
        0 | 1 => mono.extend_from_slice(interleaved),
        n => mono.extend(interleaved.chunks_exact(n).map(|f| f.iter().sum::<f32>() / n as f32)),
    }
}

/// Decodes a whole source; `hint_extension` only makes the error for unknown formats clearer.
pub fn decode(
    source: Source,
    hint_extension: Option<&str>,
    limits: &DecodeLimits,
) -> Result<Audio, AudioError> {
    Decoder::open(source, hint_extension, limits)?.read_all()
}

/// Decodes a whole file held in memory.
pub fn decode_bytes(
    bytes: &[u8],
    hint_extension: Option<&str>,
    limits: &DecodeLimits,
) -> Result<Audio, AudioError> {
    if bytes.len() as u64 > limits.max_input_bytes {
        return Err(AudioError::TooLarge { limit: limits.max_input_bytes });
    }
    decode(Source::bytes(bytes.to_vec()), hint_extension, limits)
}

/// Decodes a whole file on disk.
pub fn decode_file(path: &Path, limits: &DecodeLimits) -> Result<Audio, AudioError> {
    let hint = path.extension().and_then(|e| e.to_str());
    decode(Source::file(path)?, hint, limits)
}

/// Decodes a whole headerless source.
pub fn decode_raw(source: Source, format: RawFormat, limits: &DecodeLimits) -> Result<Audio, AudioError> {
    Decoder::open_raw(source, format, limits)?.read_all()
}

/// Sample rate and channels of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Spec {
    rate: u32,
    channels: usize,
}

/// One format's decoder: appends interleaved blocks until there are no more.
trait Backend: Send {
    /// What the header says; `None` when only decoding can tell.
    fn spec(&self) -> Option<Spec>;

    /// Appends the next block to `out` and says what it holds; `None` at the end.
    fn next(&mut self, out: &mut Vec<f32>, report: &mut DecodeReport) -> Result<Option<Spec>, AudioError>;
}

/// A decoder that gives blocks of interleaved samples, so that hours run in bounded memory.
pub struct Decoder {
    backend: Option<Box<dyn Backend>>,
    spec: Spec,
    limits: DecodeLimits,
    health: Arc<Health>,
    block: Vec<f32>,
    /// The first block, decoded while opening, is still to be given out.
    pending: bool,
    frames: u64,
    report: DecodeReport,
}

impl Decoder {
    /// Opens a source of any supported format, and decodes its first block.
    pub fn open(
        source: Source,
        hint_extension: Option<&str>,
        limits: &DecodeLimits,
    ) -> Result<Self, AudioError> {
        let opened = source.open(limits)?;
        let health = opened.health.clone();
        let backend = guard(|| -> Result<Box<dyn Backend>, AudioError> {
            if ogg_opus::is_ogg_opus(&opened.head) {
                Ok(Box::new(ogg_opus::OggOpus::open(opened.input, limits.max_packet_bytes)?))
            } else if wav::is_wav(&opened.head) {
                Ok(Box::new(wav::Wav::open(opened.input)?))
            } else {
                Ok(Box::new(container::Container::open(opened, hint_extension, limits)?))
            }
        });
        Self::start(backend, health, limits)
    }

    /// Opens headerless samples whose format the caller knows.
    pub fn open_raw(source: Source, format: RawFormat, limits: &DecodeLimits) -> Result<Self, AudioError> {
        let opened = source.open(limits)?;
        let health = opened.health.clone();
        Self::start(Ok(Box::new(raw::Raw::new(opened.input, format))), health, limits)
    }

    fn start(
        backend: Result<Box<dyn Backend>, AudioError>,
        health: Arc<Health>,
        limits: &DecodeLimits,
    ) -> Result<Self, AudioError> {
        let backend = backend.map_err(|e| health.verdict().unwrap_or(e))?;
        let header = backend.spec();
        if let Some(spec) = header {
            limits.check_spec(spec.rate, spec.channels)?;
        }
        let mut decoder = Self {
            backend: Some(backend),
            spec: Spec { rate: 0, channels: 0 },
            limits: *limits,
            health,
            block: Vec::new(),
            pending: false,
            frames: 0,
            report: DecodeReport::default(),
        };
        match decoder.pull()? {
            Some(spec) => {
                decoder.spec = spec;
                decoder.pending = true;
            }
            None => {
                if decoder.report.bad_packets > 0 {
                    return Err(AudioError::corrupt("no packet of it decodes"));
                }
                decoder.spec = match header {
                    Some(spec) if !decoder.report.truncated => spec,
                    _ => return Err(AudioError::Truncated),
                };
            }
        }
        Ok(decoder)
    }

    /// Samples per second and channel.
    pub fn sample_rate(&self) -> u32 {
        self.spec.rate
    }

    /// Channels, at least 1.
    pub fn channels(&self) -> usize {
        self.spec.channels
    }

    /// What was mended so far.
    pub fn report(&self) -> DecodeReport {
        self.report
    }

    /// The next block of interleaved samples, never empty; `None` at the end. After an error the stream has ended.
    pub fn next_block(&mut self) -> Result<Option<&[f32]>, AudioError> {
        if std::mem::take(&mut self.pending) {
            return Ok(Some(&self.block));
        }
        match self.pull()? {
            Some(_) => Ok(Some(&self.block)),
            None => Ok(None),
        }
    }

    /// Decodes the rest into memory.
    pub fn read_all(mut self) -> Result<Audio, AudioError> {
        let mut samples = Vec::new();
        while let Some(block) = self.next_block()? {
            samples.extend_from_slice(block);
        }
        Ok(Audio { samples, sample_rate: self.spec.rate, channels: self.spec.channels, report: self.report })
    }

    /// Fills `block` with the next non-empty block, or drops the backend at the end or on an error.
    fn pull(&mut self) -> Result<Option<Spec>, AudioError> {
        let result = self.pull_inner();
        if !matches!(result, Ok(Some(_))) {
            self.backend = None;
        }
        match result {
            Ok(Some(spec)) => Ok(Some(spec)),
            // An end or an error may be the source's doing.
            other => self.health.verdict().map_or(other, Err),
        }
    }

    fn pull_inner(&mut self) -> Result<Option<Spec>, AudioError> {
        let Some(backend) = &mut self.backend else { return Ok(None) };
        loop {
            self.block.clear();
            let (block, report) = (&mut self.block, &mut self.report);
            let Some(spec) = guard(|| backend.next(block, report))? else { return Ok(None) };
            self.limits.check_spec(spec.rate, spec.channels)?;
            if self.spec.rate != 0 && spec != self.spec {
                return Err(AudioError::FormatChanged);
            }
            self.frames += (self.block.len() / spec.channels) as u64;
            self.limits.check_length(self.frames, spec.rate, spec.channels)?;
            for s in &mut self.block {
                if !s.is_finite() {
                    *s = 0.0;
                    self.report.non_finite += 1;
                }
            }
            if !self.block.is_empty() {
                self.health.sample_done();
                return Ok(Some(spec));
            }
        }
    }
}

/// Runs third-party decoding; its panic becomes [`AudioError::DecoderFault`] (the panic hook still sees it).
fn guard<T>(f: impl FnOnce() -> Result<T, AudioError>) -> Result<T, AudioError> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(AudioError::DecoderFault))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Panicking;

    impl Backend for Panicking {
        fn spec(&self) -> Option<Spec> {
            None
        }
        fn next(&mut self, _: &mut Vec<f32>, _: &mut DecodeReport) -> Result<Option<Spec>, AudioError> {
            panic!("a decoder's bug")
        }
    }

    #[test]
    fn a_panicking_decoder_is_an_error() {
        let result = Decoder::start(Ok(Box::new(Panicking)), Arc::default(), &DecodeLimits::default());
        assert_eq!(result.err().map(|e| e.code()), Some("decoder_fault"));
    }
}
