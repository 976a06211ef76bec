//! Decoder-only speech models: a decoder over sums of embeddings that draws a token a frame, and, where a frame has
//! more tokens, a smaller decoder that draws those one after the other. Qwen3-TTS and Kyutai's recognisers are such.

mod config;
mod frames;
mod prompts;
mod random;
mod state;
mod text;

pub use config::{FrameConfig, PredictorConfig, SHAPES};
pub use frames::{FrameDecoder, FrameRow};
pub use prompts::FramePrompt;
pub use random::{random_weights, repeated_weights};
pub use state::{FrameShape, FrameState};
pub use text::{TextLayers, TextShape};
