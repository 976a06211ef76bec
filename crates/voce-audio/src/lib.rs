//! Audio for speech: one guarded decode path, encoders, resamplers, voice prompts, log-mel features and,
//! behind the `device` feature, the sound card. Everything is `f32`, nominally in -1..1.
#![forbid(unsafe_code)]

pub mod decode;
#[cfg(feature = "device")]
pub mod device;
pub mod encode;
mod error;
mod g711;
pub mod magnitude_mel;
pub mod mel;
pub mod output;
pub mod resample;
mod scipy_resample;
pub mod stretch;
pub mod voice_prompt;
pub mod wav;

pub use decode::{Audio, DecodeLimits, DecodeReport, Decoder, MonoStream, RawEncoding, RawFormat, Source};
pub use decode::{decode, decode_bytes, decode_file, decode_raw};
pub use encode::{AudioFormat, AudioSink, open_sink};
pub use error::AudioError;
pub use resample::{Resampler, ResamplerState, resample};
pub use scipy_resample::resample_poly_like_scipy;
