//! `voce hear`, `show` and `bench codec` with Kyutai's models, on small ones with random weights.

use std::path::{Path, PathBuf};

use serde_json::Value;
use voce_nn::weights::SafetensorsFile;

use crate::sandbox::{Sandbox, arg, stderr};

fn kyutai(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/kyutai").join(name)
}

/// Text tokens of every step, as the published package drew them.
fn tokens(folder: &Path) -> Vec<i64> {
    let dump = SafetensorsFile::open(&folder.join("dump.safetensors")).unwrap();
    dump.integers("tokens").unwrap().unwrap()
}

#[test]
fn a_recording_has_the_packages_tokens_in_every_step() {
    // The rate of the other small model is too low for files.
    let name = "stt_heads";
    let (s, m) = (Sandbox::new(), kyutai(name));
    let clip = m.join("audio.wav");
    let run = ["hear", "--precision", "f32", "--model", arg(&m), "--format", "json", arg(&clip)];
    let got = s.json(&run);
    let want = tokens(&m);
    assert_eq!(got["tokens"], Value::from(want.clone()), "{name}");
    assert_eq!(got["frames"].as_array().unwrap().len(), want.len());
    let words = got["words"].as_array().unwrap();
    assert!(words.len() >= 3 && !got["text"].as_str().unwrap().is_empty());
    assert!(words.iter().all(|w| w["end"].as_f64() >= w["start"].as_f64()), "{words:?}");
    assert_eq!((got["head"].as_str(), got["frame_ms"].as_u64()), (Some("text"), Some(80)));
    // The same, as it is heard.
    let mut live = run.to_vec();
    live.extend(["--stream", "--temperature", "0"]);
    let output = s.run(&live);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|e| e["type"] == kind).collect::<Vec<_>>();
    let drawn: Vec<&Value> = of("tokens").into_iter().flat_map(|e| e["tokens"].as_array().unwrap()).collect();
    assert_eq!(drawn.len(), want.len(), "{name}");
    let pauses = of("pause");
    assert_eq!(pauses.len(), want.len() - 1, "{name}: one for each frame");
    assert!(pauses.iter().all(|p| p["probabilities"].as_array().unwrap().len() == 4));
    assert!(!of("word").is_empty() && !of("word_end").is_empty());
    let (code, text) = s.fails(&["-q", "hear", "--model", arg(&m), "--beam", "4", arg(&clip)]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("Kyutai STT takes no beam"), "{text}");
}

#[test]
fn models_and_codecs_are_described() {
    let s = Sandbox::new();
    let said = s.json(&["show", arg(&kyutai("stt_heads")), "--json"]);
    assert_eq!((said["layers"].as_u64(), said["codes"].as_u64()), (Some(2), Some(8)), "{said}");
    let output = s.run(&["show", arg(&kyutai("mimi_plain"))]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("Mimi codec") && text.contains("`voce codec`"), "{text}");
}
