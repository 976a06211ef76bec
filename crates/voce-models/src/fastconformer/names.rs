//! One set of tensor names, NeMo's, whatever layout a checkpoint has.

use std::sync::Arc;

use voce_nn::weights::{Tensor, WeightError, Weights};

/// How a checkpoint names its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    Nemo,
    /// Hugging Face, subsampling as a numbered list.
    Parakeet,
    /// Hugging Face, subsampling in named parts.
    Nemotron,
}

/// A checkpoint seen under the canonical names.
struct Canonical {
    source: Arc<dyn Weights>,
    layout: Layout,
}

/// `source` under canonical names; its layout is told by the tensors it has.
pub fn canonical(source: Arc<dyn Weights>) -> Arc<dyn Weights> {
    let layout = if source.shape("encoder.subsampling.conv_in.weight").is_some() {
        Layout::Nemotron
    } else if source.shape("encoder.subsampling.linear.weight").is_some() {
        Layout::Parakeet
    } else {
        Layout::Nemo
    };
    Arc::new(Canonical { source, layout })
}

/// Beginnings that differ between NeMo's and Hugging Face's names.
const ROOTS: [(&str, &str); 9] = [
    ("encoder.pre_encode.out.", "encoder.subsampling.linear."),
    ("decoder.prediction.embed.", "decoder.embedding."),
    ("decoder.prediction.dec_rnn.lstm.", "decoder.lstm."),
    ("joint.enc.", "encoder_projector."),
    ("joint.pred.", "decoder.decoder_projector."),
    ("joint.joint_net.2.", "joint.head."),
    ("ctc_decoder.decoder_layers.0.", "ctc_head."),
    ("prompt_kernel.0.", "prompt_projector.linear_1."),
    ("prompt_kernel.2.", "prompt_projector.linear_2."),
];

/// Parts of a layer's names that differ.
const LAYER_PARTS: [(&str, &str); 8] = [
    (".self_attn.linear_q.", ".self_attn.q_proj."),
    (".self_attn.linear_k.", ".self_attn.k_proj."),
    (".self_attn.linear_v.", ".self_attn.v_proj."),
    (".self_attn.linear_out.", ".self_attn.o_proj."),
    (".self_attn.linear_pos.", ".self_attn.relative_k_proj."),
    (".self_attn.pos_bias_u", ".self_attn.bias_u"),
    (".self_attn.pos_bias_v", ".self_attn.bias_v"),
    (".conv.batch_norm.", ".conv.norm."),
];

fn hf_name(name: &str, layout: Layout) -> String {
    if let Some((index, tensor)) =
        name.strip_prefix("encoder.pre_encode.conv.").and_then(|n| n.split_once('.'))
    {
        return match (layout, index.parse::<usize>()) {
            (Layout::Nemotron, Ok(0)) => format!("encoder.subsampling.conv_in.{tensor}"),
            (Layout::Nemotron, Ok(i @ 2..)) if i % 3 != 1 => {
                let part = if i % 3 == 2 { "depthwise_conv" } else { "pointwise_conv" };
                format!("encoder.subsampling.layers.{}.{part}.{tensor}", (i - 2) / 3)
            }
            _ => format!("encoder.subsampling.layers.{index}.{tensor}"),
        };
    }
    for (canonical, published) in ROOTS {
        if let Some(tensor) = name.strip_prefix(canonical) {
            return format!("{published}{tensor}");
        }
    }
    match LAYER_PARTS.iter().find(|(canonical, _)| name.contains(canonical)) {
        Some((canonical, published)) => name.replacen(canonical, published, 1),
        None => name.to_owned(),
    }
}

/// The other name that NeMo may give a tensor: without dropout the joint's output has index 1, and a model with no
/// other decoder calls its CTC head `decoder`.
fn nemo_variant(name: &str) -> Option<String> {
    if let Some(tensor) = name.strip_prefix("joint.joint_net.2.") {
        return Some(format!("joint.joint_net.1.{tensor}"));
    }
    name.strip_prefix("ctc_decoder.").map(|rest| format!("decoder.{rest}"))
}

impl Canonical {
    /// The name that the checkpoint has for a tensor, if it has the tensor.
    fn published(&self, name: &str) -> Option<String> {
        let there = |name: &String| self.source.shape(name).is_some();
        match self.layout {
            Layout::Nemo => Some(name.to_owned()).filter(there).or_else(|| nemo_variant(name).filter(there)),
            layout => Some(hf_name(name, layout)).filter(there),
        }
    }
}

impl Weights for Canonical {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        match self.published(name) {
            Some(published) => self.source.get(&published, expected),
            None => Ok(None),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.published(name).and_then(|name| self.source.shape(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsampling_is_named_in_three_ways() {
        let names =
            |layout| [0, 2, 3, 5, 6].map(|i| hf_name(&format!("encoder.pre_encode.conv.{i}.weight"), layout));
        assert_eq!(
            names(Layout::Parakeet),
            [0, 2, 3, 5, 6].map(|i| format!("encoder.subsampling.layers.{i}.weight"))
        );
        assert_eq!(
            names(Layout::Nemotron),
            [
                "conv_in",
                "layers.0.depthwise_conv",
                "layers.0.pointwise_conv",
                "layers.1.depthwise_conv",
                "layers.1.pointwise_conv"
            ]
            .map(|part| format!("encoder.subsampling.{part}.weight"))
        );
    }

    #[test]
    fn layers_and_heads_are_renamed_and_the_rest_is_not() {
        for (canonical, published) in [
            (
                "encoder.layers.7.self_attn.linear_pos.weight",
                "encoder.layers.7.self_attn.relative_k_proj.weight",
            ),
            ("encoder.layers.7.self_attn.pos_bias_u", "encoder.layers.7.self_attn.bias_u"),
            ("encoder.layers.7.conv.batch_norm.running_var", "encoder.layers.7.conv.norm.running_var"),
            ("encoder.layers.7.norm_out.bias", "encoder.layers.7.norm_out.bias"),
            ("decoder.prediction.dec_rnn.lstm.bias_hh_l1", "decoder.lstm.bias_hh_l1"),
            ("joint.joint_net.2.bias", "joint.head.bias"),
            ("prompt_kernel.2.weight", "prompt_projector.linear_2.weight"),
        ] {
            assert_eq!(hf_name(canonical, Layout::Nemotron), published);
        }
    }

    #[test]
    fn nemo_has_two_names_for_two_heads() {
        assert_eq!(nemo_variant("joint.joint_net.2.bias").as_deref(), Some("joint.joint_net.1.bias"));
        assert_eq!(
            nemo_variant("ctc_decoder.decoder_layers.0.bias").as_deref(),
            Some("decoder.decoder_layers.0.bias")
        );
        assert_eq!(nemo_variant("joint.enc.bias"), None);
    }
}
