//! `voce bench say` and `voce doctor`: the figures are there; how large they are is no test's business.

use crate::sandbox::{Sandbox, arg, model, stderr};

#[test]
fn frames_as_one_line_for_scripts() {
    let s = Sandbox::new();
    let m = model("lsd");
    let json = s.json(&["bench", "say", "--model", arg(&m), "--frames", "6", "--repeat", "2", "--json"]);
    assert_eq!((json["frames"].as_u64(), json["tokens"].as_u64()), (Some(6), Some(24)));
    assert_eq!((json["precision"].as_str(), json["threads"].as_u64()), (Some("int8"), Some(1)));
    for key in ["rtf", "rtf_p50", "rtf_best", "first_audio_ms", "peak_rss_mb"] {
        assert!(json[key].as_f64().is_some_and(|v| v > 0.0), "{key} in {json}");
    }
    assert!(json["frame_ms"]["p50"].as_f64() <= json["frame_ms"]["p99"].as_f64());
    assert!(json["frame_ms"]["p99"].as_f64() <= json["frame_ms"]["p999"].as_f64());
    assert!(json["frame_ms"]["p999"].as_f64() <= json["frame_ms"]["max"].as_f64());
    assert!(json["frame_ms"]["jitter"].as_f64().is_some_and(|v| v >= 0.0), "{json}");
    assert!(json["clone"].is_null(), "{json}");
    for stage in ["prefill", "backbone", "head", "codec"] {
        for key in ["ms", "limit_ms", "fraction"] {
            assert!(json["stages"][stage][key].as_f64().is_some(), "{stage} {key} in {json}");
        }
    }
}

#[test]
fn a_table_a_trace_and_another_program() {
    let s = Sandbox::new();
    let m = model("drifting_gqa");
    let trace = s.out("trace.json");
    let output = s.run(&[
        "bench",
        "say",
        "--model",
        arg(&m),
        "--text",
        "short",
        "--repeat",
        "1",
        "--trace",
        arg(&trace),
        "--compare",
        "test -n {text}",
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for part in
        ["words", "RTF", "first audio", "p99.9", "jitter", "prefill", "reached", "GB/s", "times as fast"]
    {
        assert!(text.contains(part), "{part} in: {text}");
    }
    let events: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let names: Vec<_> =
        events["traceEvents"].as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert!(["prefill", "backbone", "head", "codec"].iter().all(|n| names.contains(n)));
    let (code, text) =
        s.fails(&["bench", "say", "--model", arg(&m), "--text", "short", "--compare", "exit 3"]);
    assert_eq!(code, 1, "{text}");
    assert_eq!(s.fails(&["bench", "say"]).0, 2);
    assert_eq!(s.fails(&["bench", "say", "--shape", "pocket-9000m"]).0, 2);
}

#[test]
fn random_weights_need_no_files() {
    let s = Sandbox::new();
    let json = s.json(&["bench", "say", "--shape", "2m", "--frames", "3", "--repeat", "1", "--json"]);
    assert_eq!((json["frames"].as_u64(), json["model"].as_str()), (Some(3), Some("pocket-2m")));
}

#[test]
fn a_voice_is_cloned_and_timed() {
    let s = Sandbox::new();
    let m = model("lsd");
    let cloning = ["bench", "say", "--model", arg(&m), "--frames", "3", "--repeat", "1", "--json", "--clone"];
    let json = s.json(&cloning);
    assert_eq!(json["clone"]["clip"], "built-in");
    assert_eq!(json["clone"]["clip_seconds"], 10.4);
    for key in ["first_ms", "ms"] {
        assert!(json["clone"][key].as_f64().is_some_and(|v| v > 0.0), "{key} in {json}");
    }
    let clip = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/speech/1867-154075-0019.opus");
    let json = s.json(&[&cloning[..], &[clip]].concat());
    assert_eq!(json["clone"]["clip"], clip);
    let (code, text) = s.fails(&[&cloning[..], &["/no/such.wav"]].concat());
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("/no/such.wav"), "{text}");
}

#[test]
fn kernels_are_compiled_for_generations_that_exist() {
    let s = Sandbox::new();
    let (code, text) = s.fails(&["doctor", "--compile-kernels", "sm_70"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("sm_70") && text.contains("90"), "{text}");
    assert_eq!(s.fails(&["doctor", "--into", "x"]).0, 2);
}

#[test]
fn the_doctor_knows_this_machine() {
    let s = Sandbox::new();
    let json = s.json(&["doctor", "--json"]);
    assert!(json["read_gb_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(json["isa_available"][0], "scalar");
    assert_eq!(json["pocket_100m"].as_array().unwrap().len(), 4);
    assert_eq!(json["fastconformer_0_12b"].as_array().unwrap().len(), 4);
    for key in ["device", "device_reason", "precision", "precision_reason"] {
        assert!(json["auto"][key].as_str().is_some_and(|text| !text.is_empty()), "{key} in {json}");
    }
    let attention = json["attention"].as_array().unwrap();
    for part in ["backbone", "codec", "encoder"] {
        let of = attention.iter().find(|a| a["part"] == part).unwrap();
        assert!(of["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{json}");
    }
    let text = String::from_utf8(s.run(&["doctor"]).stdout).unwrap();
    assert!(text.contains("auto is") && text.contains("`voce bench hear --shape"), "{text}");
    assert!(text.contains("`voce bench talk --shape moshi-7b`"), "{text}");
}

#[test]
fn sockets_of_a_server() {
    let s = Sandbox::new();
    let ran = s.json(&["bench", "serve", "--streams", "3", "--seconds", "1", "--churn", "3", "--json"]);
    assert_eq!((&ran["opened"], &ran["failed"]), (&3.into(), &0.into()), "{ran}");
    assert!(ran["frames_sent"].as_u64().unwrap() > 0, "{ran}");
    assert_eq!((&ran["refused_ms"]["count"], &ran["freed_ms"]["count"]), (&3.into(), &3.into()), "{ran}");
    assert_eq!(ran["wrongly_taken"], 0, "{ran}");
    let steady = s.json(&["bench", "serve", "--streams", "1", "--seconds", "1", "--churn", "0", "--json"]);
    assert!(steady["opened"] == 1 && steady.get("refused_ms").is_none(), "{steady}");
    assert_eq!(s.fails(&["bench", "serve", "--streams", "0"]).0, 2);
}

#[test]
fn bench_decode_has_its_figures() {
    let s = Sandbox::new();
    let shape = ["bench", "decode", "--shape", "qwen3-tts-tiny", "--device", "cpu"];
    let with = |more: &[&'static str]| [&shape[..], more].concat();
    let json = s.json(&with(&["--streams", "3", "--frames", "4", "--context", "20", "--json"]));
    for figure in
        ["times_real_time", "frame_gmac", "gb_per_s", "read_gb_per_s", "linear_gmac_per_s", "load_ms"]
    {
        assert!(json[figure].as_f64().unwrap() > 0.0, "{figure}: {json}");
    }
    let ms = |name: &str| json["frame_ms"][name].as_f64().unwrap();
    assert!(ms("least") > 0.0 && ms("least") <= ms("p50") && ms("p50") <= ms("p95"), "{json}");
    let bytes = |name: &str| json[name].as_u64().unwrap();
    assert!(bytes("frame_bytes") > bytes("weight_bytes") && bytes("cache_bytes") > 0, "{json}");
    assert_eq!((&json["device"], &json["context"]), (&serde_json::Value::Null, &20.into()));
    let output = s.run(&with(&["--frames", "2", "--precision", "f32,bf16"]));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.matches("ms a frame").count() == 2 && text.contains("300"), "{text}");
    let (code, message) = s.fails(&["bench", "decode", "--shape", "qwen3-tts-9b"]);
    assert!(code == 2 && message.contains("stt-1b"), "{message}");
    assert_eq!(s.fails(&with(&["--streams", "0"])).0, 2);
    assert_eq!(s.fails(&with(&["--context", "99999999"])).0, 2);
    assert_eq!(s.fails(&["bench", "decode"]).0, 2);
}
