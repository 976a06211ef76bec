//! The published `config.json` and `generation_config.json` of Qwen3-TTS, field by field.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use voce_nn::{DecoderConfig, DecoderNames};
use voce_runtime::RopeStyle;

use super::SUPPRESSED;
use super::speaker::SpeakerConfig;
use crate::decoder::{FrameConfig, PredictorConfig, TextShape};

/// A configuration that cannot be read or run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not the JSON of a Qwen3-TTS model.
    #[error("not a Qwen3-TTS configuration: {0}")]
    Json(#[from] serde_json::Error),
    /// Readable, but asks for something that does not exist.
    #[error("this Qwen3-TTS configuration cannot be run: {0}")]
    Unsupported(String),
}

/// What a checkpoint was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// Clones voices.
    Base,
    /// Has speakers of its own.
    CustomVoice,
    /// Speaks as an instruction says.
    VoiceDesign,
}

impl Variant {
    /// Its name as people write it.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Base => "Qwen3-TTS Base",
            Variant::CustomVoice => "Qwen3-TTS CustomVoice",
            Variant::VoiceDesign => "Qwen3-TTS VoiceDesign",
        }
    }
}

/// `config.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct QwenConfig {
    tts_model_type: String,
    #[serde(default)]
    tts_model_size: String,
    tokenizer_type: Option<String>,
    /// Begins a message.
    pub im_start_token_id: u32,
    /// Ends a message.
    pub im_end_token_id: u32,
    /// Whose message it is.
    pub assistant_token_id: u32,
    /// Stands where there is no text.
    pub tts_pad_token_id: u32,
    /// Begins text.
    pub tts_bos_token_id: u32,
    /// Ends text.
    pub tts_eos_token_id: u32,
    /// The decoder of frames.
    pub talker_config: TalkerConfig,
    /// The encoder of speakers, of Base.
    pub speaker_encoder_config: Option<SpeakerConfig>,
}

/// `talker_config`.
#[derive(Clone, Debug, Deserialize)]
pub struct TalkerConfig {
    #[serde(flatten)]
    layers: Layers,
    /// Values of code 0, and what stands in prompts.
    pub vocab_size: usize,
    /// Codes of a frame.
    pub num_code_groups: usize,
    /// Tokens of text.
    pub text_vocab_size: usize,
    /// Width of their embedding.
    pub text_hidden_size: usize,
    /// Stands in prompts where there is no code.
    pub codec_pad_id: u32,
    /// Begins frames.
    pub codec_bos_id: u32,
    /// Ends frames.
    pub codec_eos_token_id: u32,
    /// Tags of the language.
    pub codec_think_id: u32,
    /// The tag of a language that the model finds.
    pub codec_nothink_id: u32,
    /// Begins tags.
    pub codec_think_bos_id: u32,
    /// Ends tags.
    pub codec_think_eos_id: u32,
    /// Languages and dialects.
    #[serde(default)]
    pub codec_language_id: BTreeMap<String, u32>,
    /// Speakers.
    #[serde(default)]
    pub spk_id: BTreeMap<String, u32>,
    /// The dialect of each speaker, or `false`.
    #[serde(default)]
    pub spk_is_dialect: BTreeMap<String, Value>,
    code_predictor_config: CodePredictorConfig,
}

#[derive(Clone, Debug, Deserialize)]
struct CodePredictorConfig {
    #[serde(flatten)]
    layers: Layers,
    vocab_size: usize,
    num_code_groups: usize,
}

/// What talker and code predictor have in common.
#[derive(Clone, Debug, Deserialize)]
struct Layers {
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    rms_norm_eps: f32,
    rope_theta: f32,
    hidden_act: String,
    max_position_embeddings: usize,
    #[serde(default)]
    use_sliding_window: bool,
    rope_scaling: Option<Value>,
    #[serde(default)]
    layer_types: Option<Vec<String>>,
}

impl Layers {
    fn check(&self, part: &str) -> Result<(), String> {
        let refuse = |what: String| Err(format!("{part}: {what}"));
        if self.hidden_act != "silu" {
            return refuse(format!("hidden_act '{}' is unknown: only silu is there", self.hidden_act));
        }
        let other = self.layer_types.iter().flatten().find(|kind| *kind != "full_attention");
        if self.use_sliding_window || other.is_some() {
            return refuse("attention with a sliding window is unknown".into());
        }
        let rope = self.rope_scaling.as_ref();
        let kind = rope.and_then(|r| r.get("rope_type").or_else(|| r.get("type"))).and_then(Value::as_str);
        if let Some(kind) = kind.filter(|kind| *kind != "default") {
            return refuse(format!("rope_scaling of type '{kind}' is unknown: only default is there"));
        }
        self.decoder().check().or_else(refuse)
    }

    fn decoder(&self) -> DecoderConfig {
        DecoderConfig {
            layers: self.num_hidden_layers,
            hidden: self.hidden_size,
            ffn: self.intermediate_size,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            // The three position streams of the published rotation are always equal: it is the plain one.
            rope: Some(RopeStyle::Halves),
            theta: self.rope_theta,
            eps: self.rms_norm_eps,
            head_norm: true,
            window: None,
            names: DecoderNames::Qwen3,
        }
    }
}

impl QwenConfig {
    /// Reads a configuration, and refuses what cannot be run by name and value.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_str(json)?;
        config.check().map_err(ConfigError::Unsupported)?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let (t, p) = (&self.talker_config, &self.talker_config.code_predictor_config);
        if variant(&self.tts_model_type).is_none() {
            let known = "known are base, custom_voice and voice_design";
            return Err(format!("tts_model_type '{}' is unknown: {known}", self.tts_model_type));
        }
        if let Some(kind) = self.tokenizer_type.as_deref().filter(|kind| *kind != "qwen3_tts_tokenizer_12hz")
        {
            return Err(format!(
                "tokenizer_type '{kind}' is unknown: only qwen3_tts_tokenizer_12hz is there"
            ));
        }
        if t.num_code_groups < 2 || t.num_code_groups != p.num_code_groups {
            let (a, b) = (t.num_code_groups, p.num_code_groups);
            return Err(format!("num_code_groups is {a} in the talker and {b} in its code predictor"));
        }
        if t.vocab_size <= SUPPRESSED {
            return Err(format!("vocab_size is {}: more than {SUPPRESSED} is needed", t.vocab_size));
        }
        if t.text_hidden_size == 0 {
            return Err("text_hidden_size is 0".into());
        }
        t.layers.check("talker_config")?;
        p.layers.check("code_predictor_config")?;
        self.frames().check()?;
        if (t.codec_eos_token_id as usize) < t.vocab_size - SUPPRESSED {
            return Err(format!("codec_eos_token_id is {}, one of the codes", t.codec_eos_token_id));
        }
        let codes = [
            ("codec_pad_id", t.codec_pad_id),
            ("codec_bos_id", t.codec_bos_id),
            ("codec_eos_token_id", t.codec_eos_token_id),
            ("codec_think_id", t.codec_think_id),
            ("codec_nothink_id", t.codec_nothink_id),
            ("codec_think_bos_id", t.codec_think_bos_id),
            ("codec_think_eos_id", t.codec_think_eos_id),
        ];
        let named = t.codec_language_id.iter().chain(&t.spk_id).map(|(name, id)| (name.as_str(), *id));
        for (name, id) in codes.into_iter().chain(named) {
            if id as usize >= t.vocab_size {
                return Err(format!("{name} is {id}, beyond the vocab_size of {}", t.vocab_size));
            }
        }
        for (name, id) in [
            ("im_start_token_id", self.im_start_token_id),
            ("im_end_token_id", self.im_end_token_id),
            ("assistant_token_id", self.assistant_token_id),
            ("tts_pad_token_id", self.tts_pad_token_id),
            ("tts_bos_token_id", self.tts_bos_token_id),
            ("tts_eos_token_id", self.tts_eos_token_id),
        ] {
            if id as usize >= t.text_vocab_size {
                return Err(format!("{name} is {id}, beyond the text_vocab_size of {}", t.text_vocab_size));
            }
        }
        for (speaker, dialect) in &t.spk_is_dialect {
            if let Some(dialect) = dialect.as_str().filter(|d| !t.codec_language_id.contains_key(*d)) {
                return Err(format!("speaker '{speaker}' has the dialect '{dialect}', which has no id"));
            }
        }
        match &self.speaker_encoder_config {
            None if self.variant() == Variant::Base => Err("speaker_encoder_config is missing".into()),
            Some(speaker) if self.variant() == Variant::Base => {
                speaker.check().map_err(|e| format!("speaker_encoder_config: {e}"))?;
                match (speaker.enc_dim, self.hidden()) {
                    (own, hidden) if own == hidden => Ok(()),
                    (own, hidden) => {
                        Err(format!("enc_dim is {own}, and the talker takes embeddings of {hidden}"))
                    }
                }
            }
            _ => Ok(()),
        }
    }

    /// What the checkpoint was trained for.
    pub fn variant(&self) -> Variant {
        variant(&self.tts_model_type).unwrap_or(Variant::Base)
    }

    /// Whether an instruction is part of its prompts: as published, the small CustomVoice leaves it out.
    pub fn takes_instructions(&self) -> bool {
        match self.variant() {
            Variant::Base => false,
            Variant::CustomVoice => !"0b6".contains(self.tts_model_size.as_str()),
            Variant::VoiceDesign => true,
        }
    }

    /// Positions that a prompt and its frames have at most.
    pub fn positions(&self) -> usize {
        self.talker_config.layers.max_position_embeddings
    }

    /// Width of the talker, which is that of speaker embeddings as well.
    pub fn hidden(&self) -> usize {
        self.talker_config.layers.hidden_size
    }

    /// Values of a code: those of code 0 that are sound, and those of the others.
    pub fn codebook_sizes(&self) -> (usize, usize) {
        let t = &self.talker_config;
        (t.vocab_size - SUPPRESSED, t.code_predictor_config.vocab_size)
    }

    /// Shape of talker and code predictor.
    pub fn frames(&self) -> FrameConfig {
        let t = &self.talker_config;
        FrameConfig {
            decoder: t.layers.decoder(),
            vocab: t.vocab_size,
            embeddings: t.vocab_size,
            predictor: Some(PredictorConfig {
                decoder: t.code_predictor_config.layers.decoder(),
                tokens: t.num_code_groups - 1,
                vocab: t.code_predictor_config.vocab_size,
            }),
            given: vec![t.text_vocab_size],
        }
    }

    /// Shape of the text's embedding.
    pub fn text(&self) -> TextShape {
        let t = &self.talker_config;
        TextShape { vocab: t.text_vocab_size, width: t.text_hidden_size, hidden: self.hidden() }
    }

    /// Languages that a request may name; dialects come with their speakers.
    pub fn languages(&self) -> Vec<String> {
        let names = self.talker_config.codec_language_id.keys();
        names.filter(|name| !name.contains("dialect")).cloned().collect()
    }

    /// Speakers.
    pub fn speakers(&self) -> Vec<String> {
        match self.variant() {
            Variant::CustomVoice => self.talker_config.spk_id.keys().cloned().collect(),
            Variant::Base | Variant::VoiceDesign => Vec::new(),
        }
    }
}

fn variant(name: &str) -> Option<Variant> {
    match name {
        "base" => Some(Variant::Base),
        "custom_voice" => Some(Variant::CustomVoice),
        "voice_design" => Some(Variant::VoiceDesign),
        _ => None,
    }
}

/// `generation_config.json`: how frames are drawn where a request says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct GenerationConfig {
    /// Whether code 0 is drawn; else the best is taken.
    pub do_sample: bool,
    /// Of tokens that were drawn before.
    pub repetition_penalty: f32,
    /// Of code 0.
    pub temperature: f32,
    /// Of code 0.
    pub top_p: f32,
    /// Of code 0.
    pub top_k: usize,
    /// Whether the other codes are drawn.
    pub subtalker_dosample: bool,
    /// Of the other codes.
    pub subtalker_temperature: f32,
    /// Of the other codes.
    pub subtalker_top_p: f32,
    /// Of the other codes.
    pub subtalker_top_k: usize,
    /// Tokens at most, the one that ends included.
    pub max_new_tokens: usize,
}

impl Default for GenerationConfig {
    fn default() -> Self {
        Self {
            do_sample: true,
            repetition_penalty: 1.05,
            temperature: 0.9,
            top_p: 1.0,
            top_k: 50,
            subtalker_dosample: true,
            subtalker_temperature: 0.9,
            subtalker_top_p: 1.0,
            subtalker_top_k: 50,
            max_new_tokens: 2048,
        }
    }
}

impl GenerationConfig {
    /// Reads the file; what it does not say is as the package has it.
    pub fn from_json(json: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_str(json)?;
        let bad = |name, value: f32| {
            Err(ConfigError::Unsupported(format!("{name} of generation_config.json is {value}")))
        };
        for (name, value) in
            [("temperature", config.temperature), ("subtalker_temperature", config.subtalker_temperature)]
        {
            if !(0.0..=10.0).contains(&value) {
                return bad(name, value);
            }
        }
        for (name, value) in [("top_p", config.top_p), ("subtalker_top_p", config.subtalker_top_p)] {
            if !(value > 0.0 && value <= 1.0) {
                return bad(name, value);
            }
        }
        if !(config.repetition_penalty > 0.0 && config.repetition_penalty <= 10.0) {
            return bad("repetition_penalty", config.repetition_penalty);
        }
        if config.max_new_tokens < 2 {
            return bad("max_new_tokens", config.max_new_tokens as f32);
        }
        Ok(config)
    }
}
