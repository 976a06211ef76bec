//! The encoder's part of a NeMo configuration: contexts, convolutions, subsampling.

use serde::Deserialize;

use super::check::ConfigError;
use super::config::{Attention, ConvNorm, EncoderConfig};

#[derive(Deserialize)]
pub(super) struct Encoder {
    #[serde(default, rename = "_target_")]
    class: Option<String>,
    #[serde(default)]
    feat_in: Option<usize>,
    #[serde(default)]
    feat_out: Option<i64>,
    n_layers: usize,
    d_model: usize,
    n_heads: usize,
    #[serde(default)]
    ff_expansion_factor: Option<usize>,
    #[serde(default)]
    subsampling: Option<String>,
    #[serde(default)]
    subsampling_factor: Option<usize>,
    #[serde(default)]
    subsampling_conv_channels: Option<i64>,
    #[serde(default)]
    causal_downsampling: Option<bool>,
    #[serde(default)]
    reduction: Option<String>,
    #[serde(default)]
    self_attention_model: Option<String>,
    #[serde(default)]
    att_context_size: Option<Contexts>,
    #[serde(default)]
    att_context_style: Option<String>,
    #[serde(default)]
    xscaling: Option<bool>,
    #[serde(default)]
    conv_kernel_size: Option<usize>,
    #[serde(default)]
    conv_norm_type: Option<String>,
    #[serde(default)]
    conv_context_size: Option<ConvContext>,
    #[serde(default)]
    conv_context_style: Option<String>,
    #[serde(default)]
    global_tokens: Option<usize>,
}

/// One pair of left and right context, or several to choose from.
#[derive(Deserialize)]
#[serde(untagged)]
enum Contexts {
    One(Vec<i64>),
    Many(Vec<Vec<i64>>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ConvContext {
    Named(String),
    Pair(Vec<i64>),
}

impl Encoder {
    /// The encoder, for `bins` mel bins.
    pub(super) fn read(&self, bins: usize) -> Result<EncoderConfig, ConfigError> {
        let class = self.class.as_deref().map_or("ConformerEncoder", |c| c.rsplit('.').next().unwrap_or(c));
        if class != "ConformerEncoder" {
            return Err(ConfigError::unsupported("encoder", class, "ConformerEncoder"));
        }
        if self.feat_in.is_some_and(|n| n != bins) {
            let inputs = self.feat_in.unwrap_or_default();
            return Err(ConfigError::Bad(format!(
                "the encoder takes {inputs} mel bins, the front end makes {bins}"
            )));
        }
        if self.feat_out.is_some_and(|n| n > 0 && n != self.d_model as i64) {
            let outputs = self.feat_out.unwrap_or_default();
            return Err(ConfigError::unsupported("feat_out", outputs, "-1 or d_model"));
        }
        let subsampling = self.subsampling.as_deref().unwrap_or("striding");
        if subsampling != "dw_striding" {
            return Err(ConfigError::unsupported("subsampling", subsampling, "dw_striding"));
        }
        if let Some(reduction) = &self.reduction {
            return Err(ConfigError::unsupported("reduction", reduction, "none"));
        }
        let attention = self.self_attention_model.as_deref().unwrap_or("rel_pos");
        if attention != "rel_pos" {
            return Err(ConfigError::unsupported("self_attention_model", attention, "rel_pos"));
        }
        if self.global_tokens.unwrap_or(0) > 0 {
            return Err(ConfigError::unsupported("global_tokens", self.global_tokens.unwrap_or(0), "0"));
        }
        let conv_kernel = self.conv_kernel_size.unwrap_or(31);
        let causal = self.causal_downsampling.unwrap_or(false);
        if self.causal_conv(conv_kernel)? != causal {
            return Err(ConfigError::unsupported(
                "conv_context_size",
                format!("with causal_downsampling {causal}"),
                "both causal or neither",
            ));
        }
        let channels = match self.subsampling_conv_channels {
            None | Some(-1) => self.d_model,
            Some(n) => usize::try_from(n).unwrap_or(0),
        };
        let expansion = self.ff_expansion_factor.unwrap_or(4);
        let Some(ff_dim) = self.d_model.checked_mul(expansion) else {
            return Err(ConfigError::Bad(format!("ff_expansion_factor is {expansion}")));
        };
        Ok(EncoderConfig {
            layers: self.n_layers,
            dim: self.d_model,
            heads: self.n_heads,
            ff_dim,
            conv_kernel,
            conv_norm: self.conv_norm()?,
            subsampling_channels: channels,
            subsampling_factor: self.subsampling_factor.unwrap_or(4),
            causal,
            scale_input: self.xscaling.unwrap_or(true),
            attention: self.attention()?,
        })
    }

    fn conv_norm(&self) -> Result<ConvNorm, ConfigError> {
        match self.conv_norm_type.as_deref().unwrap_or("batch_norm") {
            "batch_norm" => Ok(ConvNorm::Batch),
            "layer_norm" => Ok(ConvNorm::Layer),
            other => Err(ConfigError::unsupported("conv_norm_type", other, "batch_norm, layer_norm")),
        }
    }

    /// Whether the convolutions of the layers see the past only.
    fn causal_conv(&self, kernel: usize) -> Result<bool, ConfigError> {
        let style = self.conv_context_style.as_deref().unwrap_or("regular");
        if style != "regular" {
            return Err(ConfigError::unsupported("conv_context_style", style, "regular"));
        }
        let kernel = kernel as i64;
        match &self.conv_context_size {
            None => Ok(false),
            Some(ConvContext::Named(name)) if name == "causal" => Ok(true),
            Some(ConvContext::Pair(pair)) if pair[..] == [kernel - 1, 0] => Ok(true),
            Some(ConvContext::Pair(pair)) if pair[..] == [(kernel - 1) / 2, (kernel - 1) / 2] => Ok(false),
            Some(ConvContext::Named(other)) => {
                Err(ConfigError::unsupported("conv_context_size", other, "causal, or centred"))
            }
            Some(ConvContext::Pair(other)) => {
                Err(ConfigError::unsupported("conv_context_size", format!("{other:?}"), "causal, or centred"))
            }
        }
    }

    fn attention(&self) -> Result<Attention, ConfigError> {
        let contexts = match &self.att_context_size {
            None => vec![],
            Some(Contexts::One(pair)) if pair.is_empty() => vec![],
            Some(Contexts::One(pair)) => vec![pair.clone()],
            Some(Contexts::Many(pairs)) => pairs.clone(),
        };
        let mut pairs = Vec::with_capacity(contexts.len());
        for context in &contexts {
            let [left, right] = context[..] else {
                let text = format!("{context:?}");
                return Err(ConfigError::unsupported("att_context_size", text, "[left, right]"));
            };
            pairs.push((left, right));
        }
        let bad = |left: i64, right: i64, supported| {
            Err(ConfigError::unsupported("att_context_size", format!("[{left}, {right}]"), supported))
        };
        match self.att_context_style.as_deref().unwrap_or("regular") {
            "regular" => match pairs.iter().find(|pair| **pair != (-1, -1)) {
                Some(&(left, right)) => bad(left, right, "[-1, -1] with style regular"),
                None => Ok(Attention::Full),
            },
            "chunked_limited" => {
                // A pair without limits is the same model's offline form.
                pairs.retain(|&(left, right)| left != -1 || right != -1);
                let Some(&(left, _)) = pairs.first() else { return Ok(Attention::Full) };
                let mut look_aheads = Vec::with_capacity(pairs.len());
                for (l, right) in pairs {
                    match usize::try_from(right) {
                        Ok(ahead) if l == left && l > 0 => look_aheads.push(ahead),
                        _ => return bad(l, right, "a limited context, the same to the left in all pairs"),
                    }
                }
                Ok(Attention::Chunked { left: usize::try_from(left).unwrap_or(0), look_aheads })
            }
            other => Err(ConfigError::unsupported("att_context_style", other, "regular, chunked_limited")),
        }
    }
}
