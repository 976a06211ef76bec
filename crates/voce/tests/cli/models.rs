//! Models: listed, shown, pulled offline; and the pages that shells and readers get.

use crate::sandbox::{Sandbox, arg, model};

#[test]
fn an_empty_store() {
    let s = Sandbox::new();
    let all = s.json(&["list", "--all", "--json"]);
    assert!(all.as_array().unwrap().iter().any(|m| m["id"] == "pocket-french" && m["installed"] == false));
    for model in all.as_array().unwrap() {
        assert!(model["task"].is_string() && model["family"].is_string(), "{model}");
    }
    let is_nemotron = |m: &serde_json::Value| m["also"][0] == "nemotron" && m["streaming"] == true;
    assert!(all.as_array().unwrap().iter().any(is_nemotron), "{all}");
    let (code, text) = s.fails(&["pull", "--offline", "pocket"]);
    assert_eq!(code, 1);
    assert!(text.contains("offline"), "{text}");
    assert_eq!(s.fails(&["pull", "nonsense"]).0, 2);
    // Before anything of the others is fetched.
    let (code, text) = s.fails(&["pull", "--offline", "pocket", "nonsense"]);
    assert!(code == 2 && text.contains("`nonsense`"), "{text}");
    assert_eq!(s.fails(&["pull", "--offline", "pocket", "--voices", "nobody"]).0, 2);
    assert!(!s.run(&["rm", "pocket"]).status.success());
}

#[cfg(not(feature = "nano"))]
#[test]
fn a_build_without_models_says_so() {
    let s = Sandbox::new();
    assert_eq!(s.json(&["list", "--json"]), serde_json::json!([]));
    assert!(crate::sandbox::stderr(&s.run(&["list"])).contains("voce pull pocket"));
    let say = ["say", "-m", "nano-voice", "-o", "x.wav", "Hi."];
    for command in [&["show", "nano-ear"][..], &["hear", "x.wav"], &["demo", "--speak", "nano-voice"], &say] {
        let (code, text) = s.fails(command);
        assert!(code == 2 && text.contains("--features nano"), "{command:?}: {text}");
    }
    assert!(s.fails(&["demo"]).1.contains("voce pull pocket"));
}

#[test]
fn a_model_in_full() {
    let s = Sandbox::new();
    let m = model("drifting_gqa");
    let shown = s.json(&["show", arg(&m), "--json"]);
    assert_eq!(shown["head_type"], "drifting");
    assert_eq!(shown["sample_rate"], 2400);
    assert_eq!(shown["voices"][0], "voice");
    let [f32, int4] = ["f32", "int4"].map(|p| shown["precisions"][p]["bytes"].as_u64().unwrap());
    assert!(int4 > 0 && int4 < f32);
    let absent = s.json(&["show", "pocket", "--json"]);
    assert_eq!(absent["installed"], false);
    assert!((100e6..120e6).contains(&absent["parameters"].as_f64().unwrap()), "{absent}");
    let text = String::from_utf8(s.run(&["show", "pocket"]).stdout).unwrap();
    assert!(text.contains("voce pull pocket") && text.contains("int8 (auto)"), "{text}");
    assert_eq!(s.fails(&["show", "pockett"]).0, 2);
    let absent = s.json(&["show", "nemotron", "--json"]);
    assert_eq!((&absent["installed"], &absent["task"]), (&false.into(), &"hearing".into()));
    assert_eq!((&absent["offline"], &absent["parameters"]), (&false.into(), &618_000_000.into()));
}

#[test]
fn a_recogniser_in_full() {
    let s = Sandbox::new();
    for (name, head, offline) in
        [("stream", "rnnt", false), ("tdt", "tdt", true), ("nemo/tdt.nemo", "tdt", true)]
    {
        let m = crate::hear::fixture(name);
        let shown = s.json(&["show", arg(&m), "--json"]);
        assert_eq!(
            (&shown["family"], &shown["head_type"]),
            (&"fastconformer".into(), &head.into()),
            "{name}"
        );
        assert_eq!(shown["offline"], offline, "{name}");
        assert!(shown["parameters"].as_u64().unwrap() > 10_000, "{name}");
        let text = String::from_utf8(s.run(&["show", arg(&m)]).stdout).unwrap();
        assert!(text.contains(if offline { "whole utterances" } else { "chunks of" }), "{text}");
    }
}

#[test]
fn the_binary_knows_no_family() {
    let families = ["Family::", "voce_models::pocket", "voce_models::fastconformer"];
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // A recording lies among the sources.
            if path.extension().is_none_or(|e| e != "rs") {
                continue;
            }
            files += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            for family in families {
                assert!(!text.contains(family), "{family} in {}", path.display());
            }
        }
    }
    assert!(files > 20);
}

#[test]
fn pages() {
    let s = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(String::from_utf8(s.run(&["completions", shell]).stdout).unwrap().contains("voce"));
    }
    assert!(String::from_utf8(s.run(&["man"]).stdout).unwrap().contains(".TH voce 1"));
    assert!(s.run(&["man", arg(&s.out("man"))]).status.success());
    assert!(s.out("man").join("voce-say.1").is_file() && s.out("man").join("voce-demo.1").is_file());
    let help = String::from_utf8(s.run(&["say", "--help"]).stdout).unwrap();
    assert!(help.contains("VOCE_TEMPERATURE") && help.contains("Examples:"), "{help}");
    assert_eq!(s.run(&[]).status.code(), Some(2));
}
