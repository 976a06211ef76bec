//! Random weights of Kyutai's codec, for runs without a download.

use std::sync::Arc;

use voce_nn::weights::{RandomWeights, Tensor};
use voce_nn::{WeightError, Weights};

/// Weights for any Mimi, whose samples stay in range.
pub fn random_weights(seed: u64) -> Arc<dyn Weights> {
    // The biases that the published file has: of norms and of SEANet's convolutions.
    let has = |name: &str| {
        let convolution = name.contains(".model.") || name.contains("norm");
        !name.ends_with("bias") || convolution
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
            } else if name.contains("layer_scale") {
                t.values.fill(0.01);
            }
        }
        Ok(tensor)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name)
    }
}
