//! Voices: cloned, kept, used, exported, removed.

use crate::sandbox::{Sandbox, arg, model, stderr};

#[test]
fn from_a_clip_to_speech_and_away() {
    let s = Sandbox::new();
    let m = model("lsd");
    let clip = m.join("prompt.wav");
    let added = s.json(&["voice", "add", "anna", arg(&clip), "--model", arg(&m), "--json"]);
    assert_eq!(added["name"], "anna");
    let listed = s.json(&["voice", "list", "--model", arg(&m), "--json"]);
    let anna = &listed[0];
    assert_eq!((anna["name"].as_str(), anna["from"].as_str()), (Some("anna"), Some("yours")));
    assert!(anna["model"].as_str().unwrap().ends_with("lsd"), "{anna}");
    assert_eq!(listed[1]["name"], "voice");

    let out = s.out("anna.safetensors");
    assert!(s.run(&["voice", "export", "anna", arg(&out)]).status.success());
    let file = std::fs::read(&out).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header]).unwrap();
    assert!(header["__metadata__"]["voce_model"].as_str().unwrap().ends_with("lsd"), "{header}");

    // By name, by its file, and straight from the clip: the same voice.
    let speak = |voice: &str| {
        let wav = s.out("x.wav");
        let output = s.run(&[
            "say",
            "-q",
            "--model",
            arg(&m),
            "--precision",
            "f32",
            "--temperature",
            "0",
            "--max-frames",
            "5",
            "--voice",
            voice,
            "-o",
            arg(&wav),
            "Hello there.",
        ]);
        assert!(output.status.success(), "{voice}: {}", stderr(&output));
        std::fs::read(&wav).unwrap()
    };
    let by_name = speak("anna");
    assert!(by_name == speak(arg(&out)) && by_name == speak(arg(&clip)));

    // A voice file can be taken in under another name, but not by a model of another shape.
    let copied = s.run(&["voice", "add", "bert", arg(&out), "--model", arg(&m)]);
    assert!(copied.status.success(), "{}", stderr(&copied));
    assert!(by_name == speak("bert"));
    let other = model("drifting_gqa");
    let (code, text) = s.fails(&["voice", "add", "carl", arg(&out), "--model", arg(&other)]);
    assert_eq!(code, 1);
    assert!(text.contains("voice"), "{text}");

    assert!(s.run(&["voice", "rm", "anna", "bert"]).status.success());
    let (code, text) = s.fails(&["voice", "rm", "anna"]);
    assert_eq!(code, 2);
    assert!(text.contains("no voice named `anna`"), "{text}");
    assert_eq!(s.json(&["voice", "list", "--model", arg(&m), "--json"]).as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_a_voice() {
    let s = Sandbox::new();
    let m = model("lsd");
    let (code, text) = s.fails(&["voice", "add", "../x", arg(&m.join("prompt.wav")), "--model", arg(&m)]);
    assert_eq!(code, 2);
    assert!(text.contains("not a voice name"), "{text}");
    assert_eq!(s.fails(&["voice", "add", "a", "/no/clip.wav", "--model", arg(&m)]).0, 1);
    let noise = s.out("noise.wav");
    std::fs::write(&noise, b"not audio at all").unwrap();
    let (code, text) = s.fails(&["voice", "add", "a", arg(&noise), "--model", arg(&m)]);
    assert_eq!(code, 1);
    assert!(text.contains("noise.wav"), "{text}");
    let out = s.out("x.safetensors");
    let (code, text) = s.fails(&["voice", "export", "nobody", arg(&out), "--model", arg(&m)]);
    assert_eq!(code, 2);
    assert!(text.contains("known voices are voice"), "{text}");
    assert_eq!(s.results(), ["noise.wav"]);
}
