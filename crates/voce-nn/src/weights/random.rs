//! Random weights of any shape asked for: what speed is measured with before a download.

use super::{Tensor, WeightError, Weights};

/// Makes up every tensor from its name, reproducibly.
pub struct RandomWeights {
    seed: u64,
    has: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl RandomWeights {
    /// Random weights; `has` says which optional tensors exist.
    pub fn new(seed: u64, has: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { seed, has: Box::new(has) }
    }
}

impl Weights for RandomWeights {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let mut state = name
            .bytes()
            .fold(self.seed ^ 0x9e37_79b9_7f4a_7c15, |h, b| (h ^ b as u64).wrapping_mul(0x0100_0000_01b3))
            | 1;
        let count: usize = expected.iter().product();
        // Uniform weights of the variance that keeps activations in range; vectors that multiply are
        // near one, vectors that add near zero.
        let fan_in: usize = expected.iter().skip(1).product();
        let (centre, spread) = match expected.len() {
            0 | 1 if ["weight", "alpha", "scale", "std"].iter().any(|s| name.ends_with(s)) => (1.0, 0.1),
            0 | 1 => (0.0, 0.02),
            _ => (0.0, (fan_in as f32).sqrt().recip()),
        };
        let values = (0..count)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                centre + spread * ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            })
            .collect();
        Ok(Some(Tensor { shape: expected.to_vec(), values }))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        (self.has)(name).then(Vec::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_name_gives_the_same_values_and_another_name_others() {
        let w = RandomWeights::new(1, |n| n == "there");
        let get = |n| w.get(n, &[4, 8]).unwrap().unwrap().values;
        assert_eq!(get("x"), get("x"));
        assert_ne!(get("x"), get("y"));
        assert!(w.shape("there").is_some() && w.shape("not").is_none());
    }
}
