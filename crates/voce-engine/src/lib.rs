//! The engine: model store, and speakers that own a model and turn text into audio.
#![forbid(unsafe_code)]

mod auto;
pub mod breaker;
pub mod describe;
mod device;
mod error;
mod family;
pub mod fault;
mod lane;
pub mod listener;
mod mailbox;
mod packed;
pub mod pulse;
mod shapes;
pub mod speaker;
mod stage_time;
pub mod store;
pub mod talker;
mod trace;
mod wake;

pub use auto::{Auto, auto, auto_precision};
pub use describe::{Description, describe, describe_shape};
pub use device::{DeviceChoice, UnknownDevice};
pub use error::EngineError;
pub use pulse::Pulse;
pub use shapes::shapes;
pub(crate) use shapes::{shape, unknown_shape};
pub use speaker::{
    AudioChunk, SpeakRequest, Speaker, SpeakerOptions, SpeechStream, SpokenWord, Voice, VoiceChoice,
};
pub use stage_time::StageTime;
pub use voce_models::stage;
