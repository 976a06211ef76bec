//! Kyutai's models that speak: text that is fed in as the model asks for it, codes that follow some steps later.

mod family;
mod machine;
mod passage;
mod script;
mod sound;
mod synth;
mod voice;

pub use family::{KyutaiTts, SynthSetting, TtsParts, synth_of};
pub use machine::{Entry, Machine, MachineRules, Taken};
pub use voice::{MAX_PREFIX_FRAMES, MAX_SPEAKERS, MAX_VOICE_ROWS, Voice};
