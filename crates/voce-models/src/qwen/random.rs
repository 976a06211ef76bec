//! Random weights in the published naming and sizes, for runs without a download.

use std::sync::Arc;

use serde_json::json;
use voce_nn::weights::Tensor;
use voce_nn::{WeightError, Weights};

use super::codec::CodecConfig;
use super::config::QwenConfig;
use crate::decoder;

/// Names that [`named`] knows.
pub const SHAPES: [&str; 2] = ["qwen3-tts-0.6b", "qwen3-tts-1.7b"];

/// The configuration of a published size: CustomVoice, which needs no recording to speak.
pub fn named(name: &str) -> Option<QwenConfig> {
    let (size, hidden) = match name {
        "qwen3-tts-0.6b" => ("0b6", 1024),
        "qwen3-tts-1.7b" => ("1b7", 2048),
        _ => return None,
    };
    let layers = |layers: usize, hidden: usize, vocab: usize| {
        json!({
            "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 3 * hidden,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6,
            "rope_theta": 1_000_000, "hidden_act": "silu", "max_position_embeddings": 32_768,
            "vocab_size": vocab, "num_code_groups": 16,
        })
    };
    let mut talker = layers(28, hidden, 3072);
    let own = json!({
        "text_vocab_size": 151_936, "text_hidden_size": 2048, "codec_pad_id": 2148, "codec_bos_id": 2149,
        "codec_eos_token_id": EOS, "codec_think_id": 2154, "codec_nothink_id": 2155, "codec_think_bos_id": 2156,
        "codec_think_eos_id": 2157, "codec_language_id": {"english": 2050}, "spk_id": {"vivian": 3065},
        "spk_is_dialect": {"vivian": false}, "code_predictor_config": layers(5, 1024, 2048),
    });
    if let (Some(talker), Some(own)) = (talker.as_object_mut(), own.as_object()) {
        talker.extend(own.clone());
    }
    let config = json!({
        "tts_model_type": "custom_voice", "tts_model_size": size, "im_start_token_id": 151_644,
        "im_end_token_id": 151_645, "assistant_token_id": 77_091, "tts_pad_token_id": 151_671,
        "tts_bos_token_id": 151_672, "tts_eos_token_id": 151_673, "talker_config": talker,
    });
    QwenConfig::from_json(&config.to_string()).ok()
}

/// The configuration of the published codec.
pub fn codec_of() -> Option<CodecConfig> {
    let config = json!({
        "model_type": "qwen3_tts_tokenizer_12hz", "encoder_valid_num_quantizers": 16, "input_sample_rate": 24_000,
        "output_sample_rate": 24_000, "decode_upsample_rate": 1920, "encode_downsample_rate": 1920,
        "decoder_config": {
            "latent_dim": 1024, "codebook_dim": 512, "codebook_size": 2048, "decoder_dim": 1536, "hidden_size": 512,
            "intermediate_size": 1024, "head_dim": 64, "num_attention_heads": 16, "num_hidden_layers": 8,
            "num_key_value_heads": 16, "num_quantizers": 16, "num_semantic_quantizers": 1, "rms_norm_eps": 1e-5,
            "rope_theta": 10_000, "sliding_window": 72, "upsample_rates": [8, 5, 4, 3], "upsampling_ratios": [2, 2],
        },
        "encoder_config": {},
    });
    CodecConfig::from_json(&config.to_string()).ok()
}

/// The token that ends a passage, in the published sizes.
const EOS: usize = 2150;

/// Weights for a configuration of [`named`]; the model never says that it is done.
pub fn random_weights(seed: u64) -> Arc<dyn Weights> {
    Arc::new(NeverEnds(decoder::random_weights(seed)))
}

struct NeverEnds(Arc<dyn Weights>);

impl Weights for NeverEnds {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let mut tensor = self.0.get(name, expected)?;
        if let Some(t) = tensor.as_mut().filter(|_| name == "talker.codec_head.weight")
            && let [rows, width] = expected[..]
            && EOS < rows
        {
            // A logit of the middle is never among the best.
            t.values[EOS * width..(EOS + 1) * width].fill(0.0);
        }
        Ok(tensor)
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.0.shape(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sizes_have_their_shapes() {
        for name in SHAPES {
            let config = named(name).unwrap();
            let bench = decoder::FrameConfig::named(name).unwrap();
            assert_eq!(config.frames(), bench, "{name}");
            assert_eq!((config.codebook_sizes(), config.positions()), ((2048, 2048), 32_768));
        }
        let codec = codec_of().unwrap();
        assert_eq!((codec.frame_rate(), codec.decoder_config.frame_size()), (12.5, 1920));
        super::super::Sound::check(&named(SHAPES[0]).unwrap(), &codec).unwrap();
        assert!(named("qwen3-tts-9b").is_none());
    }
}
