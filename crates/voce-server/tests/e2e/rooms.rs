//! Rooms: codes of one producer become sound for all who listen.

use std::time::Duration;

use hyper::StatusCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use voce_audio::{DecodeLimits, decode_bytes};
use voce_engine::codec::Codec;
use voce_engine::store::Store;
use voce_server::{Limits, Mount, RoomsOptions, ServerOptions, Serves};

use crate::patience::within;
use crate::server::{Running, Setup};
use crate::socket::Socket;

const CODEC: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../voce-models/tests/fixtures/qwen/base_0b6/speech_tokenizer");

fn codec() -> Codec {
    Codec::open(&Store::from_env().unwrap(), CODEC, &Default::default()).unwrap()
}

async fn start(default_room: Option<&str>) -> Running {
    start_with(default_room, Limits::default()).await
}

async fn start_with(default_room: Option<&str>, limits: Limits) -> Running {
    let mount =
        |path: &str, serves, open| Mount { model: Some("rooms".into()), open, ..Mount::new(path, serves) };
    let options = ServerOptions {
        keys: vec!["k".into()],
        limits,
        mounts: vec![
            mount("/api/send", Serves::RoomSend, false),
            mount("/api/listen", Serves::RoomListen, true),
        ],
        ..Default::default()
    };
    let rooms = RoomsOptions {
        id: "rooms".into(),
        rooms: vec!["one".into(), "two".into()],
        default_room: default_room.map(str::to_owned),
        open: Box::new(|| Ok(codec())),
    };
    Setup { options, speak: false, rooms: vec![rooms], ..Default::default() }.start().await
}

const KEY: (&str, &str) = ("kyutai-api-key", "k");

async fn producer(server: &Running, room: &str) -> Socket {
    server.try_socket("/api/send", &[KEY, ("room_id", room)]).await.unwrap()
}

/// A frame of codes as a message.
fn frame(codes: impl Iterator<Item = u32>) -> Vec<u8> {
    std::iter::once(9).chain(codes.flat_map(u32::to_le_bytes)).collect()
}

/// A listener that has been greeted, and the pages it was greeted with.
async fn listener(server: &Running, path: &str) -> (Socket, Vec<u8>) {
    let mut socket = server.socket(path).await;
    assert_eq!(&socket.next_binary().await[..], [0; 9]);
    let head = socket.next_binary().await;
    assert!(head.starts_with(b"\x01OggS"));
    (socket, head[1..].to_vec())
}

/// A producer of the room, as soon as there is none.
async fn producer_of(server: &Running) -> Socket {
    let free = async {
        loop {
            match server.try_socket("/api/send?room_id=one", &[KEY]).await {
                Ok(socket) => return socket,
                Err(Error::Http(r)) => assert_eq!(r.status(), StatusCode::TOO_MANY_REQUESTS),
                Err(error) => panic!("{error}"),
            }
            tokio::task::yield_now().await;
        }
    };
    within("a free room", server.addr, free).await
}

/// Audio until a text comes.
async fn until_text(socket: &mut Socket, wanted: &str) -> Vec<u8> {
    let mut audio = Vec::new();
    loop {
        let message = socket.next_binary().await;
        match message[0] {
            1 => audio.extend_from_slice(&message[1..]),
            2 => {
                assert_eq!(&message[1..], wanted.as_bytes());
                return audio;
            }
            6 => {}
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_hear_what_one_sends() {
    let server = start(Some("one")).await;
    let info = codec().info().clone();
    let mut producer = producer(&server, "one").await;
    let (mut first, head) = listener(&server, "/api/listen").await;
    let (mut second, _) = listener(&server, "/api/listen?room_id=one").await;
    let (mut other, _) = listener(&server, "/api/listen?room_id=two").await;
    // A listener answers before more is sent, so that none is left behind.
    let (mut heard, frames) = (Vec::new(), 12);
    for i in 0..frames {
        producer.binary(frame((0..info.codebooks as u32).map(|k| (k * 7 + i) % info.entries as u32))).await;
    }
    let wanted = frames as usize * info.frame_size;
    while decode_bytes(&[&head[..], &heard].concat(), None, &DecodeLimits::default())
        .map_or(0, |a| a.samples.len() * info.output_rate / a.sample_rate as usize)
        + 2 * 960
        < wanted
    {
        let message = first.next_binary().await;
        assert_eq!(message[0], 1);
        heard.extend_from_slice(&message[1..]);
    }
    producer.binary(b"\x02hello".to_vec()).await;
    until_text(&mut first, "hello").await;
    let same = until_text(&mut second, "hello").await;
    assert!(same.starts_with(&heard), "both hear the same");
    // What is said in one room is not heard in the other.
    let mut elsewhere = self::producer(&server, "two").await;
    elsewhere.binary(b"\x02there".to_vec()).await;
    assert!(until_text(&mut other, "there").await.is_empty());
    // One who comes later hears from then on, after the same head; a producer who goes leaves the room.
    drop(producer);
    let (mut late, again) = listener(&server, "/api/listen").await;
    assert_eq!(again, head);
    // The room is free when its producer has gone.
    let mut next = producer_of(&server).await;
    next.binary(b"\x02anew".to_vec()).await;
    until_text(&mut late, "anew").await;
    until_text(&mut first, "anew").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_has_one_producer_and_a_name() {
    let server = start(None).await;
    let status = |e: Error| match e {
        Error::Http(r) => r.status(),
        other => panic!("{other}"),
    };
    for (path, headers, expected) in [
        ("/api/send?room_id=one", &[][..], StatusCode::UNAUTHORIZED),
        ("/api/send", &[KEY], StatusCode::BAD_REQUEST),
        ("/api/send?room_id=three", &[KEY], StatusCode::BAD_REQUEST),
        ("/api/listen", &[], StatusCode::BAD_REQUEST),
        ("/api/listen?room_id=%2e%2e", &[], StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(status(server.try_socket(path, headers).await.err().unwrap()), expected, "{path}");
    }
    // A header wins over the query.
    let refused = server.try_socket("/api/listen?room_id=one", &[("room_id", "three")]).await;
    assert_eq!(status(refused.err().unwrap()), StatusCode::BAD_REQUEST);
    // Two are there, and the first to speak has the room.
    let (mut first, mut second) = (producer(&server, "one").await, producer(&server, "one").await);
    let (mut ear, _) = listener(&server, "/api/listen?room_id=one").await;
    first.binary(b"\x02mine".to_vec()).await;
    until_text(&mut ear, "mine").await;
    second.binary(b"\x02not".to_vec()).await;
    assert_eq!(second.next_binary().await[0], 5);
    assert_eq!(second.closed().await.0, 1013);
    let third = server.try_socket("/api/send?room_id=one", &[KEY]).await;
    assert_eq!(status(third.err().unwrap()), StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn codes_that_cannot_be_decoded_end_their_producer_alone() {
    let server = start(Some("one")).await;
    let info = codec().info().clone();
    let books = info.codebooks as u32;
    let (mut ear, _) = listener(&server, "/api/listen").await;
    for bad in [
        frame((0..books).map(|_| info.entries as u32)),
        frame(0..books - 1),
        frame(std::iter::empty()),
        vec![9, 1, 2, 3],
        vec![200],
        vec![],
    ] {
        let mut producer = producer_of(&server).await;
        producer.binary(bad.clone()).await;
        assert_eq!(producer.next_binary().await[0], 5, "{bad:?}");
        assert_eq!(producer.closed().await.0, 1008, "{bad:?}");
    }
    let mut good = producer_of(&server).await;
    for i in 0..4 {
        good.binary(frame((0..books).map(|_| i))).await;
    }
    assert_eq!(ear.next_binary().await[0], 1, "listeners never heard of it");
}

#[tokio::test]
async fn a_room_without_a_producer_is_there_and_says_so() {
    let limits = Limits { room_ping: Duration::from_millis(20), ..Limits::default() };
    let server = start_with(Some("one"), limits).await;
    let (mut ear, _) = listener(&server, "/api/listen").await;
    for _ in 0..3 {
        match ear.next().await {
            Message::Binary(bytes) => assert_eq!(&bytes[..], [6], "a ping"),
            other => panic!("{other:?}"),
        }
    }
}
