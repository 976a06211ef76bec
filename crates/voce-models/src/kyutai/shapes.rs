//! Published models that make audio, by name, with random weights.

use std::collections::BTreeMap;
use std::sync::Arc;

use voce_nn::Weights;

use super::conditioner::Conditioner;
use super::config::{Fuser, KyutaiConfig, TtsConfig};
use crate::decoder::repeated_weights;
use crate::mimi::KyutaiMimiConfig;

/// Names that [`speech_shape`] knows.
pub const SPEECH_SHAPES: [&str; 1] = ["tts-1.6b"];
/// Names that [`dialogue_shape`] knows.
pub const DIALOGUE_SHAPES: [&str; 1] = ["moshi-7b"];

/// The language model and the codec of a published model that speaks.
pub fn speech_shape(name: &str) -> Option<(KyutaiConfig, KyutaiMimiConfig)> {
    if name != SPEECH_SHAPES[0] {
        return None;
    }
    let mut delays = vec![2; 33];
    (delays[0], delays[1]) = (0, 0);
    let values = |count: usize| (0..count).map(|i| format!("{:.1}", 1.0 + 0.5 * i as f64)).collect();
    let conditioners = BTreeMap::from([
        ("speaker_wavs".to_owned(), Conditioner::Tensor { dim: 512 }),
        ("cfg".to_owned(), Conditioner::Lut { bins: 7, dim: 16, values: values(7) }),
        ("control".to_owned(), Conditioner::Lut { bins: 1, dim: 2048, values: vec!["ok".into()] }),
    ]);
    // Eight sets of their own, then three that eight steps share each.
    let schedule = (0..8).chain((8..11).flat_map(|set| [set; 8])).collect();
    let config = KyutaiConfig {
        dim: 2048,
        text_card: 8000,
        n_q: 32,
        dep_q: 32,
        num_heads: 16,
        num_layers: 16,
        context: 500,
        cross_attention: true,
        demux_second_stream: true,
        depformer_num_layers: Some(4),
        depformer_dim_feedforward: vec![3072],
        depformer_weights_per_step_schedule: Some(schedule),
        depformer_low_rank_embeddings: Some(128),
        delays,
        conditioners,
        fuser: Some(Fuser {
            sum: vec!["control".into(), "cfg".into()],
            cross: vec!["speaker_wavs".into()],
            cross_attention_pos_emb: true,
            cross_attention_pos_emb_scale: 1.0,
            ..Fuser::default()
        }),
        tts_config: Some(TtsConfig {
            audio_delay: 1.28,
            second_stream_ahead: 2,
            multistream: false,
            max_padding: None,
            initial_padding: None,
            final_padding: None,
            padding_between: None,
            padding_bonus: None,
        }),
        model_type: Some("tts".into()),
        ..KyutaiConfig::default()
    };
    Some((config, KyutaiMimiConfig::published()))
}

/// The language model and the codec of a published model that holds conversations.
pub fn dialogue_shape(name: &str) -> Option<(KyutaiConfig, KyutaiMimiConfig)> {
    (name == DIALOGUE_SHAPES[0]).then(|| (KyutaiConfig::default(), KyutaiMimiConfig::published()))
}

/// Weights of any language model that makes audio: every depth step has its own, and layers look at a source where
/// `config` says so.
pub fn random_weights(config: &KyutaiConfig, seed: u64) -> Arc<dyn Weights> {
    let looks = config.cross_attention;
    repeated_weights(seed, move |name| {
        name == "depformer.0.linear_in.weight"
            || looks
                && (name.ends_with("cross_attention.in_proj_weight") || name.ends_with("norm_cross.bias"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_shapes_have_their_sizes() {
        let (tts, _) = speech_shape("tts-1.6b").unwrap();
        tts.check().unwrap();
        assert_eq!((tts.backbone().ffn, tts.depth().ffn, tts.sets(), tts.max_delay()), (5632, 2048, 11, 2));
        let layer = |d: &voce_nn::DecoderConfig| 4 * d.hidden * d.hidden + 3 * d.hidden * d.ffn;
        let (d, z) = (tts.backbone(), tts.depth());
        let backbone = d.layers * (layer(&d) + 4 * d.hidden * d.hidden);
        let depth = tts.sets() * (z.layers * layer(&z) + d.hidden * z.hidden) + 32 * tts.card * z.hidden;
        let tables = (tts.n_q * 2049 + 2 * 8001 + 2 * d.hidden) * d.hidden;
        let low = 31 * (2049 + z.hidden) * 128 + (8001 + 2 * z.hidden) * 128;
        let conditions = (512 + 2048 + 16 + 2 + 3) * d.hidden;
        assert_eq!((backbone + depth + tables + low + conditions) / 1_000_000, 1836);
        assert!(dialogue_shape("moshi-7b").is_some() && dialogue_shape("moshi").is_none());
        assert!(speech_shape("tts").is_none());
        let weights = random_weights(&tts, 1);
        assert!(weights.shape("transformer.layers.3.cross_attention.in_proj_weight").is_some());
        assert!(weights.shape("transformer.layers.3.layer_scale_1.scale").is_none());
    }
}
