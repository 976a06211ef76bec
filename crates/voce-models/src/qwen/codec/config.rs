//! The published `config.json` of the 12Hz speech tokenizer, field by field.

use serde::Deserialize;
use voce_nn::{DecoderConfig, DecoderNames};
use voce_runtime::RopeStyle;

/// Positions that an attention window may have.
pub const MAX_WINDOW: usize = 8192;
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
        if self.output_sample_rate == 0 || self.input_sample_rate == 0 {
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
            rope: RopeStyle::Halves,
            theta: self.rope_theta,
            eps: self.rms_norm_eps,
            head_norm: false,
            window: Some(self.sliding_window),
            names: DecoderNames::Qwen3,
        }
    }

    fn check(&self) -> Result<(), CodecConfigError> {
        let sizes = [self.codebook_size, self.codebook_dim / 2, self.latent_dim, self.frame_size()];
        if sizes.contains(&0) || self.num_quantizers < 2 || self.upsample_rates.is_empty() {
            return unsupported("a size, rate or number of codebooks of its decoder is too small".into());
        }
        if self.frame_size() > 1 << 20 || self.sliding_window > MAX_WINDOW {
            return unsupported(format!(
                "frames of {} samples and a window of {} are beyond any use",
                self.frame_size(),
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
        ];
        if sizes.contains(&0) || self.upsampling_ratios.contains(&0) || self.upsampling_ratios.len() > 16 {
            return unsupported("a size or ratio of its encoder is zero".into());
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
