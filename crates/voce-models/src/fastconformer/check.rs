//! What a configuration may say, and what the tensors say where a configuration is silent or wrong.
//!
//! The limits are far above every published model; they keep a damaged number from becoming a huge allocation.

use voce_nn::Weights;

use super::config::{
    Attention, ConvNorm, EncoderConfig, FastConformerConfig, Head, PredictorConfig, PromptConfig,
};
use super::languages;

/// Most conformer layers.
pub const MAX_LAYERS: usize = 256;
/// Widest encoder, feed-forward layer, predictor or joint.
pub const MAX_WIDTH: usize = 65_536;
/// Most labels.
pub const MAX_VOCAB: usize = 1 << 20;
/// Most frames that a frame may see to its left, or that a chunk may have.
pub const MAX_CONTEXT: usize = 10_000;

/// A configuration that cannot be read or run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON, or a value of another type than expected.
    #[error("not a FastConformer config.json: {0}")]
    Json(#[from] serde_json::Error),
    /// Not YAML, or a value of another type than expected.
    #[error("not a NeMo model_config.yaml: {0}")]
    Yaml(#[from] serde_yaml_ng::Error),
    /// A setting that the model cannot do without.
    #[error("the configuration lacks '{0}'")]
    Missing(&'static str),
    /// Readable, but asks for something that is not there.
    #[error("{key} {value} is not supported (supported: {supported})")]
    Unsupported {
        /// The setting.
        key: &'static str,
        /// Its value.
        value: String,
        /// What would run.
        supported: &'static str,
    },
    /// A number that is out of range or does not fit another.
    #[error("this configuration cannot be run: {0}")]
    Bad(String),
}

impl ConfigError {
    pub(super) fn unsupported(
        key: &'static str,
        value: impl std::fmt::Display,
        supported: &'static str,
    ) -> Self {
        // Values come from files: one line of moderate length.
        let value = value.to_string().chars().filter(|c| !c.is_control()).take(80).collect();
        ConfigError::Unsupported { key, value, supported }
    }
}

fn within(what: &str, value: usize, least: usize, most: usize) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(ConfigError::Bad(format!("{what} is {value}, expected {least} to {most}")))
}

impl FastConformerConfig {
    /// Checks every number, so that none can make a later step panic or allocate without bound.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.mel.sample_rate != 16_000 {
            return Err(ConfigError::unsupported("sample rate", self.mel.sample_rate, "16000"));
        }
        within("the number of mel bins", self.mel.bins, 8, 512)?;
        within("the vocabulary", self.vocab, 1, MAX_VOCAB)?;
        self.encoder.check()?;
        match &self.head {
            Head::Ctc => {}
            Head::Rnnt(predictor) => predictor.check()?,
            Head::Tdt { predictor, durations } => {
                predictor.check()?;
                within("the number of durations", durations.len(), 1, 64)?;
                for &frames in durations {
                    within("a duration", frames, 0, 256)?;
                }
                if durations.iter().all(|&d| d == 0) {
                    return Err(ConfigError::Bad("no duration is above zero".into()));
                }
            }
        }
        self.prompt.as_ref().map_or(Ok(()), PromptConfig::check)
    }

    /// Takes from the tensors what a configuration may leave out or misstate: the norm of the convolutions, a CTC
    /// head beside a transducer, and the language prompt. `weights` have canonical names.
    pub fn settle(&mut self, weights: &dyn Weights) -> Result<(), ConfigError> {
        let has = |name: &str| weights.shape(name).is_some();
        if has("encoder.layers.0.conv.batch_norm.weight") {
            let batch = has("encoder.layers.0.conv.batch_norm.running_mean");
            self.encoder.conv_norm = if batch { ConvNorm::Batch } else { ConvNorm::Layer };
        }
        let ctc = has("ctc_decoder.decoder_layers.0.weight");
        self.auxiliary_ctc = ctc && self.head != Head::Ctc;
        match weights.shape("prompt_kernel.0.weight").as_deref() {
            Some(&[hidden, inputs]) if inputs > self.encoder.dim => {
                let slots = inputs - self.encoder.dim;
                let known = self.prompt.take().filter(|p| !p.languages.is_empty());
                let known = known.unwrap_or_else(|| languages::prompt(slots));
                self.prompt = Some(PromptConfig { slots, hidden, ..known });
            }
            Some(shape) => {
                return Err(ConfigError::Bad(format!(
                    "tensor 'prompt_kernel.0.weight' has shape {shape:?}, expected [hidden, {} + languages]",
                    self.encoder.dim
                )));
            }
            None if self.prompt.is_some() => {
                return Err(ConfigError::Bad(
                    "the configuration has a language prompt and the weights have no 'prompt_kernel'".into(),
                ));
            }
            None => {}
        }
        self.check()
    }

    /// The predictor of a transducer.
    pub fn predictor(&self) -> Option<&PredictorConfig> {
        match &self.head {
            Head::Ctc => None,
            Head::Rnnt(predictor) | Head::Tdt { predictor, .. } => Some(predictor),
        }
    }

    /// Classes of the head: labels, blank, and durations where there are any.
    pub fn classes(&self) -> usize {
        let durations = if let Head::Tdt { durations, .. } = &self.head { durations.len() } else { 0 };
        self.vocab + 1 + durations
    }

    /// Weights, biases everywhere.
    pub fn parameters(&self) -> u64 {
        let (e, n) = (&self.encoder, |values: usize| values as u64);
        let d = e.dim;
        let feed_forward = 2 * d * e.ff_dim + e.ff_dim + d;
        let attention = 5 * d * d + 4 * d + 2 * d;
        let norm = match e.conv_norm {
            ConvNorm::Batch => 4 * d,
            ConvNorm::Layer => 2 * d,
        };
        let conv = 3 * d * d + 3 * d + d * (e.conv_kernel + 1) + norm;
        let layer = n(2 * feed_forward + attention + conv + 10 * d);
        let c = e.subsampling_channels;
        let halvings = e.subsampling_factor.ilog2() as usize;
        let convolutions = 10 * c + halvings.saturating_sub(1) * (10 * c + c * c + c);
        let subsampling = n(convolutions) + n(c * e.subsampled_bins(self.mel.bins)) * n(d) + n(d);
        let mut total = n(e.layers) * layer + subsampling;
        if let Some(p) = self.predictor() {
            let lstm = p.layers * (8 * p.hidden * p.hidden + 8 * p.hidden);
            total += n((self.vocab + 1) * p.hidden + lstm);
            total += n((d + p.hidden + 2) * p.joint + (p.joint + 1) * self.classes());
        }
        if self.head == Head::Ctc || self.auxiliary_ctc {
            total += n((d + 1) * (self.vocab + 1));
        }
        if let Some(p) = &self.prompt {
            total += n((d + p.slots + 1) * p.hidden + (p.hidden + 1) * d);
        }
        total
    }
}

impl EncoderConfig {
    /// Frequency bins that are left after the subsampling.
    pub fn subsampled_bins(&self, mel: usize) -> usize {
        let halvings = self.subsampling_factor.max(1).ilog2();
        // Three taps of stride two, padded by one on both sides, or by two and one.
        (0..halvings).fold(mel, |bins, _| if self.causal { bins / 2 + 1 } else { bins.div_ceil(2) })
    }

    fn check(&self) -> Result<(), ConfigError> {
        within("the number of layers", self.layers, 1, MAX_LAYERS)?;
        within("the encoder's width", self.dim, 2, MAX_WIDTH)?;
        within("the width of the feed-forward layers", self.ff_dim, 1, MAX_WIDTH)?;
        within("the number of attention heads", self.heads, 1, 256)?;
        within("the convolution's kernel", self.conv_kernel, 1, 255)?;
        within("the number of subsampling channels", self.subsampling_channels, 1, 8192)?;
        if !self.dim.is_multiple_of(2 * self.heads) {
            return Err(ConfigError::Bad(format!(
                "{} attention heads over a width of {}",
                self.heads, self.dim
            )));
        }
        if !matches!(self.subsampling_factor, 2 | 4 | 8 | 16) {
            return Err(ConfigError::unsupported(
                "subsampling factor",
                self.subsampling_factor,
                "2, 4, 8, 16",
            ));
        }
        match &self.attention {
            Attention::Full if self.causal => {
                Err(ConfigError::unsupported("full attention", "with causal convolutions", "centred ones"))
            }
            Attention::Full if self.conv_kernel.is_multiple_of(2) => {
                Err(ConfigError::unsupported("convolution kernel", self.conv_kernel, "an odd number"))
            }
            Attention::Full => Ok(()),
            Attention::Chunked { .. } if !self.causal => {
                Err(ConfigError::unsupported("chunked attention", "with centred convolutions", "causal ones"))
            }
            Attention::Chunked { left, look_aheads } => {
                within("the left context", *left, 1, MAX_CONTEXT)?;
                within("the number of look-aheads", look_aheads.len(), 1, 64)?;
                for &ahead in look_aheads {
                    within("a look-ahead", ahead, 0, MAX_CONTEXT)?;
                    if !left.is_multiple_of(ahead + 1) {
                        return Err(ConfigError::Bad(format!(
                            "a left context of {left} frames is not a whole number of chunks of {}",
                            ahead + 1
                        )));
                    }
                }
                Ok(())
            }
        }
    }
}

impl PredictorConfig {
    fn check(&self) -> Result<(), ConfigError> {
        within("the predictor's width", self.hidden, 1, MAX_WIDTH)?;
        within("the number of predictor layers", self.layers, 1, 16)?;
        within("the joint's width", self.joint, 1, MAX_WIDTH)?;
        within("the most symbols per frame", self.max_symbols, 1, 1000)
    }
}

impl PromptConfig {
    fn check(&self) -> Result<(), ConfigError> {
        within("the number of prompt slots", self.slots, 1, 4096)?;
        within("the prompt's width", self.hidden, 1, MAX_WIDTH)?;
        within("the default language's slot", self.default, 0, self.slots - 1)?;
        for (language, slot) in &self.languages {
            within(&format!("the slot of language '{language}'"), *slot, 0, self.slots - 1)?;
        }
        Ok(())
    }
}
