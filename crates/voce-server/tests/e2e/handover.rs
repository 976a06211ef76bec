//! Streams that move: to a peer and through a folder, by every door, without a lost or doubled word; and tokens that let
//! nobody in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hyper::StatusCode;
use tokio_tungstenite::tungstenite::Error;
use voce_engine::listener::{Listener, ListenerOptions};
use voce_server::{HandoverOptions, Limits, ServerOptions};

use crate::doorways::{Door, addresses, client, connect, handover, speech, start};
use crate::patience::within;
use crate::server::{Body, Running, Setup};

const RESUMED: &str = "voce_handovers_total{outcome=\"resumed\"}";

fn options(handover: HandoverOptions) -> ServerOptions {
    ServerOptions { handover: Some(handover), ..ServerOptions::default() }
}

/// Runs a stream that is stopped in the middle and goes on at another machine; and the same without that.
async fn moves(door: Door, from: Running, to: &Running) {
    let samples = speech(1, 2);
    let messages = door.messages(&samples);
    let alone = client(door, to.addr, |_| unreachable!(), &messages, Duration::ZERO, |_| {}, |_, _| true);
    let alone = within(format!("{door:?} at one server"), to.addr, alone).await;
    assert!(alone.words().len() > 10, "{door:?}: {:?}", alone.words());
    let (at, half) = (from.addr, messages.len() / 2);
    let from = std::sync::Mutex::new(from);
    let stopped = AtomicBool::new(false);
    let stop = |sent: usize| {
        if sent == half && !stopped.swap(true, Ordering::Relaxed) {
            from.lock().unwrap().stop();
        }
    };
    let may = |next, moves| next != half || moves > 0;
    let moved = client(door, at, |_| to.addr, &messages, Duration::ZERO, stop, may);
    let moved = within(format!("{door:?} at two servers"), to.addr, moved).await;
    assert_eq!(moved.moves, 1, "{door:?}");
    assert_eq!(moved.words(), alone.words(), "{door:?}");
    assert_eq!(moved.settled(), alone.settled(), "{door:?}");
    from.into_inner().unwrap().gone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_door_moves_to_a_peer_without_a_lost_or_doubled_word() {
    let [at] = addresses();
    let to = start(ServerOptions { addr: at, ..options(handover(&[])) }, 2).await;
    for door in Door::ALL {
        moves(door, start(options(handover(&[to.addr])), 2).await, &to).await;
    }
    assert_eq!(to.metric(RESUMED).await, 4.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_all_machines_see_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let shared = || HandoverOptions { folder: Some(dir.path().to_owned()), ..handover(&[]) };
    let to = start(options(shared()), 2).await;
    moves(Door::Moshi, start(options(shared()), 2).await, &to).await;
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// Begins a stream, stops its server, and gives the token.
async fn token(mut from: Running, headers: &[(&'static str, &str)]) -> String {
    let door = Door::Deepgram;
    let mut socket = connect(from.addr, door.path(), headers).await.unwrap();
    let messages = door.messages(&speech(0, 1));
    let mut messages = messages.into_iter();
    for message in messages.by_ref().take(20) {
        futures_util::SinkExt::send(&mut socket.0, message).await.unwrap();
    }
    from.until("voce_streams_active{kind=\"recognition\"}", 1.0).await;
    from.stop();
    let (code, reason) = socket.closed().await;
    assert_eq!(code, 1012);
    from.gone().await;
    reason.strip_prefix("moved ").unwrap().to_owned()
}

/// What a server says to a token.
async fn refusal(
    server: &Running,
    door: Door,
    token: &str,
    headers: &[(&'static str, &str)],
) -> (u16, String) {
    match connect(server.addr, &format!("{}&resume={token}", door.path()), headers).await {
        Err(Error::Http(response)) => {
            let body = response.body().clone().unwrap_or_default();
            (response.status().as_u16(), String::from_utf8_lossy(&body).into_owned())
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{token} was let in"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_tokens_let_nobody_in_and_lose_nothing() {
    let [right, wrong] = addresses();
    let keys = || vec!["anna".to_owned(), "ben".to_owned()];
    let (anna, ben) = ([("x-api-key", "anna")], [("x-api-key", "ben")]);
    let with = |addr, peers: &[_]| ServerOptions {
        addr,
        keys: keys(),
        open_metrics: true,
        ..options(handover(peers))
    };
    let to = start(with(right, &[wrong]), 2).await;
    // A machine of the same service with other weights.
    let other = || Listener::random("nano-ear", 3, &ListenerOptions::default().with_threads(1).with_slots(4));
    let other = Setup {
        options: with(wrong, &[right]),
        speak: false,
        listen: vec![Box::new(other)],
        hear_slots: 2,
        ..Default::default()
    };
    let other = other.start().await;
    let from = start(with("127.0.0.1:0".parse().unwrap(), &[wrong]), 2).await;
    let token = token(from, &anna).await;
    let (status, _) = refusal(&to, Door::Deepgram, &token, &ben).await;
    assert_eq!(status, 403, "another key");
    assert_eq!(refusal(&to, Door::Deepgram, &token, &[]).await.0, 401, "no key");
    assert_eq!(refusal(&to, Door::Deepgram, "moved", &anna).await.0, 403, "no token");
    let forged = format!("A{}", &token[1..]);
    let forged = if forged == token { format!("B{}", &token[1..]) } else { forged };
    assert_eq!(refusal(&to, Door::Deepgram, &forged, &anna).await.0, 403, "forged");
    let (status, body) = refusal(&other, Door::Deepgram, &token, &anna).await;
    assert_eq!(status, 409, "other weights: {body}");
    assert_eq!(refusal(&to, Door::Moshi, &token, &anna).await.0, 409, "another protocol");
    // After all that the stream is still there for its owner, and once.
    let mut socket =
        connect(to.addr, &format!("{}&resume={token}", Door::Deepgram.path()), &anna).await.unwrap();
    socket.text(r#"{"type":"CloseStream"}"#).await;
    to.when("the last message", async || socket.next_json().await["type"] == "Metadata").await;
    assert_eq!(refusal(&to, Door::Deepgram, &token, &anna).await.0, 404, "used already");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_token_and_a_full_machine_say_so() {
    let to = start(options(handover(&[])), 1).await;
    let mut brief = handover(&[to.addr]);
    brief.time = Duration::from_secs(1);
    let token = token(start(options(brief), 1).await, &[]).await;
    let mut taken = to.socket(Door::Deepgram.path()).await;
    taken.binary(vec![0; 6400]).await;
    to.until("voce_streams_active{kind=\"recognition\"}", 1.0).await;
    let mut seen = Vec::new();
    let is_old = async || {
        let (status, _) = refusal(&to, Door::Deepgram, &token, &[]).await;
        if seen.last() != Some(&status) {
            seen.push(status);
        }
        status == 410
    };
    to.when("a token that is too old", is_old).await;
    assert!(seen == [429, 410] || seen == [410], "{seen:?}");
    // A server that takes no streams over says that.
    let plain = start(ServerOptions::default(), 1).await;
    assert_eq!(refusal(&plain, Door::Deepgram, &token, &[]).await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_nobody_takes_stays_until_the_end() {
    let [nobody] = addresses();
    let limits = Limits { drain: Duration::from_secs(3600), ..Limits::default() };
    let mut server = start(ServerOptions { limits, ..options(handover(&[nobody])) }, 1).await;
    let door = Door::Deepgram;
    let messages = door.messages(&speech(2, 1));
    let mut socket = connect(server.addr, door.path(), &[]).await.unwrap();
    for (i, message) in messages.into_iter().enumerate() {
        if i == 20 {
            server.stop();
        }
        futures_util::SinkExt::send(&mut socket.0, message).await.unwrap();
    }
    server.when("the last message", async || socket.next_json().await["type"] == "Metadata").await;
    assert_eq!(socket.closed().await.0, 1000);
    server.gone().await;
}

#[tokio::test]
async fn strangers_neither_leave_nor_take_parcels() {
    let server = start(options(handover(&[])), 1).await;
    let path = format!("/v1/handover/{}", "ab".repeat(16));
    let put = |body: Vec<u8>| server.request("PUT", &path).body(Body::from(body)).unwrap();
    assert_eq!(server.send(put(vec![0; 100])).await.status, StatusCode::FORBIDDEN);
    assert_eq!(server.send(put(Vec::new())).await.status, StatusCode::FORBIDDEN);
    let take =
        server.request("DELETE", &path).header("voce-handover-word", "x").body(Body::default()).unwrap();
    assert_eq!(server.send(take).await.status, StatusCode::FORBIDDEN);
    let odd = server.request("PUT", "/v1/handover/short").body(Body::default()).unwrap();
    assert_eq!(server.send(odd).await.status, StatusCode::FORBIDDEN);
}
