//! Models that speak in codes, from outside: the flags that scripts rely on, clones, kept voices, and bad input.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::patience::Ends as _;
use crate::sandbox::{Sandbox, arg, stderr};

const TEXT: &str = "Hello there, it's a tiny test: naïve café 你好 42!";

fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/qwen").join(name)
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

/// What a model says with some flags: its report, and the codes.
fn say(s: &Sandbox, m: &Path, flags: &[&str], text: &str) -> (Value, Vec<usize>, Vec<i32>) {
    let (wav, codes) = (s.out("out.wav"), s.out("codes.safetensors"));
    let mut args = vec!["--json", "say", "--model", arg(m), "--greedy", "--precision", "f32"];
    args.extend_from_slice(flags);
    args.extend(["--codes", arg(&codes), "-o", arg(&wav), text]);
    let report = s.json(&args);
    let (shape, words) = integers(&codes, "codes");
    (report, shape, words)
}

#[test]
fn the_flags_of_scripts_give_the_codes_of_the_package() {
    let s = Sandbox::new();
    for (case, run, flags, text) in [
        ("custom_0b6", "ryan_en", vec!["--voice", "Ryan", "--language", "English"], TEXT),
        ("custom_0b6", "auto_streaming", vec!["--voice", "vivian", "--text-mode", "streaming"], TEXT),
        ("custom_0b6", "dialect", vec!["--voice", "eric", "--language", "zh"], "你好吗"),
        ("custom_0b6", "dialect_auto", vec!["--voice", "dylan", "--language", "auto"], "你好吗"),
        (
            "custom_1b7",
            "instruct",
            vec!["--voice", "aiden", "--language", "English", "--instruct", "Speak slowly."],
            TEXT,
        ),
        ("design_1b7", "french", vec!["--language", "French", "--instruct", "A calm, deep voice."], TEXT),
    ] {
        let m = model(case);
        let (report, shape, codes) = say(&s, &m, &[&flags[..], &["--max-frames", "9"]].concat(), text);
        let want = integers(&m.join("dump.safetensors"), &format!("{run}/codes"));
        assert_eq!((&shape, &codes), (&want.0, &want.1), "{case}: {run}");
        assert_eq!(report["frames"].as_u64().unwrap() as usize, shape[1], "{report}");
    }
    // Another penalty makes other choices, and exactly as many frames as asked for unless the end comes.
    let m = model("custom_0b6");
    let flags =
        ["--voice", "eric", "--language", "Chinese", "--max-frames", "9", "--repetition-penalty", "10"];
    let penalised = say(&s, &m, &flags, "你好吗").2;
    assert_ne!(penalised, say(&s, &m, &flags[..6], "你好吗").2);
    assert_eq!(
        say(&s, &m, &["--voice", "eric", "--language", "Chinese", "--max-frames", "4"], "你好吗").1[1],
        4
    );
}

#[test]
fn clones_speak_at_once_and_when_they_were_kept() {
    let s = Sandbox::new();
    let m = model("base_1b7");
    let clip = m.join("ref.wav");
    let words = "the reference words";
    let base = ["--language", "English", "--max-frames", "9"];
    let in_context =
        say(&s, &m, &[&base[..], &["--clone", arg(&clip), "--clone-text", words]].concat(), TEXT);
    assert_eq!(in_context.2, integers(&m.join("dump.safetensors"), "icl/codes").1);
    let whole = [&base[..], &["--clone", arg(&clip), "--clone-text", words, "--text-mode", "whole"]].concat();
    assert_eq!(say(&s, &m, &whole, TEXT).2, integers(&m.join("dump.safetensors"), "icl_whole/codes").1);
    let embedded = say(&s, &m, &[&base[..], &["--clone", arg(&clip)]].concat(), TEXT);
    assert_eq!(embedded.2, integers(&m.join("dump.safetensors"), "xvector/codes").1);

    let added = s.run(&["voice", "add", "anna", arg(&clip), "--text", words, "--model", arg(&m)]);
    assert!(added.status.success(), "{}", stderr(&added));
    let added = s.run(&["voice", "add", "bert", arg(&clip), "--model", arg(&m)]);
    assert!(added.status.success(), "{}", stderr(&added));
    assert_eq!(say(&s, &m, &[&base[..], &["--voice", "anna"]].concat(), TEXT).2, in_context.2);
    assert_eq!(say(&s, &m, &[&base[..], &["--voice", "bert"]].concat(), TEXT).2, embedded.2);
}

#[test]
fn arriving_text_is_spoken_by_every_precision() {
    let s = Sandbox::new();
    for (case, precision) in [("base_0b6", "auto"), ("custom_1b7", "bf16"), ("design_1b7", "int4")] {
        let m = model(case);
        let wav = s.out("live.wav");
        let args = [
            "say",
            "-q",
            "--model",
            arg(&m),
            "--precision",
            precision,
            "--max-frames",
            "6",
            "--seed",
            "3",
            "--top-k",
            "20",
            "--top-p",
            "0.9",
            "--fine-top-k",
            "4",
            "--text-mode",
            "streaming",
            "-o",
            arg(&wav),
            "-",
        ];
        let mut child = s.command(&args).stdin(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"Hello there. And more.\n").unwrap();
        assert!(child.ends().success(), "{case}");
        assert!(std::fs::metadata(&wav).unwrap().len() > 44, "{case}");
    }
}

#[test]
fn models_show_their_speakers_and_languages() {
    let s = Sandbox::new();
    let shown = s.json(&["show", arg(&model("custom_0b6")), "--json"]);
    assert_eq!((&shown["family"], &shown["runs"]), (&"qwen".into(), &true.into()));
    assert!(shown["speakers"].as_array().unwrap().contains(&"vivian".into()), "{shown}");
    assert_eq!(shown["languages"].as_array().unwrap().len(), 10, "{shown}");
    let listed = s.json(&["voice", "list", "--model", arg(&model("custom_0b6")), "--json"]);
    assert!(listed.as_array().unwrap().iter().any(|voice| voice["name"] == "serena"), "{listed}");
    let text = String::from_utf8(s.run(&["show", "qwen3-tts-1.7b-customvoice"]).stdout).unwrap();
    for part in ["ono_anna", "japanese", "not on this machine", "2087.1M"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn bad_input_is_named_and_leaves_nothing_behind() {
    let s = Sandbox::new();
    let (base, custom) = (model("base_1b7"), model("custom_1b7"));
    let silence = |name: &str, seconds: f64| {
        let path = s.out(name);
        let samples = (seconds * 24_000.0) as usize;
        let mut file = Vec::new();
        file.extend(b"RIFF");
        file.extend((36 + 2 * samples as u32).to_le_bytes());
        file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
        file.extend(24_000u32.to_le_bytes());
        file.extend(48_000u32.to_le_bytes());
        file.extend(b"\x02\0\x10\0data");
        file.extend((2 * samples as u32).to_le_bytes());
        file.extend((0..samples).flat_map(|i| ((i % 97) as i16 * 50).to_le_bytes()));
        std::fs::write(&path, file).unwrap();
        path
    };
    let (short, long) = (silence("short.wav", 0.1), silence("long.wav", 400.0));
    let ten_minutes = silence("ten_minutes.wav", 600.0);
    let before = s.results();
    let out = s.out("x.wav");
    for (m, flags, parts) in [
        (&custom, vec!["--voice", "nobody"], vec!["nobody", "aiden", "serena"]),
        (&custom, vec!["--language", "klingon"], vec!["klingon", "auto", "english"]),
        (&custom, vec!["--clone", arg(&short)], vec!["cannot clone a voice", "voce pull pocket --cloning"]),
        (&base, vec!["--instruct", "slowly"], vec!["Base", "instruction"]),
        (&base, vec!["--clone", arg(&short)], vec!["0.10 s", "0.5 s"]),
        (&base, vec!["--clone", arg(&short), "--clone-text", "x"], vec!["0.10 s"]),
        (&base, vec!["--clone", arg(&long), "--clone-text", "Word."], vec!["30 s", "cut it"]),
        (&base, vec!["--clone", arg(&ten_minutes)], vec!["ten_minutes.wav", "shorter"]),
        (&base, vec!["--clone", "/nowhere.wav"], vec!["/nowhere.wav"]),
        (&custom, vec!["--top-p", "1.5"], vec!["top p"]),
    ] {
        let mut args = vec!["say", "-q", "--model", arg(m), "--max-frames", "2", "-o", arg(&out)];
        args.extend(&flags);
        args.push("Hi.");
        let (_, text) = s.fails(&args);
        assert!(parts.iter().all(|part| text.contains(part)), "{flags:?}: {text}");
        assert_eq!(s.results().len(), before.len(), "{flags:?}");
    }
    // Minutes without a text are cut, text in no language is spoken, and a run without an end ends.
    for (m, flags, text) in [
        (&base, vec!["--clone", arg(&long), "--max-frames", "3"], "Hi."),
        (&custom, vec!["--max-frames", "3"], "!? 😀 … 4 ♥"),
        (&custom, vec!["--temperature", "0"], "ok"),
    ] {
        let mut args = vec!["--json", "say", "--model", arg(m), "-o", arg(&out)];
        args.extend(&flags);
        args.push(text);
        let output = s.run(&args);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["frames"].as_u64().unwrap() <= 100, "{report}");
        // What a caller limits is done; what the model does not end is told.
        let ended = report["unended_chunks"] == 0 || flags.contains(&"--max-frames");
        assert_eq!(output.status.code(), Some(if ended { 0 } else { 3 }), "{report}");
    }
    let (code, text) = s.fails(&["say", "-q", "--model", arg(&custom), "-o", arg(&out), "!? 😀 … ♥"]);
    assert!(code == 2 && text.contains("nothing to say"), "{text}");
    let (_, text) = s.fails(&["voice", "add", "x", arg(&short), "--model", arg(&base)]);
    assert!(text.contains("0.10 s"), "{text}");
    assert_eq!(s.json(&["voice", "list", "--model", arg(&base), "--json"]).as_array().unwrap().len(), 0);
}
