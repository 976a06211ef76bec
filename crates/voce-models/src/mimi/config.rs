//! The published configuration of Mimi, field by field.

use serde::Deserialize;
use voce_nn::TransformerConfig;
use voce_runtime::{Activation, Format, KvFormat, RopeStyle};

/// What stands before the first sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PadMode {
    /// Zeros.
    Constant,
    /// The first value.
    Replicate,
}

/// SEANet: the convolutional half of the codec.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeanetConfig {
    /// Width towards the transformer.
    pub dimension: usize,
    /// Audio channels.
    pub channels: usize,
    /// Channels next to the audio.
    pub n_filters: usize,
    /// Residual blocks per rate.
    pub n_residual_layers: usize,
    /// Upsampling ratios of the decoder, first to last.
    pub ratios: Vec<usize>,
    /// Kernel of the convolution next to the transformer (decoder) or the audio (encoder).
    pub kernel_size: usize,
    /// Kernel of residual blocks.
    pub residual_kernel_size: usize,
    /// Kernel of the last convolution.
    pub last_kernel_size: usize,
    /// Dilation of residual block j is this to the power j.
    pub dilation_base: usize,
    /// What stands before the first row.
    pub pad_mode: PadMode,
    /// Residual blocks narrow by this factor.
    pub compress: usize,
}

/// The codec's transformer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodecTransformerConfig {
    /// Width.
    pub d_model: usize,
    /// Width of what comes in.
    pub input_dimension: usize,
    /// Widths of what goes out; one is supported.
    pub output_dimensions: Vec<usize>,
    /// Heads.
    pub num_heads: usize,
    /// Layers.
    pub num_layers: usize,
    /// Initial layer scale; the checkpoint holds the trained ones.
    pub layer_scale: f32,
    /// Attention window in positions.
    pub context: usize,
    /// Rotary period.
    #[serde(default = "default_period")]
    pub max_period: f32,
    /// Hidden width.
    pub dim_feedforward: usize,
}

fn default_period() -> f32 {
    10_000.0
}

impl CodecTransformerConfig {
    /// The layers' shape.
    pub(crate) fn layers(&self, format: Format, kv: KvFormat) -> TransformerConfig {
        TransformerConfig {
            d_model: self.d_model,
            heads: self.num_heads,
            kv_heads: self.num_heads,
            attn_dim: self.d_model,
            feedforward: self.dim_feedforward,
            layers: self.num_layers,
            window: Some(self.context),
            period: self.max_period,
            rope: RopeStyle::Interleaved,
            act: Activation::GeluTanh,
            eps: 1e-5,
            format,
            kv,
        }
    }

    /// Width of the output.
    pub(crate) fn output(&self) -> usize {
        self.output_dimensions.first().copied().unwrap_or(self.d_model)
    }
}

/// The projection from latents.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuantizerConfig {
    /// Latent width.
    pub dimension: usize,
    /// Width towards the decoder.
    pub output_dimension: usize,
}

/// All of Mimi.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MimiConfig {
    /// Type of the published weights; any is read.
    pub dtype: String,
    /// Samples per second.
    pub sample_rate: usize,
    /// Audio channels; one is supported.
    pub channels: usize,
    /// Latent frames per second.
    pub frame_rate: f64,
    /// Convolutions of the encoder, and of the decoder unless it has its own.
    pub seanet: SeanetConfig,
    /// Transformer of the encoder, and of the decoder unless it has its own.
    pub transformer: CodecTransformerConfig,
    /// Projection from latents.
    pub quantizer: QuantizerConfig,
    /// Separate weight file (older layouts).
    #[serde(default)]
    pub weights_path: Option<String>,
    /// Width of encoder latents; `seanet.dimension` when absent.
    #[serde(default)]
    pub inner_dim: Option<usize>,
    /// Width into the upsampling; the decoder's `dimension` when absent.
    #[serde(default)]
    pub outer_dim: Option<usize>,
    /// The decoder's own convolutions.
    #[serde(default)]
    pub decoder_seanet: Option<SeanetConfig>,
    /// The decoder's own transformer.
    #[serde(default)]
    pub decoder_transformer: Option<CodecTransformerConfig>,
}

impl MimiConfig {
    /// Convolutions of the decoder.
    pub fn decoder_seanet(&self) -> &SeanetConfig {
        self.decoder_seanet.as_ref().unwrap_or(&self.seanet)
    }

    /// Transformer of the decoder.
    pub fn decoder_transformer(&self) -> &CodecTransformerConfig {
        self.decoder_transformer.as_ref().unwrap_or(&self.transformer)
    }

    /// Samples per latent frame.
    pub fn frame_size(&self) -> usize {
        (self.sample_rate as f64 / self.frame_rate) as usize
    }

    /// Decoder positions per latent frame.
    pub fn positions_per_frame(&self) -> usize {
        self.frame_size() / self.seanet.hop().max(1)
    }

    /// What about this configuration cannot be run, if anything.
    pub fn problem(&self) -> Option<String> {
        let s = self.decoder_seanet();
        let t = self.decoder_transformer();
        let sizes =
            [self.sample_rate, s.dimension, s.n_filters, s.compress, s.kernel_size, t.d_model, t.num_heads];
        if sizes.contains(&0)
            || self.seanet.ratios.contains(&0)
            || s.ratios.contains(&0)
            || self.frame_rate <= 0.0
        {
            return Some("a size, ratio or rate is zero".into());
        }
        if self.channels != 1 || s.channels != 1 || self.seanet.channels != 1 {
            return Some(format!("{} audio channels: only mono is supported", self.channels));
        }
        let steps = self.positions_per_frame();
        if steps == 0
            || steps * self.seanet.hop() != self.frame_size()
            || steps * s.hop() != self.frame_size()
        {
            return Some(format!(
                "frames of {} samples are not a whole number of SEANet steps ({} encoder, {} decoder)",
                self.frame_size(),
                self.seanet.hop(),
                s.hop()
            ));
        }
        for t in [t, &self.transformer] {
            if !t.d_model.is_multiple_of(t.num_heads) || t.output_dimensions.len() != 1 || t.context == 0 {
                return Some(
                    "a codec transformer needs one output, heads that divide its width, and a context".into(),
                );
            }
            if !(t.d_model / t.num_heads).is_multiple_of(2) {
                return Some("codec transformer heads of an odd width cannot be rotated".into());
            }
        }
        let into = self.outer_dim.unwrap_or(s.dimension);
        if into != s.dimension
            || self.quantizer.output_dimension != into
            || t.input_dimension != s.dimension
            || t.output() != s.dimension
        {
            return Some(format!(
                "widths do not meet: quantizer {}, outer {into}, transformer {} to {}, SEANet {}",
                self.quantizer.output_dimension,
                t.input_dimension,
                t.output(),
                s.dimension
            ));
        }
        None
    }
}

impl SeanetConfig {
    /// Samples per position.
    pub fn hop(&self) -> usize {
        self.ratios.iter().product()
    }
}
