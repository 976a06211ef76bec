//! Every bad input is one line with what to do, exit code 1 or 2, and leaves no file.

use std::io::Write as _;
use std::path::Path;
use std::process::Stdio;

use crate::patience::{Ends as _, output};
use crate::sandbox::{Sandbox, arg, failure, model, stderr};

/// What `voce say` with this model says when it fails.
fn say(s: &Sandbox, model: &Path, extra: &[&str]) -> (i32, String) {
    let out = s.out("x.wav");
    let mut args = vec!["say", "--model", arg(model), "-o", arg(&out)];
    args.extend(extra);
    let got = s.fails(&args);
    assert!(s.results().is_empty(), "{:?}", s.results());
    got
}

#[track_caller]
fn holds(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' in: {text}");
    }
}

#[test]
fn models_that_are_not_there() {
    let s = Sandbox::new();
    let (code, text) = say(&s, Path::new("/nowhere/at/all"), &["Hi."]);
    assert_eq!(code, 1);
    holds(&text, &["/nowhere/at/all"]);
    let out = s.out("x.wav");
    let (code, text) = s.fails(&["say", "--model", "pocket", "-o", arg(&out), "Hi."]);
    assert_eq!(code, 1);
    holds(&text, &["voce pull pocket"]);
    let (code, text) = s.fails(&["say", "--language", "klingon", "-o", arg(&out), "Hi."]);
    assert_eq!(code, 2);
    holds(&text, &["pocket-klingon"]);
}

/// A folder that holds a configuration and an empty weight file.
fn foreign(s: &Sandbox, name: &str, config: &str) -> std::path::PathBuf {
    let dir = s.out(name);
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("config.json"), config).unwrap();
    std::fs::write(dir.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    dir
}

#[test]
fn models_of_another_kind() {
    let s = Sandbox::new();
    let place = Sandbox::new();
    let audio = crate::hear::fixture("audio/a.wav");
    let hear = |model: &Path| s.fails(&["-q", "hear", "--model", arg(model), arg(&audio)]);
    let kyutai = foreign(&place, "kyutai", r#"{"mimi_name": "mimi.safetensors", "model_type": "tts"}"#);
    let mimi = foreign(&place, "mimi", r#"{"model_type": "mimi"}"#);
    let whisper = foreign(&place, "whisper", r#"{"architectures": ["WhisperForConditionalGeneration"]}"#);
    for (dir, part) in [
        (&mimi, "mimi' is a Mimi codec, a part of other models"),
        (&whisper, "whisper' is a 'WhisperForConditionalGeneration' model, which is of no family"),
    ] {
        for (code, text) in [say(&s, dir, &["Hi."]), hear(dir)] {
            assert_eq!(code, 2, "{text}");
            holds(&text, &[part]);
        }
    }
    // A folder that only says what it is has nothing to run.
    let (code, text) = say(&s, &kyutai, &["Hi."]);
    assert_eq!(code, 1, "{text}");
    holds(&text, &["config.json", "cannot be run"]);
    let (code, text) = hear(&kyutai);
    assert_eq!(code, 2);
    holds(&text, &["kyutai' is a voice model: use `voce say`"]);
    let (code, text) = say(&s, &crate::hear::fixture("tdt"), &["Hi."]);
    assert_eq!(code, 2);
    holds(&text, &["is a recogniser: use `voce hear`"]);
    let (code, text) = hear(&model("lsd"));
    assert_eq!(code, 2);
    holds(&text, &["is a voice model: use `voce say`"]);
    // A model that was not pulled is told apart by its name.
    let (code, text) = say(&s, Path::new("parakeet"), &["Hi."]);
    assert_eq!(code, 2);
    holds(&text, &["'parakeet-tdt-0.6b-v3' is a recogniser"]);
    let (code, text) = hear(Path::new("pocket-french"));
    assert_eq!(code, 2);
    holds(&text, &["'pocket-french' is a voice model"]);
    assert_eq!(s.fails(&["pull", "nemotron:cloning"]).0, 2);
    let (code, text) = s.fails(&["show", arg(&kyutai)]);
    assert_eq!(code, 1, "{text}");
    holds(&text, &["cannot be run"]);
    assert_eq!(s.fails(&["show", arg(&whisper)]).0, 2);
}

#[test]
fn shapes_of_another_task() {
    let s = Sandbox::new();
    let (code, text) = s.fails(&["bench", "say", "--shape", "nemotron-0.6b"]);
    assert_eq!(code, 2);
    holds(&text, &["'nemotron-0.6b' is no shape for speech", "pocket-100m"]);
    let (code, text) = s.fails(&["bench", "hear", "--shape", "pocket-100m"]);
    assert_eq!(code, 2);
    holds(&text, &["'pocket-100m' is no shape for hearing", "nemotron-0.6b"]);
}

#[test]
fn precisions_that_want_a_gpu() {
    let s = Sandbox::new();
    let (code, text) = say(&s, &model("lsd"), &["--device", "cpu", "--precision", "fp8", "Hi."]);
    assert_eq!(code, 2);
    holds(&text, &["GPU", "--precision int8"]);
    let (code, text) =
        s.fails(&["bench", "decode", "--shape", "stt-1b", "--device", "cpu", "--precision", "fp8"]);
    assert_eq!(code, 2);
    holds(&text, &["GPU", "--precision int8"]);
}

#[test]
fn damaged_weights() {
    let s = Sandbox::new();
    let m = s.copy("lsd");
    let file = m.join("model.safetensors");
    let good = std::fs::read(&file).unwrap();

    std::fs::write(&file, &good[..good.len() / 2]).unwrap();
    let (code, text) = say(&s, &m, &["Hi."]);
    assert_eq!(code, 1);
    holds(&text, &["model.safetensors"]);

    std::fs::write(&file, &good[..5]).unwrap();
    assert_eq!(say(&s, &m, &["Hi."]).0, 1);

    let header = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let names: serde_json::Value = serde_json::from_slice(&good[8..8 + header]).unwrap();
    let name = "flow_lm.out_norm.weight";
    let at = names[name]["data_offsets"][0].as_u64().unwrap() as usize;
    let size = names[name]["data_offsets"][1].as_u64().unwrap() as usize - at;
    let mut nan = good.clone();
    nan[8 + header + at..8 + header + at + size].fill(0xff);
    std::fs::write(&file, &nan).unwrap();
    let (code, text) = say(&s, &m, &["Hi."]);
    assert_eq!(code, 1);
    holds(&text, &[name, "NaN"]);

    let place = good.windows(name.len()).position(|w| w == name.as_bytes()).unwrap();
    let mut renamed = good.clone();
    renamed[place + name.len() - 1] = b'x';
    std::fs::write(&file, &renamed).unwrap();
    let (code, text) = say(&s, &m, &["Hi."]);
    assert_eq!(code, 1);
    holds(&text, &[name]);

    std::fs::remove_file(&file).unwrap();
    assert_eq!(say(&s, &m, &["Hi."]).0, 2);
}

#[test]
fn configurations_that_do_not_fit() {
    let s = Sandbox::new();
    let m = s.copy("lsd");
    let file = m.join("config.yaml");
    let good = std::fs::read_to_string(&file).unwrap();
    let edited = |from: &str, to: &str| {
        assert!(good.contains(from));
        std::fs::write(&file, good.replacen(from, to, 1)).unwrap();
        say(&s, &m, &["Hi."])
    };
    // Another width of the head: the tensor's name, what was expected and what was found.
    let (code, text) = edited("    depth: 2\n    dim: 24", "    depth: 2\n    dim: 32");
    assert_eq!(code, 1);
    holds(&text, &["flow_net", "32", "24"]);
    let (code, text) = edited("    depth: 2\n", "    depth: 2\n    type: banana\n");
    assert_eq!(code, 1);
    holds(&text, &["config.yaml", "banana", "drifting"]);
    let (code, text) = edited("n_bins: 380", "n_bins: 381");
    assert_eq!(code, 1);
    holds(&text, &["380", "381"]);
    assert_eq!(edited("flow_lm:", "flow_lm: [").0, 1);
    std::fs::write(&file, &good).unwrap();
    std::fs::remove_file(m.join("tokenizer.json")).unwrap();
    let (code, text) = say(&s, &m, &["Hi."]);
    assert_eq!(code, 1);
    holds(&text, &["tokenizer.json"]);
}

#[test]
fn voices_that_do_not_fit() {
    let s = Sandbox::new();
    let m = model("lsd");
    let (code, text) = say(&s, &m, &["--voice", "nobody", "Hi."]);
    assert_eq!(code, 2);
    holds(&text, &["unknown voice 'nobody'", "known voices are voice"]);
    let (code, text) = say(&s, &m, &["--voice", "/no/such.wav", "Hi."]);
    assert_eq!(code, 1);
    holds(&text, &["/no/such.wav"]);
    let other = model("drifting_gqa").join("voice.safetensors");
    let (code, text) = say(&s, &m, &["--voice", arg(&other), "Hi."]);
    assert_eq!(code, 1);
    holds(&text, &["voice"]);
}

#[test]
fn texts_that_cannot_be_spoken() {
    let s = Sandbox::new();
    let m = model("lsd");
    for empty in [&[""][..], &["  \n "], &[]] {
        let (code, text) = say(&s, &m, empty);
        assert_eq!(code, 2, "{empty:?}");
        holds(&text, &["nothing to say"]);
    }
    let (code, text) = say(&s, &m, &["Wait [pause:forever] here."]);
    assert_eq!(code, 2);
    holds(&text, &["[pause:forever]"]);
    let (code, text) = say(&s, &m, &["--file", "/no/such.txt"]);
    assert_eq!(code, 1);
    holds(&text, &["/no/such.txt"]);
}

#[test]
fn bytes_that_are_not_text() {
    let s = Sandbox::new();
    let m = model("lsd");
    let place = Sandbox::new();
    let file = place.out("bad.txt");
    std::fs::write(&file, b"Hello \xff there.").unwrap();
    let (code, text) = say(&s, &m, &["--file", arg(&file)]);
    assert_eq!(code, 2);
    holds(&text, &["UTF-8", "byte 6"]);
    let out = s.out("x.wav");
    let mut child = s
        .command(&["say", "--model", arg(&m), "-o", arg(&out)])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Hello there. Now \xc3\x28").unwrap();
    let (code, text) = failure(&child.says());
    assert_eq!(code, 2);
    holds(&text, &["UTF-8", "byte 17"]);
    assert!(s.results().is_empty());
}

#[test]
fn a_megabyte_without_a_full_stop() {
    let s = Sandbox::new();
    let file = s.out("long.txt");
    std::fs::write(&file, "word ".repeat(200_000)).unwrap();
    let out = s.out("x.wav");
    let m = model("lsd");
    let json = s.json(&[
        "say",
        "--model",
        arg(&m),
        "--eos-threshold",
        "1000",
        "--max-frames",
        "4",
        "--file",
        arg(&file),
        "-o",
        arg(&out),
        "--json",
    ]);
    assert_eq!(json["frames"], 4);
}

#[test]
fn outputs_that_cannot_be_written() {
    let s = Sandbox::new();
    let m = model("lsd");
    let speak = |out: &str| s.fails(&["say", "--model", arg(&m), "--max-frames", "3", "-o", out, "Hi."]);
    let (code, text) = speak("/no/such/folder/x.wav");
    assert_eq!(code, 1);
    holds(&text, &["/no/such/folder/x.wav"]);
    let folder = s.out("folder.wav");
    std::fs::create_dir(&folder).unwrap();
    assert_eq!(speak(arg(&folder)).0, 1);
    let (code, text) = speak("/dev/full");
    assert_eq!(code, 1);
    holds(&text, &["no space left", "/dev/full"]);
    let (code, text) = speak("x.xyz");
    assert_eq!(code, 2);
    holds(&text, &[".xyz", "mp3", "flac"]);
}

#[test]
fn bad_usage() {
    let s = Sandbox::new();
    let m = model("lsd");
    for (extra, part) in [
        (&["--steps", "0", "Hi."][..], "steps"),
        (&["--temperature", "-1", "Hi."], "temperature"),
        (&["--temperature", "hot", "Hi."], "hot"),
        (&["--max-frames", "0", "Hi."], "frames"),
        (&["--max-tokens", "100000", "Hi."], "tokens"),
        (&["--precision", "int3", "Hi."], "int3"),
        (&["--format", "m4a", "Hi."], "mp3"),
        (&["--lockstep", "0", "Hi."], "lockstep"),
        (&["--no-such-flag", "Hi."], "--no-such-flag"),
        (&["--file", "a.txt", "Hi."], "--file"),
    ] {
        let (code, text) = say(&s, &m, extra);
        assert_eq!(code, 2, "{extra:?}: {text}");
        holds(&text, &[part]);
    }
    // Without a sound card in the build, and without an output, there is nowhere to go.
    if cfg!(not(feature = "device")) {
        let (code, text) = s.fails(&["say", "--model", arg(&m), "Hi."]);
        assert_eq!(code, 2);
        holds(&text, &["-o FILE", "mp3", "aplay"]);
        // Other names for the same: what people type first.
        assert_eq!(s.fails(&["speak", "--model", arg(&m), "Hi."]), (code, text.clone()));
        let (code, text) = say(&s, &m, &["--play", "Hi."]);
        assert_eq!(code, 2);
        holds(&text, &["--features device"]);
    }
    let mut command = s.command(&["say", "--model", arg(&m), "-o", "-", "Hi."]);
    let output = output(command.env("VOCE_CPU", "sse9"));
    let (code, text) = failure(&output);
    assert!(code == 1 || code == 2);
    holds(&text, &["sse9"]);
    assert!(stderr(&s.run(&["--version"])).is_empty());
}
