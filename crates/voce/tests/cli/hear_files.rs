//! What `voce hear` reads and writes: recordings that are safe, formats by extension, folders, pipes, and Ctrl-C.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use crate::hear::fixture;
use crate::sandbox::{Sandbox, arg, failure, stderr};

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The flags of a run with the small streaming recogniser.
fn flags<'a>(more: &[&'a str], model: &'a Path) -> Vec<&'a str> {
    [&["hear", "-q", "--precision", "f32", "--model", arg(model)][..], more].concat()
}

fn good(s: &Sandbox, more: &[&str]) -> String {
    let model = fixture("stream");
    let output = s.run(&flags(more, &model));
    assert!(output.status.success(), "{more:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs to a refusal that has these parts.
#[track_caller]
fn refused(s: &Sandbox, more: &[&str], parts: &[&str]) {
    let model = fixture("stream");
    let (code, said) = s.fails(&flags(more, &model));
    assert_eq!(code, 2, "{said}");
    for part in parts {
        assert!(said.contains(part), "'{part}' in: {said}");
    }
}

/// What a process leaves, within the limit; it is killed after that.
fn end(child: Child) -> Output {
    let (done, output) = channel();
    let pid = child.id().to_string();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    output
        .recv_timeout(LIMIT)
        .unwrap_or_else(|_| {
            let _ = std::process::Command::new("kill").args(["-KILL", &pid]).status();
            panic!("no end within {LIMIT:?}")
        })
        .unwrap()
}

#[test]
fn texts_never_replace_recordings() {
    let s = Sandbox::new();
    let wav = std::fs::read(fixture("audio/a.wav")).unwrap();
    let recording = |name: &str| {
        let path = s.out(name);
        std::fs::write(&path, &wav).unwrap();
        path
    };
    let (io, other, notes) = (recording("io.wav"), recording("b.mp3"), recording("notes.txt"));
    refused(&s, &[arg(&io), "-o", arg(&io)], &["io.wav", "io.txt"]);
    refused(&s, &[arg(&io), "--format", "json", "-o", arg(&other)], &["b.mp3", "b.txt"]);
    refused(&s, &[arg(&io), "-o", arg(&s.out("new.flac"))], &["new.flac", "new.txt"]);
    // By its first bytes, whatever its name.
    refused(&s, &[arg(&io), "-o", arg(&notes)], &["notes.txt", "recording"]);
    let texts = s.out("texts");
    std::fs::create_dir(&texts).unwrap();
    std::fs::copy(&io, texts.join("io.txt")).unwrap();
    refused(&s, &[arg(&io), "-o", arg(&texts)], &["io.txt", "recording"]);
    // Headerless samples have no such bytes: what is to be heard is known by its path.
    let raw = s.out("raw.txt");
    std::fs::write(&raw, &wav[44..]).unwrap();
    let again = s.out("texts/../raw.txt");
    refused(&s, &["--raw", "s16", arg(&raw), "-o", arg(&again)], &["raw.txt", "to be heard"]);
    refused(&s, &["--stream", "--raw", "s16", arg(&raw), "-o", arg(&raw)], &["to be heard"]);
    #[cfg(unix)]
    {
        let link = s.out("link.txt");
        std::os::unix::fs::symlink(&io, &link).unwrap();
        refused(&s, &[arg(&io), "-o", arg(&link)], &["link.txt", "to be heard"]);
    }
    for path in [&io, &other, &notes, &texts.join("io.txt")] {
        assert_eq!(std::fs::read(path).unwrap(), wav, "{}", path.display());
    }
    assert_eq!(std::fs::read(&raw).unwrap(), wav[44..]);
    // A text is replaced by a text.
    let old = s.out("old.txt");
    std::fs::write(&old, "what was said before\n").unwrap();
    good(&s, &[arg(&io), "-o", arg(&old)]);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), good(&s, &[arg(&io)]));
}

#[test]
fn an_extension_chooses_the_format() {
    let s = Sandbox::new();
    let a = fixture("audio/a.wav");
    let plain = good(&s, &[arg(&a)]);
    let (srt, vtt) = (good(&s, &["--format", "srt", arg(&a)]), good(&s, &["--format", "vtt", arg(&a)]));
    let words = good(&s, &["--format", "words", arg(&a)]);
    for (name, more, want) in [
        ("a.srt", &[][..], &srt),
        ("a.VTT", &[], &vtt),
        ("a.tsv", &[], &words),
        ("a.txt", &[], &plain),
        ("a.text", &[], &plain),
        ("b.srt", &["--format", "srt"], &srt),
        ("b.txt", &["--format", "words"], &words),
        ("b.cues", &["--format", "vtt"], &vtt),
        ("live.srt", &["--stream"], &srt),
    ] {
        let out = s.out(name);
        good(&s, &[more, &[arg(&a), "-o", arg(&out)]].concat());
        let got = std::fs::read_to_string(&out).unwrap();
        assert_eq!(got.trim_end(), want.trim_end(), "{name}");
    }
    let out = s.out("a.json");
    good(&s, &[arg(&a), "-o", arg(&out)]);
    let json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
    assert_eq!(json["text"], plain.trim_end());

    let before = s.results().len();
    let new = |name: &str| s.out(name);
    refused(
        &s,
        &["--format", "vtt", arg(&a), "-o", arg(&new("c.srt"))],
        &["c.srt", "asks for srt", "--format for vtt"],
    );
    refused(&s, &["--json", arg(&a), "-o", arg(&new("c.txt"))], &["c.txt", "--json for json"]);
    refused(&s, &["--json", "--format", "srt", arg(&a)], &["--json asks for JSON", "srt"]);
    refused(&s, &["--stream", "--format", "srt", arg(&a)], &["--format srt", "-o FILE.srt", "--stream"]);
    refused(&s, &["--stream", "--format", "vtt", arg(&a)], &["-o FILE.vtt"]);
    assert_eq!(s.results().len(), before);
    // Words come as they are heard.
    assert_eq!(good(&s, &["--stream", "--format", "words", "--endpoint-ms", "60000", arg(&a)]), words);
}

#[test]
fn folders_are_meant_or_there() {
    let s = Sandbox::new();
    let (a, b) = (fixture("audio/a.wav"), fixture("audio/b.wav"));
    let (missing, file) = (s.out("texts"), s.out("there.txt"));
    refused(&s, &[arg(&a), arg(&b), "-o", arg(&missing)], &["no such folder", "texts/"]);
    std::fs::write(&file, "text").unwrap();
    refused(&s, &[arg(&a), arg(&b), "-o", arg(&file)], &["there.txt", "give a folder"]);
    assert_eq!(
        (s.results(), std::fs::read(&file).unwrap()),
        (vec!["there.txt".to_owned()], b"text".to_vec())
    );
    let meant = format!("{}/", arg(&missing));
    good(&s, &[arg(&a), arg(&b), "-o", &meant]);
    good(&s, &[arg(&a), arg(&b), "--format", "srt", "-o", arg(&missing)]);
    for name in ["a.txt", "b.txt", "a.srt", "b.srt"] {
        assert!(missing.join(name).is_file(), "{name}");
    }
    // One file as well, in folders that are made.
    let one = format!("{}/", arg(&s.out("new/one")));
    good(&s, &[arg(&a), "-o", &one]);
    assert_eq!(std::fs::read_to_string(s.out("new/one/a.txt")).unwrap(), good(&s, &[arg(&a)]));
}

#[test]
fn a_pipe_needs_no_dash() {
    let s = Sandbox::new();
    let (a, model) = (fixture("audio/a.wav"), fixture("stream"));
    let mut child = s
        .command(&flags(&[], &model))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&std::fs::read(&a).unwrap()).unwrap();
    let output = end(child);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), good(&s, &[arg(&a)]));
    // Nothing at all is told as such.
    let (code, said) = failure(&s.run(&flags(&[], &model)));
    assert!(code == 1 && said.contains("empty"), "{said}");
}

#[cfg(unix)]
#[test]
fn ctrl_c_tells_the_last_words_of_a_pipe() {
    let s = Sandbox::new();
    let wav = std::fs::read(fixture("audio/a.wav")).unwrap();
    let want = good(&s, &[arg(&fixture("audio/a.wav"))]);
    let out = s.out("said.txt");
    let model = fixture("stream");
    let mut child = s
        .command(&flags(&["--stream", "--endpoint-ms", "60000", "--json", "-o", arg(&out), "-"], &model))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (line, lines) = channel();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|l| line.send(l)));
    // All but the last samples, which the header has announced, and the pipe stays open.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&wav[..wav.len() - 2]).unwrap();
    let mut told = Vec::new();
    while !told.last().is_some_and(|line: &String| line.contains(r#""type":"word""#)) {
        told.push(lines.recv_timeout(LIMIT).expect("a word"));
    }
    assert!(!told.iter().any(|line| line.contains(r#""type":"final""#)), "{told:?}");
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    let output = end(child);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    told.extend(lines.iter());
    let last = told.iter().find(|line| line.contains(r#""type":"final""#)).expect("a final");
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    let said = last["text"].as_str().unwrap().to_owned();
    assert!(!said.is_empty());
    assert_eq!(std::fs::read_to_string(&out).unwrap().trim_end(), said);
    // Every word that was told, and what was in flight: what the whole file gives as far as it had come.
    let words = told.iter().filter(|line| line.contains(r#""type":"word""#)).count();
    let (said, want): (Vec<_>, Vec<_>) = (said.split(' ').collect(), want.trim_end().split(' ').collect());
    assert!(said.len() >= words && said.len() <= want.len() + 1, "{words} {said:?} {want:?}");
    assert_eq!(said[..said.len() - 1], want[..said.len() - 1]);
    drop(stdin);
}
