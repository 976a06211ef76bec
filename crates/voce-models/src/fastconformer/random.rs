//! Random weights under the canonical names, for runs without a download.

use std::collections::HashMap;
use std::sync::Arc;

use voce_nn::weights::{RandomWeights, Tensor, WeightError, Weights};

use super::config::FastConformerConfig;

/// Weights for any configuration, every bias included. Blank is favoured, so that frames give labels about as often as
/// speech does, not at every chance.
pub fn random_weights(seed: u64, config: &FastConformerConfig) -> Arc<dyn Weights> {
    let shapes: HashMap<String, Vec<usize>> = config.tensors().into_iter().collect();
    Arc::new(Random { values: RandomWeights::new(seed, |_| true), shapes, vocab: config.vocab })
}

struct Random {
    values: RandomWeights,
    shapes: HashMap<String, Vec<usize>>,
    vocab: usize,
}

impl Random {
    /// How much blank's logit is raised: to where it beats the best of `vocab` others in about four frames of five,
    /// given the deviation of the logits.
    fn blank_bias(&self, deviation: f32) -> f32 {
        let spread = (2.0 * (self.vocab.max(2) as f32).ln()).sqrt();
        let best = spread - (spread.powi(2) / 2.0 * 4.0 * std::f32::consts::PI).ln() / (2.0 * spread);
        deviation * (best + 1.0)
    }
}

impl Weights for Random {
    fn get(&self, name: &str, _: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let Some(shape) = self.shapes.get(name) else { return Ok(None) };
        let Some(mut tensor) = self.values.get(name, shape)? else { return Ok(None) };
        let values = &mut tensor.values;
        match name {
            // The embedding of blank, which starts every text.
            "decoder.prediction.embed.weight" => {
                let width = shape[1];
                values[self.vocab * width..].fill(0.0);
            }
            // Half of the joint's rows of variance 1/3 pass its ReLU, and the weights have variance 1/3 of a share.
            "joint.joint_net.2.bias" => values[self.vocab] += self.blank_bias((1.0f32 / 18.0).sqrt()),
            "ctc_decoder.decoder_layers.0.bias" => {
                values[self.vocab] += self.blank_bias((1.0f32 / 3.0).sqrt());
            }
            _ if name.ends_with(".running_var") => values.iter_mut().for_each(|v| *v += 1.0),
            _ => {}
        }
        Ok(Some(tensor))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.shapes.get(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_the_asked_shapes_and_sane_values() {
        let config = FastConformerConfig::named("parakeet-ctc-1.1b").unwrap();
        let w = random_weights(1, &config);
        let var = w.get("encoder.layers.3.conv.batch_norm.running_var", &[]).unwrap().unwrap();
        assert_eq!(var.shape, [1024]);
        assert!(var.values.iter().all(|v| (0.5..1.5).contains(v)));
        let bias = w.get("ctc_decoder.decoder_layers.0.bias", &[1025]).unwrap().unwrap().values;
        assert!(bias[1024] > 1.0 && bias[..1024].iter().all(|b| b.abs() < 0.1));
        assert!(w.get("joint.enc.weight", &[640, 1024]).unwrap().is_none());
        assert!(w.shape("decoder.prediction.embed.weight").is_none());
        let other = random_weights(2, &config);
        let name = "encoder.layers.0.norm_out.weight";
        assert_ne!(w.get(name, &[]).unwrap(), other.get(name, &[]).unwrap());
    }

    #[test]
    fn the_configuration_settles_on_its_own_weights() {
        for name in super::super::SHAPES {
            let mut config = FastConformerConfig::named(name).unwrap();
            let before = config.clone();
            config.settle(random_weights(1, &before).as_ref()).unwrap();
            assert_eq!(config, before, "{name}");
        }
    }
}
