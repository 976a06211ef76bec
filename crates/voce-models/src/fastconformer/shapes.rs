//! Shapes of published models by name, and every tensor that a configuration asks for.

use super::config::{
    Attention, ConvNorm, EncoderConfig, FastConformerConfig, Head, MelConfig, MelNormalize, PredictorConfig,
};
use super::languages;

/// Names that [`FastConformerConfig::named`] knows.
pub const SHAPES: [&str; 9] = [
    "fastconformer-0.12b",
    "nemotron-0.6b",
    "nemotron-3.5-0.6b",
    "parakeet-tdt-0.6b",
    "parakeet-tdt-0.6b-v3",
    "parakeet-rnnt-1.1b",
    "parakeet-tdt-1.1b",
    "parakeet-ctc-1.1b",
    "nano-ear",
];

fn mel(bins: usize, normalize: MelNormalize) -> MelConfig {
    MelConfig { sample_rate: 16_000, bins, normalize, bf16_filters: false }
}

fn encoder(layers: usize, dim: usize, attention: Attention) -> EncoderConfig {
    let streaming = attention != Attention::Full;
    EncoderConfig {
        layers,
        dim,
        heads: 8,
        ff_dim: 4 * dim,
        conv_kernel: 9,
        conv_norm: if streaming { ConvNorm::Layer } else { ConvNorm::Batch },
        subsampling_channels: 256,
        subsampling_factor: 8,
        causal: streaming,
        scale_input: true,
        attention,
    }
}

fn predictor(layers: usize) -> PredictorConfig {
    PredictorConfig { hidden: 640, layers, joint: 640, max_symbols: 10 }
}

fn chunked(left: usize, look_aheads: &[usize]) -> Attention {
    Attention::Chunked { left, look_aheads: look_aheads.to_vec() }
}

impl FastConformerConfig {
    /// The shape of a published model; [`SHAPES`] has the names.
    pub fn named(name: &str) -> Option<Self> {
        let tdt = |layers, bins, vocab, scale_input| Self {
            mel: mel(bins, MelNormalize::PerFeature),
            encoder: EncoderConfig { scale_input, ..encoder(layers, 1024, Attention::Full) },
            prompt: None,
            vocab,
            head: Head::Tdt { predictor: predictor(2), durations: (0..5).collect() },
            auxiliary_ctc: false,
        };
        let streaming = |layers, dim, bins, vocab, lstm, left, look_aheads: &[usize]| Self {
            mel: mel(bins, MelNormalize::None),
            encoder: encoder(layers, dim, chunked(left, look_aheads)),
            prompt: None,
            vocab,
            head: Head::Rnnt(predictor(lstm)),
            auxiliary_ctc: false,
        };
        Some(match name {
            "nano-ear" => {
                let mut small = streaming(10, 192, 80, 511, 1, 70, &[6, 13, 1, 0]);
                small.encoder.heads = 4;
                small.encoder.subsampling_channels = 128;
                small.head = Head::Rnnt(PredictorConfig { hidden: 256, joint: 256, ..predictor(1) });
                small
            }
            "fastconformer-0.12b" => streaming(17, 512, 80, 1024, 1, 70, &[13, 6, 1, 0]),
            "nemotron-0.6b" => streaming(24, 1024, 128, 1024, 2, 70, &[13, 6, 1, 0]),
            "nemotron-3.5-0.6b" => {
                let mut prompted = streaming(24, 1024, 128, 13_087, 2, 56, &[13, 6, 3, 1, 0]);
                let mut prompt = languages::prompt(128);
                prompt.hidden = 2048;
                prompted.prompt = Some(prompt);
                prompted
            }
            "parakeet-tdt-0.6b" => tdt(24, 128, 1024, false),
            "parakeet-tdt-0.6b-v3" => tdt(24, 128, 8192, false),
            "parakeet-tdt-1.1b" => tdt(42, 80, 1024, true),
            "parakeet-rnnt-1.1b" => Self { head: Head::Rnnt(predictor(2)), ..tdt(42, 80, 1024, true) },
            "parakeet-ctc-1.1b" => Self { head: Head::Ctc, ..tdt(42, 80, 1024, true) },
            _ => return None,
        })
    }

    /// Canonical names and shapes of all tensors, with every bias.
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let mut all = Vec::new();
        self.encoder_tensors(&mut all);
        let d = self.encoder.dim;
        let mut put = |name: &str, shape: &[usize]| all.push((name.to_owned(), shape.to_vec()));
        if let Some(p) = self.predictor() {
            put("decoder.prediction.embed.weight", &[self.vocab + 1, p.hidden]);
            for layer in 0..p.layers {
                for side in ["ih", "hh"] {
                    let lstm = "decoder.prediction.dec_rnn.lstm";
                    put(&format!("{lstm}.weight_{side}_l{layer}"), &[4 * p.hidden, p.hidden]);
                    put(&format!("{lstm}.bias_{side}_l{layer}"), &[4 * p.hidden]);
                }
            }
            for (name, inputs, outputs) in [
                ("joint.enc", d, p.joint),
                ("joint.pred", p.hidden, p.joint),
                ("joint.joint_net.2", p.joint, self.classes()),
            ] {
                put(&format!("{name}.weight"), &[outputs, inputs]);
                put(&format!("{name}.bias"), &[outputs]);
            }
        }
        if self.head == Head::Ctc || self.auxiliary_ctc {
            put("ctc_decoder.decoder_layers.0.weight", &[self.vocab + 1, d, 1]);
            put("ctc_decoder.decoder_layers.0.bias", &[self.vocab + 1]);
        }
        if let Some(p) = &self.prompt {
            put("prompt_kernel.0.weight", &[p.hidden, d + p.slots]);
            put("prompt_kernel.0.bias", &[p.hidden]);
            put("prompt_kernel.2.weight", &[d, p.hidden]);
            put("prompt_kernel.2.bias", &[d]);
        }
        all
    }

    fn encoder_tensors(&self, all: &mut Vec<(String, Vec<usize>)>) {
        let e = &self.encoder;
        let (d, c) = (e.dim, e.subsampling_channels);
        let mut put = |name: String, shape: &[usize], bias: bool| {
            all.push((format!("{name}.weight"), shape.to_vec()));
            if bias {
                all.push((format!("{name}.bias"), vec![shape[0]]));
            }
        };
        put("encoder.pre_encode.conv.0".into(), &[c, 1, 3, 3], true);
        for stage in 1..e.subsampling_factor.ilog2() as usize {
            put(format!("encoder.pre_encode.conv.{}", 3 * stage - 1), &[c, 1, 3, 3], true);
            put(format!("encoder.pre_encode.conv.{}", 3 * stage), &[c, c, 1, 1], true);
        }
        put("encoder.pre_encode.out".into(), &[d, c * e.subsampled_bins(self.mel.bins)], true);
        for layer in 0..e.layers {
            let at = |part: &str| format!("encoder.layers.{layer}.{part}");
            for norm in ["norm_feed_forward1", "norm_self_att", "norm_conv", "norm_feed_forward2", "norm_out"]
            {
                put(at(norm), &[d], true);
            }
            for part in ["feed_forward1", "feed_forward2"] {
                put(at(&format!("{part}.linear1")), &[e.ff_dim, d], true);
                put(at(&format!("{part}.linear2")), &[d, e.ff_dim], true);
            }
            for part in ["q", "k", "v", "out"] {
                put(at(&format!("self_attn.linear_{part}")), &[d, d], true);
            }
            put(at("self_attn.linear_pos"), &[d, d], false);
            put(at("conv.pointwise_conv1"), &[2 * d, d, 1], true);
            put(at("conv.depthwise_conv"), &[d, 1, e.conv_kernel], true);
            put(at("conv.batch_norm"), &[d], true);
            put(at("conv.pointwise_conv2"), &[d, d, 1], true);
        }
        for layer in 0..e.layers {
            for part in ["u", "v"] {
                let name = format!("encoder.layers.{layer}.self_attn.pos_bias_{part}");
                all.push((name, vec![e.heads, d / e.heads]));
            }
            if e.conv_norm == ConvNorm::Batch {
                for part in ["running_mean", "running_var"] {
                    all.push((format!("encoder.layers.{layer}.conv.batch_norm.{part}"), vec![d]));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_shape_can_be_run_and_counts_its_tensors() {
        for name in SHAPES {
            let config = FastConformerConfig::named(name).unwrap();
            config.check().unwrap_or_else(|e| panic!("{name}: {e}"));
            let counted: usize = config.tensors().iter().map(|(_, s)| s.iter().product::<usize>()).sum();
            assert_eq!(config.parameters(), counted as u64, "{name}");
        }
        assert!(FastConformerConfig::named("parakeet").is_none());
    }

    #[test]
    fn published_sizes_are_right() {
        let millions = |name: &str, encoder_only: bool| {
            let config = FastConformerConfig::named(name).unwrap();
            let all = config.tensors();
            let some = all.iter().filter(|(n, _)| n.starts_with("encoder.") == encoder_only);
            some.map(|(_, s)| s.iter().product::<usize>()).sum::<usize>() as f64 / 1e6
        };
        for (name, encoder, rest) in [("nemotron-0.6b", 609.6, 8.9), ("fastconformer-0.12b", 108.9, 5.3)] {
            assert!((millions(name, true) - encoder).abs() < 0.1, "{name}: {}", millions(name, true));
            assert!((millions(name, false) - rest).abs() < 0.1, "{name}: {}", millions(name, false));
        }
    }
}
