//! The published yaml configuration, field by field; unknown fields are errors.

use std::collections::BTreeMap;

use serde::Deserialize;
use voce_nn::{Formats, TransformerConfig};
use voce_runtime::{Activation, RopeStyle};
use voce_text::prompt::PromptRules;

use crate::mimi::MimiConfig;
use crate::speech::MAX_TOKENS;

/// A configuration that cannot be read or run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not the yaml of a Pocket TTS model.
    #[error("not a Pocket TTS configuration: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// Readable, but asks for something that does not exist.
    #[error("this Pocket TTS configuration cannot be run: {0}")]
    Unsupported(String),
}

/// The sampler head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowType {
    /// Two time conditions, few steps.
    #[default]
    Lsd,
    /// One time condition, Euler steps.
    FlowMatching,
    /// No time condition: the head's output is the latent.
    Drifting,
    /// No time condition: noise plus the head's output.
    Pointwise,
}

impl FlowType {
    /// Time embedders of the head.
    pub fn time_conditions(self) -> usize {
        match self {
            FlowType::Lsd => 2,
            FlowType::FlowMatching => 1,
            FlowType::Drifting | FlowType::Pointwise => 0,
        }
    }
}

/// Shape of the head.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowConfig {
    /// Width.
    pub dim: usize,
    /// Residual blocks.
    pub depth: usize,
    /// Kind.
    #[serde(default, rename = "type")]
    pub kind: FlowType,
}

/// Shape of the backbone.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackboneConfig {
    /// Hidden width as a multiple of `d_model`, unless `dim_feedforward` says.
    pub hidden_scale: usize,
    /// Rotary period.
    pub max_period: f32,
    /// Width.
    pub d_model: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Layers.
    pub num_layers: usize,
    /// Width of queries; `d_model` when absent.
    #[serde(default)]
    pub attn_dim: Option<usize>,
    /// Key and value heads; `num_heads` when absent.
    #[serde(default)]
    pub num_kv_heads: Option<usize>,
    /// Hidden width.
    #[serde(default)]
    pub dim_feedforward: Option<usize>,
}

/// Which tokeniser file a configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerKind {
    /// A SentencePiece `.model`.
    Sentencepiece,
    /// A Hugging Face `tokenizer.json`.
    #[serde(alias = "json")]
    Tokenizers,
}

/// Text embedding.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookupTableConfig {
    /// Width.
    pub dim: usize,
    /// Tokens; the table has one more row.
    pub n_bins: usize,
    /// Kind of tokeniser.
    pub tokenizer: TokenizerKind,
    /// Its file.
    pub tokenizer_path: String,
    /// Width of a low-rank table.
    #[serde(default)]
    pub rank: Option<usize>,
}

/// The language model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowLmConfig {
    /// Type of the published weights; any is read.
    pub dtype: String,
    /// Head.
    pub flow: FlowConfig,
    /// Backbone.
    pub transformer: BackboneConfig,
    /// Width of the heads' input, projected from `d_model`.
    #[serde(default)]
    pub z_dim: Option<usize>,
    /// Text embedding.
    pub lookup_table: LookupTableConfig,
    /// Separate weight file (older layouts).
    #[serde(default)]
    pub weights_path: Option<String>,
    /// Whether the voice is preceded by a learnt row.
    #[serde(default)]
    pub insert_bos_before_voice: bool,
}

/// A whole Pocket TTS configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PocketConfig {
    /// The language model.
    pub flow_lm: FlowLmConfig,
    /// The codec.
    pub mimi: MimiConfig,
    /// Weights with the voice encoder.
    #[serde(default)]
    pub weights_path: Option<String>,
    /// Weights without it.
    #[serde(default)]
    pub weights_path_without_voice_cloning: Option<String>,
    /// Eight spaces before texts of fewer than five words.
    #[serde(default)]
    pub pad_with_spaces_for_short_inputs: bool,
    /// `;` becomes `,`.
    #[serde(default)]
    pub remove_semicolons: bool,
    /// Texts end with punctuation.
    #[serde(default = "yes")]
    pub append_terminal_punctuation: bool,
    /// Texts begin with a capital.
    #[serde(default = "yes")]
    pub capitalize_first_letter: bool,
    /// Characters that the model never saw, and what to read instead.
    #[serde(default)]
    pub replace_characters: BTreeMap<char, String>,
    /// Frames after EOS, instead of a guess.
    #[serde(default)]
    pub model_recommended_frames_after_eos: Option<usize>,
    /// Sampling temperature.
    #[serde(default = "default_temperature")]
    pub default_temperature: f32,
    /// EOS logit that ends a chunk.
    #[serde(default = "default_eos_threshold")]
    pub default_eos_threshold: f32,
}

/// What a model's folder says beside the published configuration, in a file of its own: the published package refuses a
/// configuration with fields that it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnConfig {
    /// The language that it speaks, in lower-case English.
    #[serde(default)]
    pub language: Option<String>,
    /// Tokens of a passage that it speaks without losing words.
    #[serde(default)]
    pub max_tokens: Option<usize>,
}

impl OwnConfig {
    /// Reads and checks it.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let own: Self = serde_yaml_ng::from_str(text)?;
        if own.max_tokens.is_some_and(|most| most == 0 || most > MAX_TOKENS) {
            return Err(ConfigError::Unsupported(format!("max_tokens is not from 1 to {MAX_TOKENS}")));
        }
        Ok(own)
    }
}

fn yes() -> bool {
    true
}

fn default_temperature() -> f32 {
    0.3
}

fn default_eos_threshold() -> f32 {
    -4.0
}

impl PocketConfig {
    /// Reads and checks a yaml configuration.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        let config: PocketConfig = serde_yaml_ng::from_str(text)?;
        match config.problem() {
            Some(reason) => Err(ConfigError::Unsupported(reason)),
            None => Ok(config),
        }
    }

    fn problem(&self) -> Option<String> {
        let (lm, t) = (&self.flow_lm, &self.flow_lm.transformer);
        let kv = t.num_kv_heads.unwrap_or(t.num_heads);
        let attn = t.attn_dim.unwrap_or(t.d_model);
        if [t.d_model, t.num_heads, t.num_layers, kv, attn, lm.flow.dim, lm.lookup_table.n_bins].contains(&0)
        {
            return Some("a size is zero".into());
        }
        if !attn.is_multiple_of(t.num_heads)
            || !t.num_heads.is_multiple_of(kv)
            || !(attn / t.num_heads).is_multiple_of(2)
        {
            return Some(format!("{} heads on {kv} over a width of {attn}", t.num_heads));
        }
        if lm.lookup_table.dim != t.d_model {
            return Some(format!(
                "text embeddings of {} in a backbone of {}",
                lm.lookup_table.dim, t.d_model
            ));
        }
        self.mimi.problem()
    }

    /// The backbone's shape in these formats.
    pub fn backbone(&self, f: Formats) -> TransformerConfig {
        let t = &self.flow_lm.transformer;
        TransformerConfig {
            d_model: t.d_model,
            heads: t.num_heads,
            kv_heads: t.num_kv_heads.unwrap_or(t.num_heads),
            attn_dim: t.attn_dim.unwrap_or(t.d_model),
            feedforward: t.dim_feedforward.unwrap_or(t.d_model * t.hidden_scale),
            layers: t.num_layers,
            window: None,
            period: t.max_period,
            rope: RopeStyle::Interleaved,
            act: Activation::GeluTanh,
            eps: 1e-5,
            format: f.backbone,
            kv: f.kv,
        }
    }

    /// The text rules.
    pub fn prompt_rules(&self) -> PromptRules {
        PromptRules {
            pad_with_spaces_for_short_inputs: self.pad_with_spaces_for_short_inputs,
            remove_semicolons: self.remove_semicolons,
            append_terminal_punctuation: self.append_terminal_punctuation,
            capitalize_first_letter: self.capitalize_first_letter,
            replace_characters: self.replace_characters.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_folder_says_of_its_own_is_checked() {
        let own = OwnConfig::from_yaml("language: english\nmax_tokens: 40\n").unwrap();
        assert_eq!((own.language.as_deref(), own.max_tokens), (Some("english"), Some(40)));
        assert_eq!(OwnConfig::from_yaml("max_tokens: 400").unwrap().max_tokens, Some(MAX_TOKENS));
        for bad in ["max_tokens: 0", "max_tokens: 401", "max_token: 40", "max_tokens: many", "- 1"] {
            OwnConfig::from_yaml(bad).unwrap_err();
        }
    }
}
