//! Configurations as they are published, and such as cannot be run.

use super::*;

const STT: &str = r#"{"card":2048,"n_q":32,"dep_q":0,"delays":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],
    "dim":2048,"text_card":8000,"existing_text_padding_id":3,"num_heads":16,"num_layers":16,"hidden_scale":4.125,
    "causal":true,"layer_scale":null,"context":750,"max_period":100000.0,"gating":"silu","norm":"rms_norm_f32",
    "positional_embedding":"rope","depformer_dim":1024,"depformer_num_heads":16,"depformer_num_layers":6,
    "depformer_dim_feedforward":4224,"depformer_layer_scale":null,"depformer_multi_linear":true,
    "conditioners":{},"extra_heads_num_heads":4,"extra_heads_dim":6,"model_type":"stt",
    "stt_config":{"audio_silence_prefix_seconds":0.0,"audio_delay_seconds":0.5},"mimi_name":"m.safetensors"}"#;

#[test]
fn published_shapes_have_their_sizes() {
    let stt = KyutaiConfig::from_json(STT).unwrap();
    assert_eq!((stt.kind(), stt.backbone().ffn, stt.given()), (Kind::Stt, 5632, 32));
    let moshi = KyutaiConfig::default();
    moshi.check().unwrap();
    assert_eq!((moshi.kind(), moshi.backbone().ffn, moshi.depth().ffn), (Kind::Moshi, 11_264, 2816));
    assert_eq!((moshi.sets(), moshi.max_delay()), (8, 1));
    // The package's two RMS norms differ in what they add.
    let with = |norm: &str| KyutaiConfig { norm: norm.into(), ..KyutaiConfig::default() };
    assert_eq!((with("rms_norm_f32").backbone().eps, with("rms_norm").depth().eps), (1e-8, 1e-5));
    // Exactly four times the width has a rule of its own.
    assert_eq!((gated(32, 8), gated(33, 8)), (21, 22));
}

#[test]
fn what_cannot_be_run_is_named() {
    for (from, to, says) in [
        (r#""norm":"rms_norm_f32""#, r#""norm":"layer_norm""#, "layer_norm"),
        (r#""gating":"silu""#, r#""gating":"none""#, "gating 'none'"),
        (r#""model_type":"stt""#, r#""model_type":"hibiki""#, "model_type 'hibiki'"),
        (r#""causal":true"#, r#""causal":false"#, "causal"),
        (r#""n_q":32"#, r#""n_q":31"#, "delays"),
        (r#""num_heads":16,"num_layers":16"#, r#""num_heads":3,"num_layers":16"#, "heads"),
        (r#""conditioners":{}"#, r#""conditioners":{"a":{"type":"t5"}}"#, "t5"),
        (
            r#""conditioners":{}"#,
            r#""conditioners":{"a":{"type":"continuous","continuous":{"dim":3,"scale_factor":1,"max_period":9}}}"#,
            "3 sines",
        ),
        (
            r#""conditioners":{}"#,
            r#""conditioners":{"a":{"type":"continuous","continuous":{"dim":4,"scale_factor":0,"max_period":9}}}"#,
            "sines of 9 by 0",
        ),
        (r#""causal":true"#, r#""causal":true,"quantize":true"#, "quantize"),
        (r#""causal":true"#, r#""causal":true,"lora":true"#, "lora"),
        (r#""causal":true"#, r#""causal":true,"cross_attention":true"#, "cross_attention"),
        (
            r#""causal":true"#,
            r#""causal":true,"tts_config":{"audio_delay":1,"multistream":true}"#,
            "multistream",
        ),
        (r#""causal":true"#, r#""causal":true,"tts_config":{"audio_delay":61}"#, "audio_delay is 61"),
        (
            r#""causal":true"#,
            r#""causal":true,"tts_config":{"audio_delay":60,"second_stream_ahead":2}"#,
            "second_stream_ahead",
        ),
        (r#""dim":2048"#, r#""dim":0"#, "dim is 0"),
        (r#""dim":2048,"#, "", "dim"),
    ] {
        assert!(STT.contains(from), "{from}");
        let error = KyutaiConfig::from_json(&STT.replace(from, to)).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn text_of_a_voice_and_streams_of_a_recogniser_have_no_delay() {
    let late = STT.replace(r#""delays":[0,"#, r#""delays":[2,"#);
    let stt = KyutaiConfig::from_json(&late).unwrap();
    assert!(stt.check_hearing().unwrap_err().to_string().contains("a delay of 2"));
    KyutaiConfig::from_json(STT).unwrap().check_hearing().unwrap();
    let tts = late.replace(r#""model_type":"stt""#, r#""model_type":"tts""#);
    assert!(
        KyutaiConfig::from_json(&tts).unwrap_err().to_string().contains("text of a voice has a delay of 2")
    );
}
