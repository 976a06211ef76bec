//! Kyutai's text to speech from outside: codes, words, voices and turns as the published package has them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::sandbox::{Sandbox, arg};

fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/kyutai/say")
}

/// A tensor of 32-bit integers and its shape.
fn integers(path: &Path, name: &str) -> (Vec<usize>, Vec<i32>) {
    let file = std::fs::read(path).unwrap();
    let size = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + size]).unwrap();
    let tensor = &header[name];
    assert_eq!(tensor["dtype"], "I32", "{header}");
    let at: Vec<usize> = serde_json::from_value(tensor["data_offsets"].clone()).unwrap();
    let words = file[8 + size..][at[0]..at[1]].chunks_exact(4);
    let words = words.map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect();
    (serde_json::from_value(tensor["shape"].clone()).unwrap(), words)
}

/// What the model says with some flags: its report, and its codes by codebook.
fn say(s: &Sandbox, flags: &[&str], text: &str) -> (Value, Vec<Vec<i32>>) {
    let (m, wav, codes) = (model(), s.out("out.wav"), s.out("codes.safetensors"));
    let mut args = vec!["--json", "say", "--model", arg(&m), "--temperature", "0", "--precision", "f32"];
    args.extend_from_slice(flags);
    args.extend(["--words", "--codes", arg(&codes), "-o", arg(&wav), text]);
    let report = s.json(&args);
    let (shape, words) = integers(&codes, "codes");
    assert_eq!(report["frames"].as_u64().unwrap() as usize, shape[1], "{report}");
    (report, words.chunks_exact(shape[1].max(1)).map(<[i32]>::to_vec).collect())
}

#[test]
fn the_flags_of_scripts_give_the_packages_codes_and_words() {
    let s = Sandbox::new();
    let traces: Value = serde_json::from_slice(&std::fs::read(model().join("trace.json")).unwrap()).unwrap();
    // One voice, two in turn, and one in the places of two speakers.
    for (run, trace) in traces.as_array().unwrap().iter().enumerate() {
        let names = trace["voices"].as_array().unwrap().iter();
        let voice = names.map(|name| format!("{}.wav", name.as_str().unwrap())).collect::<Vec<_>>().join("+");
        let turns: Vec<&str> =
            trace["script"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
        let cfg = trace["cfg"].to_string();
        let (report, codes) = say(&s, &["--voice", &voice, "--cfg", &cfg], &turns.join(" <turn/> "));
        let (shape, want) = integers(&model().join("dump.safetensors"), &format!("frames{run}"));
        assert_eq!(codes.len(), shape[0]);
        for (book, want) in codes.iter().zip(want.chunks_exact(shape[1])) {
            assert_eq!(book[..shape[1]], *want, "run {run}");
        }
        let words = report["words"].as_array().unwrap();
        let expected = trace["words"].as_array().unwrap();
        assert_eq!(words.len(), expected.len(), "{report}");
        for (word, want) in words.iter().zip(expected) {
            assert_eq!(word["text"], want[0]);
            assert!(
                (word["start"].as_f64().unwrap() - want[1].as_f64().unwrap() / 12.5).abs() < 1e-3,
                "{word}"
            );
        }
    }
}

#[test]
fn fewer_codebooks_voices_by_file_and_what_cannot_be_are_told() {
    let s = Sandbox::new();
    let file = model().join("voices/ben.wav.abcd@7.safetensors");
    let (_, codes) = say(&s, &["--voice", arg(&file), "--codebooks", "2"], "the lazy dog");
    let (_, named) = say(&s, &["--voice", "ben.wav", "--codebooks", "2"], "the lazy dog");
    assert_eq!((codes.len(), &codes), (2, &named));
    let m = model();
    for (flags, says) in [
        (["--codebooks", "7"], "codebooks"),
        (["--cfg", "1.7"], "guidance"),
        (["--voice", "nobody"], "anna.wav"),
        (["--instruct", "softly"], "instruction"),
        (["--top-p", "0.5"], "top p"),
    ] {
        let out = s.out("none.wav");
        let (_, said) =
            s.fails(&[&["say", "--model", arg(&m), "-o", arg(&out)], &flags[..], &["hello"]].concat());
        assert!(said.contains(says), "{flags:?}: {said}");
        assert!(!out.exists());
    }
    let mimi = model().join("mimi.safetensors");
    let (_, said) =
        s.fails(&["say", "--model", arg(&m), "--voice", arg(&mimi), "-o", arg(&s.out("x.wav")), "hello"]);
    assert!(said.contains("speaker_wavs"), "{said}");
}
