//! Pipes on both sides, and Ctrl-C.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use crate::patience::{Ends as _, until, within};
use crate::sandbox::{Sandbox, arg, failure, model, stderr};

#[test]
fn speaks_before_the_text_has_ended() {
    let s = Sandbox::new();
    let m = model("drifting_gqa");
    let mut child = s
        .command(&["say", "-q", "--model", arg(&m), "--temperature", "0", "-o", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    // A character cut in two, a sentence end, and the pipe stays open.
    for piece in [&b"Hello caf\xc3"[..], b"\xa9 world. And", b" now"] {
        stdin.write_all(piece).unwrap();
        stdin.flush().unwrap();
    }
    let mut first = [0; 44 + 384];
    within("the first frame", child.id(), || stdout.read_exact(&mut first).unwrap());
    assert_eq!(&first[..4], b"RIFF");
    assert!(first[44..].iter().any(|b| *b != 0));
    stdin.write_all(b" we go on.").unwrap();
    drop(stdin);
    let mut rest = Vec::new();
    within("the rest", child.id(), || stdout.read_to_end(&mut rest).unwrap());
    assert!(child.ends().success());
    assert!(!rest.is_empty());
}

#[test]
fn raw_samples_and_json_beside_them() {
    let s = Sandbox::new();
    let m = model("lsd");
    let output = s.run(&[
        "say",
        "--model",
        arg(&m),
        "--max-frames",
        "3",
        "-o",
        "-",
        "--format",
        "f32",
        "--json",
        "Hi.",
    ]);
    let json: serde_json::Value = serde_json::from_str(&stderr(&output)).unwrap();
    assert_eq!(output.stdout.len() as u64, json["samples"].as_u64().unwrap() * 4);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let s = Sandbox::new();
    let m = model("lsd");
    let mut child = s
        .command(&[
            "say",
            "--model",
            arg(&m),
            "--eos-threshold",
            "1000",
            "--max-frames",
            "2000",
            "-o",
            "-",
            "Hello.",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut header = [0; 44];
    let mut stdout = child.stdout.take().unwrap();
    within("a header", child.id(), || stdout.read_exact(&mut header).unwrap());
    drop(stdout);
    let output = child.says();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), ""));
}

#[test]
fn a_closed_pipe_for_results_is_no_panic() {
    let s = Sandbox::new();
    let mut child =
        s.command(&["completions", "bash"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.says();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), ""));
}

#[test]
fn ctrl_c_leaves_no_file() {
    let s = Sandbox::new();
    let m = model("drifting_gqa");
    let out = s.out("x.wav");
    let mut child = s
        .command(&["say", "--model", arg(&m), "-o", arg(&out)])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(b"Hello world. And").unwrap();
    until("output that was begun", || !s.results().is_empty());
    let kill = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    // Standard input stays open: the signal alone must end the process.
    let stdin = child.stdin.take();
    let output = child.says();
    drop(stdin);
    assert_eq!(failure(&output), (130, "interrupted".to_owned()));
    assert!(s.results().is_empty(), "{:?}", s.results());
}
