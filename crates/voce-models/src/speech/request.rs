//! What a caller asks of a model that speaks.

use super::{SpeechError, Voice};

/// One utterance, short or as long as a book. What a family cannot use, it refuses by name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpeakRequest {
    /// The voice.
    pub voice: VoiceChoice,
    /// Language of the text, in lower-case English; the model's own when absent.
    pub language: Option<String>,
    /// How to speak, in words ("warm, low, slow").
    pub instruct: Option<String>,
    /// Sampling temperature; the model's default when absent.
    pub temperature: Option<f32>,
    /// Noise beyond this is drawn again.
    pub noise_clamp: Option<f32>,
    /// Seed of the noise.
    pub seed: u64,
    /// Sampler steps per frame.
    pub steps: usize,
    /// EOS logit that ends a passage; the model's default when absent.
    pub eos_threshold: Option<f32>,
    /// Frames after the end was seen; the model's guess when absent.
    pub frames_after_eos: Option<usize>,
    /// Tokens per passage of text.
    pub max_tokens: usize,
    /// Exactly this many frames unless the end comes first.
    pub max_frames: Option<usize>,
    /// Read numbers, dates and abbreviations out, in languages that this is known for.
    pub normalize: bool,
    /// Passages of this request that may run side by side.
    pub lockstep: usize,
}

crate::setters! { SpeakRequest {
    with_voice(voice: VoiceChoice),
    with_language(language: Option<String>),
    with_instruct(instruct: Option<String>),
    with_temperature(temperature: Option<f32>),
    with_noise_clamp(noise_clamp: Option<f32>),
    with_seed(seed: u64),
    with_steps(steps: usize),
    with_eos_threshold(eos_threshold: Option<f32>),
    with_frames_after_eos(frames_after_eos: Option<usize>),
    with_max_tokens(max_tokens: usize),
    with_max_frames(max_frames: Option<usize>),
    with_normalize(normalize: bool),
    with_lockstep(lockstep: usize),
} }

/// Who speaks.
#[derive(Clone, Debug, Default)]
pub enum VoiceChoice {
    /// The model's default voice, if it has one.
    #[default]
    Default,
    /// Nobody in particular: the model's own way of starting.
    Nobody,
    /// A voice by name, by `.safetensors` file, or cloned from an audio file.
    Named(String),
    /// A voice that is loaded.
    Ready(Voice),
}

impl From<Voice> for VoiceChoice {
    fn from(voice: Voice) -> Self {
        Self::Ready(voice)
    }
}

impl From<&str> for VoiceChoice {
    fn from(name: &str) -> Self {
        Self::Named(name.to_owned())
    }
}

impl From<String> for VoiceChoice {
    fn from(name: String) -> Self {
        Self::Named(name)
    }
}

/// Sampler steps that a request may ask for.
pub const MAX_STEPS: usize = 256;
/// Tokens per passage that a request may ask for.
pub const MAX_TOKENS: usize = 400;
/// Tokens per passage unless the caller says otherwise.
const DEFAULT_MAX_TOKENS: usize = 50;
/// Frames that a request may ask for: ten hours at 12.5 a second.
pub const MAX_FRAMES: usize = 450_000;
/// Frames after the end that a request may ask for.
const MAX_TAIL: usize = 10_000;

impl Default for SpeakRequest {
    fn default() -> Self {
        Self {
            voice: VoiceChoice::Default,
            language: None,
            instruct: None,
            temperature: None,
            noise_clamp: None,
            seed: 0,
            steps: 1,
            eos_threshold: None,
            frames_after_eos: None,
            max_tokens: DEFAULT_MAX_TOKENS,
            max_frames: None,
            normalize: true,
            lockstep: usize::MAX,
        }
    }
}

impl SpeakRequest {
    /// A request for a voice, by name or ready.
    pub fn voice(voice: impl Into<VoiceChoice>) -> Self {
        Self { voice: voice.into(), ..Self::default() }
    }

    /// Refuses numbers that make no sense for any family, naming them.
    pub fn check(&self) -> Result<(), SpeechError> {
        let bad = |what, value: String, rule| Err(SpeechError::Value { what, value, rule });
        if self.temperature.is_some_and(|t| !(0.0..=10.0).contains(&t)) {
            return bad("temperature", format!("{:?}", self.temperature.unwrap_or_default()), "use 0 to 10");
        }
        if self.noise_clamp.is_some_and(|c| c.is_nan() || c <= 0.01) {
            return bad(
                "noise clamp",
                format!("{:?}", self.noise_clamp.unwrap_or_default()),
                "use more than 0.01",
            );
        }
        if self.steps == 0 || self.steps > MAX_STEPS {
            return bad("steps", self.steps.to_string(), "use 1 to 256");
        }
        if self.max_tokens == 0 || self.max_tokens > MAX_TOKENS {
            return bad("max tokens", self.max_tokens.to_string(), "use 1 to 400");
        }
        if self.max_frames.is_some_and(|n| n == 0 || n > MAX_FRAMES) {
            return bad("max frames", self.max_frames.unwrap_or_default().to_string(), "use 1 to 450000");
        }
        if self.eos_threshold.is_some_and(f32::is_nan) {
            return bad("eos threshold", "NaN".into(), "use a number");
        }
        if self.frames_after_eos.is_some_and(|n| n > MAX_TAIL) {
            return bad(
                "frames after eos",
                self.frames_after_eos.unwrap_or_default().to_string(),
                "use 0 to 10000",
            );
        }
        if self.lockstep == 0 {
            return bad("lockstep", "0".into(), "use 1 or more");
        }
        Ok(())
    }
}
