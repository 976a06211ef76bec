//! Configurations of recognisers: what is read from both layouts, and what every unsupported or absurd value ends in.

use serde_json::{Value, json};
use voce_models::fastconformer::{
    Attention, ConfigError, ConvNorm, FastConformerConfig, Head, MelNormalize, SHAPES,
};

fn fixture(name: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/fastconformer/");
    std::fs::read_to_string(format!("{root}{name}")).unwrap()
}

fn hf(changes: &[(&str, Value)]) -> Result<FastConformerConfig, ConfigError> {
    let mut config: Value = serde_json::from_str(&fixture("stream/config.json")).unwrap();
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() { Some(&mut config) } else { config.pointer_mut(parent) };
        parent.unwrap()[key] = value.clone();
    }
    FastConformerConfig::from_hf_json(&config.to_string(), &[])
}

const NEMO: &str = "
sample_rate: 16000
target: nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel
preprocessor: {_target_: nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor, sample_rate: 16000, normalize: NA,
  window_size: 0.025, window_stride: 0.01, window: hann, features: 80, n_fft: 512, log: true, frame_splicing: 1, dither: 1.0e-05}
encoder: {_target_: nemo.collections.asr.modules.ConformerEncoder, feat_in: 80, feat_out: -1, n_layers: 3, d_model: 64, n_heads: 4,
  subsampling: dw_striding, subsampling_factor: 8, subsampling_conv_channels: 16, causal_downsampling: true, ff_expansion_factor: 4,
  self_attention_model: rel_pos, att_context_size: [[8, 3], [8, 1], [8, 0]], att_context_style: chunked_limited, xscaling: true,
  conv_kernel_size: 9, conv_norm_type: layer_norm, conv_context_size: causal, use_bias: true}
decoder: {_target_: nemo.collections.asr.modules.RNNTDecoder, normalization_mode: null, blank_as_pad: true, vocab_size: 40,
  prednet: {pred_hidden: 48, pred_rnn_layers: 2}}
joint: {_target_: nemo.collections.asr.modules.RNNTJoint, num_classes: 40, jointnet: {joint_hidden: 32, activation: relu, dropout: 0.2}}
decoding: {strategy: greedy_batch, greedy: {max_symbols: 10}}
loss: {loss_name: default}
model_defaults: {enc_hidden: 64}
tokenizer: {type: bpe}
";

fn nemo(changes: &[(&str, Value)]) -> Result<FastConformerConfig, ConfigError> {
    let mut config: Value = serde_yaml_ng::from_str(NEMO).unwrap();
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() { Some(&mut config) } else { config.pointer_mut(parent) };
        parent.unwrap()[key] = value.clone();
    }
    FastConformerConfig::from_nemo_yaml(&serde_yaml_ng::to_string(&config).unwrap())
}

fn refused(what: &str, result: Result<FastConformerConfig, ConfigError>, words: &[&str]) {
    let Err(e) = result else { panic!("{what} was accepted") };
    let text = e.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{what}: {text}");
    assert!(!text.contains('\n') && text.len() < 300, "{what}: {text}");
}

#[test]
fn a_streaming_model_is_read_alike_from_both_layouts() {
    let a = nemo(&[]).unwrap();
    assert_eq!(a.encoder.attention, Attention::Chunked { left: 8, look_aheads: vec![3, 1, 0] });
    assert!(a.encoder.causal && a.encoder.scale_input);
    assert_eq!((a.encoder.layers, a.encoder.dim, a.encoder.ff_dim, a.vocab), (3, 64, 256, 40));
    assert_eq!((a.encoder.conv_norm, a.mel.normalize), (ConvNorm::Layer, MelNormalize::None));
    let Head::Rnnt(p) = &a.head else { panic!("{:?}", a.head) };
    assert_eq!((p.hidden, p.layers, p.joint, p.max_symbols), (48, 2, 32, 10));
    let b = hf(&[]).unwrap();
    let Attention::Chunked { look_aheads, .. } = &b.encoder.attention else { panic!() };
    assert_eq!(look_aheads[0], 3);
    let listed = FastConformerConfig::from_hf_json(
        &fixture("stream/config.json"),
        &[&fixture("stream/processor_config.json")],
    );
    let listed = listed.unwrap();
    let Attention::Chunked { look_aheads, .. } = &listed.encoder.attention else { panic!() };
    assert_eq!(look_aheads, &[3, 1, 0]);
}

#[test]
fn every_published_class_is_read() {
    for (name, head) in
        [("ctc", "ctc"), ("rnnt", "rnnt"), ("tdt", "tdt"), ("stream", "rnnt"), ("prompt", "rnnt")]
    {
        let c = FastConformerConfig::from_hf_json(&fixture(&format!("{name}/config.json")), &[]).unwrap();
        let got = match &c.head {
            Head::Ctc => "ctc",
            Head::Rnnt(_) => "rnnt",
            Head::Tdt { durations, .. } => {
                assert_eq!(durations, &[0, 1, 2, 3, 4]);
                "tdt"
            }
        };
        assert_eq!(got, head, "{name}");
        let streaming = matches!(name, "stream" | "prompt");
        assert_eq!(c.encoder.attention != Attention::Full, streaming, "{name}");
        assert_eq!(c.mel.normalize == MelNormalize::None, streaming, "{name}");
        assert_eq!(c.prompt.is_some(), name == "prompt");
    }
    let config = fixture("prompt/config.json");
    let prompt = FastConformerConfig::from_hf_json(&config, &[&fixture("prompt/processor_config.json")]);
    let prompt = prompt.unwrap().prompt.unwrap();
    assert_eq!((prompt.slot("de-DE"), prompt.slot("de"), prompt.slot("xx")), (Some(9), Some(9), None));
}

#[test]
fn other_nemo_models_are_read() {
    let target = |class: &str| json!(format!("nemo.collections.asr.models.{class}"));
    let tdt =
        nemo(&[("/loss", json!({"loss_name": "tdt"})), ("/model_defaults/tdt_durations", json!([0, 1, 2]))]);
    assert!(matches!(tdt.unwrap().head, Head::Tdt { durations, .. } if durations == [0, 1, 2]));
    let extra = nemo(&[("/joint/num_extra_outputs", json!(2)), ("/decoding/durations", json!([1, 4]))]);
    assert!(matches!(extra.unwrap().head, Head::Tdt { durations, .. } if durations == [1, 4]));
    let hybrid = nemo(&[
        ("/target", target("EncDecHybridRNNTCTCBPEModel")),
        ("/aux_ctc", json!({"ctc_loss_weight": 0.3})),
    ]);
    assert!(hybrid.unwrap().auxiliary_ctc);
    let ctc = nemo(&[
        ("/target", target("EncDecCTCModelBPE")),
        (
            "/decoder",
            json!({"_target_": "x.ConvASRDecoder", "feat_in": null, "num_classes": -1, "vocabulary": ["a", "b"]}),
        ),
    ]);
    let ctc = ctc.unwrap();
    assert_eq!((ctc.head, ctc.vocab), (Head::Ctc, 2));
    let prompt = nemo(&[
        ("/target", target("EncDecRNNTBPEModelWithPrompt")),
        ("/model_defaults/num_prompts", json!(16)),
        ("/model_defaults/prompt_dictionary", json!({"en-US": 0, "auto": 11})),
    ]);
    let prompt = prompt.unwrap().prompt.unwrap();
    assert_eq!((prompt.slots, prompt.hidden, prompt.default), (16, 128, 11));
    let offline = nemo(&[
        ("/encoder/att_context_size", json!([-1, -1])),
        ("/encoder/att_context_style", json!("regular")),
        ("/encoder/causal_downsampling", json!(false)),
        ("/encoder/conv_context_size", json!(null)),
        ("/encoder/conv_norm_type", json!("batch_norm")),
        ("/preprocessor/normalize", json!("per_feature")),
    ]);
    assert_eq!(offline.unwrap().encoder.attention, Attention::Full);
    let one = nemo(&[("/encoder/att_context_size", json!([70, 13]))]).unwrap();
    assert_eq!(one.encoder.attention, Attention::Chunked { left: 70, look_aheads: vec![13] });
    let spelled =
        nemo(&[("/encoder/conv_context_size", json!([8, 0])), ("/preprocessor/normalize", json!(null))]);
    assert_eq!(spelled.unwrap().mel.normalize, MelNormalize::None);
}

#[test]
fn what_nemo_has_and_we_do_not_is_named() {
    for (pointer, value, words) in [
        ("/encoder/subsampling", json!("striding"), ["subsampling", "dw_striding"]),
        ("/encoder/subsampling", json!(null), ["subsampling", "dw_striding"]),
        ("/encoder/subsampling_factor", json!(32), ["subsampling factor", "8"]),
        ("/encoder/self_attention_model", json!("abs_pos"), ["self_attention_model", "rel_pos"]),
        ("/encoder/self_attention_model", json!("rel_pos_local_attn"), ["rel_pos_local_attn", "rel_pos"]),
        ("/encoder/att_context_style", json!("chunked_limited_with_rc"), ["att_context_style", "with_rc"]),
        ("/encoder/att_context_style", json!("regular"), ["att_context_size", "regular"]),
        ("/encoder/att_context_size", json!([[8, 3], [4, 1]]), ["att_context_size", "same"]),
        ("/encoder/att_context_size", json!([-1, 3]), ["att_context_size", "limited"]),
        ("/encoder/att_context_size", json!([8, 2]), ["8", "3"]),
        ("/encoder/att_context_size", json!([8, 3, 1]), ["att_context_size", "left"]),
        ("/encoder/conv_norm_type", json!("instance_norm"), ["conv_norm_type", "layer_norm"]),
        ("/encoder/conv_context_size", json!(null), ["conv_context_size", "causal"]),
        ("/encoder/conv_context_size", json!([6, 2]), ["conv_context_size", "[6, 2]"]),
        ("/encoder/conv_context_style", json!("dcc"), ["conv_context_style", "dcc"]),
        ("/encoder/reduction", json!("pooling"), ["reduction", "pooling"]),
        ("/encoder/feat_out", json!(32), ["feat_out", "32"]),
        ("/encoder/feat_in", json!(64), ["64", "80"]),
        ("/encoder/global_tokens", json!(1), ["global_tokens", "1"]),
        ("/encoder/_target_", json!("x.SqueezeformerEncoder"), ["encoder", "Squeezeformer"]),
        ("/encoder/n_heads", json!(5), ["5 attention heads", "64"]),
        ("/encoder/n_heads", json!(0), ["heads", "0"]),
        ("/encoder/n_layers", json!(100_000), ["layers", "100000"]),
        ("/encoder/d_model", json!(1u64 << 60), ["width", ""]),
        ("/target", json!("nemo.EncDecCTCModel"), ["EncDecCTCModel ", "EncDecRNNTBPEModel"]),
        ("/target", json!("nemo.EncDecMultiTaskModel"), ["MultiTask", "not supported"]),
        ("/tokenizer", json!(null), ["character decoder", "bpe"]),
        ("/tokenizer/type", json!("agg"), ["tokenizer type", "agg"]),
        ("/tokenizer/type", json!("wpe"), ["tokenizer type", "wpe"]),
        ("/preprocessor/normalize", json!("all_features"), ["normalize", "all_features"]),
        ("/preprocessor/normalize", json!({"fixed_mean": [0.0]}), ["normalize", "per_feature"]),
        ("/preprocessor/_target_", json!("x.AudioToMFCCPreprocessor"), ["MFCC", "Mel"]),
        ("/preprocessor/sample_rate", json!(8000), ["sample rate", "16000"]),
        ("/preprocessor/n_fft", json!(1024), ["n_fft", "512"]),
        ("/preprocessor/window", json!("hamming"), ["window", "hann"]),
        ("/preprocessor/frame_splicing", json!(3), ["frame_splicing", "3"]),
        ("/preprocessor/features", json!(0), ["mel bins", "80"]),
        ("/decoder/_target_", json!("x.StatelessTransducerDecoder"), ["decoder", "Stateless"]),
        ("/decoder/normalization_mode", json!("layer"), ["normalization_mode", "layer"]),
        ("/decoder/blank_as_pad", json!(false), ["blank_as_pad", "true"]),
        ("/decoder/prednet/rnn_hidden_size", json!(99), ["rnn_hidden_size", "99"]),
        ("/decoder/vocab_size", json!(1u64 << 30), ["vocabulary", "1073741824"]),
        ("/joint/jointnet/activation", json!("tanh"), ["activation", "relu"]),
        ("/joint/_target_", json!("x.SampledRNNTJoint"), ["joint", "Sampled"]),
        ("/joint/num_extra_outputs", json!(3), ["durations", ""]),
        ("/joint", json!(null), ["joint", "lacks"]),
        ("/loss", json!({"loss_name": "multiblank_rnnt"}), ["multi-blank", "TDT"]),
        ("/decoding/big_blank_durations", json!([2, 4]), ["multi-blank", "TDT"]),
        ("/decoding/greedy/max_symbols", json!(100_000), ["symbols", "1000"]),
    ] {
        refused(&format!("{pointer} {value}"), nemo(&[(pointer, value)]), &words);
    }
    let tdt = json!({"loss_name": "tdt"});
    refused(
        "all-zero durations",
        nemo(&[("/loss", tdt.clone()), ("/decoding/durations", json!([0, 0]))]),
        &["above zero"],
    );
    refused("long durations", nemo(&[("/loss", tdt), ("/decoding/durations", json!([9999]))]), &["duration"]);
}

#[test]
fn what_hugging_face_has_and_we_do_not_is_named() {
    for (pointer, value, words) in [
        ("/architectures", json!(["WhisperForConditionalGeneration"]), ["Whisper", "ParakeetForTDT"]),
        ("/encoder_config/hidden_act", json!("gelu"), ["hidden_act", "silu"]),
        ("/encoder_config/num_key_value_heads", json!(2), ["num_key_value_heads", "2"]),
        ("/encoder_config/subsampling_conv_kernel_size", json!(5), ["subsampling kernel", "3 by 2"]),
        ("/encoder_config/subsampling_conv_stride", json!(0), ["subsampling kernel", "3 by 2"]),
        ("/encoder_config/subsampling_factor", json!(0), ["subsampling factor", "0"]),
        ("/encoder_config/subsampling_factor", json!(6), ["subsampling factor", "6"]),
        ("/encoder_config/sliding_window", json!(0), ["sliding_window", "0"]),
        ("/encoder_config/sliding_window", json!(u64::MAX), ["left context", ""]),
        ("/encoder_config/default_num_lookahead_tokens", json!(u32::MAX), ["look-ahead", ""]),
        ("/encoder_config/num_mel_bins", json!(1u64 << 40), ["mel bins", ""]),
        ("/encoder_config/conv_kernel_size", json!(0), ["kernel", "0"]),
        ("/encoder_config/hidden_size", json!(31), ["heads", "31"]),
        ("/encoder_config/hidden_size", json!("big"), ["invalid type", "usize"]),
        ("/encoder_config", json!(null), ["config.json", ""]),
        ("/hidden_act", json!("tanh"), ["hidden_act", "relu"]),
        ("/blank_token_id", json!(0), ["blank", "last"]),
        ("/vocab_size", json!(0), ["vocab_size", "0"]),
        ("/decoder_hidden_size", json!(1u64 << 50), ["predictor", ""]),
        ("/num_decoder_layers", json!(0), ["layers", "0"]),
    ] {
        refused(&format!("{pointer} {value}"), hf(&[(pointer, value)]), &words);
    }
    let config = fixture("stream/config.json");
    for (processor, words) in [
        (json!({"feature_extractor": {"feature_size": 128}}), ["128", "mel bins"]),
        (json!({"feature_size": 128}), ["128", "mel bins"]),
        (json!({"hop_length": 256}), ["hop_length", "256"]),
        (json!({"preemphasis": 0.0}), ["preemphasis", "0.97"]),
        (json!({"sampling_rate": 8000}), ["sample rate", "16000"]),
        (json!({"mel_filters_dtype": "float8"}), ["mel_filters_dtype", "float8"]),
        (json!({"supported_num_lookahead_tokens": [3, 2]}), ["8", "3"]),
        (json!([]), ["config.json", ""]),
    ] {
        let text = processor.to_string();
        refused(&text, FastConformerConfig::from_hf_json(&config, &[&text]), &words);
    }
    refused("no json", FastConformerConfig::from_hf_json("{", &[]), &["config.json"]);
    let bf16 = FastConformerConfig::from_hf_json(&config, &[r#"{"mel_filters_dtype": "bfloat16"}"#]);
    assert!(bf16.unwrap().mel.bf16_filters);
}

/// Every number of both layouts, replaced by absurd ones: an error, or a configuration within the limits.
#[test]
fn absurd_numbers_never_panic() {
    fn leaves(value: &Value, at: String, out: &mut Vec<String>) {
        match value {
            Value::Object(map) => map.iter().for_each(|(k, v)| leaves(v, format!("{at}/{k}"), out)),
            Value::Array(list) => {
                list.iter().enumerate().for_each(|(i, v)| leaves(v, format!("{at}/{i}"), out))
            }
            _ => out.push(at),
        }
    }
    let absurd = [
        json!(0),
        json!(-1),
        json!(1),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1u64 << 33),
        json!(1e300),
        json!("x"),
        json!([]),
        json!({}),
        json!(null),
    ];
    let run = |config: &Value,
               read: &dyn Fn(&str) -> Result<FastConformerConfig, ConfigError>,
               yaml: bool| {
        let mut all = Vec::new();
        leaves(config, String::new(), &mut all);
        for pointer in all {
            for value in &absurd {
                let mut config = config.clone();
                *config.pointer_mut(&pointer).unwrap() = value.clone();
                let text = if yaml { serde_yaml_ng::to_string(&config).unwrap() } else { config.to_string() };
                if let Ok(c) = read(&text) {
                    c.check().unwrap();
                    assert!(c.parameters() > 0 && !c.tensors().is_empty());
                }
            }
        }
    };
    run(&serde_yaml_ng::from_str(NEMO).unwrap(), &FastConformerConfig::from_nemo_yaml, true);
    for name in ["prompt", "tdt"] {
        let config = serde_json::from_str(&fixture(&format!("{name}/config.json"))).unwrap();
        run(&config, &|text| FastConformerConfig::from_hf_json(text, &[]), false);
    }
}

#[test]
fn hostile_yaml_is_an_error() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let refs = vec![format!("*a{}", i - 1); 10].join(", ");
        bomb += &format!("a{i}: &a{i} [{refs}]\n");
    }
    bomb += "labels: *a11\n";
    assert!(FastConformerConfig::from_nemo_yaml(&bomb).is_err());
    assert!(FastConformerConfig::from_nemo_yaml(&"[".repeat(100_000)).is_err());
    assert!(FastConformerConfig::from_nemo_yaml("").is_err());
    assert!(FastConformerConfig::from_nemo_yaml("target: ${oc.env:HOME}").is_err());
}

#[test]
fn named_shapes_are_sound() {
    for name in SHAPES {
        FastConformerConfig::named(name).unwrap().check().unwrap();
    }
}
