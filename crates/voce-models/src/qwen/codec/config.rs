//! The published `config.json` of the 12Hz speech tokenizer, field by field.

use serde::Deserialize;
use voce_nn::{DecoderConfig, DecoderNames};
use voce_runtime::{MAX_SAMPLED, RopeStyle};

/// Positions that an attention window may have.
pub const MAX_WINDOW: usize = 8192;
/// What any width, rate or number of entries may be: far beyond any codec, and small enough to multiply.
pub const MAX_SIZE: usize = 1 << 20;
/// What a residual unit of the decoder is dilated by, in the order of units.
pub(super) const DILATIONS: [usize; 3] = [1, 3, 9];
/// Kernel of the convolutions next to the transformer and of residual units, rows of channels either way.
pub(super) const KERNEL: usize = 7;

/// A configuration that cannot be read or run.
#[derive(Debug, thiserror::Error)]
pub enum CodecConfigError {
    /// Not the JSON of a speech tokenizer.
    #[error("not the configuration of a Qwen3-TTS speech tokenizer: {0}")]
    Json(#[from] serde_json::Error),
    /// Readable, but asks for something that does not exist.
    #[error("this speech tokenizer cannot be run: {0}")]
    Unsupported(String),
}

/// `speech_tokenizer/config.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct CodecConfig {
    model_type: String,
    /// Codebooks that an encoded frame keeps.
    #[serde(default = "sixteen")]
    pub encoder_valid_num_quantizers: usize,
    /// Samples per second that are encoded.
    #[serde(default = "rate")]
    pub input_sample_rate: usize,
    /// Samples per second that are decoded.
    #[serde(default = "rate")]
    pub output_sample_rate: usize,
    /// Samples of a decoded frame.
    #[serde(default = "frame")]
    pub decode_upsample_rate: usize,
    /// Samples of an encoded frame.
    #[serde(default = "frame")]
    pub encode_downsample_rate: usize,
    /// From codes to samples.
    pub decoder_config: CodecDecoderConfig,
    /// From samples to codes.
    pub encoder_config: CodecEncoderConfig,
}

/// `decoder_config`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct CodecDecoderConfig {
    /// Entries of a codebook.
    pub codebook_size: usize,
    /// Width of the quantiser's output; its tables are half as wide.
    pub codebook_dim: usize,
    /// Codebooks.
    pub num_quantizers: usize,
    /// Width between the parts.
    pub latent_dim: usize,
    /// Width of the transformer.
    pub hidden_size: usize,
    /// Hidden width of its feed-forward part.
    pub intermediate_size: usize,
    /// Its layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Values per head; the width shared out when absent.
    pub head_dim: Option<usize>,
    /// Positions a frame sees, itself included.
    pub sliding_window: usize,
    /// Rotary period.
    pub rope_theta: f32,
    /// Of every norm of the transformer.
    pub rms_norm_eps: f32,
    /// Activation of the feed-forward part.
    pub hidden_act: String,
    /// Channels before the first block; each block halves them.
    pub decoder_dim: usize,
    /// Output rows of each block per input row.
    pub upsample_rates: Vec<usize>,
    /// The same of the stages before the blocks.
    pub upsampling_ratios: Vec<usize>,
}

impl Default for CodecDecoderConfig {
    fn default() -> Self {
        Self {
            codebook_size: 2048,
            codebook_dim: 512,
            num_quantizers: 16,
            latent_dim: 1024,
            hidden_size: 1024,
            intermediate_size: 3072,
            num_hidden_layers: 8,
            num_attention_heads: 16,
            num_key_value_heads: 16,
            head_dim: None,
            sliding_window: 72,
            rope_theta: 10_000.0,
            rms_norm_eps: 1e-5,
            hidden_act: "silu".into(),
            decoder_dim: 1536,
            upsample_rates: vec![8, 5, 4, 3],
            upsampling_ratios: vec![2, 2],
        }
    }
}

/// `encoder_config`: a Mimi encoder, as transformers has it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct CodecEncoderConfig {
    /// Samples per second.
    pub sampling_rate: usize,
    /// Frames per second; both names are in use.
    #[serde(alias = "_frame_rate")]
    pub frame_rate: Option<f64>,
    /// Audio channels.
    pub audio_channels: usize,
    /// Width of transformer and quantiser.
    pub hidden_size: usize,
    /// Channels next to the audio.
    pub num_filters: usize,
    /// Residual blocks per rate.
    pub num_residual_layers: usize,
    /// Rates, from the frames' side.
    pub upsampling_ratios: Vec<usize>,
    /// Kernel next to the audio.
    pub kernel_size: usize,
    /// Kernel next to the transformer.
    pub last_kernel_size: usize,
    /// Kernel of residual blocks.
    pub residual_kernel_size: usize,
    /// Dilation of residual block j is this to the power j.
    pub dilation_growth_rate: usize,
    /// What stands before the first sample.
    pub pad_mode: String,
    /// Residual blocks narrow by this factor.
    pub compress: usize,
    /// Whether convolutions see the past alone.
    pub use_causal_conv: bool,
    /// Whether residual blocks have a convolution beside them.
    pub use_conv_shortcut: bool,
    /// Entries of a codebook.
    pub codebook_size: usize,
    /// Width of a codebook's entries.
    pub codebook_dim: usize,
    /// Codebooks in the file.
    pub num_quantizers: usize,
    /// Those of them with a projection of their own.
    pub num_semantic_quantizers: usize,
    /// Width that the quantisers project to.
    pub vector_quantization_hidden_dimension: usize,
    /// Hidden width of the transformer's feed-forward part.
    pub intermediate_size: usize,
    /// Its layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Values per head; the width shared out when absent.
    pub head_dim: Option<usize>,
    /// Activation of the feed-forward part.
    pub hidden_act: String,
    /// Of every norm.
    pub norm_eps: f32,
    /// Rotary period.
    pub rope_theta: f32,
}

impl Default for CodecEncoderConfig {
    fn default() -> Self {
        Self {
            sampling_rate: 24_000,
            frame_rate: None,
            audio_channels: 1,
            hidden_size: 512,
            num_filters: 64,
            num_residual_layers: 1,
            upsampling_ratios: vec![8, 6, 5, 4],
            kernel_size: 7,
            last_kernel_size: 3,
            residual_kernel_size: 3,
            dilation_growth_rate: 2,
            pad_mode: "constant".into(),
            compress: 2,
            use_causal_conv: true,
            use_conv_shortcut: false,
            codebook_size: 2048,
            codebook_dim: 256,
            num_quantizers: 32,
            num_semantic_quantizers: 1,
            vector_quantization_hidden_dimension: 256,
            intermediate_size: 2048,
            num_hidden_layers: 8,
            num_attention_heads: 8,
            num_key_value_heads: 8,
            head_dim: None,
            hidden_act: "gelu".into(),
            norm_eps: 1e-5,
            rope_theta: 10_000.0,
        }
    }
}

fn sixteen() -> usize {
    16
}

fn rate() -> usize {
    24_000
}

fn frame() -> usize {
    1920
}

fn unsupported<T>(what: String) -> Result<T, CodecConfigError> {
    Err(CodecConfigError::Unsupported(what))
}

/// Whether all sizes can be multiplied with each other without a care.
fn bounded(sizes: &[usize]) -> Result<(), CodecConfigError> {
    match sizes.iter().find(|&&size| size > MAX_SIZE) {
        Some(size) => unsupported(format!("a size of {size}: {MAX_SIZE} is the most")),
        None => Ok(()),
    }
}

impl CodecConfig {
    /// Reads a `config.json` and refuses by name what cannot be run.
    pub fn from_json(text: &str) -> Result<Self, CodecConfigError> {
        let config: Self = serde_json::from_str(text)?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), CodecConfigError> {
        if self.model_type != "qwen3_tts_tokenizer_12hz" {
            return unsupported(format!(
                "its model_type is '{}': only qwen3_tts_tokenizer_12hz is known",
                self.model_type
            ));
        }
        let rates = [self.output_sample_rate, self.input_sample_rate];
        bounded(&rates)?;
        if rates.contains(&0) {
            return unsupported("a sample rate is zero".into());
        }
        let d = &self.decoder_config;
        d.check()?;
        if d.frame_size() != self.decode_upsample_rate {
            return unsupported(format!(
                "its stages make {} samples of a frame, and decode_upsample_rate says {}",
                d.frame_size(),
                self.decode_upsample_rate
            ));
        }
        self.encoder_config.check()?;
        let e = &self.encoder_config;
        if e.hop().saturating_mul(2) != self.encode_downsample_rate {
            return unsupported(format!(
                "the encoder takes {:?} samples a position: frames of {} samples would not be two positions",
                e.upsampling_ratios, self.encode_downsample_rate
            ));
        }
        if self.input_sample_rate != e.sampling_rate {
            return unsupported(format!(
                "it takes {} samples a second and its encoder {}",
                self.input_sample_rate, e.sampling_rate
            ));
        }
        let kept = self.encoder_valid_num_quantizers;
        if kept <= e.num_semantic_quantizers || kept > e.num_quantizers {
            return unsupported(format!("{kept} of {} codebooks cannot be kept", e.num_quantizers));
        }
        Ok(())
    }

    /// Codebooks of a frame.
    pub fn codebooks(&self) -> usize {
        self.decoder_config.num_quantizers
    }

    /// Frames per second.
    pub fn frame_rate(&self) -> f64 {
        self.output_sample_rate as f64 / self.decode_upsample_rate as f64
    }
}

impl CodecDecoderConfig {
    /// Samples of a frame.
    pub fn frame_size(&self) -> usize {
        product(self.upsample_rates.iter().chain(&self.upsampling_ratios))
    }

    /// Rows of a frame before the blocks.
    pub(super) fn steps(&self) -> usize {
        product(&self.upsampling_ratios)
    }

    /// The transformer's shape.
    pub(super) fn transformer(&self) -> DecoderConfig {
        DecoderConfig {
            layers: self.num_hidden_layers,
            hidden: self.hidden_size,
            ffn: self.intermediate_size,
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1)),
            rope: Some(RopeStyle::Halves),
            theta: self.rope_theta,
            eps: self.rms_norm_eps,
            head_norm: false,
            window: Some(self.sliding_window),
            names: DecoderNames::Qwen3,
        }
    }

    fn check(&self) -> Result<(), CodecConfigError> {
        let sizes = [
            self.codebook_size,
            self.codebook_dim / 2,
            self.latent_dim,
            self.frame_size(),
            self.hidden_size,
            self.intermediate_size,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim.unwrap_or(1),
            self.decoder_dim,
        ];
        bounded(&sizes)?;
        if sizes.contains(&0) || self.num_quantizers < 2 || self.upsample_rates.is_empty() {
            return unsupported("a size, rate or number of codebooks of its decoder is too small".into());
        }
        if self.sliding_window > MAX_WINDOW {
            return unsupported(format!(
                "a window of {} positions: {MAX_WINDOW} is the most",
                self.sliding_window
            ));
        }
        if self.upsample_rates.len() > 16 || !self.decoder_dim.is_multiple_of(1 << self.upsample_rates.len())
        {
            return unsupported(format!(
                "{} channels cannot be halved {} times",
                self.decoder_dim,
                self.upsample_rates.len()
            ));
        }
        if self.hidden_act != "silu" {
            return unsupported(format!(
                "activation '{}' in its decoder: only silu is known",
                self.hidden_act
            ));
        }
        self.transformer().check().or_else(unsupported)
    }
}

/// The product, or the largest number there is where it is beyond.
fn product<'a>(of: impl IntoIterator<Item = &'a usize>) -> usize {
    of.into_iter().fold(1, |a, b| a.saturating_mul(*b))
}

impl CodecEncoderConfig {
    /// Samples per position.
    pub(super) fn hop(&self) -> usize {
        product(&self.upsampling_ratios)
    }

    /// Values per head.
    pub(super) fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    fn check(&self) -> Result<(), CodecConfigError> {
        let sizes = [
            self.sampling_rate,
            self.hidden_size,
            self.num_filters,
            self.compress,
            self.kernel_size,
            self.last_kernel_size,
            self.residual_kernel_size,
            self.codebook_size,
            self.codebook_dim,
            self.num_semantic_quantizers,
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim(),
            self.num_quantizers,
        ];
        bounded(&sizes)?;
        bounded(&[self.intermediate_size, self.num_residual_layers, self.dilation_growth_rate, self.hop()])?;
        if sizes.contains(&0) || self.upsampling_ratios.contains(&0) || self.upsampling_ratios.len() > 16 {
            return unsupported("a size or ratio of its encoder is zero".into());
        }
        if self.codebook_size > MAX_SAMPLED {
            return unsupported(format!("codebooks of its encoder have more than {MAX_SAMPLED} entries"));
        }
        if self.audio_channels != 1 {
            return unsupported(format!("{} audio channels: only mono is known", self.audio_channels));
        }
        if self.pad_mode != "constant" || !self.use_causal_conv || self.use_conv_shortcut {
            return unsupported(
                "its encoder pads or shortcuts convolutions in a way that is not known".into(),
            );
        }
        if self.hidden_act != "gelu" {
            return unsupported(format!(
                "activation '{}' in its encoder: only gelu is known",
                self.hidden_act
            ));
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads)
            || !self.head_dim().is_multiple_of(2)
        {
            return unsupported("heads of its encoder cannot be shared out or rotated".into());
        }
        if self.vector_quantization_hidden_dimension != self.codebook_dim {
            return unsupported("codebooks of its encoder are not as wide as what they quantise".into());
        }
        let positions = self.sampling_rate as f64 / self.hop().max(1) as f64;
        match self.frame_rate {
            Some(frames) if (positions / frames - 2.0).abs() > 1e-6 => unsupported(format!(
                "{positions} positions and {frames} frames a second: two to one is known"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn published() -> Value {
        json!({
            "model_type": "qwen3_tts_tokenizer_12hz",
            "decoder_config": {"hidden_size": 512, "head_dim": 64, "intermediate_size": 1024},
            "encoder_config": {"_frame_rate": 12.5, "a_field_of_another_version": true},
        })
    }

    #[test]
    fn the_published_sizes_are_the_defaults() {
        let c = CodecConfig::from_json(&published().to_string()).unwrap();
        assert_eq!((c.codebooks(), c.decode_upsample_rate, c.frame_rate()), (16, 1920, 12.5));
        assert_eq!(c.decoder_config.transformer().window, Some(72));
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        let refused = |path: &str, value: Value| {
            let mut json = published();
            *json.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
            if json.pointer(path).is_none() {
                let (parent, key) = path.rsplit_once('/').unwrap();
                json.pointer_mut(parent).unwrap()[key] = value;
            }
            CodecConfig::from_json(&json.to_string()).unwrap_err().to_string()
        };
        let (decoder, encoder) = ("/decoder_config", "/encoder_config");
        for (path, value, says) in [
            ("/model_type".to_owned(), json!("qwen3_tts_tokenizer_25hz"), "25hz"),
            ("/decode_upsample_rate".into(), json!(1000), "1920 samples of a frame"),
            ("/output_sample_rate".into(), json!(0), "rate is zero"),
            ("/input_sample_rate".into(), json!(16_000), "16000"),
            ("/encoder_valid_num_quantizers".into(), json!(33), "33 of 32"),
            (format!("{decoder}/sliding_window"), json!(MAX_WINDOW + 1), "8192 is the most"),
            (format!("{decoder}/sliding_window"), json!(0), "at least one"),
            (format!("{decoder}/latent_dim"), json!(MAX_SIZE + 1), "1048576 is the most"),
            (format!("{decoder}/latent_dim"), json!(u64::MAX), "is the most"),
            (format!("{decoder}/upsample_rates"), json!([u64::MAX, 3]), "is the most"),
            (format!("{decoder}/upsample_rates"), json!([]), "too small"),
            (format!("{decoder}/decoder_dim"), json!(1000), "halved"),
            (format!("{decoder}/hidden_act"), json!("gelu"), "gelu"),
            (format!("{decoder}/num_key_value_heads"), json!(3), "3 key heads"),
            (format!("{decoder}/head_dim"), json!(5), "even"),
            (format!("{decoder}/num_quantizers"), json!(1), "too small"),
            (format!("{encoder}/audio_channels"), json!(2), "mono"),
            (format!("{encoder}/pad_mode"), json!("reflect"), "pads"),
            (format!("{encoder}/use_conv_shortcut"), json!(true), "shortcuts"),
            (format!("{encoder}/upsampling_ratios"), json!([8, 6, 5]), "two to one"),
            (format!("{encoder}/_frame_rate"), json!(25.0), "two to one"),
            (format!("{encoder}/hidden_act"), json!("silu"), "silu"),
            (format!("{encoder}/codebook_dim"), json!(128), "wide"),
            (format!("{encoder}/compress"), json!(0), "zero"),
        ] {
            let text = refused(&path, value);
            assert!(text.contains(says), "{path}: {text}");
        }
        assert!(CodecConfig::from_json("{").is_err());
        assert!(CodecConfig::from_json("{\"model_type\": 3}").is_err());
    }

    #[test]
    fn the_largest_sizes_are_taken() {
        let mut json = published();
        json["decoder_config"]["sliding_window"] = json!(MAX_WINDOW);
        json["decoder_config"]["latent_dim"] = json!(MAX_SIZE);
        CodecConfig::from_json(&json.to_string()).unwrap();
    }
}
