//! Qwen3-TTS: text to frames of codes by a decoder and a smaller one for each frame's codes, codes to speech by a codec.

pub mod codec;
mod config;
mod family;
mod prompt;
mod random;
mod script;
mod sound;
pub mod speaker;
mod synth;
mod talker;
mod voice;

use voce_text::Tokenizer;

use crate::speech::{SpeakRequest, TextMode};

pub use config::{ConfigError, GenerationConfig, QwenConfig, Variant};
pub use family::{MAX_INSTRUCT_TOKENS, MIN_CLIP_SECONDS, Qwen, QwenParts};
pub use prompt::{Ask, Clip, Layout, NONE, Who};
pub use random::{SHAPES, codec_of, named, random_weights};
pub use sound::{Sound, SoundParts};
pub use talker::{Draws, Talker};
pub use voice::{MAX_CLIP_FRAMES, MAX_CLIP_TOKENS, Voice};

/// Values at the end of the talker's vocabulary that are no sound: of these only the end is ever drawn.
pub const SUPPRESSED: usize = 1024;
/// Tokens that are drawn before the end may be.
pub const MIN_TOKENS: usize = 2;

/// The language that the model finds by itself.
const AUTO: &str = "auto";
/// Names of the stages.
const TALKER: &str = "talker";
const PREDICTOR: &str = "predictor";

/// Tokens of the message that an instruction is.
fn instruction(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(&format!("<|im_start|>user\n{text}<|im_end|>\n"))
}

/// Where the text of a request stands: as published, beside the frames for Base and before them for the others.
fn text_mode(config: &QwenConfig, request: &SpeakRequest) -> TextMode {
    request.text_mode.unwrap_or(match config.variant() {
        Variant::Base => TextMode::Streaming,
        Variant::CustomVoice | Variant::VoiceDesign => TextMode::Whole,
    })
}
