//! Pocket TTS: text to latents by a causal transformer with a flow head, latents to speech by Mimi.

mod config;
mod family;
mod flow_head;
mod flow_lm;
mod legacy;
mod noise;
mod random;
mod script;
mod synth;
mod vocoder;
mod voice;

pub use config::{ConfigError, FlowType, OwnConfig, PocketConfig, TokenizerKind};
pub use family::{CODEC_GROUP, Pocket, PocketParts};
pub use flow_head::FlowHead;
pub use flow_lm::{FlowLm, FlowLmState, StepOutput};
pub use legacy::SeparateFiles;
pub use random::random_weights;
pub use voice::{MAX_VOICE_POSITIONS, Voice, VoiceEncoder};

/// EOS is ignored on the first frames: before speech starts the logit may cross the threshold.
pub const MIN_FRAMES_BEFORE_EOS: usize = 6;
/// Added to the guess of frames after EOS.
pub const EXTRA_FRAMES_AFTER_EOS: usize = 2;

/// The most frames that a chunk of `tokens` may take: three tokens a second and two seconds more.
pub fn max_frames(tokens: usize, frame_rate: f64) -> usize {
    ((tokens as f64 / 3.0 + 2.0) * frame_rate).ceil() as usize
}
