//! A number that stands for much data, the same on every machine and in every version of Rust.

use voce_nn::weights::{WeightError, Weights};

/// Tensors of at most this many values are part of a model's digest as a whole; of larger ones some are chosen.
const SMALL: usize = 1 << 16;
/// One value in this many is looked at in the larger tensors.
const ONE_IN: usize = 12;

/// Takes data in, in order.
#[derive(Clone, Copy, Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Takes a word.
    pub fn word(&mut self, word: u64) {
        // A bijection of the state for each word, and of the word for each state.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }

    /// Takes a text.
    pub fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        text.bytes().for_each(|b| self.word(u64::from(b)));
    }

    /// Takes values, by their bits.
    pub fn values(&mut self, values: &[f32]) {
        self.word(values.len() as u64);
        values.iter().for_each(|v| self.word(u64::from(v.to_bits())));
    }

    /// Takes the tensors of a model that are there: all small ones (norms, biases, kernels of convolutions) and a
    /// choice of the large ones, so that it costs little beside loading them.
    pub fn weights(
        &mut self,
        weights: &dyn Weights,
        tensors: &[(String, Vec<usize>)],
    ) -> Result<(), WeightError> {
        let mut large = 0;
        for (name, shape) in tensors {
            let is_small = shape.iter().product::<usize>() <= SMALL;
            large += usize::from(!is_small);
            if !is_small && large % ONE_IN != 1 {
                continue;
            }
            if weights.shape(name).is_none() {
                continue;
            }
            if let Some(tensor) = weights.get(name, shape)? {
                self.text(name);
                self.values(&tensor.values);
            }
        }
        Ok(())
    }

    /// The number.
    pub fn finish(self) -> u64 {
        let mut last = self;
        last.word(0);
        last.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use voce_nn::weights::RandomWeights;

    fn of(fill: impl FnOnce(&mut Digest)) -> u64 {
        let mut digest = Digest::default();
        fill(&mut digest);
        digest.finish()
    }

    #[test]
    fn order_length_and_sign_of_zero_count() {
        let all = [
            of(|_| {}),
            of(|d| d.text("")),
            of(|d| d.text("ab")),
            of(|d| d.text("ba")),
            of(|d| d.values(&[0.0])),
            of(|d| d.values(&[-0.0])),
            of(|d| d.values(&[0.0, 0.0])),
            of(|d| {
                d.values(&[0.0]);
                d.values(&[0.0]);
            }),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{i}");
        }
        assert_eq!(of(|d| d.text("voce")), of(|d| d.text("voce")));
    }

    #[test]
    fn weights_of_one_shape_differ() {
        let tensors = vec![("a".to_owned(), vec![300, 300]), ("b".to_owned(), vec![4])];
        let digest = |seed| of(|d| d.weights(&RandomWeights::new(seed, |_| true), &tensors).unwrap());
        assert_eq!(digest(1), digest(1));
        assert_ne!(digest(1), digest(2));
    }
}
