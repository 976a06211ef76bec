//! The published `config.json` of Kyutai's language models, field by field, and the shapes that follow from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use voce_nn::{DecoderConfig, DecoderNames};
use voce_runtime::{MAX_SAMPLED, RopeStyle};

use super::conditioner::Conditioner;

/// Kinds of RMS norms, and what each adds to the mean square.
const NORMS: [(&str, f32); 2] = [("rms_norm_f32", 1e-8), ("rms_norm", 1e-5)];
/// Codebooks, layers, heads and conditioners that a configuration may ask for.
const MOST_PARTS: usize = 256;
/// The widest row that a configuration may ask for.
pub(super) const MOST_WIDTH: usize = 65_536;

/// A configuration that cannot be read or run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not the JSON of a Kyutai language model.
    #[error("not a Kyutai configuration: {0}")]
    Json(#[from] serde_json::Error),
    /// Readable, but asks for something that does not exist here.
    #[error("this Kyutai configuration cannot be run: {0}")]
    Unsupported(String),
}

/// What a model was trained for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Holds a conversation.
    Moshi,
    /// Writes down what it hears.
    Stt,
    /// Speaks text.
    Tts,
}

/// `config.json`: the arguments of the published package's model, and what a repository says about its files.
#[derive(Clone, Debug, Deserialize)]
#[serde(default = "KyutaiConfig::unsaid")]
pub struct KyutaiConfig {
    /// Width of the backbone.
    pub dim: usize,
    /// Text tokens; one more stands for the start.
    pub text_card: usize,
    /// Text tokens that can be drawn, where that is another number.
    pub text_card_out: Option<usize>,
    /// The text token of a step without text.
    pub existing_text_padding_id: u32,
    /// The text token after which a word starts.
    pub existing_text_end_padding_id: u32,
    /// Audio codebooks that go in.
    pub n_q: usize,
    /// Audio codebooks that are drawn, the first of those that go in.
    pub dep_q: usize,
    /// Codes of a codebook; one more stands for the start.
    pub card: usize,
    /// Heads of the backbone.
    pub num_heads: usize,
    /// Layers of the backbone.
    pub num_layers: usize,
    /// Query heads that share a key head.
    pub kv_repeat: usize,
    /// Width of the feed-forward part by width of the backbone, before the gate's share is taken off.
    pub hidden_scale: f64,
    /// Whether rows see only what came before.
    pub causal: bool,
    /// Positions that a row sees, itself included.
    pub context: usize,
    /// Rotary period.
    pub max_period: f64,
    /// Activation of the gate.
    pub gating: String,
    /// Kind of norm.
    pub norm: String,
    /// Kind of positions.
    pub positional_embedding: String,
    /// Whether embeddings are normed.
    pub norm_emb: bool,
    /// Whether every layer looks at a source besides, which a tensor conditioner gives.
    pub cross_attention: bool,
    /// Whether a text token is two: of the word that is spoken, and of one that comes.
    #[serde(alias = "demux_second_text_stream")]
    pub demux_second_stream: bool,
    /// Linear heads besides the text's.
    pub extra_heads_num_heads: usize,
    /// Values of each.
    pub extra_heads_dim: usize,
    /// Width of the depth transformer.
    pub depformer_dim: usize,
    /// Its heads; those of the backbone when absent.
    pub depformer_num_heads: Option<usize>,
    /// Its layers; those of the backbone when absent.
    pub depformer_num_layers: Option<usize>,
    /// Width of its feed-forward part before the gate's share is taken off; by `hidden_scale` when absent.
    #[serde(deserialize_with = "one_or_several")]
    pub depformer_dim_feedforward: Vec<usize>,
    /// Whether each step has its own way into it.
    pub depformer_multi_linear: bool,
    /// Whether each step has its own weights.
    pub depformer_weights_per_step: bool,
    /// Which weights each step has, where steps share them.
    pub depformer_weights_per_step_schedule: Option<Vec<usize>>,
    /// Width of its embeddings before they are widened.
    pub depformer_low_rank_embeddings: Option<usize>,
    /// Kind of its positions.
    pub depformer_pos_emb: String,
    /// Activation of its gate; that of the backbone when absent.
    pub depformer_gating: Option<String>,
    /// Norms before its output layers.
    pub depformer_norm: Option<String>,
    /// Steps by which each stream comes later: text first, then the codebooks.
    pub delays: Vec<usize>,
    /// What a request may say besides tokens, by name.
    pub conditioners: BTreeMap<String, Conditioner>,
    /// Where conditions go.
    pub fuser: Option<Fuser>,
    /// Eight-bit weights of the published package's own format.
    pub quantize: bool,
    /// Low-rank additions to the weights.
    pub lora: bool,
    /// `moshi`, `stt` or `tts`; found by the rest when absent.
    pub model_type: Option<String>,
    /// How speech was trained.
    pub tts_config: Option<TtsConfig>,
    /// How hearing was trained.
    pub stt_config: Option<SttConfig>,
    /// Which checkpoint it is: voices are named by it.
    pub model_id: Option<ModelId>,
    /// Sampling defaults.
    pub lm_gen_config: LmGenConfig,
    /// File of the codec.
    pub mimi_name: Option<String>,
    /// File of the weights.
    pub moshi_name: Option<String>,
    /// File of the tokeniser.
    pub tokenizer_name: Option<String>,
}

/// `tts_config`.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct TtsConfig {
    /// Seconds by which audio comes after its text.
    pub audio_delay: f64,
    /// Words that the second text stream is ahead.
    #[serde(default)]
    pub second_stream_ahead: usize,
    /// Whether both speakers have codebooks of their own.
    #[serde(default)]
    pub multistream: bool,
    /// Steps that the model may wait with the next word; what the published package takes when absent, as below.
    #[serde(default)]
    pub max_padding: Option<usize>,
    /// Steps before the first word.
    #[serde(default)]
    pub initial_padding: Option<usize>,
    /// Steps after the last.
    #[serde(default)]
    pub final_padding: Option<usize>,
    /// Steps between two words.
    #[serde(default)]
    pub padding_between: Option<usize>,
    /// What is added to the logit of waiting.
    #[serde(default)]
    pub padding_bonus: Option<f32>,
}

/// `stt_config`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct SttConfig {
    /// Seconds by which text comes after its audio.
    pub audio_delay_seconds: f64,
    /// Seconds of silence before the audio.
    pub audio_silence_prefix_seconds: f64,
}

/// `model_id`.
#[derive(Clone, Debug, Deserialize)]
pub struct ModelId {
    /// Name of the training run.
    pub sig: String,
    /// How far it had come.
    pub epoch: u64,
}

/// `lm_gen_config`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct LmGenConfig {
    /// Temperature of the audio.
    pub temp: Option<f32>,
    /// Temperature of the text.
    pub temp_text: Option<f32>,
    /// Audio codes that are drawn from.
    pub top_k: Option<usize>,
    /// Text tokens that are drawn from.
    pub top_k_text: Option<usize>,
}

/// Where conditions go.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Fuser {
    /// Conditions that are added to every row.
    pub sum: Vec<String>,
    /// Conditions that every layer looks at.
    pub cross: Vec<String>,
    /// Conditions that stand before the first row.
    pub prepend: Vec<String>,
    /// Whether rows that layers look at have positions.
    pub cross_attention_pos_emb: bool,
    /// What these positions are multiplied with.
    #[serde(default = "one")]
    pub cross_attention_pos_emb_scale: f32,
}

fn one() -> f32 {
    1.0
}

/// A number, a list of numbers, or nothing.
fn one_or_several<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<usize>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Raw {
        One(usize),
        Several(Vec<usize>),
        None(()),
    }
    Ok(match Raw::deserialize(d)? {
        Raw::One(n) => vec![n],
        Raw::Several(several) => several,
        Raw::None(()) => Vec::new(),
    })
}

impl Default for KyutaiConfig {
    /// Moshi 7B, whose repositories have no configuration.
    fn default() -> Self {
        let mut delays = vec![1; 17];
        (delays[0], delays[1], delays[9]) = (0, 0, 0);
        Self {
            dim: 4096,
            text_card: 32_000,
            text_card_out: None,
            existing_text_padding_id: 3,
            existing_text_end_padding_id: 0,
            n_q: 16,
            dep_q: 8,
            card: 2048,
            num_heads: 32,
            num_layers: 32,
            kv_repeat: 1,
            hidden_scale: 4.125,
            causal: true,
            context: 3000,
            max_period: 10_000.0,
            gating: "silu".into(),
            norm: "rms_norm_f32".into(),
            positional_embedding: "rope".into(),
            norm_emb: false,
            cross_attention: false,
            demux_second_stream: false,
            extra_heads_num_heads: 0,
            extra_heads_dim: 6,
            depformer_dim: 1024,
            depformer_num_heads: Some(16),
            depformer_num_layers: Some(6),
            depformer_dim_feedforward: vec![4224],
            depformer_multi_linear: true,
            depformer_weights_per_step: true,
            depformer_weights_per_step_schedule: None,
            depformer_low_rank_embeddings: None,
            depformer_pos_emb: "none".into(),
            depformer_gating: None,
            depformer_norm: None,
            delays,
            conditioners: BTreeMap::new(),
            fuser: None,
            quantize: false,
            lora: false,
            model_type: None,
            tts_config: None,
            stt_config: None,
            model_id: None,
            lm_gen_config: LmGenConfig::default(),
            mimi_name: None,
            moshi_name: None,
            tokenizer_name: None,
        }
    }
}

/// The width of a gated feed-forward part, by the published package's rule.
fn gated(feedforward: usize, width: usize) -> usize {
    if feedforward == 4 * width { 21 * width / 8 } else { 2 * feedforward / 3 }
}

impl KyutaiConfig {
    /// What the published package takes where a configuration says nothing; it has to say the width and the delays.
    fn unsaid() -> Self {
        Self {
            dim: 0,
            delays: Vec::new(),
            depformer_num_heads: None,
            depformer_num_layers: None,
            depformer_dim_feedforward: Vec::new(),
            depformer_multi_linear: false,
            depformer_weights_per_step: false,
            ..Self::default()
        }
    }

    /// Reads a `config.json` and refuses what cannot be run, by name.
    pub fn from_json(text: &str) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_str(text)?;
        config.check().map_err(ConfigError::Unsupported)?;
        Ok(config)
    }

    /// Why it cannot be run, if it cannot.
    pub fn check(&self) -> Result<(), String> {
        for (what, n, most) in [
            ("dim", self.dim, MOST_WIDTH),
            ("text_card", self.text_card, 1 << 24),
            ("card", self.card, MAX_SAMPLED),
            ("text_card_out", self.text_out(), MAX_SAMPLED),
            ("n_q", self.n_q, MOST_PARTS),
            ("num_heads", self.num_heads, MOST_PARTS),
            ("num_layers", self.num_layers, MOST_PARTS),
            ("kv_repeat", self.kv_repeat, MOST_PARTS),
            ("context", self.context, 1 << 20),
            ("depformer_dim", self.depformer_dim, MOST_WIDTH),
        ] {
            if n == 0 || n > most {
                return Err(format!("{what} is {n}: 1 to {most} can be run"));
            }
        }
        let known = |what: &str, value: &str, known: &[&str]| match known.contains(&value) {
            true => Ok(()),
            false => Err(format!("{what} '{value}' is unknown: {} can be run", known.join(", "))),
        };
        known("norm", &self.norm, &NORMS.map(|(name, _)| name))?;
        known("model_type", self.model_type.as_deref().unwrap_or("moshi"), &["moshi", "stt", "tts"])?;
        known("gating", &self.gating, &["silu"])?;
        known("positional_embedding", &self.positional_embedding, &["rope", "none"])?;
        for (on, what) in [
            (!self.causal, "causal = false"),
            (self.norm_emb, "norm_emb"),
            (self.quantize, "quantize: fetch the bf16 weights"),
            (self.lora, "lora: merge the additions into the weights"),
        ] {
            if on {
                return Err(format!("it asks for {what}"));
            }
        }
        if self.delays.len() != self.n_q + 1 {
            return Err(format!("{} delays for text and {} codebooks", self.delays.len(), self.n_q));
        }
        if self.delays.iter().any(|&d| d > MOST_PARTS) {
            return Err(format!("a delay of more than {MOST_PARTS} steps"));
        }
        if self.kind() == Kind::Tts && self.delays[0] > 0 {
            return Err(format!("text of a voice has a delay of {}: 0 can be run", self.delays[0]));
        }
        if self.dep_q > self.n_q {
            return Err(format!("dep_q is {}: more than n_q, {}", self.dep_q, self.n_q));
        }
        if self.dep_q > 0 {
            self.check_depth()?;
        }
        if let Some(bonus) = self.tts_config.and_then(|t| t.padding_bonus).filter(|b| *b != 0.0) {
            return Err(format!("padding_bonus is {bonus}: 0 can be run"));
        }
        if self.extra_heads_num_heads > MOST_PARTS || self.extra_heads_dim > MOST_WIDTH {
            return Err("extra heads beyond measure".into());
        }
        if let Some(tts) = self.tts_config {
            if tts.multistream {
                return Err("tts_config.multistream: one speaker's codebooks can be run".into());
            }
            if tts.second_stream_ahead > 0 && !self.demux_second_stream {
                return Err("tts_config.second_stream_ahead without demux_second_stream".into());
            }
            if !(0.0..=60.0).contains(&tts.audio_delay) {
                return Err(format!("tts_config.audio_delay is {}: 0 to 60 s can be run", tts.audio_delay));
            }
        }
        self.check_conditions()?;
        self.backbone().check()?;
        if !self.dim.is_multiple_of(self.num_heads) {
            return Err(format!("{} heads do not divide {}", self.num_heads, self.dim));
        }
        Ok(())
    }

    fn check_depth(&self) -> Result<(), String> {
        let gating = self.depformer_gating.as_deref().unwrap_or(&self.gating);
        if gating != "silu" || self.depformer_pos_emb != "none" {
            return Err(format!(
                "depformer_gating '{gating}' or depformer_pos_emb '{}': silu and none can be run",
                self.depformer_pos_emb
            ));
        }
        if let Some(norm) = &self.depformer_norm {
            return Err(format!("depformer_norm '{norm}': none can be run"));
        }
        if let Some(schedule) = &self.depformer_weights_per_step_schedule
            && (schedule.len() != self.dep_q
                || !self.depformer_weights_per_step
                || schedule.iter().any(|&s| s >= self.dep_q))
        {
            return Err("depformer_weights_per_step_schedule does not fit dep_q".into());
        }
        let widths = &self.depformer_dim_feedforward;
        if widths.iter().any(|w| *w != widths[0]) {
            return Err("depformer_dim_feedforward with several widths".into());
        }
        if self.depformer_low_rank_embeddings.is_some_and(|r| r == 0 || r > MOST_WIDTH) {
            return Err("depformer_low_rank_embeddings beyond measure".into());
        }
        let depth = self.depth();
        if !self.depformer_dim.is_multiple_of(depth.heads) {
            return Err(format!("{} heads do not divide {}", depth.heads, self.depformer_dim));
        }
        depth.check()
    }

    fn check_conditions(&self) -> Result<(), String> {
        let fuser = self.fuser.clone().unwrap_or_default();
        if let Some(name) = fuser.prepend.first() {
            return Err(format!("condition '{name}' stands before the first row: sum and cross can be run"));
        }
        for (name, sum) in fuser.sum.iter().map(|n| (n, true)).chain(fuser.cross.iter().map(|n| (n, false))) {
            match (self.conditioners.get(name), sum) {
                (Some(Conditioner::Lut { .. } | Conditioner::Continuous { .. }), true)
                | (Some(Conditioner::Tensor { .. }), false) => {}
                (None, _) => {
                    return Err(format!("the fuser's condition '{name}' is not among the conditioners"));
                }
                _ => {
                    return Err(format!(
                        "condition '{name}': tables and numbers are added, tensors are looked at"
                    ));
                }
            }
        }
        match (self.cross_attention, fuser.cross.len()) {
            (true, 1) | (false, 0) => Ok(()),
            _ => {
                Err("cross_attention and the fuser's 'cross' do not fit: one tensor can be looked at".into())
            }
        }
    }

    /// Whether a recogniser can run it: text and codes of a step are of one moment there.
    pub fn check_hearing(&self) -> Result<(), ConfigError> {
        match self.delays.iter().find(|&&delay| delay > 0) {
            None => Ok(()),
            Some(delay) => Err(ConfigError::Unsupported(format!(
                "a recogniser's stream has a delay of {delay}: 0 can be run"
            ))),
        }
    }

    /// What it was trained for.
    pub fn kind(&self) -> Kind {
        match self.model_type.as_deref() {
            Some("tts") => Kind::Tts,
            Some("stt") => Kind::Stt,
            Some(_) => Kind::Moshi,
            None if self.tts_config.is_some() => Kind::Tts,
            None if self.dep_q == 0 => Kind::Stt,
            None => Kind::Moshi,
        }
    }

    /// Text tokens that can be drawn.
    pub fn text_out(&self) -> usize {
        self.text_card_out.unwrap_or(self.text_card)
    }

    /// Codebooks that are given from outside.
    pub fn given(&self) -> usize {
        self.n_q - self.dep_q
    }

    /// The longest delay.
    pub fn max_delay(&self) -> usize {
        self.delays.iter().copied().max().unwrap_or_default()
    }

    /// Shape of the backbone.
    pub fn backbone(&self) -> DecoderConfig {
        DecoderConfig {
            layers: self.num_layers,
            hidden: self.dim,
            ffn: gated((self.hidden_scale * self.dim as f64) as usize, self.dim),
            heads: self.num_heads,
            kv_heads: (self.num_heads / self.kv_repeat).max(1),
            head_dim: self.dim / self.num_heads,
            rope: (self.positional_embedding == "rope").then_some(RopeStyle::Interleaved),
            theta: self.max_period as f32,
            eps: NORMS.into_iter().find(|(name, _)| *name == self.norm).map_or(NORMS[0].1, |(_, eps)| eps),
            head_norm: false,
            window: Some(self.context),
            names: DecoderNames::Moshi,
        }
    }

    /// Shape of the depth transformer.
    pub fn depth(&self) -> DecoderConfig {
        let (width, heads) = (self.depformer_dim, self.depformer_num_heads.unwrap_or(self.num_heads).max(1));
        let scaled = (self.hidden_scale * width as f64) as usize;
        let feedforward = self.depformer_dim_feedforward.first().copied().unwrap_or(scaled);
        DecoderConfig {
            layers: self.depformer_num_layers.unwrap_or(self.num_layers),
            hidden: width,
            ffn: gated(feedforward, width),
            heads,
            kv_heads: (heads / self.kv_repeat).max(1),
            head_dim: width / heads,
            rope: None,
            window: None,
            names: DecoderNames::Depth,
            ..self.backbone()
        }
    }

    /// Which weights each step of the depth transformer has.
    pub fn schedule(&self) -> Vec<usize> {
        match &self.depformer_weights_per_step_schedule {
            Some(schedule) => schedule.clone(),
            None if self.depformer_weights_per_step => (0..self.dep_q).collect(),
            None => vec![0; self.dep_q],
        }
    }

    /// Sets of weights of the depth transformer.
    pub fn sets(&self) -> usize {
        self.schedule().iter().max().map_or(0, |last| last + 1)
    }
}

#[cfg(test)]
mod tests;
