//! NVIDIA FastConformer recognisers: Parakeet (offline) and Nemotron streaming, with RNN-T, TDT or CTC heads.

mod check;
mod config;
mod conformer;
mod ctc;
mod device_mel;
mod ear;
mod encoder;
mod footprint;
mod front;
mod hearing;
mod hf_config;
mod joint;
mod languages;
mod names;
mod nemo_config;
mod nemo_encoder;
mod phrases;
mod positions;
mod predictor;
mod prompt;
mod random;
mod shapes;
mod snapshot;
mod subsampling;
mod windows;

pub use check::{ConfigError, MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH};
pub use config::{
    Attention, ConvNorm, EncoderConfig, FastConformerConfig, Head, MelConfig, MelNormalize, PredictorConfig,
    PromptConfig,
};
pub use ctc::CtcHead;
pub use encoder::{Encoder, EncoderState, StreamShape};
pub use hearing::{FastConformer, FastConformerParts};
pub use joint::{Joint, JointScratch};
pub use names::canonical;
pub use predictor::{Lanes, Moves, Predictor, PredictorScratch};
pub(crate) use predictor::{grow, try_grow};
pub use random::random_weights;
pub use shapes::SHAPES;
pub use snapshot::SnapshotError;
