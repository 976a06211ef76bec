//! The engine: model store, and speakers that own a model and turn text into audio.
#![forbid(unsafe_code)]

mod error;
pub mod listener;
mod mailbox;
mod packed;
pub mod speaker;
pub mod store;
mod wake;

pub use error::EngineError;
pub use speaker::{AudioChunk, SpeakRequest, Speaker, SpeakerOptions, SpeechStream};
