//! Lists of work: every kind of them, what is broken in them, kills at any moment, parts, pipes and Ctrl-C.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::patience::{Ends as _, output, within};
use crate::sandbox::{Sandbox, arg, stderr};

const CLIPS: [&str; 3] = ["1867-154075-0003.opus", "3947-13262-0016.opus", "5789-70653-0013.opus"];
/// Seconds of a piece of a clip.
const PIECE: f64 = 0.75;

fn clip(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech").join(name)
}

/// A manifest of short pieces of recorded speech.
fn manifest(s: &Sandbox, pieces: usize) -> PathBuf {
    let mut text = String::new();
    for i in 0..pieces {
        let path = clip(CLIPS[i % CLIPS.len()]);
        let offset = (i / CLIPS.len()) as f64 * 0.25;
        let line =
            json!({"id": format!("piece-{i}"), "audio_filepath": path, "offset": offset, "duration": PIECE});
        writeln!(text, "{line}").unwrap();
    }
    let path = s.out("list.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

/// Files of a folder by name; locks are left out.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap());
    let files = entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()));
    files.filter(|(name, _)| !name.ends_with(".lock")).collect()
}

/// The results of units alone.
fn units(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = files(dir);
    files.retain(|name, _| !name.starts_with("results") && !name.starts_with("failed"));
    files
}

/// Done in one go, one after the other.
fn serial(s: &Sandbox, list: &Path, flags: &[&str]) -> BTreeMap<String, Vec<u8>> {
    let dir = s.out("serial");
    let mut args = vec!["bulk", "-q", arg(list), "-o", arg(&dir), "--streams", "1"];
    args.extend(flags);
    let output = s.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    units(&dir)
}

/// Starts a run, and kills it by a signal once `kept` results are kept. Whether it was still at work.
fn broken_off(s: &Sandbox, args: &[&str], kept: usize, signal: &str) -> Option<i32> {
    let mut child = s.command(args).arg("-v").stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut seen = 0;
    let process = child.id();
    within("the end of a run", process, || {
        for line in lines {
            seen += usize::from(line.unwrap().contains("kept"));
            if seen == kept {
                let kill = std::process::Command::new("kill").args([signal, &process.to_string()]).status();
                assert!(kill.unwrap().success());
                seen += 1;
            }
        }
    });
    child.ends().code()
}

#[test]
fn what_is_broken_is_named_and_the_rest_is_done() {
    let s = Sandbox::new();
    let (noise, late) = (s.out("noise.wav"), s.out("late.opus"));
    std::fs::write(&noise, "this is no audio").unwrap();
    let good = clip(CLIPS[0]);
    let lines = [
        json!({"audio_filepath": good, "duration": 4.2, "text": "and where did it lead", "lang": "en"})
            .to_string(),
        "{broken".into(),
        json!({"audio_filepath": late}).to_string(),
        json!({"audio_filepath": good, "duration": 4.2}).to_string(),
        json!({"audio_filepath": noise}).to_string(),
    ];
    let list = s.out("list.jsonl");
    std::fs::write(&list, lines.join("\n")).unwrap();
    let dir = s.out("texts");
    let args = ["bulk", arg(&list), "-o", arg(&dir), "--format", "nemo", "--json"];
    let output = s.run(&args);
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    for part in
        ["line 2: no JSON object", "late.opus: check the path", "is that of line 1", "noise.wav", "4 failed"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["done"], &summary["failed"]), (&json!(1), &json!(4)));
    let failed = std::fs::read_to_string(dir.join("failed.jsonl")).unwrap();
    assert_eq!(failed.lines().count(), 4);
    // The line of the manifest, and what was heard.
    let done = units(&dir);
    let (name, text) = done.first_key_value().unwrap();
    assert!(name.starts_with("1867-154075-0003.") && name.ends_with(".jsonl"), "{name}");
    let heard: Value = serde_json::from_slice(text).unwrap();
    assert_eq!((&heard["lang"], &heard["duration"]), (&json!("en"), &json!(4.2)));
    assert!(heard["pred_text"].as_str().unwrap().len() > 10, "{heard}");
    let results = std::fs::read_to_string(dir.join("results.jsonl")).unwrap();
    let result: Value = serde_json::from_str(results.trim()).unwrap();
    assert_eq!((&result["output"], &result["pred_text"]), (&json!(name), &heard["pred_text"]));
    // What failed is left out, until it is asked for.
    std::fs::copy(&good, &late).unwrap();
    let again = s.run(&args);
    let summary: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(
        (&summary["skipped"], &summary["failed_before"]),
        (&json!(1), &json!(2)),
        "{}",
        stderr(&again)
    );
    assert_eq!((&summary["done"], &summary["failed"], again.status.code()), (&json!(0), &json!(2), Some(3)));
    let retried = s.run(&[&args[..], &["--retry-failed"]].concat());
    let summary: Value = serde_json::from_slice(&retried.stdout).unwrap();
    assert_eq!(
        (&summary["done"], &summary["skipped"], &summary["failed"]),
        (&json!(1), &json!(1), &json!(3))
    );
    assert_eq!(std::fs::read_to_string(dir.join("failed.jsonl")).unwrap().lines().count(), 3);
}

#[test]
fn kills_lose_nothing_and_leave_nothing_half_written() {
    let s = Sandbox::new();
    let list = manifest(&s, 30);
    let want = serial(&s, &list, &["--format", "json"]);
    assert_eq!(want.len(), 30);
    let dir = s.out("texts");
    let args = ["bulk", arg(&list), "-o", arg(&dir), "--format", "json", "--streams", "4"];
    for kept in [1, 2, 5, 3, 4] {
        assert_eq!(broken_off(&s, &args, kept, "-KILL"), None);
        // Whatever has a result's name is whole.
        for (name, bytes) in files(&dir).into_iter().filter(|(name, _)| !name.starts_with('.')) {
            assert_eq!(Some(&bytes), want.get(&name), "{name}");
        }
    }
    // As a kill in the middle of a write leaves it.
    std::fs::write(dir.join(".piece-1.json.0-of-1.part"), "{\"id\"").unwrap();
    let summary = s.json(&[&args[..], &["--json"]].concat());
    assert!(summary["skipped"].as_u64().unwrap() >= 15, "{summary}");
    assert_eq!(units(&dir), want);
    let results = std::fs::read_to_string(dir.join("results.jsonl")).unwrap();
    assert_eq!(results.lines().count(), 30);
}

#[test]
fn ctrl_c_ends_it_and_the_next_run_goes_on() {
    let s = Sandbox::new();
    let list = manifest(&s, 24);
    let dir = s.out("texts");
    let args = ["bulk", arg(&list), "-o", arg(&dir), "--streams", "2"];
    assert_eq!(broken_off(&s, &args, 2, "-INT"), Some(130));
    assert!(files(&dir).keys().all(|name| !name.ends_with(".part")));
    let summary = s.json(&[&args[..], &["--json"]].concat());
    assert!(summary["skipped"].as_u64().unwrap() >= 2);
    assert_eq!(units(&dir), serial(&s, &list, &[]));
}

#[test]
fn parts_do_every_line_once() {
    let s = Sandbox::new();
    let list = manifest(&s, 10);
    let dir = s.out("texts");
    let mut done = 0;
    for index in 0..3 {
        let mut command = s.command(&["bulk", "--json", arg(&list), "-o", arg(&dir)]);
        match index {
            // As in an array of SLURM whose numbers begin with 1.
            0 => command.envs([("SLURM_ARRAY_TASK_ID", "1"), ("SLURM_ARRAY_TASK_MIN", "1")]),
            _ => command.args(["--shard", &format!("{index}/3")]),
        };
        let output = output(command.env("SLURM_ARRAY_TASK_COUNT", "3"));
        assert!(output.status.success(), "{}", stderr(&output));
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&summary["shard"], &summary["skipped"]), (&json!(format!("{index}/3")), &json!(0)));
        done += summary["done"].as_u64().unwrap();
    }
    assert_eq!(done, 10);
    assert_eq!(units(&dir), serial(&s, &list, &[]));
    let lists = (0..3).map(|i| dir.join(format!("results-{i}-of-3.jsonl")));
    let lines: usize = lists.map(|l| std::fs::read_to_string(l).unwrap().lines().count()).sum();
    assert_eq!(lines, 10);
}

#[test]
fn a_list_on_a_pipe_and_results_on_another() {
    let s = Sandbox::new();
    let mut child = s
        .command(&["bulk", "-q", "-", "-o", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for name in [arg(&clip(CLIPS[0])), "gone.wav", arg(&clip(CLIPS[1]))] {
        writeln!(stdin, "{name}").unwrap();
    }
    drop(stdin);
    let output = child.says();
    assert_eq!(output.status.code(), Some(3));
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    let of = |id: &str| lines.iter().find(|l| l["id"] == id).unwrap();
    assert_eq!(of("gone.wav")["error"]["code"], "not_found");
    assert!(of(arg(&clip(CLIPS[0])))["text"].as_str().unwrap().len() > 10);
}

#[test]
fn texts_are_spoken_and_spoken_the_same_after_a_kill() {
    let s = Sandbox::new();
    let list = s.out("lines.txt");
    let text: String = (0..8).map(|i| format!("This is line number {i}.\n")).collect();
    std::fs::write(&list, text).unwrap();
    let flags = ["--task", "say"];
    let want = serial(&s, &list, &flags);
    assert_eq!(want.len(), 8);
    assert!(want.iter().all(|(name, wav)| name.starts_with("line-00000") && wav.starts_with(b"RIFF")));
    let dir = s.out("speech");
    let args = [&["bulk", arg(&list), "-o", arg(&dir), "--streams", "2"], &flags[..]].concat();
    assert_eq!(broken_off(&s, &args, 2, "-KILL"), None);
    let output = s.run(&args);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(units(&dir), want);
}

#[test]
fn bad_usage() {
    let s = Sandbox::new();
    let list = manifest(&s, 1);
    let dir = s.out("texts");
    let bad = |flags: &[&str]| s.fails(&[&["bulk", "-q", arg(&list), "-o", arg(&dir)], flags].concat());
    assert_eq!(bad(&["--shard", "3/3"]).0, 2);
    assert_eq!(bad(&["--format", "doc"]).0, 2);
    assert_eq!(bad(&["--task", "say", "--format", "doc"]).0, 2);
    assert_eq!(bad(&["--chunk", "77"]).0, 2);
    let (code, text) = s.fails(&["bulk", "-q", arg(&s.out("none.jsonl")), "-o", arg(&dir)]);
    assert!(code == 2 && text.contains("none.jsonl"), "{text}");
    let (code, text) = s.fails(&["bulk", "-q", arg(&list), "-o", "-", "--task", "say"]);
    assert!(code == 2 && text.contains("needs a folder"), "{text}");
    let mut command = s.command(&["bulk", "-q", arg(&list), "-o", arg(&dir)]);
    let output = output(command.env("JOB_COMPLETION_INDEX", "0"));
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("VOCE_SHARDS"),
        "{}",
        stderr(&output)
    );
}
