//! Kyutai's Mimi: its configuration as the `moshi` package writes it, or as the shapes of its tensors tell it.

use serde::Deserialize;
use serde_json::Value;
use voce_nn::{Loader, TransformerConfig};
use voce_runtime::{Activation, Format, KvFormat, MAX_SAMPLED, RopeStyle};

use super::config::{CodecTransformerConfig, PadMode, SeanetConfig};

/// The largest of any size in a configuration: far above the published ones.
pub const MAX_MIMI_SIZE: usize = 1 << 16;
/// Layers and codebooks at most.
const MAX_COUNT: usize = 256;
/// Stages of a SEANet at most.
const MAX_STAGES: usize = 64;
/// Published numbers that no tensor's shape tells.
const SAMPLE_RATE: usize = 24_000;
const HEADS: usize = 8;
const CONTEXT: usize = 250;
const PERIOD: f32 = 10_000.0;
const DILATION_BASE: usize = 2;

/// Sizes of the split residual quantiser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitQuantizerConfig {
    /// Width of the entries.
    pub dimension: usize,
    /// Codebooks in all.
    pub n_q: usize,
    /// Codebooks of the first part, which is quantised by itself.
    pub first: usize,
    /// Entries of a codebook.
    pub bins: usize,
    /// Width of what is quantised.
    pub input_dimension: usize,
    /// Width of what codes become.
    pub output_dimension: usize,
}

/// All of Kyutai's Mimi.
#[derive(Clone, Debug, PartialEq)]
pub struct KyutaiMimiConfig {
    /// Samples per second.
    pub sample_rate: usize,
    /// Frames of codes per second.
    pub frame_rate: f64,
    /// Convolutions of both halves.
    pub seanet: SeanetConfig,
    /// Transformer of both halves.
    pub transformer: CodecTransformerConfig,
    /// The quantiser.
    pub quantizer: SplitQuantizerConfig,
}

/// A configuration that cannot be run, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this Mimi cannot be run: {0}")]
pub struct MimiConfigError(pub String);

type Result<T> = std::result::Result<T, MimiConfigError>;

fn bad<T>(what: impl Into<String>) -> Result<T> {
    Err(MimiConfigError(what.into()))
}

/// The published keys that a run has to know; others are looked at by [`refuse_others`].
#[derive(Deserialize)]
struct Published {
    sample_rate: usize,
    channels: usize,
    frame_rate: f64,
    seanet: PublishedSeanet,
    transformer: PublishedTransformer,
    quantizer: PublishedQuantizer,
}

#[derive(Deserialize)]
struct PublishedSeanet {
    dimension: usize,
    channels: usize,
    n_filters: usize,
    n_residual_layers: usize,
    ratios: Vec<usize>,
    kernel_size: usize,
    residual_kernel_size: usize,
    last_kernel_size: usize,
    dilation_base: usize,
    compress: usize,
    pad_mode: PadMode,
}

#[derive(Deserialize)]
struct PublishedTransformer {
    d_model: usize,
    num_heads: usize,
    num_layers: usize,
    context: usize,
    max_period: f32,
    dim_feedforward: usize,
    input_dimension: usize,
    output_dimensions: Vec<usize>,
}

#[derive(Deserialize)]
struct PublishedQuantizer {
    dimension: usize,
    n_q: usize,
    bins: usize,
    input_dimension: usize,
    output_dimension: usize,
    #[serde(default = "one")]
    n_q_semantic: usize,
}

fn one() -> usize {
    1
}

/// Refuses variants of the network that the package knows and no published file uses.
fn refuse_others(json: &Value) -> Result<()> {
    let only: [(&str, &str, Value); 9] = [
        ("seanet", "activation", "ELU".into()),
        ("seanet", "causal", true.into()),
        ("seanet", "norm", "none".into()),
        ("seanet", "true_skip", true.into()),
        ("transformer", "causal", true.into()),
        ("transformer", "gating", "none".into()),
        ("transformer", "norm", "layer_norm".into()),
        ("transformer", "positional_embedding", "rope".into()),
        ("transformer", "kv_repeat", 1.into()),
    ];
    for (part, key, wanted) in only {
        if let Some(got) = json.get(part).and_then(|p| p.get(key))
            && *got != wanted
        {
            return bad(format!("its {part} has {key} {got}, and only {wanted} is supported"));
        }
    }
    Ok(())
}

impl KyutaiMimiConfig {
    /// Reads a configuration as the package has it.
    pub fn from_json(text: &str) -> Result<Self> {
        let json: Value = serde_json::from_str(text).map_err(|e| MimiConfigError(e.to_string()))?;
        refuse_others(&json)?;
        let p: Published = serde_json::from_value(json).map_err(|e| MimiConfigError(e.to_string()))?;
        if p.channels != 1 || p.seanet.channels != 1 {
            return bad(format!("{} audio channels: only mono is supported", p.channels));
        }
        let (s, t, q) = (p.seanet, p.transformer, p.quantizer);
        let config = Self {
            sample_rate: p.sample_rate,
            frame_rate: p.frame_rate,
            seanet: SeanetConfig {
                dimension: s.dimension,
                channels: 1,
                n_filters: s.n_filters,
                n_residual_layers: s.n_residual_layers,
                ratios: s.ratios,
                kernel_size: s.kernel_size,
                residual_kernel_size: s.residual_kernel_size,
                last_kernel_size: s.last_kernel_size,
                dilation_base: s.dilation_base,
                pad_mode: s.pad_mode,
                compress: s.compress,
            },
            transformer: CodecTransformerConfig {
                d_model: t.d_model,
                input_dimension: t.input_dimension,
                output_dimensions: t.output_dimensions,
                num_heads: t.num_heads,
                num_layers: t.num_layers,
                layer_scale: 1.0,
                context: t.context,
                max_period: t.max_period,
                dim_feedforward: t.dim_feedforward,
            },
            quantizer: SplitQuantizerConfig {
                dimension: q.dimension,
                n_q: q.n_q,
                first: q.n_q_semantic,
                bins: q.bins,
                input_dimension: q.input_dimension,
                output_dimension: q.output_dimension,
            },
        };
        config.check()?;
        Ok(config)
    }

    /// The published codec.
    pub fn published() -> Self {
        let width = 512;
        Self {
            sample_rate: SAMPLE_RATE,
            frame_rate: 12.5,
            seanet: SeanetConfig {
                dimension: width,
                channels: 1,
                n_filters: 64,
                n_residual_layers: 1,
                ratios: vec![8, 6, 5, 4],
                kernel_size: 7,
                residual_kernel_size: 3,
                last_kernel_size: 3,
                dilation_base: DILATION_BASE,
                pad_mode: PadMode::Constant,
                compress: 2,
            },
            transformer: CodecTransformerConfig {
                d_model: width,
                input_dimension: width,
                output_dimensions: vec![width],
                num_heads: HEADS,
                num_layers: 8,
                layer_scale: 0.01,
                context: CONTEXT,
                max_period: PERIOD,
                dim_feedforward: 2048,
            },
            quantizer: SplitQuantizerConfig {
                dimension: 256,
                n_q: 32,
                first: 1,
                bins: 2048,
                input_dimension: width,
                output_dimension: width,
            },
        }
    }

    /// What the shapes of a file's tensors say, which comes without a configuration; `l` knows them by
    /// [`super::published`]'s names. Heads, context, rotation and rates are those of the published codec.
    pub fn from_tensors(l: &Loader) -> Result<Self> {
        let shape = |name: &str, rank: usize| match l.shape(name) {
            Some(s) if s.len() == rank => Ok(s),
            Some(s) => bad(format!("tensor '{name}' has shape {s:?}")),
            None => bad(format!("tensor '{name}' is missing: is this a file of Mimi?")),
        };
        let conv = |i: usize| l.shape(&format!("encoder.model.{i}.conv.weight")).filter(|s| s.len() == 3);
        let convs: Vec<Vec<usize>> = (0..MAX_STAGES).filter_map(conv).collect();
        let [first, strides @ .., last] = &convs[..] else {
            return bad("it has no 'encoder.model.N.conv' tensors: is this a file of Mimi?");
        };
        let block = |i: usize| l.shape(&format!("encoder.model.{i}.block.1.conv.weight"));
        let blocks: Vec<Vec<usize>> = (0..MAX_STAGES).filter_map(block).filter(|s| s.len() == 3).collect();
        let width = last[0];
        let transformer = "encoder_transformer.transformer.layers";
        let count = |name: &dyn Fn(usize) -> String| (0..MAX_COUNT).take_while(|&i| l.has(&name(i))).count();
        let layers = count(&|i| format!("{transformer}.{i}.norm1.weight"));
        let steps = l.shape("downsample.conv.conv.weight").map_or(1, |s| s.last().map_or(1, |k| k / 2));
        let ratios: Vec<usize> = strides.iter().rev().map(|s| s[2] / 2).collect();
        let hop: usize = ratios.iter().product();
        let books =
            |part: &str| count(&|i| format!("quantizer.{part}.vq.layers.{i}._codebook.embedding_sum"));
        let entries = shape("quantizer.rvq_first.vq.layers.0._codebook.embedding_sum", 2)?;
        let side =
            |name: &str| l.shape(&format!("quantizer.rvq_first.{name}.weight")).filter(|s| s.len() == 3);
        let d_model = shape(&format!("{transformer}.0.norm1.weight"), 1)?[0];
        let config = Self {
            sample_rate: SAMPLE_RATE,
            frame_rate: SAMPLE_RATE as f64 / (hop * steps).max(1) as f64,
            seanet: SeanetConfig {
                dimension: width,
                channels: first[1],
                n_filters: first[0],
                n_residual_layers: blocks.len() / strides.len().max(1),
                ratios,
                kernel_size: first[2],
                residual_kernel_size: blocks.first().map_or(3, |s| s[2]),
                last_kernel_size: last[2],
                dilation_base: DILATION_BASE,
                pad_mode: PadMode::Constant,
                compress: blocks.first().map_or(2, |s| s[1] / s[0].max(1)),
            },
            transformer: CodecTransformerConfig {
                d_model,
                input_dimension: width,
                output_dimensions: vec![width],
                num_heads: HEADS,
                num_layers: layers,
                layer_scale: 1.0,
                context: CONTEXT,
                max_period: PERIOD,
                dim_feedforward: shape(&format!("{transformer}.0.linear1.weight"), 2)?[0],
            },
            quantizer: SplitQuantizerConfig {
                dimension: entries[1],
                n_q: books("rvq_first") + books("rvq_rest"),
                first: books("rvq_first"),
                bins: entries[0],
                input_dimension: side("input_proj").map_or(width, |s| s[1]),
                output_dimension: side("output_proj").map_or(width, |s| s[0]),
            },
        };
        config.check()?;
        Ok(config)
    }

    /// Samples of a frame.
    pub fn frame_size(&self) -> usize {
        (self.sample_rate as f64 / self.frame_rate) as usize
    }

    /// Positions of a frame in the transformers.
    pub fn steps(&self) -> usize {
        self.frame_size() / self.seanet.hop().max(1)
    }

    /// Layers of either transformer.
    pub(super) fn layers(&self, format: Format, kv: KvFormat) -> TransformerConfig {
        let t = &self.transformer;
        TransformerConfig {
            d_model: t.d_model,
            heads: t.num_heads,
            kv_heads: t.num_heads,
            attn_dim: t.d_model,
            feedforward: t.dim_feedforward,
            layers: t.num_layers,
            window: Some(t.context),
            period: t.max_period,
            rope: RopeStyle::Interleaved,
            act: Activation::GeluErf,
            eps: 1e-5,
            format,
            kv,
        }
    }

    fn check(&self) -> Result<()> {
        let (s, t, q) = (&self.seanet, &self.transformer, &self.quantizer);
        let sizes = [
            s.dimension,
            s.n_filters,
            s.kernel_size,
            s.residual_kernel_size,
            s.last_kernel_size,
            s.compress,
            t.d_model,
            t.num_heads,
            t.dim_feedforward,
            t.context,
            q.dimension,
            q.bins,
        ];
        if sizes.iter().chain(&s.ratios).any(|n| !(1..=MAX_MIMI_SIZE).contains(n)) {
            return bad(format!("a size is zero or above {MAX_MIMI_SIZE}"));
        }
        let counts = [t.num_layers, q.n_q, s.ratios.len()];
        if counts.iter().any(|n| !(1..=MAX_COUNT).contains(n)) || s.n_residual_layers > MAX_STAGES {
            return bad("it has no layers, codebooks or rates, or too many of them");
        }
        let hop = s.ratios.iter().try_fold(1usize, |all, r| all.checked_mul(*r)).unwrap_or(usize::MAX);
        let wide = s.n_filters.checked_shl(s.ratios.len() as u32).unwrap_or(usize::MAX);
        if hop > MAX_MIMI_SIZE
            || wide > MAX_MIMI_SIZE
            || s.dilation_base.checked_pow(s.n_residual_layers as u32).is_none()
        {
            return bad("its convolutions are too wide or too long");
        }
        let in_range = self.frame_rate > 0.0 && (1..=1 << 20).contains(&self.sample_rate);
        if !in_range
            || self.frame_size() > MAX_MIMI_SIZE
            || self.frame_size() != self.steps() * hop
            || self.steps() == 0
        {
            return bad(format!(
                "frames at {} Hz of {} samples per second are not a whole number of {hop} samples",
                self.frame_rate, self.sample_rate
            ));
        }
        if s.n_filters < s.compress || s.channels != 1 {
            return bad("it narrows residual blocks to nothing, or is not mono");
        }
        if !t.d_model.is_multiple_of(t.num_heads) || !(t.d_model / t.num_heads).is_multiple_of(2) {
            return bad(format!(
                "{} heads do not divide a width of {} evenly: where the published 8 are not meant, \
                 give a mimi_config.json beside the file",
                t.num_heads, t.d_model
            ));
        }
        if t.d_model != s.dimension
            || t.input_dimension != s.dimension
            || t.output_dimensions != [s.dimension]
        {
            return bad("its transformers are not as wide as its convolutions");
        }
        if t.context < self.steps() {
            return bad("its context is shorter than a frame");
        }
        if q.first == 0 || q.first > q.n_q || q.bins > MAX_SAMPLED {
            return bad(format!("codebooks of 1 to {MAX_SAMPLED} entries, the first of them by themselves"));
        }
        if q.input_dimension != s.dimension || q.output_dimension != s.dimension {
            return bad("its quantiser is not as wide as its convolutions");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json() -> Value {
        serde_json::json!({
            "sample_rate": 24000, "channels": 1, "frame_rate": 12.5,
            "seanet": {"channels": 1, "dimension": 512, "causal": true, "n_filters": 64, "n_residual_layers": 1,
                "activation": "ELU", "compress": 2, "dilation_base": 2, "disable_norm_outer_blocks": 0,
                "kernel_size": 7, "residual_kernel_size": 3, "last_kernel_size": 3, "norm": "none",
                "pad_mode": "constant", "ratios": [8, 6, 5, 4], "true_skip": true},
            "quantizer": {"dimension": 256, "n_q": 32, "bins": 2048, "input_dimension": 512, "output_dimension": 512},
            "transformer": {"d_model": 512, "num_heads": 8, "num_layers": 8, "causal": true, "layer_scale": 0.01,
                "context": 250, "conv_layout": true, "max_period": 10000, "gating": "none", "norm": "layer_norm",
                "positional_embedding": "rope", "dim_feedforward": 2048, "input_dimension": 512,
                "output_dimensions": [512]},
        })
    }

    #[test]
    fn the_packages_own_configuration_is_the_published_codec() {
        let mut config = KyutaiMimiConfig::from_json(&json().to_string()).unwrap();
        config.transformer.layer_scale = 0.01;
        assert_eq!(config, KyutaiMimiConfig::published());
        assert_eq!((config.frame_size(), config.steps()), (1920, 2));
    }

    #[test]
    fn what_cannot_be_run_is_named() {
        let with = |part: &str, key: &str, value: Value| {
            let mut json = json();
            if part.is_empty() {
                json[key] = value;
            } else {
                json[part][key] = value;
            }
            KyutaiMimiConfig::from_json(&json.to_string()).unwrap_err().to_string()
        };
        for (part, key, value, says) in [
            ("seanet", "activation", "GELU".into(), "activation"),
            ("seanet", "norm", "weight_norm".into(), "norm"),
            ("transformer", "gating", "silu".into(), "gating"),
            ("transformer", "num_heads", 7.into(), "heads"),
            ("transformer", "context", 1.into(), "context"),
            ("", "frame_rate", 12.4.into(), "frames"),
            ("", "channels", 2.into(), "mono"),
            ("seanet", "n_filters", 0.into(), "zero"),
            ("quantizer", "n_q", 0.into(), "codebooks"),
            ("quantizer", "bins", (MAX_SAMPLED + 1).into(), "entries"),
            ("quantizer", "input_dimension", 256.into(), "quantiser"),
        ] {
            let error = with(part, key, value);
            assert!(error.contains(says), "{key}: {error}");
        }
        assert!(KyutaiMimiConfig::from_json("{").is_err());
    }
}
