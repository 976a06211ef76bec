//! The engine of Voce: models that speak, hear and hold conversations, on a CPU or a GPU, and the store they come from.
//!
//! Speak a sentence into a file:
//!
//! ```no_run
//! use voce_engine::{SpeakRequest, Speaker, store::Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::from_env()?;
//! let speaker = Speaker::open(&store, "pocket", &Default::default())?;
//! speaker.speak("Hello there.", &SpeakRequest::voice("alba"))?.save("hi.wav")?;
//! # Ok(())
//! # }
//! ```
//!
//! Transcribe one:
//!
//! ```no_run
//! use voce_engine::{listener::Listener, store::Store};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = Store::from_env()?;
//! let listener = Listener::open(&store, "nemotron", &Default::default())?;
//! let text = listener.transcribe_file("talk.mp3", &Default::default())?.text;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Speaker`], a [`listener::Listener`] and a [`talker::Talker`] each own a model on threads of their own and serve as many
//! streams at once as they have slots. Options and requests start from their defaults, and methods set what differs:
//! `SpeakerOptions::default().with_slots(32)`. Streams are iterators. The `examples/` folder has live streaming, cloning, and
//! many streams at once.
//!
//! Features: `hub` pulls models and `cuda` runs them on NVIDIA GPUs, both on by default; `futures` makes streams
//! `futures::Stream`s, too.
#![forbid(unsafe_code)]

mod auto;
pub mod breaker;
pub mod codec;
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
mod wait;
mod wake;

pub use auto::{Auto, auto, auto_precision};
pub use describe::{Description, describe, describe_shape};
pub use device::{DeviceChoice, Placement, UnknownDevice};
pub use error::EngineError;
pub use pulse::Pulse;
pub use shapes::shapes;
pub(crate) use shapes::{shape, unknown_shape};
pub use speaker::{
    AudioChunk, SpeakRequest, Speaker, SpeakerOptions, SpeechStream, SpokenWord, Voice, VoiceChoice,
};
pub use stage_time::StageTime;
pub use voce_models::stage;
pub use voce_nn::Precision;
pub use voce_runtime::Isa;
pub use voce_runtime::cuda::Device;
pub use wait::{unpark_waker, wait_for};
