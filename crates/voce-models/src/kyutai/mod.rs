//! Kyutai's language models over Mimi's codes: hearing, speech and dialogue from one backbone.

mod config;

pub use config::{
    Conditioner, ConfigError, Fuser, Kind, KyutaiConfig, LmGenConfig, ModelId, SttConfig, TtsConfig,
};
