//! Ends: a device that is lost, a step that hangs, a model that loads, a voice that is cloned. The process learns of it, streams
//! are told, and a server that is told to stop stops in time.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use futures_util::SinkExt as _;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;
use voce_engine::fault::{FaultPoint, Faults};
use voce_engine::{Speaker, SpeakerOptions};
use voce_server::{Ended, Limits, ServerOptions};

use crate::abuse::first_words;
use crate::listening::wav;
use crate::patience::LIMIT;
use crate::replicas::mute;
use crate::revival::ears;
use crate::server::{OpenVoice, Part, Running, Setup, model};

fn limits(limits: Limits) -> ServerOptions {
    ServerOptions { limits, ..Default::default() }
}

/// Work in flight has this long.
fn brief() -> Limits {
    Limits { drain: Duration::from_millis(50), ..Limits::default() }
}

/// Waits until a model waits at a fault.
async fn held(faults: &Faults) {
    let faults = faults.clone();
    tokio::task::spawn_blocking(move || faults.wait_held()).await.unwrap();
}

const SPEECH: &str = "/v1/audio/speech";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_hangs_for_too_long_ends_its_streams_and_the_model_comes_back() {
    let faults = Faults::default();
    let options = limits(Limits {
        stuck_step: Duration::from_millis(20),
        hung_step: Duration::from_millis(500),
        ..Limits::default()
    });
    let setup = Setup { options, faults: faults.clone(), endless: true, ..Default::default() };
    let server = setup.start().await;
    let body = json!({"input": "On and on.", "response_format": "pcm"});
    let mut speech = server.open(server.json_request(SPEECH, &body)).await;
    speech.body_mut().frame().await.unwrap().unwrap();
    faults.hold_at(FaultPoint::Step);
    let mut broken = false;
    while let Some(frame) = speech.body_mut().frame().await {
        broken |= frame.is_err();
    }
    assert!(broken, "a stream must not look whole");
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
    server.until("voce_streams_active{kind=\"speech\"}", 0.0).await;
    // The next step may go on, and so does a model in the place of the one that was given up.
    faults.release();
    server.until("voce_model_restarts_total{model=\"small\"}", 1.0).await;
    server.until_ready().await;
    let mut speech = server.open(server.json_request(SPEECH, &body)).await;
    speech.body_mut().frame().await.unwrap().unwrap();
}

/// What probes ask, and the list of models, which asks each what it is.
const PROBES: [&str; 4] = ["/livez", "/readyz", "/metrics", "/v1/models"];

/// Asks all probes once, and notes how long each answer took.
async fn probe(server: &Running, times: &mut Vec<Duration>) {
    for path in PROBES {
        let asked = Instant::now();
        let status = server.get(path).await.status;
        times.push(asked.elapsed());
        assert!(status == StatusCode::OK || path == "/readyz", "{path}: {status}");
    }
}

/// The usual time and the longest.
fn times(mut all: Vec<Duration>) -> String {
    all.sort();
    format!("{:?} in the median, {:?} at most", all[all.len() / 2], all[all.len() - 1])
}

/// Probes are answered while a step hangs, before the model is given up and after, whoever had it last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
async fn a_step_that_hangs_keeps_no_probe_waiting() {
    for (model, path) in [
        ("small", "/api/tts_streaming?format=Pcm"),
        ("counter", "/v2/decode/stream/x"),
        ("mute", "/api/chat"),
    ] {
        let faults = Faults::default();
        let keep_warm = Some(Duration::from_millis(1));
        let options = limits(Limits { hung_step: Duration::from_millis(100), ..brief() });
        let setup = Setup { options, speak: model == "small", ..Default::default() };
        let setup = match model {
            "small" => Setup { faults: faults.clone(), keep_warm, endless: true, ..setup },
            "counter" => Setup { listen: vec![ears(&faults, keep_warm)], ..setup },
            _ => Setup { partners: vec![mute(&faults)], ..setup },
        };
        let server = Arc::new(setup.start().await);
        let (mut before, mut during) = (Vec::new(), Vec::new());
        for _ in 0..50 {
            probe(&server, &mut before).await;
        }
        faults.hold_at(FaultPoint::Step);
        held(&faults).await;
        // Streams that begin while the model is given up.
        let begin = |server: Arc<Running>| async move {
            loop {
                let Ok(mut socket) = server.try_socket(path, &[]).await else { continue };
                let _ = socket.0.send(Message::binary(vec![0; 64])).await;
            }
        };
        let beginners: Vec<_> = (0..2).map(|_| tokio::spawn(begin(server.clone()))).collect();
        let (mut rounds, series) = (0, format!("voce_replicas_ready{{model=\"{model}\"}}"));
        let probed = async || {
            probe(&server, &mut during).await;
            rounds += usize::from(server.metric(&series).await == 0.0);
            rounds == 50
        };
        server.when("fifty rounds of probes since the model was given up", probed).await;
        beginners.iter().for_each(|task| task.abort());
        eprintln!("{model}: probes took {} before, {} while a step hung", times(before), times(during));
        faults.release();
        server.until(&format!("voce_model_restarts_total{{model=\"{model}\"}}"), 1.0).await;
        server.until_ready().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_a_step_hangs_ends_in_time() {
    let faults = Faults::default();
    let setup =
        Setup { options: limits(brief()), faults: faults.clone(), endless: true, ..Default::default() };
    let mut server = setup.start().await;
    let body = json!({"input": "On and on.", "response_format": "pcm"});
    let mut speech = server.open(server.json_request(SPEECH, &body)).await;
    speech.body_mut().frame().await.unwrap().unwrap();
    faults.hold_at(FaultPoint::Step);
    held(&faults).await;
    server.stop();
    assert_eq!(server.gone().await, Ended::Stopped);
    faults.release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_a_model_loads_ends_in_time() {
    let (go, wait) = sync_channel::<()>(0);
    let (begun, loading) = sync_channel::<()>(1);
    let wait = std::sync::Mutex::new(wait);
    let open: OpenVoice = Box::new(move |store| {
        let _ = begun.try_send(());
        let _ = wait.lock().unwrap().recv_timeout(LIMIT);
        Speaker::open(store, model("drifting").to_str().unwrap(), &SpeakerOptions::default())
    });
    let setup = Setup { options: limits(brief()), voices: vec![open], lazy: true, ..Default::default() };
    let mut server = setup.start().await;
    let body = json!({"input": "Hi.", "response_format": "pcm"});
    let waiting = server.json_request(SPEECH, &body);
    let stream = server.connect_from("127.0.0.1").await;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let answer = tokio::spawn(async move { sender.send_request(waiting).await.is_err() });
    tokio::task::spawn_blocking(move || loading.recv_timeout(LIMIT).unwrap()).await.unwrap();
    server.stop();
    assert_eq!(server.gone().await, Ended::Stopped);
    assert!(answer.await.unwrap(), "the request ended with the server");
    drop(go);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_while_a_voice_is_cloned_ends_in_time() {
    let faults = Faults::default();
    let setup = Setup { options: limits(brief()), faults: faults.clone(), ..Default::default() };
    let mut server = setup.start().await;
    faults.hold_at(FaultPoint::Clone);
    let clip = wav("####", 24_000);
    let fields = [("name", Part::Text("anna")), ("audio_sample", Part::File("a.wav", &clip[..]))];
    let request = server.form_request(server.request("POST", "/v1/audio/voices"), &fields);
    let stream = server.connect_from("127.0.0.1").await;
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let answer = tokio::spawn(async move { sender.send_request(request).await.is_err() });
    held(&faults).await;
    server.stop();
    assert_eq!(server.gone().await, Ended::Stopped);
    assert!(answer.await.unwrap());
    assert!(server.store.voices().find("anna").is_err());
    faults.release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_while_a_stream_begins_leaves_the_server_ready() {
    let faults = Faults::default();
    let options = limits(Limits { stuck_step: Duration::from_millis(20), ..Limits::default() });
    let setup = Setup { options, faults: faults.clone(), ..Default::default() };
    let server = setup.start().await;
    faults.panic_at(FaultPoint::Begin);
    let body = json!({"input": "Hi.", "response_format": "pcm"});
    assert_eq!(server.post(SPEECH, &body).await.error(), "internal");
    assert_eq!(server.post(SPEECH, &body).await.status, StatusCode::OK);
    // Long after the time that a step may take, counted by looks at it.
    let begun = std::time::Instant::now();
    while begun.elapsed() < Duration::from_millis(60) {
        tokio::task::yield_now().await;
        assert_ne!(server.get("/readyz").await.json()["status"], "stuck");
    }
    assert_eq!(server.metric("voce_model_restarts_total{model=\"small\"}").await, 0.0);
}

#[tokio::test]
async fn sockets_end_with_a_server_whose_model_is_lost() {
    // Every dialect hears of the end in its own way, and none is left open.
    let hear = Arc::new(crate::counter::Counter::default());
    let setup = Setup { options: limits(brief()), hear: Some(hear), hear_slots: 4, ..Default::default() };
    let mut server = setup.start().await;
    let mut sockets = Vec::new();
    for (path, message) in first_words() {
        let mut socket = server.socket(path).await;
        socket.0.send(message).await.unwrap();
        sockets.push(socket);
    }
    server.until("voce_streams_active{kind=\"recognition\"}", 4.0).await;
    server.stop();
    for mut socket in sockets {
        assert_eq!(socket.closed().await.0, 1012);
    }
    assert_eq!(server.gone().await, Ended::Stopped);
}
