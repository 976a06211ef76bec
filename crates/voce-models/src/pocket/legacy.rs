//! The older layout: language model and codec in two files with other names and weight norm.

use voce_nn::WeightError;
use voce_nn::weights::{Tensor, Weights};

/// Two sources seen as one under the names of the current layout.
pub struct SeparateFiles<A, B> {
    /// The language model's file.
    pub flow_lm: A,
    /// The codec's file.
    pub mimi: B,
}

/// Older name of a `flow_lm.` tensor, where it differs.
fn flow_lm_name(name: &str) -> String {
    match name {
        "conditioner.embed.weight" => {
            "condition_provider.conditioners.transcript_in_segment.embed.weight".into()
        }
        "speaker_proj_weight" => "condition_provider.conditioners.speaker_wavs.output_proj.weight".into(),
        "bos_before_voice" => "fuser.padding_value".into(),
        _ => name.replace(".self_attn.in_proj.weight", ".self_attn.in_proj_weight"),
    }
}

/// Older names that a `mimi.` tensor may have.
fn mimi_names(name: &str) -> Vec<String> {
    let name = name.replace("in_proj.weight", "in_proj_weight");
    let nested = match name.rsplit_once(".conv.") {
        Some((head, tail)) => format!("{head}.conv.conv.{tail}"),
        None => match name.rsplit_once(".convtr.") {
            Some((head, tail)) => format!("{head}.convtr.convtr.{tail}"),
            None => name.clone(),
        },
    };
    [&nested, &name].into_iter().flat_map(|n| [n.clone(), format!("model.{n}")]).collect()
}

impl<A: Weights, B: Weights> SeparateFiles<A, B> {
    fn mimi_get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        // A file that is already in the current layout.
        if let Some(t) = self.mimi.get(&format!("mimi.{name}"), expected)? {
            return Ok(Some(t));
        }
        for old in mimi_names(name) {
            if let Some(t) = self.mimi.get(&old, expected)? {
                return Ok(Some(t));
            }
            let (Some(g), Some(mut v)) =
                (self.mimi.get(&format!("{old}_g"), &[])?, self.mimi.get(&format!("{old}_v"), expected)?)
            else {
                continue;
            };
            fold_weight_norm(&mut v, &g);
            return Ok(Some(v));
        }
        Ok(None)
    }

    fn mimi_shape(&self, name: &str) -> Option<Vec<usize>> {
        self.mimi.shape(&format!("mimi.{name}")).or_else(|| {
            mimi_names(name)
                .iter()
                .find_map(|old| self.mimi.shape(old).or_else(|| self.mimi.shape(&format!("{old}_v"))))
        })
    }
}

/// `g * v / |v|`, the norm taken over all but the first dimension.
fn fold_weight_norm(v: &mut Tensor, g: &Tensor) {
    let rows = v.shape.first().copied().unwrap_or(0).max(1);
    let width = v.values.len() / rows;
    for (row, g) in v.values.chunks_exact_mut(width.max(1)).zip(&g.values) {
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        row.iter_mut().for_each(|x| *x *= g / norm);
    }
}

impl<A: Weights, B: Weights> Weights for SeparateFiles<A, B> {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        match name.split_once('.') {
            Some(("mimi", rest)) => self.mimi_get(rest, expected),
            Some(("flow_lm", rest)) => match self.flow_lm.get(name, expected)? {
                Some(t) => Ok(Some(t)),
                None => self.flow_lm.get(&flow_lm_name(rest), expected),
            },
            _ => Ok(None),
        }
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match name.split_once('.') {
            Some(("mimi", rest)) => self.mimi_shape(rest),
            Some(("flow_lm", rest)) => {
                self.flow_lm.shape(name).or_else(|| self.flow_lm.shape(&flow_lm_name(rest)))
            }
            _ => None,
        }
    }
}
