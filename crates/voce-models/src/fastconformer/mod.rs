//! NVIDIA FastConformer recognisers: Parakeet (offline) and Nemotron streaming, with RNN-T, TDT or CTC heads.

mod check;
mod config;
mod conformer;
mod encoder;
mod hf_config;
mod languages;
mod names;
mod nemo_config;
mod nemo_encoder;
mod positions;
mod prompt;
mod snapshot;
mod subsampling;

pub use check::{ConfigError, MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};
pub use config::{
    Attention, ConvNorm, EncoderConfig, FastConformerConfig, Head, MelConfig, MelNormalize, PredictorConfig,
    PromptConfig,
};
pub use encoder::{Encoder, EncoderState, StreamShape};
pub use names::canonical;
pub use snapshot::SnapshotError;
