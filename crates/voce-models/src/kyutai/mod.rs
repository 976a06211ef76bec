//! Kyutai's language models over Mimi's codes: hearing, speech and dialogue from one backbone ([`Lm`]).

mod conditions;
mod config;
mod embedding;
mod lm;

pub use conditions::{Condition, Conditions};
pub use config::{
    Conditioner, ConfigError, Fuser, Kind, KyutaiConfig, LmGenConfig, ModelId, SttConfig, TtsConfig,
};
pub use lm::{Lm, LmState, NONE, TEXT};
