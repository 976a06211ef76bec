//! Random weights that are made as fast as memory is written, for runs without a download.

use std::sync::Arc;

use voce_nn::weights::{RandomWeights, Tensor, WeightError, Weights};

/// Values that are made one by one; tensors are stretches of them.
const BLOCK: usize = (1 << 20) + 7;

/// Weights for any decoder, without biases but for the predictor's projection. Large tensors repeat a block of random
/// values from a place of their own.
pub fn random_weights(seed: u64) -> Arc<dyn Weights> {
    repeated_weights(seed, |name| name.ends_with("small_to_mtp_projection.bias"))
}

/// The same with the optional tensors that `has` names.
pub fn repeated_weights(seed: u64, has: impl Fn(&str) -> bool + Send + Sync + 'static) -> Arc<dyn Weights> {
    let made = RandomWeights::new(seed, has);
    let block = made.get("block", &[BLOCK, 1]).ok().flatten().map_or_else(Vec::new, |t| t.values);
    Arc::new(Repeated { made, block })
}

struct Repeated {
    made: RandomWeights,
    block: Vec<f32>,
}

impl Weights for Repeated {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let count: usize = expected.iter().product();
        if name.ends_with("alpha") {
            return Ok(Some(Tensor { shape: expected.to_vec(), values: vec![1.0; count] }));
        }
        if expected.len() < 2 || self.block.is_empty() {
            return self.made.get(name, expected);
        }
        let inputs: usize = expected[1..].iter().product();
        let scale = (inputs.max(1) as f32).sqrt().recip();
        let hash = name.bytes().fold(17usize, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        let mut values = Vec::with_capacity(count);
        let mut at = hash % self.block.len();
        while values.len() < count {
            let part = &self.block[at..(at + count - values.len()).min(self.block.len())];
            values.extend(part.iter().map(|v| v * scale));
            at = 0;
        }
        Ok(Some(Tensor { shape: expected.to_vec(), values }))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.made.shape(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_differ_and_stay_in_range() {
        let w = random_weights(1);
        let get = |name: &str, shape: &[usize]| w.get(name, shape).unwrap().unwrap().values;
        let (a, b) = (get("a.weight", &[1200, 1024]), get("b.weight", &[1200, 1024]));
        assert!(a != b && a == get("a.weight", &[1200, 1024]) && a.len() == 1200 * 1024);
        assert!(a.iter().all(|v| v.abs() <= 1.0 / 32.0) && a[..1024] != a[1024..2048]);
        let spread = a.iter().map(|v| v * v * 1024.0).sum::<f32>() / a.len() as f32;
        assert!((spread - 1.0 / 3.0).abs() < 0.02, "{spread}");
        assert!(get("norm.weight", &[64]).iter().all(|v| (0.5..1.5).contains(v)));
        assert!(w.shape("small_to_mtp_projection.bias").is_some() && w.shape("o_proj.bias").is_none());
    }
}
