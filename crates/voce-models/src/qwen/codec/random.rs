//! Random weights of a speech tokenizer in the published naming, for runs without a download.

use std::sync::Arc;

use voce_nn::weights::{RandomWeights, Tensor};
use voce_nn::{WeightError, Weights};

/// Weights for any speech tokenizer, whose samples stay in range.
pub fn random_weights(seed: u64) -> Arc<dyn Weights> {
    // The biases that published checkpoints have.
    let has = |name: &str| {
        let none = ["_proj.bias", "qkv.bias", "gate_up.bias", "fc1.bias", "fc2.bias", "downsample"];
        let projection = name.contains("input_proj.bias") || name.contains("output_proj.bias");
        !name.ends_with("bias") || projection || !none.iter().any(|part| name.contains(part))
    };
    Arc::new(InRange(RandomWeights::new(seed, has)))
}

struct InRange(RandomWeights);

impl Weights for InRange {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let mut tensor = self.0.get(name, expected)?;
        if let Some(t) = &mut tensor {
            if name.ends_with("cluster_usage") {
                t.values.fill(1.0);
            } else if name.ends_with("layer_scale.scale") || name.ends_with("gamma") {
                t.values.fill(0.01);
            } else if name.ends_with("alpha") {
                t.values.iter_mut().for_each(|v| *v -= 1.0);
            } else if name.ends_with("conv2.conv.weight") {
                t.values.iter_mut().for_each(|v| *v *= 0.3);
            }
        }
        Ok(tensor)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name)
    }
}
