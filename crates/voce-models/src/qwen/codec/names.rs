//! The encoder's tensors under the names that Mimi's encoder is loaded by.

use std::sync::Arc;

use voce_nn::weights::{Tensor, Weights};
use voce_nn::{Loader, WeightError};

/// A Mimi encoder as transformers names it, seen under Mimi's own names.
pub(super) struct TransformersNames {
    /// At `encoder.`.
    l: Loader,
}

impl TransformersNames {
    /// The encoder's tensors of a speech tokenizer.
    pub(super) fn over(l: &Loader) -> Arc<dyn Weights> {
        Arc::new(Self { l: l.sub("encoder") })
    }
}

/// The name or, of what is one tensor in Mimi and several here, the names.
fn names(name: &str) -> Vec<String> {
    if let Some(rest) = name.strip_prefix("encoder.model.") {
        return vec![format!("encoder.layers.{rest}")];
    }
    if let Some(rest) = name.strip_prefix("downsample.conv.") {
        return vec![format!("downsample.{rest}")];
    }
    let Some(rest) = name.strip_prefix("encoder_transformer.transformer.layers.") else { return Vec::new() };
    let Some((layer, part)) = rest.split_once('.') else { return Vec::new() };
    if let Some(what) = part.strip_prefix("self_attn.in_proj.") {
        let of = |p| format!("encoder_transformer.layers.{layer}.self_attn.{p}_proj.{what}");
        return ["q", "k", "v"].map(of).into();
    }
    let (module, what) = part.rsplit_once('.').unwrap_or((part, ""));
    let module = match module {
        "norm1" => "input_layernorm",
        "norm2" => "post_attention_layernorm",
        "self_attn.out_proj" => "self_attn.o_proj",
        "layer_scale_1" => "self_attn_layer_scale",
        "layer_scale_2" => "mlp_layer_scale",
        "linear1" => "mlp.fc1",
        "linear2" => "mlp.fc2",
        _ => return Vec::new(),
    };
    vec![format!("encoder_transformer.layers.{layer}.{module}.{what}")]
}

impl Weights for TransformersNames {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let names = names(name);
        if names.is_empty() || !names.iter().all(|n| self.l.has(n)) {
            return Ok(None);
        }
        let mut joined = Tensor { shape: expected.to_vec(), values: Vec::new() };
        for n in &names {
            let shape = self.l.shape(n).filter(|s| !s.is_empty()).unwrap_or_else(|| {
                // Weights that are made up have the shape that is asked for: equal parts of it.
                let mut shape = expected.to_vec();
                shape.iter_mut().take(1).for_each(|rows| *rows /= names.len());
                shape
            });
            joined.values.append(&mut self.l.tensor(n, &shape)?);
            if names.len() == 1 {
                joined.shape = shape;
            }
        }
        if joined.values.len() != joined.shape.iter().product::<usize>() {
            joined.shape = vec![joined.values.len()];
        }
        Ok(Some(joined))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        let names = names(name);
        let mut shapes = names.iter().map(|n| self.l.shape(n));
        let mut first = shapes.next()??;
        for shape in shapes {
            if let (Some(rows), Some(more)) = (first.first_mut(), shape?.first()) {
                *rows += more;
            }
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_mimi_has_its_counterpart() {
        for (mimi, here) in [
            ("encoder.model.0.conv.weight", "encoder.layers.0.conv.weight"),
            ("encoder.model.4.block.1.conv.bias", "encoder.layers.4.block.1.conv.bias"),
            ("downsample.conv.conv.weight", "downsample.conv.weight"),
            (
                "encoder_transformer.transformer.layers.3.norm2.bias",
                "encoder_transformer.layers.3.post_attention_layernorm.bias",
            ),
            (
                "encoder_transformer.transformer.layers.3.layer_scale_2.scale",
                "encoder_transformer.layers.3.mlp_layer_scale.scale",
            ),
        ] {
            assert_eq!(names(mimi), [here]);
        }
        assert_eq!(names("encoder_transformer.transformer.layers.1.self_attn.in_proj.weight").len(), 3);
        assert!(names("quantizer.output_proj.weight").is_empty());
    }
}
