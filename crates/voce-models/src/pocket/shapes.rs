//! The published sizes by name, for runs on random weights.

use std::str::FromStr;
use std::sync::Arc;

use voce_nn::Weights;
use voce_nn::weights::{RandomWeights, Tensor};

use super::config::PocketConfig;

/// A published size of the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// 6 layers, 100M parameters.
    Pocket100m,
    /// 24 layers, 300M parameters.
    Pocket24l,
    /// 18M parameters.
    Pocket18m,
    /// 7M parameters.
    Pocket7m,
    /// 2M parameters.
    Pocket2m,
}

/// A shape name that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown shape '{0}': use pocket-100m, pocket-24l, pocket-18m, pocket-7m or pocket-2m")]
pub struct UnknownShape(String);

impl Shape {
    /// Every shape, largest first.
    pub const ALL: [Shape; 5] =
        [Shape::Pocket24l, Shape::Pocket100m, Shape::Pocket18m, Shape::Pocket7m, Shape::Pocket2m];

    /// The name used in flags.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Pocket100m => "pocket-100m",
            Shape::Pocket24l => "pocket-24l",
            Shape::Pocket18m => "pocket-18m",
            Shape::Pocket7m => "pocket-7m",
            Shape::Pocket2m => "pocket-2m",
        }
    }

    /// Its configuration.
    pub fn config(self) -> PocketConfig {
        let big = matches!(self, Shape::Pocket100m | Shape::Pocket24l);
        let backbone = match self {
            Shape::Pocket100m => "d_model: 1024, hidden_scale: 4, num_heads: 16, num_layers: 6",
            Shape::Pocket24l => "d_model: 1024, hidden_scale: 4, num_heads: 16, num_layers: 24",
            Shape::Pocket18m => "d_model: 512, hidden_scale: 1, num_heads: 8, num_layers: 8",
            Shape::Pocket7m => {
                "d_model: 224, hidden_scale: 1, num_heads: 8, num_layers: 8, attn_dim: 512, num_kv_heads: 2"
            }
            Shape::Pocket2m => {
                "d_model: 112, hidden_scale: 1, num_heads: 3, num_layers: 8, attn_dim: 192, num_kv_heads: 1, dim_feedforward: 96"
            }
        };
        let flow = match self {
            Shape::Pocket100m | Shape::Pocket24l => "depth: 6, dim: 512",
            Shape::Pocket18m | Shape::Pocket7m => "depth: 4, dim: 192, type: drifting",
            Shape::Pocket2m => "depth: 4, dim: 64, type: pointwise",
        };
        let table = match self {
            Shape::Pocket100m | Shape::Pocket24l => "dim: 1024",
            Shape::Pocket18m => "dim: 512",
            Shape::Pocket7m => "dim: 224, rank: 64",
            Shape::Pocket2m => "dim: 112, rank: 32",
        };
        let (layers, filters) = if self == Shape::Pocket2m { (4, 24) } else { (12, 32) };
        let width = if big { 512 } else { 128 };
        let z = if big { "" } else { "z_dim: 64, " };
        let own_decoder = format!(
            "decoder_seanet: {{dimension: 128, channels: 1, n_filters: {filters}, n_residual_layers: 1, ratios: [6, 5, 4], \
             kernel_size: 3, residual_kernel_size: 3, last_kernel_size: 3, dilation_base: 2, pad_mode: constant, compress: 2}}, \
             decoder_transformer: {{d_model: 128, num_heads: 4, num_layers: {layers}, layer_scale: 0.01, context: 50, \
             dim_feedforward: 384, input_dimension: 128, output_dimensions: [128]}}, "
        );
        let own_decoder = if big { "" } else { &own_decoder };
        let yaml = format!(
            "{{flow_lm: {{dtype: float32, insert_bos_before_voice: true, {z}flow: {{{flow}}}, \
             transformer: {{{backbone}, max_period: 10000}}, \
             lookup_table: {{{table}, n_bins: 4000, tokenizer: tokenizers, tokenizer_path: none}}}}, \
             mimi: {{dtype: float32, sample_rate: 24000, inner_dim: 32, outer_dim: {width}, channels: 1, frame_rate: 12.5, {own_decoder}\
             seanet: {{dimension: 512, channels: 1, n_filters: 64, n_residual_layers: 1, ratios: [6, 5, 4], kernel_size: 7, \
             residual_kernel_size: 3, last_kernel_size: 3, dilation_base: 2, pad_mode: constant, compress: 2}}, \
             transformer: {{d_model: 512, num_heads: 8, num_layers: 2, layer_scale: 0.01, context: 250, dim_feedforward: 2048, \
             input_dimension: 512, output_dimensions: [512]}}, quantizer: {{dimension: 32, output_dimension: {width}}}}}}}"
        );
        PocketConfig::from_yaml(&yaml).expect("the built-in shapes are valid")
    }

    /// Weights of this shape that never say they are done.
    pub fn weights(self, seed: u64) -> Arc<dyn Weights> {
        // The biases and scales that published checkpoints have.
        let has = |name: &str| {
            let biased =
                ["flow_net", "out_eos", "norm", "coder.model"].iter().any(|part| name.contains(part));
            if name.ends_with("bias") { biased } else { !name.starts_with("flow_lm.transformer") }
        };
        Arc::new(NeverEnds(RandomWeights::new(seed, has)))
    }
}

struct NeverEnds(RandomWeights);

impl Weights for NeverEnds {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, voce_nn::WeightError> {
        let mut tensor = self.0.get(name, expected)?;
        if let Some(t) = &mut tensor {
            if name == "flow_lm.out_eos.bias" {
                t.values.fill(-1e4);
            }
            if name.ends_with("layer_scale_1.scale") || name.ends_with("layer_scale_2.scale") {
                t.values.fill(0.01);
            }
        }
        Ok(tensor)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name)
    }
}

impl FromStr for Shape {
    type Err = UnknownShape;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Shape::ALL.into_iter().find(|x| x.name() == s).ok_or_else(|| UnknownShape(s.to_owned()))
    }
}
