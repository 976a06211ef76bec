//! Kyutai's streaming speech recognition: Mimi's codes of a frame in, a text token out, some frames after its audio.

mod ear;
mod front;
mod hearing;
mod ring;
mod saved;
mod shapes;
mod words;

pub use hearing::{Stt, SttParts};
pub use shapes::{random_weights, shape};
pub use words::{Heard, Words};
