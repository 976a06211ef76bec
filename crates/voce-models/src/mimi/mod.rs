//! Mimi: the streaming audio codec between samples and latent frames or frames of codes.

mod config;
mod decoder;
mod encoder;
mod kyutai_config;
mod names;
mod quantizer;
mod random;
mod saved;
mod seanet;
mod tokenizer;
mod vocoder;
mod whole;

pub use config::{CodecTransformerConfig, MimiConfig, PadMode, QuantizerConfig, SeanetConfig};
pub use decoder::{LatentScale, MimiDecoder, MimiDecoderState, Stage, StageWatch};
pub(crate) use encoder::EncoderParts;
pub use encoder::{MimiEncoder, MimiEncoderState};
pub use kyutai_config::{KyutaiMimiConfig, MAX_MIMI_SIZE, MimiConfigError, SplitQuantizerConfig};
pub use names::published;
pub use quantizer::{Codebooks, LookupState, SearchState, SplitLookup, SplitSearch};
pub use random::random_weights;
pub use tokenizer::{MimiTokenizer, MimiTokenizerState};
pub use vocoder::MimiCodes;
pub use whole::{MAX_MIMI_SECONDS, Mimi};
