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
    /// Where the text of a passage stands, for models that know both; the model's own way when absent.
    pub text_mode: Option<TextMode>,
    /// Take the best of everything that is drawn, whatever the temperatures say.
    pub greedy: bool,
    /// How many of the best tokens are drawn from, 0 for all; the model's default when absent.
    pub top_k: Option<usize>,
    /// The smallest set of best tokens with at least this probability is drawn from; the model's default when absent.
    pub top_p: Option<f32>,
    /// Against tokens that were drawn before: 1 is none; the model's default when absent.
    pub repetition_penalty: Option<f32>,
    /// The same for what a second network draws of each frame.
    pub fine: FineSampling,
    /// How closely the model follows voice and text, for families that can be told; the model's default when absent.
    pub guidance: Option<f32>,
    /// Codes of a frame that are drawn, the first ones; all of the model's when absent.
    pub codebooks: Option<usize>,
    /// Tokens per passage of text; [`MODEL_TOKENS`] leaves it to the model.
    pub max_tokens: usize,
    /// Exactly this many frames unless the end comes first.
    pub max_frames: Option<usize>,
    /// Take Markdown, HTML and emoji out of the text, and read numbers, dates, abbreviations and web addresses out in
    /// languages that this is known for.
    pub normalize: bool,
    /// Passages of this request that may run side by side.
    pub lockstep: usize,
    /// Give out the audio of a passage when all of it is there: one that does not end is spoken again in halves, and is
    /// then never heard. Else audio goes out as it is made, and the halves come after what was heard already.
    pub whole_passages: bool,
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
    with_text_mode(text_mode: Option<TextMode>),
    with_greedy(greedy: bool),
    with_top_k(top_k: Option<usize>),
    with_top_p(top_p: Option<f32>),
    with_repetition_penalty(repetition_penalty: Option<f32>),
    with_fine(fine: FineSampling),
    with_guidance(guidance: Option<f32>),
    with_codebooks(codebooks: Option<usize>),
    with_max_tokens(max_tokens: usize),
    with_max_frames(max_frames: Option<usize>),
    with_normalize(normalize: bool),
    with_lockstep(lockstep: usize),
    with_whole_passages(whole_passages: bool),
} }

/// Where the text of a passage stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextMode {
    /// A token beside each frame: text that arrives is spoken while more of it comes.
    Streaming,
    /// All of it before the first frame.
    Whole,
}

/// How a second network draws what is left of each frame; the model's defaults where absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FineSampling {
    /// Sampling temperature.
    pub temperature: Option<f32>,
    /// How many of the best are drawn from, 0 for all.
    pub top_k: Option<usize>,
    /// The smallest set of best ones with at least this probability is drawn from.
    pub top_p: Option<f32>,
}

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
/// Tokens per passage as the model likes it.
pub const MODEL_TOKENS: usize = usize::MAX;
/// How many of the best tokens a request may ask for.
pub const MAX_TOP_K: usize = 100_000;
/// The largest penalty of repetitions that a request may ask for.
pub const MAX_PENALTY: f32 = 10.0;
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
            text_mode: None,
            greedy: false,
            top_k: None,
            top_p: None,
            repetition_penalty: None,
            fine: FineSampling::default(),
            guidance: None,
            codebooks: None,
            max_tokens: MODEL_TOKENS,
            max_frames: None,
            normalize: true,
            lockstep: usize::MAX,
            whole_passages: false,
        }
    }
}

impl SpeakRequest {
    /// A request for a voice, by name or ready.
    pub fn voice(voice: impl Into<VoiceChoice>) -> Self {
        Self { voice: voice.into(), ..Self::default() }
    }

    /// The name of an option about drawing tokens that the request uses, for families that draw none.
    pub fn token_option(&self) -> Option<&'static str> {
        match self {
            Self { text_mode: Some(_), .. } => Some("text mode"),
            Self { top_k: Some(_), .. } => Some("top k"),
            Self { top_p: Some(_), .. } => Some("top p"),
            Self { repetition_penalty: Some(_), .. } => Some("repetition penalty"),
            _ if self.fine != FineSampling::default() => Some("second sampler"),
            _ => None,
        }
    }

    /// The name of an option that only models with guidance and codebooks to choose have, if the request uses it.
    pub fn code_option(&self) -> Option<&'static str> {
        match self {
            Self { guidance: Some(_), .. } => Some("guidance"),
            Self { codebooks: Some(_), .. } => Some("codebooks"),
            _ => None,
        }
    }

    /// Refuses numbers that make no sense for any family, naming them.
    pub fn check(&self) -> Result<(), SpeechError> {
        let bad = |what, value: String, rule| Err(SpeechError::Value { what, value, rule });
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
        for temperature in [self.temperature, self.fine.temperature].into_iter().flatten() {
            if !(0.0..=10.0).contains(&temperature) {
                return bad("temperature", format!("{temperature:?}"), "use 0 to 10");
            }
        }
        for top_k in [self.top_k, self.fine.top_k].into_iter().flatten() {
            if top_k > MAX_TOP_K {
                return bad("top k", top_k.to_string(), "use 0 to 100000");
            }
        }
        for top_p in [self.top_p, self.fine.top_p].into_iter().flatten() {
            if !(top_p > 0.0 && top_p <= 1.0) {
                return bad("top p", format!("{top_p:?}"), "use more than 0, and 1 at most");
            }
        }
        if let Some(penalty) = self.repetition_penalty.filter(|p| !(*p > 0.0 && *p <= MAX_PENALTY)) {
            return bad("repetition penalty", format!("{penalty:?}"), "use more than 0, and 10 at most");
        }
        if self.max_tokens != MODEL_TOKENS && (self.max_tokens == 0 || self.max_tokens > MAX_TOKENS) {
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
