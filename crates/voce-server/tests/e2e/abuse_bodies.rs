//! Bodies that are held back, drip or come all at once: each has a rolling rate, a deadline, a share of its caller's and of
//! the server's budget, and others are read meanwhile.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use voce_engine::fault::{FaultPoint, Faults};
use voce_engine::listener::{Listener, ListenerOptions};
use voce_server::{Limits, ServerOptions};

use crate::counter::Counter;
use crate::listening::wav;
use crate::patience::TcpStream;
use crate::server::{Body, Part, Running, Setup};

async fn start(limits: Limits) -> Running {
    let options = ServerOptions { limits, ..Default::default() };
    let setup =
        Setup { options, speak: false, hear: Some(Arc::new(Counter::default())), ..Default::default() };
    setup.start().await
}

/// A request whose body has `sent` of the bytes that it says, and then nothing.
async fn half_a_body(mut stream: TcpStream, declared: usize, sent: usize) -> TcpStream {
    let head = format!(
        "POST /api/asr-streaming HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {declared}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&vec![0; sent]).await.unwrap();
    stream
}

async fn status(mut stream: TcpStream) -> u16 {
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[9..]).parse().unwrap()
}

const HOLDS: &str = "voce_budget_used{what=\"body_bytes\"}";

#[tokio::test]
async fn bytes_that_came_before_do_not_pay_for_silence() {
    // By their mean rate these bytes would have earned a minute and a half.
    let server = start(Limits { body_grace: Duration::from_millis(50), ..Limits::default() }).await;
    let stream = TcpStream::connect(server.addr).await.unwrap();
    assert_eq!(status(half_a_body(stream, 200_000, 100_000).await).await, 408);
    server.until(HOLDS, 0.0).await;
}

#[tokio::test]
async fn a_body_has_a_deadline_however_well_it_flows() {
    let limits = Limits {
        body_grace: Duration::from_secs(600),
        body_time: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = start(limits).await;
    let stream = TcpStream::connect(server.addr).await.unwrap();
    assert_eq!(status(half_a_body(stream, 200_000, 100_000).await).await, 408);
    server.until(HOLDS, 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_callers_bodies_come_one_after_the_other_and_others_do_not_wait() {
    let limits =
        Limits { bodies_per_caller: 100_000, body_grace: Duration::from_millis(500), ..Limits::default() };
    let server = start(limits).await;
    let file = wav("##", 16_000);
    let post = || {
        let request = server.request("POST", "/api/asr-streaming").header("content-type", "audio/x");
        request.body(Body::new(file.clone().into())).unwrap()
    };
    let mut held = Vec::new();
    for _ in 0..20 {
        let stream = TcpStream::connect(server.addr).await.unwrap();
        held.push(half_a_body(stream, 99_000, 90_000).await);
    }
    server.until(HOLDS, 90_000.0).await;
    // One of them is read, the others wait in their sockets; another caller is answered at once.
    assert_eq!(server.send_from("127.0.0.2", post()).await.status, StatusCode::OK);
    assert_eq!(server.metric(HOLDS).await, 90_000.0);
    // Once the silent ones are gone, this caller is read as well.
    drop(held);
    assert_eq!(server.send(post()).await.status, StatusCode::OK);
}

#[tokio::test]
async fn all_bodies_together_have_a_budget() {
    let file = wav("##", 16_000);
    let post = async |bodies: usize| {
        let server = start(Limits { bodies, ..Limits::default() }).await;
        let request = server.request("POST", "/api/asr-streaming").header("content-type", "audio/x");
        let reply = server.send(request.body(Body::new(file.clone().into())).unwrap()).await;
        server.until(HOLDS, 0.0).await;
        let refused = server.metric("voce_budget_refused_total{what=\"body_bytes\",by=\"all\"}").await;
        assert_eq!(server.metric("voce_budget_limit{what=\"body_bytes\"}").await, bodies as f64);
        (reply, refused)
    };
    let (reply, refused) = post(file.len()).await;
    assert_eq!((reply.status, refused), (StatusCode::OK, 0.0));
    let (reply, refused) = post(file.len() - 1).await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "overloaded"));
    assert_eq!((reply.header("retry-after"), refused), ("1", 1.0));
}

#[tokio::test]
async fn one_address_has_its_share_of_connections() {
    let server = start(Limits { connections_per_address: Some(3), ..Limits::default() }).await;
    let held = [server.connect_from("127.0.0.2").await, server.connect_from("127.0.0.2").await];
    let mut third = server.connect_from("127.0.0.2").await;
    third.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    assert_eq!(status(third).await, 200);
    server.until("voce_budget_used{what=\"connections\"}", 3.0).await;
    let third = server.connect_from("127.0.0.2").await;
    let mut fourth = server.connect_from("127.0.0.2").await;
    // It is closed before it has said anything.
    assert_eq!(fourth.read(&mut [0; 1]).await.unwrap_or(0), 0);
    assert_eq!(server.get("/livez").await.status, StatusCode::OK, "others are answered");
    drop((held, third));
    server.until("voce_budget_used{what=\"connections\"}", 1.0).await;
    server.connect_from("127.0.0.2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_holds_its_share_until_it_has_been_heard() {
    let faults = Faults::default();
    let hear = {
        let faults = faults.clone();
        move || {
            let options =
                ListenerOptions::default().with_threads(1).with_slots(2).with_faults(faults.clone());
            Listener::random("nano-ear", 3, &options)
        }
    };
    let setup = Setup { speak: false, listen: vec![Box::new(hear)], ..Default::default() };
    let server = setup.start().await;
    // Longer than a stream takes in before it is heard, so that a part of the file has to stay.
    let file = wav(&"#.".repeat(150), 16_000);
    faults.hold_at(FaultPoint::Step);
    let fields = [("model", Part::Text("whisper-1")), ("file", Part::File("a.wav", &file))];
    let heard = server.form("/v1/audio/transcriptions", &fields);
    let release = async {
        server.until("voce_streams_active{kind=\"recognition\"}", 1.0).await;
        assert!(server.metric(HOLDS).await >= file.len() as f64);
        faults.release();
    };
    let (heard, ()) = tokio::join!(heard, release);
    assert_eq!(heard.status, StatusCode::OK);
    server.until(HOLDS, 0.0).await;
}
