//! `voce serve` from outside: settings, the line it prints, an answer, and its way out.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::patience::{Ends as _, connect, until};
use crate::sandbox::{Sandbox, arg, model};
use crate::watchdog;

/// A running server, ended with the test.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) addr: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn start(sandbox: &Sandbox, args: &[&str]) -> Server {
    start_logged(sandbox, args, Stdio::null())
}

/// A server whose log goes where it is told.
pub(crate) fn start_logged(sandbox: &Sandbox, args: &[&str], log: Stdio) -> Server {
    let mut all = vec!["serve", "--port", "0", "--json"];
    all.extend(args);
    let mut child = sandbox.command(&all).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let line = child.line();
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let addr = said["addr"].as_str().unwrap().to_owned();
    assert_eq!(said["url"], format!("http://{addr}/"));
    watchdog::arm(addr.parse().ok());
    Server { child, addr }
}

/// A server whose log is read by the test.
pub(crate) fn start_piped(sandbox: &Sandbox, args: &[&str]) -> (Server, std::process::ChildStderr) {
    let mut server = start_logged(sandbox, args, Stdio::piped());
    let log = server.child.stderr.take().unwrap();
    (server, log)
}

pub(crate) fn ask(addr: &str, method: &str, path: &str, head: &str, body: &str) -> (u16, Vec<u8>) {
    ask_bytes(addr, method, path, head, body.as_bytes())
}

pub(crate) fn ask_bytes(addr: &str, method: &str, path: &str, head: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = connect(addr).unwrap();
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n{head}\r\n").unwrap();
    let _ = stream.write_all(body);
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    let end = reply.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let status = String::from_utf8_lossy(&reply[9..12]).parse().unwrap();
    (status, reply.split_off(end + 4))
}

#[test]
fn serves_speech_and_the_page_and_goes_when_told() {
    let sandbox = Sandbox::new();
    let folder = model("drifting");
    let mut server = start(&sandbox, &["--no-hear", "--speak", arg(&folder), "--api-key", "k1"]);
    assert_eq!(ask(&server.addr, "GET", "/readyz", "", "").0, 200);
    let (status, page) = ask(&server.addr, "GET", "/", "", "");
    assert!(status == 200 && String::from_utf8_lossy(&page).contains("<title>Voce</title>"));
    let body = json!({"input": "Hi.", "response_format": "wav"}).to_string();
    assert_eq!(ask(&server.addr, "POST", "/v1/audio/speech", "", &body).0, 401);
    let (status, wav) = ask(&server.addr, "POST", "/v1/audio/speech", "Authorization: Bearer k1\r\n", &body);
    assert_eq!(status, 200);
    assert!(wav.windows(4).any(|w| w == b"RIFF"));
    let (_, models) = ask(&server.addr, "GET", "/v1/models?api_key=k1", "", "");
    assert!(
        String::from_utf8_lossy(&models).contains("\"drifting\""),
        "{}",
        String::from_utf8_lossy(&models)
    );
    #[cfg(unix)]
    {
        let pid = server.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        assert_eq!(server.child.ends().code(), Some(0));
    }
}

/// A model whose weights never come: reading them waits for somebody who writes.
#[cfg(unix)]
fn endless_model(sandbox: &Sandbox) -> std::path::PathBuf {
    let (from, to) = (model("drifting"), sandbox.out("endless"));
    std::fs::create_dir(&to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten().filter(|e| e.path().is_file()) {
        if entry.path().extension().is_some_and(|e| e == "safetensors") {
            let made = std::process::Command::new("mkfifo").arg(to.join(entry.file_name())).status();
            assert!(made.unwrap().success());
        } else {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
    to
}

#[cfg(unix)]
#[test]
fn a_signal_while_a_model_loads_ends_the_process() {
    let sandbox = Sandbox::new();
    let folder = endless_model(&sandbox);
    // The line with the address comes when models are there: the port must be known before.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let args = ["serve", "--port", &port.to_string(), "--no-hear", "--speak", arg(&folder), "--drain", "1s"];
    let mut child = sandbox.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let addr = format!("127.0.0.1:{port}");
    until("a server that loads its models", || {
        assert!(child.try_wait().unwrap().is_none(), "it waits for its model");
        connect(&addr).is_ok()
    });
    assert_eq!(ask(&addr, "GET", "/livez", "", "").0, 200);
    assert_eq!(ask(&addr, "GET", "/readyz", "", "").0, 503);
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(child.ends().code(), Some(0));
}

#[cfg(target_os = "linux")]
#[test]
fn threads_stay_on_their_cores_when_pinned() {
    let sandbox = Sandbox::new();
    let folder = model("drifting");
    for (flags, pinned) in [(&["--threads", "1"][..], false), (&["--threads", "1", "--pin"], true)] {
        let mut args = vec!["--no-hear", "--speak", arg(&folder)];
        args.extend(flags);
        let server = start(&sandbox, &args);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap().flatten();
        let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        let model = tasks.map(|t| t.path()).find(|t| read(t.join("comm")).trim() == "voce-model").unwrap();
        let status = read(model.join("status"));
        let cores = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
        let all = read("/proc/self/status".into());
        let all = all.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
        if pinned {
            assert!(cores.parse::<usize>().is_ok(), "one core, not {cores}");
        } else {
            assert_eq!(cores, all);
        }
    }
}

#[cfg(all(target_os = "linux", feature = "nano"))]
#[test]
fn a_recogniser_is_on_every_device_that_is_named() {
    let sandbox = Sandbox::new();
    for (devices, threads) in [("cpu", 1), ("cpu,cpu", 2)] {
        let args = ["--no-speak", "--hear", "nano-ear", "--threads", "1", "--device", devices];
        let server = start(&sandbox, &args);
        assert_eq!(ask(&server.addr, "GET", "/readyz", "", "").0, 200);
        let tasks = std::fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap().flatten();
        let name = |t: &std::fs::DirEntry| std::fs::read_to_string(t.path().join("comm")).unwrap_or_default();
        assert_eq!(tasks.filter(|t| name(t).trim() == "voce-listen").count(), threads, "{devices}");
    }
    let (code, message) =
        sandbox.fails(&["serve", "--no-speak", "--hear", "nano-ear", "--device", "cpu,gpu"]);
    assert!(code == 2 && message.contains("'gpu' is no device"), "{code}: {message}");
}

#[test]
fn a_check_says_what_the_settings_mean() {
    let sandbox = Sandbox::new();
    let folder = model("drifting");
    let config = sandbox.out("voce.toml");
    let text = format!(
        "speak = ['{}']\nport = 9001\nhost = '0.0.0.0'\napi-key = ['a', 'b']\nwyoming = '10300'\nalias = ['x=drifting']\nno-hear = true",
        arg(&folder)
    );
    std::fs::write(&config, text).unwrap();
    let said = sandbox.json(&["serve", "--check", "--json", "--config", arg(&config), "--port", "9002"]);
    assert_eq!((said["addr"].as_str(), said["keys"].as_u64()), (Some("0.0.0.0:9002"), Some(2)));
    assert_eq!(
        (said["wyoming"].as_str(), &said["aliases"]),
        (Some("127.0.0.1:10300"), &json!([["x", "drifting"]]))
    );
    // Wyoming has no keys: where the server has some, other machines reach it only where that is written.
    let wyoming = |more: &[&str]| {
        let mut args =
            vec!["serve", "--check", "--json", "--no-hear", "--host", "0.0.0.0", "--speak", arg(&folder)];
        args.extend(more);
        sandbox.json(&args)["wyoming"].as_str().unwrap().to_owned()
    };
    assert_eq!(wyoming(&["--wyoming", "10300"]), "0.0.0.0:10300");
    assert_eq!(wyoming(&["--wyoming", "10300", "--api-key", "k"]), "127.0.0.1:10300");
    assert_eq!(wyoming(&["--wyoming", "0.0.0.0:10300", "--api-key", "k"]), "0.0.0.0:10300");
}

#[test]
fn a_check_looks_at_the_recognisers() {
    let sandbox = Sandbox::new();
    let whole = model("..").join("fastconformer/ctc");
    let said = sandbox.json(&["serve", "--check", "--json", "--no-speak", "--hear", arg(&whole)]);
    let files = said["models"][0]["files"].as_array().unwrap();
    let on_disk = std::fs::metadata(whole.join("model.safetensors")).unwrap().len();
    assert!(files.iter().any(|f| f["bytes"].as_u64() == Some(on_disk)), "{said}");
    assert!(said["models"][0]["bytes"].as_u64().unwrap() >= on_disk);
    let copy = |name: &str| {
        let folder = sandbox.out(name);
        std::fs::create_dir(&folder).unwrap();
        for file in ["config.json", "preprocessor_config.json", "model.safetensors", "tokenizer.json"] {
            std::fs::copy(whole.join(file), folder.join(file)).unwrap();
        }
        folder
    };
    // Each has one fault, and all are told at once.
    let (no_weights, cut, bad) = (copy("no-weights"), copy("cut"), copy("bad"));
    std::fs::remove_file(no_weights.join("model.safetensors")).unwrap();
    let weights = std::fs::read(cut.join("model.safetensors")).unwrap();
    std::fs::write(cut.join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
    std::fs::write(bad.join("config.json"), "{").unwrap();
    let hear = [arg(&whole), arg(&no_weights), arg(&cut), arg(&bad), "nemotron"].join(",");
    let (code, message) = sandbox.fails(&["serve", "--check", "--no-speak", "--hear", &hear]);
    assert_eq!(code, 2, "{message}");
    for says in ["no-weights: ", "cut: ", "bad: ", "nemotron: ", "voce pull"] {
        assert!(message.contains(says), "{says}: {message}");
    }
    assert!(!message.contains(&format!("{}: ", arg(&whole))), "{message}");
}

#[test]
fn settings_that_are_none() {
    let sandbox = Sandbox::new();
    let folder = model("drifting");
    let config = sandbox.out("bad.toml");
    let check = |text: &str, more: &[&str]| {
        std::fs::write(&config, text).unwrap();
        let mut args = vec!["serve", "--check", "--config", arg(&config), "--speak", arg(&folder)];
        args.extend(more);
        sandbox.fails(&args)
    };
    for (text, more, says) in [
        ("prot = 1", &[][..], "unknown field `prot`"),
        ("port = 'x'", &[], "port"),
        ("port = [", &[], "bad.toml"),
        ("precision = 'f8'", &[], "no precision"),
        ("", &["--host", "everywhere"], "no address"),
        ("", &["--drain", "5 days"], "no time"),
        ("", &["--alias", "x"], "NAME=VALUE"),
        ("", &["--wyoming", "home"], "use a port"),
        ("", &["--otlp", "localhost:4318"], "is no collector"),
        ("", &["--keep-warm", "1ms"], "use 10ms or more"),
        ("keep-warm = 'often'", &[], "no time"),
        ("", &["--capture-audio", "/dev/null/x"], "cannot be kept there"),
        ("", &["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
        ("", &["--no-speak", "--no-hear"], "nothing to serve"),
        ("", &["--require-key", "--host", "0.0.0.0"], "set a key"),
        ("", &["--slot-idle", "soon"], "no time"),
        (
            "authorized_ids = ['a']\n[modules.m]\ntype = 'Lm'\npath = '/api/chat'",
            &[],
            "module 'm' (Lm): missing field",
        ),
        (
            "authorized_ids = ['a']\n[modules.m]\ntype = 'BatchedAsr'\npath = '/api/asr-streaming'",
            &[],
            "module 'm' (BatchedAsr): missing field",
        ),
    ] {
        let (code, message) = check(text, more);
        assert!(code == 2 && message.contains(says), "{text} {more:?}: {code} {message}");
    }
    let (code, message) = sandbox.fails(&["serve", "--check", "--speak", "no-such-model"]);
    assert!(code == 2 && message.contains("no-such-model"), "{code} {message}");
}

#[test]
fn a_moshi_configuration_is_taken_as_it_is() {
    let sandbox = Sandbox::new();
    let folder = model("drifting");
    let config = sandbox.out("config-tts.toml");
    let text = "static_dir = './static/'\nlog_dir = '/tmp'\ninstance_name = 'tts'\nauthorized_ids = ['public_token']\n[modules.tts_py]\ntype = 'Py'\npath = '/api/my_tts'\ntext_tokenizer_file = 'x'\nbatch_size = 2\ntext_bos_token = 1\n[modules.tts_py.py]\nn_q = 24";
    std::fs::write(&config, text).unwrap();
    let server = start(
        &sandbox,
        &[
            "--config",
            arg(&config),
            "--addr",
            "127.0.0.1",
            "--cpu",
            "--silent",
            "--tf32",
            "--speak",
            arg(&folder),
        ],
    );
    let body = json!({"text": "Hi.", "voice": "any"}).to_string();
    let (status, wav) = ask(&server.addr, "POST", "/api/my_tts", "kyutai-api-key: public_token\r\n", &body);
    assert_eq!(status, 200);
    assert!(wav.windows(4).any(|w| w == b"RIFF"));
    assert_eq!(ask(&server.addr, "POST", "/api/my_tts", "", &body).0, 401);
    let (_, modules) = ask(&server.addr, "GET", "/api/modules_info?auth_id=public_token", "", "");
    assert!(String::from_utf8_lossy(&modules).contains("\"total_slots\":\"2\""));
}

/// What the server hears in a file, word by word.
fn heard(server: &Server, file: &Path) -> String {
    let clip = std::fs::read(file).unwrap();
    let mut stream = connect(&server.addr).unwrap();
    let length = clip.len();
    write!(stream, "POST /api/asr-streaming HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n")
        .unwrap();
    stream.write_all(&clip).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{reply}");
    let heard: Value = serde_json::from_str(body).unwrap();
    let words: Vec<&str> = heard.as_array().unwrap().iter().filter_map(|m| m["text"].as_str()).collect();
    words.join(" ")
}

#[cfg(feature = "nano")]
#[test]
fn without_settings_both_models_of_the_binary_are_served() {
    let sandbox = Sandbox::new();
    let server = start(&sandbox, &[]);
    let (_, models) = ask(&server.addr, "GET", "/v1/models", "", "");
    let models = String::from_utf8_lossy(&models).into_owned();
    assert!(models.contains("\"nano-voice\"") && models.contains("\"nano-ear\""), "{models}");
    let body = json!({"input": "Hello.", "response_format": "wav"}).to_string();
    let (status, wav) = ask(&server.addr, "POST", "/v1/audio/speech", "", &body);
    assert!(status == 200 && wav.len() > 10_000);
    let clip = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech/1867-154075-0005.opus");
    let said = sandbox.json(&["hear", "--json", arg(&clip)]);
    assert_eq!(heard(&server, &clip), said["text"].as_str().unwrap());
}

#[test]
fn serves_a_recogniser() {
    let sandbox = Sandbox::new();
    let recognisers = model("..").join("fastconformer");
    let folder = recognisers.join("ctc");
    let server = start(&sandbox, &["--no-speak", "--hear", arg(&folder), "--precision", "f32"]);
    let words = heard(&server, &recognisers.join("audio/a.wav"));
    // The same words as the command hears.
    let said = sandbox.json(&[
        "hear",
        "--json",
        "--model",
        arg(&folder),
        "--precision",
        "f32",
        arg(&recognisers.join("audio/a.wav")),
    ]);
    assert_eq!(words, said["text"].as_str().unwrap().trim(), "{said}");
    let (status, reply) = ask(&server.addr, "POST", "/v1/audio/speech", "", "{\"input\": \"Hi.\"}");
    assert!(status == 503 && String::from_utf8_lossy(&reply).contains("no_model"));
}

/// The value of a series; one that is not there yet is zero.
#[cfg(feature = "nano")]
fn series(server: &Server, name: &str) -> f64 {
    let (_, text) = ask(&server.addr, "GET", "/metrics", "", "");
    let text = String::from_utf8(text).unwrap();
    text.lines().find_map(|l| l.strip_prefix(name)).map_or(0.0, |value| value.trim().parse().unwrap())
}

#[cfg(feature = "nano")]
#[test]
fn recognisers_come_when_they_are_asked_for_and_go_when_they_are_idle() {
    use tokio_tungstenite::tungstenite::Message;
    let sandbox = Sandbox::new();
    let recognisers = model("..").join("fastconformer");
    let hear = format!("nano-ear,{}", arg(&recognisers.join("ctc")));
    let server = start(&sandbox, &["--no-speak", "--hear", &hear, "--lazy", "--keep-alive", "1ms"]);
    let of =
        |model: &str, what: &str| series(&server, &format!("voce_model_{what}_total{{model=\"{model}\"}}"));
    // Ready, and nothing is loaded; nor is anything said of what nobody has looked at.
    assert_eq!(ask(&server.addr, "GET", "/readyz", "", "").0, 200);
    assert_eq!((of("nano-ear", "loads"), of("ctc", "loads")), (0.0, 0.0));
    let known = || {
        let (_, listed) = ask(&server.addr, "GET", "/v1/models/nano-ear", "", "");
        serde_json::from_slice::<Value>(&listed).unwrap()["streaming"].clone()
    };
    assert_eq!(known(), Value::Null);
    // A stream loads its own.
    let mut live = crate::modules::socket(&server.addr, "/v1/listen?encoding=linear16&sample_rate=16000");
    live.send(Message::binary(vec![0; 32_000])).unwrap();
    until("a recogniser that is loaded", || of("nano-ear", "loads") == 1.0);
    assert_eq!((known(), of("ctc", "loads")), (true.into(), 0.0));
    let clip = std::fs::read(recognisers.join("audio/a.wav")).unwrap();
    // The other one comes and goes, again and again, while the stream keeps what it has.
    for times in 1..=3 {
        let head = "Content-Type: audio/wav\r\n";
        assert_eq!(ask_bytes(&server.addr, "POST", "/v1/listen?model=ctc", head, &clip).0, 200);
        until("a recogniser that is unloaded", || of("ctc", "unloads") == f64::from(times));
    }
    assert_eq!((of("nano-ear", "loads"), of("nano-ear", "unloads")), (1.0, 0.0));
    live.send(Message::text(r#"{"type":"CloseStream"}"#)).unwrap();
    until("the last message", || live.read().unwrap().to_text().is_ok_and(|t| t.contains("Metadata")));
    drop(live);
    until("a recogniser that is unloaded", || of("nano-ear", "unloads") == 1.0);
    assert_eq!(ask(&server.addr, "GET", "/readyz", "", "").0, 200);
}

#[cfg(feature = "nano")]
#[test]
fn every_stream_has_the_chunk_and_the_beam_of_the_settings() {
    let sandbox = Sandbox::new();
    let clip = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech/1867-154075-0003.opus");
    let flags = ["--chunk", "80", "--beam", "4", "-q", "--threads", "1"];
    let heard = sandbox.run(&[&["hear", "--model", "nano-ear"][..], &flags, &[arg(&clip)]].concat());
    let heard = String::from_utf8(heard.stdout).unwrap();
    let ear = ["--no-speak", "--hear", "nano-ear"];
    let settings = sandbox.out("voce.toml");
    std::fs::write(&settings, "hear-chunk = 80\nhear-beam = 4\nthreads = 1\n").unwrap();
    for more in
        [vec!["--hear-chunk", "80", "--hear-beam", "4", "--threads", "1"], vec!["--config", arg(&settings)]]
    {
        let server = start(&sandbox, &[&ear[..], &more[..]].concat());
        let (status, said) = ask_bytes(
            &server.addr,
            "POST",
            "/v1/listen",
            "Content-Type: audio/ogg\r\n",
            &std::fs::read(&clip).unwrap(),
        );
        let said: Value = serde_json::from_slice(&said).unwrap();
        let text =
            said["results"]["channels"][0]["alternatives"][0]["transcript"].as_str().unwrap_or_default();
        assert_eq!((status, text), (200, heard.trim()), "{more:?}");
    }
    let stt = model("..").join("kyutai/stt_heads");
    for (model, flags, says) in [
        ("nano-ear", ["--hear-chunk", "100"], &["nano-ear", "560, 1120, 160, 80"][..]),
        ("nano-ear", ["--hear-beam", "33"], &["--hear-beam", "1 to 32"]),
        (arg(&stt), ["--hear-beam", "4"], &["stt_heads", "no beams"]),
        (arg(&stt), ["--hear-chunk", "160"], &["stt_heads", "80 ms"]),
    ] {
        for check in [&[][..], &["--check"]] {
            let all = [&["serve", "--port", "0", "--no-speak", "--hear", model][..], &flags, check].concat();
            let (code, said) = sandbox.fails(&all);
            assert!(code == 2 && says.iter().all(|says| said.contains(says)), "{all:?}: {said}");
        }
    }
}
