//! Audio out: one small trait for every encoder, all mono and streaming.

mod bits;
mod flac;
#[cfg(feature = "mp3")]
mod mp3;
mod ogg_opus;
mod raw;

use std::path::Path;

pub use flac::FlacWriter;
#[cfg(feature = "mp3")]
pub use mp3::Mp3Writer;
pub use ogg_opus::{OpusOptions, OpusWriter};
pub use raw::{RawWriter, encode_raw};

use crate::output::{Output, open_output};
use crate::wav::{WavSample, WavWriter};
use crate::{AudioError, RawEncoding};

/// Whether this build writes MP3.
pub const HAS_MP3: bool = cfg!(feature = "mp3");

/// The names of the formats that this build writes, for errors that say what is possible.
pub const FORMATS: &str = if HAS_MP3 {
    "wav, mp3, opus (or ogg), flac, wav-f32, pcm, f32, mulaw or alaw"
} else {
    "wav, opus (or ogg), flac, wav-f32, pcm, f32, mulaw or alaw"
};

/// Takes mono samples and makes a file or stream of them.
pub trait AudioSink: Send {
    /// Takes the next samples.
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError>;

    /// Pushes out what is encoded so far, for a listener at the other end of a pipe.
    fn flush(&mut self) -> Result<(), AudioError>;

    /// Completes the output; only after it does a file exist. Nothing may be written afterwards.
    fn finish(&mut self) -> Result<(), AudioError>;
}

/// The formats [`open_sink`] can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AudioFormat {
    /// WAV.
    Wav(WavSample),
    /// FLAC, 16-bit.
    Flac,
    /// Opus in Ogg.
    OggOpus,
    /// MP3, in builds that write it: see [`HAS_MP3`].
    Mp3,
    /// Samples without a header.
    Raw(RawEncoding),
}

impl AudioFormat {
    /// The format of a name or file extension, in lower or upper case.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "wav" | "wave" => Self::Wav(WavSample::S16),
            "wav-f32" => Self::Wav(WavSample::F32),
            "flac" => Self::Flac,
            "opus" | "ogg" | "oga" => Self::OggOpus,
            "mp3" if HAS_MP3 => Self::Mp3,
            "pcm" | "raw" | "s16" | "s16le" => Self::Raw(RawEncoding::S16le),
            "f32" | "f32le" => Self::Raw(RawEncoding::F32le),
            "ulaw" | "mulaw" | "ul" => Self::Raw(RawEncoding::Mulaw),
            "alaw" | "al" => Self::Raw(RawEncoding::Alaw),
            _ => return None,
        })
    }

    /// The format a file's extension asks for.
    pub fn from_path(path: &Path) -> Option<Self> {
        path.extension().and_then(|e| e.to_str()).and_then(Self::from_name)
    }

    /// The media type to send with a stream of this format.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Wav(_) => "audio/wav",
            Self::Flac => "audio/flac",
            Self::OggOpus => "audio/ogg",
            Self::Mp3 => "audio/mpeg",
            Self::Raw(RawEncoding::Mulaw) => "audio/basic",
            Self::Raw(_) => "audio/pcm",
        }
    }
}

/// A sink for any format over any output.
pub fn sink_to(
    output: impl Output + 'static,
    format: AudioFormat,
    sample_rate: u32,
) -> Result<Box<dyn AudioSink>, AudioError> {
    Ok(match format {
        AudioFormat::Wav(sample) => Box::new(WavWriter::new(output, sample_rate, sample)?),
        AudioFormat::Flac => Box::new(FlacWriter::new(output, sample_rate)?),
        AudioFormat::OggOpus => Box::new(OpusWriter::new(output, sample_rate, OpusOptions::default())?),
        #[cfg(feature = "mp3")]
        AudioFormat::Mp3 => Box::new(Mp3Writer::new(output, sample_rate)?),
        #[cfg(not(feature = "mp3"))]
        AudioFormat::Mp3 => {
            return Err(AudioError::Encode { detail: format!("this build has no mp3: use {FORMATS}") });
        }
        AudioFormat::Raw(encoding) => Box::new(RawWriter::new(output, encoding)),
    })
}

/// A sink that writes a file, which appears when finished and not before.
pub fn open_sink(
    path: &Path,
    format: AudioFormat,
    sample_rate: u32,
) -> Result<Box<dyn AudioSink>, AudioError> {
    sink_to(open_output(path)?, format, sample_rate)
}
