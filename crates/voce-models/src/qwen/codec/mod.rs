//! The 12Hz speech tokenizer: between samples and frames of codes.

mod block;
mod config;
mod convnext;
mod decoder;
mod encoder;
mod names;
mod quantizer;
mod random;
mod vocoder;
mod whole;

pub use config::{
    CodecConfig, CodecConfigError, CodecDecoderConfig, CodecEncoderConfig, MAX_SIZE, MAX_WINDOW,
};
pub use decoder::{CodecDecoder, CodecDecoderState, DecoderStage, DecoderWatch};
pub use encoder::{CodecEncoder, EncodeError, MAX_ENCODED_SECONDS};
pub use random::random_weights;
pub use vocoder::CodecCodes;
pub use whole::SpeechTokenizer;
