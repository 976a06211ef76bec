//! Kyutai's language models over Mimi's codes: hearing, speech and dialogue from one backbone ([`Lm`]).

mod conditioner;
mod conditions;
mod config;
mod delays;
mod depth;
mod embedding;
mod frames;
mod lm;
pub mod moshi;
mod names;
mod shapes;
pub mod stt;
pub mod tts;

pub use conditioner::Conditioner;
pub use conditions::{Condition, Conditions};
pub use config::{ConfigError, Fuser, Kind, KyutaiConfig, LmGenConfig, ModelId, SttConfig, TtsConfig};
pub use depth::{Depth, DepthRow, DepthState};
pub use frames::{Branch, DrawWatch, FrameLm, FrameRow, FrameState, TextPair};
pub use lm::{Lm, LmState, NONE, TEXT};
pub use names::DepthNames;
pub use shapes::{DIALOGUE_SHAPES, SPEECH_SHAPES, dialogue_shape, random_weights, speech_shape};
