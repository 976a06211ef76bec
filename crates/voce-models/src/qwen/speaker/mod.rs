//! The speaker encoder of Base: a recording becomes one vector that stands for who speaks in it.

mod config;
mod ecapa;

pub use config::SpeakerConfig;
pub use ecapa::{MAX_SPEAKER_SECONDS, SpeakerEncoder, SpeakerError, SpeakerWatch};
