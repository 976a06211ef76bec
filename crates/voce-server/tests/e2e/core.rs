//! Sockets, keys, limits, admission, probes and the way out.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use voce_server::{Limits, ServerOptions, route_table};

use crate::patience::TcpStream;
use crate::server::{Body, Setup};

fn keyed(key: &str) -> Setup {
    Setup { options: ServerOptions { keys: vec![key.into()], ..Default::default() }, ..Default::default() }
}

#[tokio::test]
async fn every_route_needs_the_key_unless_listed() {
    let server = keyed("secret").start().await;
    let mut open = Vec::new();
    for route in route_table() {
        let path = route.path.replace(['{', '}'], "");
        for method in route.methods {
            let request = |key: Option<&str>| {
                let mut r = server.request(method, &path);
                if let Some(key) = key {
                    r = r.header("authorization", format!("Bearer {key}"));
                }
                r.body(Body::default()).unwrap()
            };
            let (without, wrong) =
                (server.send(request(None)).await, server.send(request(Some("secret2"))).await);
            if route.open {
                open.push(route.path);
                assert_ne!(without.status, StatusCode::UNAUTHORIZED, "{path}");
                continue;
            }
            assert_eq!(without.status, StatusCode::UNAUTHORIZED, "{method} {path}");
            assert_eq!(wrong.status, StatusCode::UNAUTHORIZED, "{method} {path}");
            let right = server.send(request(Some("secret"))).await;
            assert_ne!(right.status, StatusCode::UNAUTHORIZED, "{method} {path}");
        }
    }
    // Machines know each other by a secret of their own.
    const HANDOVER: &str = "/v1/handover/{id}";
    // What is open is written down here as well, so that a new open route is somebody's decision.
    let expected = ["/livez", "/readyz", "/health", "/v1/health/live", "/v1/health/ready"];
    let extra: Vec<_> = open.iter().filter(|p| !expected.contains(p)).collect();
    assert!(
        extra.iter().all(|p| [
            "/",
            "/page.js",
            "/page.css",
            "/mic.js",
            "/favicon.svg",
            "/api/build_info",
            HANDOVER
        ]
        .contains(*p)),
        "{extra:?}"
    );
    // A path that is not in the table tells nothing either.
    assert_eq!(server.get("/nothing").await.status, StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn keys_in_headers_and_queries() {
    let server = keyed("k1").start().await;
    for (name, value) in
        [("authorization", "Bearer k1"), ("kyutai-api-key", "k1"), ("authorization", "Token k1")]
    {
        let request = server.request("GET", "/v1/models").header(name, value).body(Body::default()).unwrap();
        assert_eq!(server.send(request).await.status, StatusCode::OK, "{name}: {value}");
    }
    for query in ["auth_id=k1", "api_key=k1", "token=k1"] {
        assert_eq!(server.get(&format!("/v1/models?{query}")).await.status, StatusCode::OK, "{query}");
    }
    let reply = server.get("/v1/models?auth_id=wrong").await;
    assert_eq!(reply.error(), "invalid_api_key");
    assert_eq!(reply.header("www-authenticate"), "Bearer");
}

#[tokio::test]
async fn probes_and_metrics() {
    let server = Setup::default().start().await;
    for path in ["/livez", "/readyz", "/health", "/v1/health/live", "/v1/health/ready"] {
        let reply = server.get(path).await;
        assert_eq!((reply.status, reply.json()["status"].as_str()), (StatusCode::OK, Some("ok")), "{path}");
    }
    server.post("/v1/audio/speech", &json!({"input": "Hi.", "response_format": "pcm"})).await;
    let text = server.get("/metrics").await;
    assert!(text.header("content-type").starts_with("application/openmetrics-text"));
    for series in [
        "voce_requests_total{route=\"/v1/audio/speech\",method=\"POST\",code=\"200\"} 1",
        "voce_streams_active{kind=\"speech\"} 0",
        "voce_slots{kind=\"speech\"} 4",
        "voce_time_to_first_audio_seconds_count 1",
        "voce_step_seconds_count{model=\"small\"} 1",
        "voce_build_info{version=",
        "voce_model_bytes{model=\"small\"}",
        "voce_underruns_total",
        "voce_audio_seconds_total{dir=\"out\"}",
    ] {
        assert!(text.text().contains(series), "{series}\n{}", text.text());
    }
    assert!(text.text().ends_with("# EOF\n"));
    assert!(!text.header("x-request-id").is_empty());
}

#[tokio::test]
async fn unknown_routes_and_methods() {
    let server = Setup::default().start().await;
    let reply = server.get("/v1/nothing").await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::NOT_FOUND, "not_found"));
    let reply = server.get("/v1/audio/speech").await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::METHOD_NOT_ALLOWED, "bad_method"));
}

#[tokio::test]
async fn other_names_and_other_sites_are_refused() {
    let server = Setup::default().start().await;
    let host = |name: &str| {
        hyper::Request::builder()
            .uri("/v1/models")
            .header("host", name.to_owned())
            .body(Body::default())
            .unwrap()
    };
    let reply = server.send(host("evil.example")).await;
    assert_eq!(reply.error(), "forbidden");
    assert!(reply.text().contains("`allow-host` setting"), "{}", reply.text());
    assert_eq!(server.send(host("localhost:1")).await.status, StatusCode::OK);
    assert_eq!(server.send(host("[::1]:80")).await.status, StatusCode::OK);
    let from = |origin: &str| {
        server.request("GET", "/v1/models").header("origin", origin).body(Body::default()).unwrap()
    };
    let reply = server.send(from("https://evil.example")).await;
    assert_eq!(reply.error(), "forbidden");
    assert!(!reply.headers.contains_key("access-control-allow-origin"));
    assert_eq!(server.send(from("null")).await.error(), "forbidden");
    assert_eq!(server.send(from(&format!("http://{}", server.addr))).await.status, StatusCode::OK);
}

#[tokio::test]
async fn cors_only_for_those_who_are_named() {
    let options = ServerOptions { cors: vec!["https://app.example".into()], ..Default::default() };
    let server = Setup { options, ..Default::default() }.start().await;
    let ask = |origin: &str| {
        let r = server.request("OPTIONS", "/v1/audio/speech").header("origin", origin);
        r.header("access-control-request-method", "POST").body(Body::default()).unwrap()
    };
    let reply = server.send(ask("https://app.example")).await;
    assert_eq!(reply.header("access-control-allow-origin"), "https://app.example");
    assert_eq!(server.send(ask("https://other.example")).await.status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn half_a_head_is_closed() {
    let limits = Limits { header_timeout: Duration::from_millis(100), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let server = Setup { options, speak: false, ..Default::default() }.start().await;
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: local").await.unwrap();
    let mut rest = Vec::new();
    // Ends only because the server closes.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_body_at_the_limit_and_one_past_it() {
    let limits = Limits { body: 2_000, ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let server = Setup { options, ..Default::default() }.start().await;
    let body = |n: usize| {
        let text = json!({"input": "Hi.", "response_format": "pcm", "x": ""}).to_string();
        text.replace("\"x\":\"\"", &format!("\"x\":\"{}\"", "y".repeat(n - text.len())))
    };
    let send = async |n: usize| {
        let request =
            server.request("POST", "/v1/audio/speech").body(Full::new(Bytes::from(body(n)))).unwrap();
        server.send(request).await
    };
    assert_eq!(send(2_000).await.status, StatusCode::OK);
    let reply = send(2_001).await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "too_large"));
    // Without a length the limit counts what comes.
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(format!("{head}7d1\r\n{}\r\n0\r\n\r\n", "z".repeat(2_001)).as_bytes()).await.unwrap();
    let mut answer = [0; 32];
    stream.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_body_that_never_comes() {
    let limits = Limits { body_grace: Duration::from_millis(50), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let server = Setup { options, speak: false, ..Default::default() }.start().await;
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    let head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 32];
    stream.read_exact(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_stream_is_refused_and_the_slot_comes_back() {
    let server = Setup { endless: true, speak_slots: 1, ..Default::default() }.start().await;
    let body = json!({"input": "On and on.", "response_format": "pcm"});
    let mut first = server.open(server.json_request("/v1/audio/speech", &body)).await;
    assert_eq!(first.status(), StatusCode::OK);
    first.body_mut().frame().await.unwrap().unwrap();
    let refused = server.post("/v1/audio/speech", &body).await;
    assert_eq!((refused.status, refused.error().as_str()), (StatusCode::TOO_MANY_REQUESTS, "busy"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(server.metric("voce_streams_active{kind=\"speech\"}").await, 1.0);
    // The client hangs up: its slot is free again, and the next one gets it.
    drop(first);
    server.until("voce_streams_active{kind=\"speech\"}", 0.0).await;
    let next = server.open(server.json_request("/v1/audio/speech", &body)).await;
    assert_eq!(next.status(), StatusCode::OK);
    assert_eq!(server.metric("voce_cancelled_total{reason=\"client_gone\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_never_reads_is_cut_off() {
    let limits = Limits { write_stall: Duration::from_millis(100), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let server = Setup { options, endless: true, ..Default::default() }.start().await;
    let body = json!({"input": "On and on.", "response_format": "pcm"}).to_string();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.addr).await.unwrap();
    let head = format!(
        "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    server.until("voce_cancelled_total{reason=\"client_gone\"}", 1.0).await;
    server.until("voce_streams_active{kind=\"speech\"}", 0.0).await;
    drop(stream);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_lets_work_end_and_takes_no_more() {
    let mut server = Setup { speak_slots: 2, ..Default::default() }.start().await;
    let body = json!({"input": "To the end.", "response_format": "wav"});
    // A connection that was there before.
    let mut idle = TcpStream::connect(server.addr).await.unwrap();
    let mut speech = server.open(server.json_request("/v1/audio/speech", &body)).await;
    server.stop();
    let mut bytes = Vec::new();
    while let Some(frame) = speech.body_mut().frame().await {
        bytes.extend_from_slice(&frame.expect("the body is whole").into_data().unwrap());
    }
    assert!(bytes.starts_with(b"RIFF"));
    server.gone().await;
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest).await;
    assert!(TcpStream::connect(server.addr).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_work_is_ended_by_the_deadline() {
    let limits = Limits { drain: Duration::from_millis(100), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let mut server = Setup { options, endless: true, ..Default::default() }.start().await;
    let body = json!({"input": "On and on.", "response_format": "pcm"});
    let mut speech = server.open(server.json_request("/v1/audio/speech", &body)).await;
    speech.body_mut().frame().await.unwrap().unwrap();
    // A second connection sees that nothing new is welcome.
    let stream = TcpStream::connect(server.addr).await.unwrap();
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection);
    let ready = server.request("GET", "/readyz").body(Body::default()).unwrap();
    assert_eq!(sender.send_request(ready).await.unwrap().status(), StatusCode::OK);
    server.stop();
    let drain = async {
        while let Some(frame) = speech.body_mut().frame().await {
            if frame.is_err() {
                return true;
            }
        }
        false
    };
    assert!(drain.await, "the body must not look whole");
    server.gone().await;
}

#[tokio::test]
async fn without_models_the_routes_say_so() {
    let server = Setup { speak: false, ..Default::default() }.start().await;
    let reply = server.post("/v1/audio/speech", &json!({"input": "Hi."})).await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "no_model"));
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_model_is_unloaded_and_comes_back() {
    let server = Setup { keep_alive: Some(Duration::from_millis(40)), ..Default::default() }.start().await;
    let body = json!({"input": "Hi.", "response_format": "pcm", "seed": 7});
    let before = server.post("/v1/audio/speech", &body).await;
    server.until("voce_model_loads_total{model=\"small\"}", 1.0).await;
    server.until("voce_model_unloads_total{model=\"small\"}", 1.0).await;
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
    let after = server.post("/v1/audio/speech", &body).await;
    assert_eq!(before.body, after.body);
}
