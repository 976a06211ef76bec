//! Jobs of `voce serve` from outside: a server that is killed in the middle of a long recording goes on with it, and one in
//! front of a NATS queue hands it to `voce work`.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::Value;

use crate::patience::{Ends as _, LIMIT};
use crate::sandbox::{Sandbox, arg, stderr};
use crate::serve::{Server, ask, ask_bytes};

/// A long recording, spoken by the small voice.
fn recording(s: &Sandbox) -> PathBuf {
    let text = "The train to the city leaves at half past nine. She put the letter on the table. ".repeat(4);
    let wav = s.out("talk.wav");
    let done = s.run(&["say", "-q", &text, "-o", arg(&wav)]);
    assert!(done.status.success(), "{}", stderr(&done));
    wav
}

/// What `voce bulk` makes of it.
fn serial(s: &Sandbox, wav: &Path) -> String {
    let (list, dir) = (s.out("list.txt"), s.out("serial"));
    std::fs::write(&list, arg(wav)).unwrap();
    let flags = ["--format", "srt", "--endpoint-ms", "240", "--streams", "1"];
    let done = s.run(&[&["bulk", "-q", arg(&list), "-o", arg(&dir)], &flags[..]].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    let mut texts = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path());
    let text = texts.find(|p| p.extension().is_some_and(|e| e == "srt")).unwrap();
    std::fs::read_to_string(text).unwrap()
}

fn submit(server: &Server, wav: &Path) -> String {
    let mut body = Vec::new();
    for (name, value) in [("response_format", "srt"), ("endpoint_ms", "240")] {
        body.extend(
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").bytes(),
        );
    }
    let head = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"talk.wav\"\r\n\r\n";
    body.extend(head.bytes());
    body.extend(std::fs::read(wav).unwrap());
    body.extend(b"\r\n--b--\r\n");
    let kind = "Content-Type: multipart/form-data; boundary=b\r\n";
    let (status, reply) = ask_bytes(&server.addr, "POST", "/v1/audio/jobs", kind, &body);
    let reply: Value = serde_json::from_slice(&reply).unwrap();
    assert_eq!((status, reply["status"].as_str()), (202, Some("queued")), "{reply}");
    reply["id"].as_str().unwrap().to_owned()
}

/// Follows a job to its end, and gives its last event.
fn follow(server: &Server, id: &str) -> Value {
    let (status, events) = ask(&server.addr, "GET", &format!("/v1/audio/jobs/{id}/events"), "", "");
    assert_eq!(status, 200);
    let events = String::from_utf8(events).unwrap();
    let last = events.lines().filter_map(|l| l.trim().strip_prefix("data: ")).next_back();
    serde_json::from_str(last.unwrap_or_else(|| panic!("{events}"))).unwrap()
}

fn result(server: &Server, id: &str) -> String {
    let (status, text) = ask(&server.addr, "GET", &format!("/v1/audio/jobs/{id}/result"), "", "");
    let text = String::from_utf8(text).unwrap();
    assert_eq!(status, 200, "{text}");
    text
}

/// A server, and the lines of its log as they come.
fn start(s: &Sandbox, args: &[&str]) -> (Server, Receiver<String>) {
    let (server, log) = crate::serve::start_piped(s, &[&["--no-speak", "--hear", "nano-ear"], args].concat());
    let (sender, lines) = sync_channel(10_000);
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    (server, lines)
}

/// The lines as they come, as long as they come.
fn lines(log: &Receiver<String>) -> impl Iterator<Item = String> {
    std::iter::from_fn(|| log.recv_timeout(LIMIT).ok())
}

#[test]
fn a_killed_server_goes_on_with_its_jobs() {
    let s = Sandbox::new();
    let wav = recording(&s);
    let want = serial(&s, &wav);
    let jobs = s.out("jobs");
    let (server, log) = start(&s, &["--jobs", arg(&jobs), "--jobs-checkpoint", "1ms"]);
    let id = submit(&server, &wav);
    assert_eq!(lines(&log).filter(|l| l.contains("checkpoint")).take(2).count(), 2);
    // As `kill -9` does.
    drop(server);
    let (server, log) = start(&s, &["--jobs", arg(&jobs)]);
    assert_eq!(follow(&server, &id)["type"], "job.completed");
    assert!(lines(&log).any(|l| l.contains("goes on from a checkpoint")));
    assert_eq!(result(&server, &id), want);
    // Another process does not get at the same folder.
    let other = s.run(&[
        "serve",
        "--port",
        "0",
        "--no-speak",
        "--hear",
        "nano-ear",
        "--jobs",
        arg(&jobs),
        "--silent",
    ]);
    assert!(!other.status.success() && stderr(&other).contains("another server"), "{}", stderr(&other));
}

#[cfg(feature = "nats")]
#[test]
fn a_server_in_front_of_a_queue_hands_jobs_to_workers() {
    let s = Sandbox::new();
    let Some(nats) = crate::jobs::Nats::start(&s, &["-js"]) else { return };
    let wav = recording(&s);
    let want = serial(&s, &wav);
    let url = nats.url();
    let (server, _log) = start(&s, &["--jobs-nats", &url, "--jobs", arg(&s.out("scratch"))]);
    let id = submit(&server, &wav);
    let mut work = s.command(&["work", "--until-empty", "--nats", &url]);
    let work = work.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap().ends();
    assert!(work.success());
    assert_eq!(follow(&server, &id)["type"], "job.completed");
    assert_eq!(result(&server, &id), want);
    // A server that was started again knows it as well; gone is gone.
    drop(server);
    let (server, _log) = start(&s, &["--jobs-nats", &url, "--jobs", arg(&s.out("scratch"))]);
    assert_eq!(result(&server, &id), want);
    let path = format!("/v1/audio/jobs/{id}");
    assert_eq!(ask(&server.addr, "DELETE", &path, "", "").0, 200);
    assert_eq!(ask(&server.addr, "GET", &path, "", "").0, 404);
    let listed: Value =
        serde_json::from_slice(&ask(&server.addr, "GET", "/v1/audio/jobs", "", "").1).unwrap();
    assert_eq!(listed["data"], serde_json::json!([]));
    // Nothing is left on its way.
    assert_eq!(std::fs::read_dir(s.out("scratch")).unwrap().count(), 0);
}
