//! What a model is, by its entry in the catalogue or by its files; and what opening the wrong one says.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::tempdir;
use voce_engine::listener::{Listener, ListenerOptions};
use voce_engine::store::{Family, Identity, Store, Task};
use voce_engine::{EngineError, Speaker, SpeakerOptions};

use crate::hub::settings;

fn store(root: &Path) -> Store {
    Store::new(settings(root, "http://127.0.0.1:9"))
}

/// A folder with a configuration and weights whose header names one tensor.
fn folder(root: &Path, name: &str, config: Option<(&str, &str)>, tensor: &str) -> PathBuf {
    let dir = root.join(name);
    fs::create_dir_all(&dir).unwrap();
    if let Some((file, text)) = config {
        fs::write(dir.join(file), text).unwrap();
    }
    let header = format!(r#"{{"{tensor}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}}}"#);
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend_from_slice(header.as_bytes());
    fs::write(dir.join("model.safetensors"), weights).unwrap();
    dir
}

fn open(store: &Store, model: &Path) -> [EngineError; 2] {
    let model = model.to_str().unwrap();
    let speaker = Speaker::open(store, model, &SpeakerOptions::default());
    let listener = Listener::open(store, model, &ListenerOptions::default());
    [speaker.err().expect("it does not speak"), listener.err().expect("it does not hear")]
}

const QWEN: &str = r#"{"architectures": ["Qwen3TTSForConditionalGeneration"], "model_type": "qwen3_tts", "talker_config": {}}"#;
const STT: &str = r#"{"n_q": 32, "dep_q": 0, "text_card": 8000, "stt_config": {"audio_delay_seconds": 0.5}, "mimi_name": "mimi.safetensors"}"#;
const TTS: &str = r#"{"n_q": 32, "dep_q": 32, "text_card": 8000, "tts_config": {}, "mimi_name": "mimi.safetensors", "stt_config": null}"#;
const MOSHI: &str = r#"{"n_q": 16, "dep_q": 8, "text_card": 32000}"#;

#[test]
fn configurations_tell_family_and_task() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    let json = |text: &'static str| Some(("config.json", text));
    for (name, config, tensor, family, task, title) in [
        ("qwen", json(QWEN), "x", Family::Qwen, Some(Task::Speech), "Qwen3-TTS"),
        (
            "qwen-codec",
            json(r#"{"model_type": "qwen3_tts_tokenizer_12hz"}"#),
            "x",
            Family::Qwen,
            None,
            "Qwen3-TTS codec",
        ),
        ("stt", json(STT), "x", Family::Kyutai, Some(Task::Hearing), "Kyutai STT"),
        ("tts", json(TTS), "x", Family::Kyutai, Some(Task::Speech), "Kyutai TTS"),
        ("moshi", json(MOSHI), "x", Family::Kyutai, Some(Task::Dialogue), "Moshi"),
        (
            "stt-trfs",
            json(r#"{"model_type": "kyutai_speech_to_text"}"#),
            "x",
            Family::Kyutai,
            Some(Task::Hearing),
            "Kyutai STT",
        ),
        ("mimi", json(r#"{"model_type": "mimi"}"#), "x", Family::Kyutai, None, "Mimi codec"),
        (
            "parakeet",
            json(r#"{"model_type": "parakeet_tdt"}"#),
            "x",
            Family::FastConformer,
            Some(Task::Hearing),
            "FastConformer",
        ),
        (
            "nemotron",
            json(r#"{"architectures": ["NemotronAsrStreamingForRNNT"]}"#),
            "x",
            Family::FastConformer,
            Some(Task::Hearing),
            "FastConformer",
        ),
        (
            "pocket",
            Some(("config.yaml", "flow_lm: {}")),
            "x",
            Family::Pocket,
            Some(Task::Speech),
            "Pocket TTS",
        ),
        // Weights tell where no configuration does.
        ("bare-pocket", None, "flow_lm.bos_emb", Family::Pocket, Some(Task::Speech), "Pocket TTS"),
        ("bare-qwen", json("{}"), "talker.model.norm.weight", Family::Qwen, Some(Task::Speech), "Qwen3-TTS"),
        ("bare-moshi", None, "depformer_in.0.weight", Family::Kyutai, Some(Task::Dialogue), "Moshi"),
        ("bare-stt", None, "text_emb.weight", Family::Kyutai, Some(Task::Hearing), "Kyutai STT"),
    ] {
        let dir = folder(root.path(), name, config, tensor);
        let id = dir.to_str().unwrap().to_owned();
        let found = store.identify(&id).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(found, Identity { id, family, task, title }, "{name}");
        assert_eq!(found.runs(), task.is_some(), "{name}: all but parts of other models run");
    }
}

#[test]
fn catalogue_names_and_archives_tell_without_their_files() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    for (name, id, family, task) in [
        ("pocket", "pocket-english", Family::Pocket, Task::Speech),
        ("parakeet", "parakeet-tdt-0.6b-v3", Family::FastConformer, Task::Hearing),
    ] {
        let found = store.identify(name).unwrap();
        assert_eq!((found.id.as_str(), found.family, found.task), (id, family, Some(task)));
    }
    let nemo = root.path().join("m.nemo");
    fs::write(&nemo, "not yet read").unwrap();
    assert_eq!(store.identify(nemo.to_str().unwrap()).unwrap().family, Family::FastConformer);
    assert_eq!(store.identify("acme/talker").unwrap_err().code(), "not_pulled");
    assert_eq!(store.identify("nowhere").unwrap_err().code(), "unknown_model");
}

#[test]
fn unknown_families_are_named() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    let said = |name: &str, config, tensor| {
        let dir = folder(root.path(), name, config, tensor);
        let error = store.identify(dir.to_str().unwrap()).unwrap_err();
        assert_eq!(error.code(), "unknown_family", "{error}");
        for opened in open(&store, &dir) {
            assert_eq!(opened.to_string(), error.to_string());
        }
        error.to_string()
    };
    let whisper = said("whisper", Some(("config.json", r#"{"model_type": "whisper"}"#)), "x");
    assert!(whisper.contains("a 'whisper' model"), "{whisper}");
    // A language model of the name, and a name of a type that is as long as one likes.
    assert!(said("llm", Some(("config.json", r#"{"model_type": "nemotron"}"#)), "x").contains("'nemotron'"));
    let long = format!(r#"{{"model_type": "a\n{}"}}"#, "b".repeat(10_000));
    let long = said("long", Some(("config.json", &long)), "x");
    assert!(long.len() < 400 && !long.contains('\n'), "{long}");
    for (name, config) in
        [("none", None), ("broken", Some(("config.json", "{"))), ("yaml", Some(("config.yaml", "a: b")))]
    {
        assert!(said(name, config, "x").contains("no model of a family"), "{name}");
    }
}

#[test]
fn a_model_of_another_kind_says_what_it_is() {
    let root = tempdir().unwrap();
    let store = store(root.path());
    let json = |name: &str, text: &str| folder(root.path(), name, Some(("config.json", text)), "x");
    for (dir, code, part) in [
        (json("moshi", MOSHI), "other_task", "is a dialogue model"),
        (json("mimi", r#"{"model_type": "mimi"}"#), "cannot_run", "is a Mimi codec, a part of other models"),
    ] {
        for error in open(&store, &dir) {
            assert_eq!(error.code(), code);
            let text = error.to_string();
            assert!(text.contains(part) && text.contains(dir.to_str().unwrap()), "{text}");
        }
    }
    let [speaks, hears] = open(&store, &json("tts", TTS));
    assert_eq!((speaks.code(), hears.code()), ("bad_config", "other_task"), "{speaks} {hears}");
    let [speaks, hears] = open(&store, &json("stt", STT));
    assert_eq!((speaks.code(), hears.code()), ("other_task", "bad_config"), "{speaks} {hears}");
    let [speaks, hears] = open(&store, &json("qwen", QWEN));
    assert_eq!((speaks.code(), hears.code()), ("bad_config", "other_task"), "{speaks} {hears}");
    let pocket = folder(root.path(), "pocket", Some(("config.yaml", "flow_lm: {}")), "x");
    let parakeet = json("parakeet", r#"{"model_type": "parakeet_ctc"}"#);
    let [_, hears] = open(&store, &pocket);
    let [speaks, _] = open(&store, &parakeet);
    assert!(matches!(hears, EngineError::OtherTask { task: Task::Speech, .. }), "{hears}");
    assert!(matches!(speaks, EngineError::OtherTask { task: Task::Hearing, .. }), "{speaks}");
    assert!(hears.to_string().contains("use `voce say`") && speaks.to_string().contains("use `voce hear`"));
}

#[test]
fn shapes_are_those_of_their_task() {
    let speaker = |shape| Speaker::random(shape, 1, &SpeakerOptions::default()).err();
    let listener = |shape| Listener::random(shape, 1, &ListenerOptions::default()).err();
    for error in [speaker("nemotron-0.6b"), speaker(""), listener("pocket-2m"), listener("pocket")] {
        let error = error.expect("refused");
        assert_eq!(error.code(), "bad_request");
        assert!(matches!(error, EngineError::BadShape { .. }), "{error}");
    }
    assert!(speaker("nemotron-0.6b").unwrap().to_string().contains("no shape for speech: use pocket-100m"));
    assert!(voce_engine::shapes(Task::Dialogue).eq(["moshi-7b"]));
}
