//! Sockets that hold slots and do nothing with them, callers that want all of them, streams that are opened again and again:
//! a slot is taken with the first data, kept by those who bring some, and shared out by key and by address.

use std::sync::Arc;
use std::time::Duration;

use futures_util::SinkExt as _;
use hyper::StatusCode;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Message;
use voce_engine::listener::{Listener, ListenerOptions};
use voce_server::ears::{EarOptions, Hears, OpenListener};
use voce_server::{Limits, ServerOptions};

use crate::abuse::first_words;
use crate::counter::Counter;
use crate::listening::wav;
use crate::server::{Part, Running, Setup};
use crate::socket::Socket;

const LISTENING: &str = "voce_streams_active{kind=\"recognition\"}";
const IDLE: &str = "voce_cancelled_total{reason=\"idle\"}";
const SPEAKING: &str = "voce_streams_active{kind=\"speech\"}";

fn setup(limits: Limits) -> Setup {
    Setup {
        options: ServerOptions { limits, ..Default::default() },
        hear: Some(Arc::new(Counter::default())),
        hear_slots: 2,
        speak_slots: 2,
        ..Default::default()
    }
}

async fn hears(server: &Running) -> StatusCode {
    let file = wav("#", 16_000);
    server.form("/v1/audio/transcriptions", &[("file", Part::File("a.wav", &file))]).await.status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_that_say_nothing_take_no_slot() {
    let server = setup(Limits::default()).start().await;
    let mut silent = Vec::new();
    for (path, _) in first_words() {
        for _ in 0..4 {
            silent.push(server.socket(path).await);
        }
    }
    for _ in 0..4 {
        silent.push(server.socket("/api/tts_streaming?format=PcmMessagePack").await);
    }
    assert_eq!((server.metric(LISTENING).await, server.metric(SPEAKING).await), (0.0, 0.0));
    assert_eq!(hears(&server).await, StatusCode::OK);
    let speech = server.post("/v1/audio/speech", &json!({"input": "Hi.", "response_format": "pcm"})).await;
    assert_eq!(speech.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_brings_hardly_any_audio_loses_its_slot() {
    let server = setup(Limits { slot_idle: Duration::from_millis(60), ..Limits::default() }).start().await;
    for (i, (path, message)) in first_words().into_iter().enumerate() {
        let mut socket = server.socket(path).await;
        socket.0.send(message.clone()).await.unwrap();
        server.until(IDLE, i as f64 + 1.0).await;
        server.until(LISTENING, 0.0).await;
        if path != "/v1/realtime" {
            // The stream is the session: it has ended.
            assert_eq!(socket.closed().await.0, 1008, "{path}");
            continue;
        }
        // A session may be silent; its next words take a slot again.
        socket.0.send(message).await.unwrap();
        socket.json(json!({"type": "input_audio_buffer.commit"})).await;
        socket.until("conversation.item.input_audio_transcription.completed").await;
    }
    // Nor does a sample now and then keep it.
    let mut drip = server.socket("/v2/decode/stream/x").await;
    let given_up = async || {
        let _ = drip.0.send(Message::binary(vec![0, 0])).await;
        server.metric(IDLE).await >= 5.0
    };
    server.when("the end of who drips", given_up).await;
    assert_eq!(drip.closed().await.0, 1008);
    server.until(LISTENING, 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voice_that_gets_no_text_is_given_to_others() {
    let limits = Limits { slot_idle: Duration::from_millis(60), ..Limits::default() };
    let server = setup(limits).start().await;
    let mut socket = server.socket("/api/tts_streaming?format=Pcm").await;
    // Half a sentence, and never its end.
    socket.text("And").await;
    assert_eq!(socket.closed().await.0, 1008);
    server.until(SPEAKING, 0.0).await;
}

#[tokio::test]
async fn a_socket_has_a_longest_silence_and_a_longest_time() {
    let short = Duration::from_millis(40);
    for (limits, says) in [
        (Limits { socket_idle: short, ..Limits::default() }, "no message"),
        (Limits { session_time: short, ..Limits::default() }, "as long as one may"),
    ] {
        let server = setup(limits).start().await;
        let mut socket = server.socket("/v1/realtime").await;
        let (code, reason) = socket.closed().await;
        assert!(code == 1008 && reason.contains(says), "{code}: {reason}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_has_its_share_of_the_slots() {
    let mut setup = setup(Limits { slots_per_key: Some(1), ..Limits::default() });
    setup.options.keys = vec!["k1".into(), "k2".into()];
    let server = setup.start().await;
    let (path, message) = &first_words()[0];
    let open = async |key: &str| {
        let mut socket = server.try_socket(&format!("{path}?api_key={key}"), &[]).await.unwrap();
        let first = socket.next_json().await;
        let refused = first["error"]["code"].as_str().map(str::to_owned);
        if refused.is_none() {
            socket.0.send(message.clone()).await.unwrap();
        }
        (socket, refused)
    };
    let active = async || {
        let request = server.keyed("k1", "GET", "/metrics").body(Default::default()).unwrap();
        server.send(request).await.text().contains(&format!("{LISTENING} 1\n"))
    };
    let (_first, refused) = open("k1").await;
    assert_eq!(refused, None);
    server.when("a stream", active).await;
    let (mut second, refused) = open("k1").await;
    assert_eq!(refused.as_deref(), Some("over_share"));
    assert_eq!(second.closed().await.0, 1013);
    // The other key finds the other slot.
    let (mut third, refused) = open("k2").await;
    assert_eq!(refused, None);
    third.json(json!({"type": "input_audio_buffer.commit"})).await;
    third.until("conversation.item.input_audio_transcription.completed").await;
    let file = wav("#", 16_000);
    let fields = [("file", Part::File("a.wav", &file[..]))];
    let request = server.form_request(server.keyed("k1", "POST", "/v1/audio/transcriptions"), &fields);
    let reply = server.send(request).await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::TOO_MANY_REQUESTS, "over_share"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_its_share_of_the_slots() {
    let server = setup(Limits { slots_per_address: Some(1), ..Limits::default() }).start().await;
    let (path, message) = &first_words()[0];
    let mut first = server.socket_from("127.0.0.2", path).await;
    first.0.send(message.clone()).await.unwrap();
    server.until(LISTENING, 1.0).await;
    let mut second = server.socket_from("127.0.0.2", path).await;
    assert_eq!(second.next_json().await["error"]["code"], "over_share");
    // Two who come at the same time both find the door open; one of them gets in.
    let mut pair: Vec<Socket> = Vec::new();
    for _ in 0..2 {
        let mut socket = server.socket_from("127.0.0.3", path).await;
        socket.until("session.created").await;
        pair.push(socket);
    }
    for socket in &mut pair {
        socket.0.send(message.clone()).await.unwrap();
    }
    server.until(LISTENING, 2.0).await;
    let refused = "voce_budget_refused_total{what=\"recognition_slots\",by=\"address\"}";
    server.until(refused, 1.0).await;
    drop(first);
    server.until(LISTENING, 1.0).await;
    assert_eq!(hears(&server).await, StatusCode::OK);
    assert_eq!(server.metric(refused).await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_who_starts_anew_again_and_again_takes_nobody_elses_slot() {
    // The model has as many slots as the server lets in, and none to spare.
    let open: OpenListener = Box::new(|| {
        let options = ListenerOptions::default().with_threads(1).with_slots(2);
        Listener::random("nano-ear", 3, &options)
    });
    let setup = Setup { speak: false, listen: vec![open], hear_slots: 2, ..Default::default() };
    let server = Arc::new(setup.start().await);
    let (path, message) = first_words()[0].clone();
    let mut restless = server.socket(path).await;
    restless.until("session.created").await;
    let again = tokio::spawn(async move {
        for _ in 0..40 {
            restless.0.send(message.clone()).await.unwrap();
            restless.json(json!({"type": "input_audio_buffer.clear"})).await;
            restless.until("input_audio_buffer.cleared").await;
        }
        restless
    });
    let mut served = 0;
    let all_served = async || {
        assert_eq!(hears(&server).await, StatusCode::OK, "after {served}");
        served += 1;
        again.is_finished() && served >= 3
    };
    server.when("who begins again and again", all_served).await;
    drop(again.await.unwrap());
    server.until(LISTENING, 0.0).await;
    // The same with moshi's way to start anew.
    let (path, message) = first_words()[1].clone();
    let mut restless = server.socket(path).await;
    restless.next_binary().await;
    let init = rmp_serde::to_vec_named(&json!({"type": "Init"})).unwrap();
    let ready = rmp_serde::to_vec_named(&json!({"type": "Ready"})).unwrap();
    for _ in 0..20 {
        restless.0.send(message.clone()).await.unwrap();
        restless.binary(init.clone()).await;
        server.when("a new beginning", async || restless.next_binary().await == ready).await;
        assert_eq!(hears(&server).await, StatusCode::OK);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_model_is_entered_by_its_own_door() {
    let other = EarOptions::new("other", 1, Hears::Other(Arc::new(Counter::default())));
    let server = Setup { others: vec![other], ..setup(Limits::default()) }.start().await;
    let (path, message) = &first_words()[0];
    let mut holds = server.socket(&format!("{path}?model=other")).await;
    holds.until("session.created").await;
    holds.0.send(message.clone()).await.unwrap();
    server.until(LISTENING, 1.0).await;
    let mut moves = server.socket(path).await;
    moves.until("session.created").await;
    moves.0.send(message.clone()).await.unwrap();
    server.until(LISTENING, 2.0).await;
    moves.json(json!({"type": "session.update", "model": "other"})).await;
    moves.until("session.updated").await;
    // Its old slot is free, and the new one is not to be had.
    server.until(LISTENING, 1.0).await;
    moves.0.send(message.clone()).await.unwrap();
    let error = moves.next_json().await;
    assert_eq!((error["type"].as_str(), error["code"].as_str()), (Some("error"), Some("busy")));
    drop(holds);
    server.until(LISTENING, 0.0).await;
    moves.0.send(message.clone()).await.unwrap();
    server.until(LISTENING, 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_that_drips_is_cut_off() {
    let limits = Limits { write_stall: Duration::from_millis(200), ..Limits::default() };
    let server = Setup { endless: true, ..setup(limits) }.start().await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.addr).await.unwrap();
    let body = json!({"input": "On and on.", "response_format": "pcm"}).to_string();
    let length = body.len();
    let head =
        format!("POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    // It takes a byte now and then, which is no reading.
    let cut_off = async || {
        let _ = stream.read(&mut [0; 1]).await;
        server.metric("voce_cancelled_total{reason=\"client_gone\"}").await >= 1.0
    };
    server.when("the end of who drips", cut_off).await;
    server.until(SPEAKING, 0.0).await;
}
