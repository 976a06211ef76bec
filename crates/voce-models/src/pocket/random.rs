//! Random weights in the published naming, for runs without a download.

use std::sync::Arc;

use voce_nn::Weights;
use voce_nn::weights::{RandomWeights, Tensor};

/// Weights for any Pocket TTS configuration; the model never says that it is done.
pub fn random_weights(seed: u64) -> Arc<dyn Weights> {
    // The biases and scales that published checkpoints have.
    let has = |name: &str| {
        let biased = ["flow_net", "out_eos", "norm", "coder.model"].iter().any(|part| name.contains(part));
        if name.ends_with("bias") { biased } else { !name.starts_with("flow_lm.transformer") }
    };
    Arc::new(NeverEnds(RandomWeights::new(seed, has)))
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
