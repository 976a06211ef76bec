//! Published recognisers by name, with random weights.

use std::sync::Arc;

use voce_nn::Weights;
use voce_nn::weights::RandomWeights;

use crate::kyutai::{KyutaiConfig, SttConfig};
use crate::mimi::KyutaiMimiConfig;

/// The language model and the codec of a published recogniser.
pub fn shape(name: &str) -> Option<(KyutaiConfig, KyutaiMimiConfig)> {
    let stt = |delay, prefix| SttConfig { audio_delay_seconds: delay, audio_silence_prefix_seconds: prefix };
    let common = KyutaiConfig {
        dim: 2048,
        n_q: 32,
        dep_q: 0,
        delays: vec![0; 33],
        max_period: 100_000.0,
        model_type: Some("stt".into()),
        ..KyutaiConfig::default()
    };
    let config = match name {
        "stt-1b" => KyutaiConfig {
            text_card: 8000,
            num_heads: 16,
            num_layers: 16,
            context: 750,
            extra_heads_num_heads: 4,
            stt_config: Some(stt(0.5, 0.0)),
            ..common
        },
        "stt-2.6b" => KyutaiConfig {
            text_card: 4000,
            num_heads: 32,
            num_layers: 48,
            context: 375,
            stt_config: Some(stt(2.5, 1.0)),
            ..common
        },
        _ => return None,
    };
    Some((config, KyutaiMimiConfig::published()))
}

/// Weights of any language model that recognises.
pub fn random_weights(seed: u64) -> Arc<dyn Weights> {
    Arc::new(RandomWeights::new(seed, |name| !name.ends_with("bias")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_shapes_have_their_sizes() {
        for (name, millions) in [("stt-1b", 989), ("stt-2.6b", 2617)] {
            let (c, mimi) = shape(name).unwrap();
            c.check().unwrap();
            let d = c.backbone();
            let layer = 4 * d.hidden * d.hidden + 3 * d.hidden * d.ffn + 2 * d.hidden;
            let heads = c.extra_heads_num_heads * c.extra_heads_dim;
            let tokens = (c.card + 1) * c.n_q + 2 * c.text_card + 1 + heads + 1;
            assert_eq!((d.layers * layer + tokens * d.hidden) / 1_000_000, millions, "{name}");
            assert_eq!(mimi.frame_size(), 1920);
        }
        assert!(shape("stt-3b").is_none());
    }
}
