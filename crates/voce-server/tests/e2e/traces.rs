//! Spans: a collector on loopback gets those of a request, its stream and its stages, below the client's own; a dead one harms
//! nobody.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use voce_engine::listener::{Listener, ListenerOptions};
use voce_server::ears::OpenListener;
use voce_server::{OtlpOptions, ServerOptions};

use crate::counter::Counter;
use crate::listening::wav;
use crate::patience::LIMIT;
use crate::server::{Part, Setup};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// A collector that passes on what it gets, and answers with each status in turn, then with 200.
async fn collector(statuses: &[u16]) -> (SocketAddr, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel(64);
    let statuses = Arc::new(std::sync::Mutex::new(statuses.to_vec()));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (sender, statuses) = (sender.clone(), statuses.clone());
            let answer = service_fn(move |request: Request<hyper::body::Incoming>| {
                let (sender, statuses) = (sender.clone(), statuses.clone());
                async move {
                    assert_eq!(request.uri().path(), "/v1/traces");
                    assert_eq!(request.headers()["content-type"], "application/json");
                    assert_eq!(request.headers()["x-key"], "k");
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    let status = {
                        let mut left = statuses.lock().unwrap();
                        if left.is_empty() { 200 } else { left.remove(0) }
                    };
                    if status == 200 {
                        sender.send(serde_json::from_slice(&body).unwrap()).await.unwrap();
                    }
                    let reply = Response::builder().status(status).body(Full::<Bytes>::default());
                    Ok::<_, std::convert::Infallible>(reply.unwrap())
                }
            });
            let server = hyper::server::conn::http1::Builder::new();
            tokio::spawn(server.serve_connection(TokioIo::new(stream), answer));
        }
    });
    (addr, receiver)
}

fn to(addr: SocketAddr) -> ServerOptions {
    let otlp =
        OtlpOptions::new(&format!("http://{addr}")).unwrap().service("tests").headers("x-key=k").unwrap();
    ServerOptions { otlp: Some(otlp.delay(Duration::from_millis(1))), ..Default::default() }
}

/// Waits for the span of a name; those that came with it and before are kept.
async fn until(spans: &mut Vec<Value>, batches: &mut mpsc::Receiver<Value>, name: &str) -> Value {
    loop {
        if let Some(span) = spans.iter().find(|s| s["name"] == name) {
            return span.clone();
        }
        let batch = tokio::time::timeout(LIMIT, batches.recv())
            .await
            .expect("a batch in time")
            .expect("the collector lives");
        let resource = &batch["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "tests");
        spans.extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
    }
}

/// Names of the spans below another one.
fn below<'a>(spans: &'a [Value], parent: &Value) -> HashMap<&'a str, &'a Value> {
    let below = spans.iter().filter(|s| s["parentSpanId"] == parent["spanId"]);
    below.map(|s| (s["name"].as_str().unwrap(), s)).collect()
}

fn field<'a>(span: &'a Value, key: &str) -> &'a Value {
    let fields = span["attributes"].as_array().unwrap();
    let found = fields.iter().find(|f| f["key"] == key).unwrap_or_else(|| panic!("no {key}: {span}"));
    found["value"].as_object().unwrap().values().next().unwrap()
}

fn times(span: &Value) -> (u64, u64) {
    let time = |key: &str| span[key].as_str().unwrap().parse().unwrap();
    (time("startTimeUnixNano"), time("endTimeUnixNano"))
}

fn check_tree(spans: &[Value], root: &Value, trace: &str) {
    for span in spans {
        assert_eq!(span["traceId"], trace, "{span}");
        let (start, end) = times(span);
        assert!(start <= end && start > 1_600_000_000_000_000_000, "{span}");
        if span["spanId"] != root["spanId"] {
            assert!(spans.iter().any(|s| s["spanId"] == span["parentSpanId"]), "{span} has no parent");
        }
    }
    let ids: std::collections::HashSet<&str> = spans.iter().map(|s| s["spanId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), spans.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_speech_request_is_one_tree_below_the_clients_span() {
    let (addr, mut batches) = collector(&[]).await;
    let server = Setup { options: to(addr), ..Default::default() }.start().await;
    let body = json!({"input": "Hi.", "response_format": "wav", "seed": 7});
    let mut request = server.json_request("/v1/audio/speech", &body);
    request.headers_mut().insert("traceparent", format!("00-{TRACE}-{SPAN}-01").parse().unwrap());
    assert_eq!(server.send(request).await.status, StatusCode::OK);
    let mut spans = Vec::new();
    let root = until(&mut spans, &mut batches, "POST /v1/audio/speech").await;
    assert_eq!((root["parentSpanId"].as_str(), root["kind"].as_u64()), (Some(SPAN), Some(2)));
    assert_eq!(
        (field(&root, "http.route"), field(&root, "http.response.status_code")),
        (&json!("/v1/audio/speech"), &json!("200"))
    );
    let stream = until(&mut spans, &mut batches, "speak").await;
    check_tree(&spans, &root, TRACE);
    let outer = below(&spans, &root);
    assert!(["speak", "encode_out", "socket_write"].iter().all(|n| outer.contains_key(n)), "{outer:?}");
    let stages = below(&spans, &stream);
    for name in ["queue", "prefill", "synth", "codec"] {
        let stage = stages.get(name).unwrap_or_else(|| panic!("no {name}: {stages:?}"));
        let (from, to) = times(stage);
        let (begin, end) = times(&stream);
        assert!(from >= begin && to <= end, "{name} is outside its stream");
        assert!(field(stage, "voce.busy_seconds").as_f64().unwrap() <= (to - from) as f64 / 1e9 + 1e-6);
    }
    let count = |span: &Value, key: &str| field(span, key).as_str().unwrap().parse::<u64>().unwrap();
    assert_eq!(field(&stream, "voce.model"), "small");
    // The step that finds the end makes no frame.
    let frames = count(&stream, "voce.frames");
    assert!(frames > 0 && (frames..=frames + 1).contains(&count(stages["synth"], "voce.count")), "{spans:?}");
    // Nothing of what was said.
    assert!(!spans.iter().any(|s| s.to_string().contains("Hi.")));
    server.until("voce_trace_spans_total{outcome=\"sent\"}", spans.len() as f64).await;
    assert_eq!(server.metric("voce_breaker_state{stage=\"otlp\",state=\"closed\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transcription_is_one_tree_of_its_own() {
    let (addr, mut batches) = collector(&[503]).await;
    let options = ListenerOptions::default().with_threads(1).with_slots(2);
    let ears: OpenListener = Box::new(move || Listener::random("nano-ear", 3, &options));
    let setup = Setup { options: to(addr), speak: false, listen: vec![ears], ..Default::default() };
    let server = setup.start().await;
    let file = wav("#.#", 16_000);
    let reply = server.form("/v1/audio/transcriptions", &[("file", Part::File("a.wav", &file))]).await;
    assert_eq!(reply.status, StatusCode::OK);
    let mut spans = Vec::new();
    let root = until(&mut spans, &mut batches, "POST /v1/audio/transcriptions").await;
    assert!(root.get("parentSpanId").is_none());
    let stream = until(&mut spans, &mut batches, "hear").await;
    let trace = root["traceId"].as_str().unwrap();
    assert!(trace.len() == 32 && trace != TRACE);
    check_tree(&spans, &root, trace);
    assert!(["hear", "decode", "socket_write"].iter().all(|n| below(&spans, &root).contains_key(n)));
    assert!(["queue", "encode", "search"].iter().all(|n| below(&spans, &stream).contains_key(n)));
    assert_eq!(field(&stream, "voce.audio_seconds"), &json!(1.5));
    assert!(
        server.metric("voce_breaker_failures_total{stage=\"otlp\"}").await >= 1.0,
        "the collector said 503 once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_and_refusals_are_traced() {
    let (addr, mut batches) = collector(&[]).await;
    let hear: Arc<dyn voce_server::ears::Recogniser> = Arc::new(Counter::default());
    let server =
        Setup { options: to(addr), speak: false, hear: Some(hear), ..Default::default() }.start().await;
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let mut socket = server.try_socket("/v2/decode/stream/x", &[("traceparent", &parent)]).await.unwrap();
    for piece in wav("##", 16_000)[44..].chunks(640) {
        socket.binary(piece.to_vec()).await;
    }
    drop(socket);
    let mut spans = Vec::new();
    let root = until(&mut spans, &mut batches, "GET /v2/decode/stream/{model}").await;
    let stream = until(&mut spans, &mut batches, "hear").await;
    check_tree(&spans, &root, TRACE);
    assert_eq!(stream["status"], json!({"code": 2, "message": "client_gone"}));
    assert!(below(&spans, &root).contains_key("decode"));
    spans.clear();
    let missing = server.form("/v1/audio/transcriptions", &[]).await;
    assert_eq!(missing.status, StatusCode::BAD_REQUEST);
    let refused = until(&mut spans, &mut batches, "POST /v1/audio/transcriptions").await;
    assert_eq!(refused["status"]["message"], "bad_request");
    // What the client does not want to be traced is not, nor are probes.
    spans.clear();
    let mut request = server.request("GET", "/v1/models").body(Default::default()).unwrap();
    request.headers_mut().insert("traceparent", format!("00-{TRACE}-{SPAN}-00").parse().unwrap());
    server.send(request).await;
    server.get("/readyz").await;
    server.get("/v1/audio/voices").await;
    until(&mut spans, &mut batches, "GET /v1/audio/voices").await;
    assert_eq!(spans.len(), 2, "{spans:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_collector_harms_nobody() {
    // A port that nobody listens on any more.
    let addr = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = Setup { options: to(addr), ..Default::default() }.start().await;
    let body = json!({"input": "Hi.", "response_format": "pcm", "seed": 7});
    let quiet = Setup::default().start().await;
    let expected = quiet.post("/v1/audio/speech", &body).await.body;
    let dropped = async || {
        assert_eq!(server.post("/v1/audio/speech", &body).await.body, expected);
        server.metric("voce_trace_spans_total{outcome=\"dropped\"}").await > 0.0
    };
    server.when("spans that are dropped", dropped).await;
    assert!(server.metric("voce_breaker_failures_total{stage=\"otlp\"}").await > 0.0);
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
    server.stop();
    server.gone().await;
}
