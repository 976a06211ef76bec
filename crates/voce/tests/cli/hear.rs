//! `voce hear` and `voce bench hear`, on small recognisers with random weights.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::patience::Ends as _;
use crate::sandbox::{Sandbox, arg, failure, stderr};

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/fastconformer").join(name)
}

fn hear(model: &str, more: &[&str]) -> Vec<String> {
    let mut args: Vec<String> = ["hear", "--precision", "f32", "--model"].map(String::from).to_vec();
    args.push(fixture(model).to_str().unwrap().to_owned());
    args.extend(more.iter().map(|s| (*s).to_owned()));
    args
}

fn json(s: &Sandbox, model: &str, more: &[&str]) -> Value {
    let args = hear(model, more);
    s.json(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn fails(s: &Sandbox, model: &str, more: &[&str]) -> (i32, String) {
    let args = hear(model, &[&["-q"], more].concat());
    s.fails(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn text(s: &Sandbox, model: &str, more: &[&str]) -> String {
    let args = hear(model, more);
    let output = s.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn expected(model: &str) -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture(model).join("expected.json")).unwrap()).unwrap()
}

#[test]
fn json_has_the_keys_that_scripts_rely_on() {
    let s = Sandbox::new();
    let a = fixture("audio/a.wav");
    let want = expected("tdt");
    let got = json(&s, "tdt", &["--format", "json", arg(&a)]);
    for key in ["tokens", "frames", "durations"] {
        assert_eq!(got[key], want["greedy"][key], "{key}");
    }
    assert_eq!(got["text"], want["text"]);
    let words = got["words"].as_array().unwrap();
    assert_eq!(words.len(), want["text"].as_str().unwrap().split(' ').count());
    for key in ["word", "start", "end", "confidence"] {
        assert!(!words[0][key].is_null(), "{key}");
    }
    assert_eq!(got["segments"][0]["text"], want["text"]);
    assert_eq!(got["audio_seconds"], 2.83);
    assert!(got["rtf"].as_f64().unwrap() > 0.0 && got["peak_rss_mb"].as_f64().unwrap() > 0.0);
    assert!(got.get("nbest").is_none());

    let stream = expected("stream");
    for (run, ms) in stream["runs"].as_array().unwrap().iter().zip(["320", "160", "80"]) {
        let got = json(&s, "stream", &["--json", "--chunk", ms, arg(&a)]);
        assert_eq!((&got["tokens"], &got["frames"]), (&run["greedy"]["tokens"], &run["greedy"]["frames"]));
        assert_eq!(got["chunk_ms"].to_string(), ms);
    }
    let got = json(&s, "nemo/stream.nemo", &["--json", "--beam", "4", "--nbest", "2", arg(&a)]);
    let nbest = got["nbest"].as_array().unwrap();
    assert_eq!((nbest.len(), &nbest[0]["tokens"]), (2, &got["tokens"]));
    assert!(nbest[0]["score"].as_f64() >= nbest[1]["score"].as_f64() || nbest[1]["text"].is_string());
}

#[test]
fn text_subtitles_and_words() {
    let s = Sandbox::new();
    let a = fixture("audio/a.wav");
    let said = expected("stream")["runs"][0]["text"].as_str().unwrap().to_owned();
    assert_eq!(text(&s, "stream", &[arg(&a)]), format!("{said}\n"));
    let srt = text(&s, "stream", &["--format", "srt", arg(&a)]);
    assert!(srt.starts_with("1\n00:00:00,") && srt.contains(" --> "), "{srt}");
    assert!(text(&s, "stream", &["--format", "vtt", arg(&a)]).starts_with("WEBVTT\n\n00:00:00."));
    let words = text(&s, "stream", &["--format", "words", arg(&a)]);
    assert_eq!(words.lines().count(), said.split(' ').count());
    assert!(words.lines().all(|l| l.split('\t').count() == 4));
    let marked = text(&s, "stream", &["--timestamps", "--confidence", "--endpoint-ms", "240", arg(&a)]);
    assert!(marked.starts_with("[00:00:00."), "{marked}");
    let out = s.out("a.txt");
    assert_eq!(text(&s, "stream", &["-o", arg(&out), arg(&a)]), "");
    assert_eq!(std::fs::read_to_string(out).unwrap(), format!("{said}\n"));
}

#[test]
fn many_files_and_folders() {
    let s = Sandbox::new();
    let (audio, out) = (fixture("audio"), s.out("texts"));
    std::fs::create_dir(&out).unwrap();
    text(&s, "rnnt", &["-o", arg(&out), arg(&audio)]);
    let mut names: Vec<_> =
        std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["a.txt", "b.txt", "long.txt"]);
    let alone = text(&s, "rnnt", &[arg(&audio.join("a.wav"))]);
    assert_eq!(std::fs::read_to_string(out.join("a.txt")).unwrap(), alone);
    let (a, b) = (audio.join("a.wav"), audio.join("b.wav"));
    let lines = text(&s, "rnnt", &["--format", "json", arg(&b), arg(&a), arg(&b)]);
    let files: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(files.len(), 3);
    assert!(files[0]["file"].as_str().unwrap().ends_with("b.wav"));
    assert_eq!(files[0]["tokens"], files[2]["tokens"]);
    // One that cannot be heard does not keep the others from it.
    let bad = s.out("bad.wav");
    std::fs::write(&bad, "RIFF nonsense").unwrap();
    let args = hear("rnnt", &["-q", arg(&bad), arg(&a)]);
    let output = s.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("bad.wav"), "{}", stderr(&output));
    assert!(String::from_utf8(output.stdout).unwrap().contains(alone.trim()));
}

#[test]
fn standard_input_and_raw_samples() {
    let s = Sandbox::new();
    let a = fixture("audio/a.wav");
    let wav = std::fs::read(&a).unwrap();
    let data = wav.windows(4).position(|w| w == b"data").unwrap() + 8;
    let want = text(&s, "stream", &[arg(&a)]);
    for (bytes, more) in [(&wav[..], vec!["-"]), (&wav[data..], vec!["--raw", "s16:16000", "-"])] {
        let args = hear("stream", &more);
        let mut command = s.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        let output = child.says();
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), want);
    }
}

#[test]
fn streaming_tells_events() {
    let s = Sandbox::new();
    let long = fixture("audio/long.wav");
    let lines = text(&s, "stream", &["--stream", "--json", "--endpoint-ms", "240", arg(&long)]);
    let events: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let count = |kind: &str| events.iter().filter(|e| e["type"] == kind).count();
    assert!(count("final") > 0 && count("word") > 0, "{lines}");
    let finals = text(&s, "stream", &["--stream", "--endpoint-ms", "240", arg(&long)]);
    let with_text = events.iter().filter(|e| e["type"] == "final" && e["text"] != "").count();
    assert_eq!(finals.lines().count(), with_text);
}

#[test]
fn phrases_and_language_models() {
    let s = Sandbox::new();
    let (a, lm) = (fixture("audio/a.wav"), fixture("lm/lm.arpa"));
    let words = s.out("words.txt");
    std::fs::write(&words, "window\t2\n# no\nrain\n").unwrap();
    let args = ["--hotwords", arg(&words), "--lm", arg(&lm), "--beam", "2", arg(&a)];
    assert!(!text(&s, "stream", &args).is_empty());
    std::fs::write(&words, "rain\tmuch\n").unwrap();
    let (code, said) = fails(&s, "stream", &["--hotwords", arg(&words), arg(&a)]);
    assert!(code == 2 && said.contains("line 1"), "{said}");
    std::fs::write(&words, "\u{6f22}\u{5b57}\n").unwrap();
    let (code, said) = fails(&s, "stream", &["--hotwords", arg(&words), arg(&a)]);
    assert!(code == 2 && said.contains("hotword"), "{said}");
    let (code, said) = fails(&s, "stream", &["--lm", arg(&words), arg(&a)]);
    assert!(code == 2 && said.contains("words.txt"), "{said}");
}

#[test]
fn bad_input_is_one_clear_line() {
    let s = Sandbox::new();
    let a = fixture("audio/a.wav");
    let (code, said) = fails(&s, "tdt", &["--chunk", "80", arg(&a)]);
    assert!(code == 2 && said.contains("whole utterances") && said.contains("nemotron"), "{said}");
    let (code, said) = fails(&s, "stream", &["--chunk", "90", arg(&a)]);
    assert!(code == 2 && said.contains("320"), "{said}");
    let (code, said) = fails(&s, "tdt", &["--stream", arg(&a)]);
    assert!(code == 2 && said.contains("whole utterances"), "{said}");
    let (code, said) = fails(&s, "stream", &["--language", "de", arg(&a)]);
    assert!(code == 2 && said.contains("'de'"), "{said}");
    let (code, said) = fails(&s, "stream", &["nothing.wav"]);
    assert!(code == 1 && said.contains("nothing.wav"), "{said}");
    for (name, bytes) in [
        ("empty.wav", Vec::new()),
        ("noise.mp3", vec![0x5a; 5000]),
        ("cut.wav", b"RIFF\0\0\0\0WAVEfmt ".to_vec()),
    ] {
        let path = s.out(name);
        std::fs::write(&path, bytes).unwrap();
        let (code, said) = fails(&s, "stream", &[arg(&path)]);
        assert!(code == 1 && said.contains(name), "{said}");
    }
    let (code, said) = fails(&s, "stream", &[arg(&fixture("lm"))]);
    assert!(code == 2 && said.contains("no audio files"), "{said}");
    let (code, said) = fails(&s, "stream", &["--format", "srt", arg(&a), arg(&a)]);
    assert!(code == 2 && said.contains("folder"), "{said}");
    if !cfg!(feature = "nano") {
        let (code, said) = s.fails(&["-q", "hear", arg(&a)]);
        assert!(code == 2 && said.contains("voce pull") && said.contains("--features nano"), "{said}");
    }
    let (code, said) = s.fails(&["-q", "hear", "--model", arg(&a), arg(&a)]);
    assert!(code != 0 && !said.is_empty(), "{said}");
    // A file of the right shape with NaN in it is heard as silence there, and other files are untouched.
    let nan = s.out("nan.raw");
    let samples: Vec<u8> = (0..16_000).flat_map(|_| f32::NAN.to_le_bytes()).collect();
    std::fs::write(&nan, samples).unwrap();
    let args = hear("stream", &["-q", "--raw", "f32:16000", arg(&nan)]);
    let output = s.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success() || !failure(&output).1.is_empty());
}

#[test]
fn bench_hear_has_its_figures() {
    let s = Sandbox::new();
    let m = fixture("stream");
    let run =
        ["bench", "hear", "--model", arg(&m), "--chunk", "160", "--streams", "3", "--seconds", "2", "--json"];
    let json = s.json(&run);
    assert_eq!((json["streams"].as_u64(), json["chunk"].as_u64()), (Some(3), Some(160)));
    for key in ["streams_per_core", "rtf", "peak_rss_mb", "audio_seconds"] {
        assert!(json[key].as_f64().is_some_and(|v| v > 0.0), "{key} in {json}");
    }
    assert!(json["chunk_ms"]["p50"].as_f64() <= json["chunk_ms"]["p99"].as_f64());
    assert!(json["frames_per_step"].as_f64().unwrap() <= 6.0);
    for key in ["mel", "encoder", "search", "rest"] {
        assert!(json["shares"][key].as_f64().is_some(), "{key} in {json}");
    }
    let output = s.run(&["bench", "hear", "--model", arg(&fixture("tdt")), "--seconds", "2", "--beam", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(String::from_utf8(output.stdout).unwrap().contains("streams a core"));
    assert_eq!(s.fails(&["bench", "hear"]).0, 2);
    assert_eq!(s.fails(&["bench", "hear", "--shape", "gigantic"]).0, 2);
    assert_eq!(s.fails(&["bench", "hear", "--model", arg(&m), "--streams", "0"]).0, 2);
}
