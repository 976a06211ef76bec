//! Mimi: the streaming audio codec between samples and latent frames.

mod config;
mod decoder;
mod encoder;
mod seanet;

pub use config::{CodecTransformerConfig, MimiConfig, PadMode, QuantizerConfig, SeanetConfig};
pub use decoder::{LatentScale, MimiDecoder, MimiDecoderState, Stage, StageWatch};
pub(crate) use encoder::EncoderParts;
pub use encoder::{MimiEncoder, MimiEncoderState};
