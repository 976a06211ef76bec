//! Dialogues: the byte protocol of Moshi's clients, and what they should not do.

use std::time::Duration;

use hyper::StatusCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use voce_audio::encode::{OpusOptions, OpusWriter};
use voce_audio::output::Pipe;
use voce_audio::{AudioSink as _, DecodeLimits, decode_bytes};
use voce_server::{Limits, Mount, ServerOptions, Serves};

use crate::moshi::long_packets;
use crate::parrot::{FRAME, Parrot, RATE};
use crate::server::{Running, Setup};
use crate::socket::Socket;

const TALKING: &str = "voce_streams_active{kind=\"dialogue\"}";

async fn start(parrot: Parrot, slots: usize, limits: Limits) -> Running {
    let options = ServerOptions { limits, ..Default::default() };
    let partners = vec![parrot.served("parrot", slots)];
    Setup { options, speak: false, partners, ..Default::default() }.start().await
}

/// Tones that change, so that a shift would show.
fn speech(frames: usize) -> Vec<f32> {
    let at = |i: usize| (i as f32 * 0.05).sin() * 0.3 * ((i / 4000) % 3) as f32;
    (0..frames * FRAME).map(at).collect()
}

/// Ogg Opus, a message for each page.
fn pages(samples: &[f32], packets_per_page: u32) -> Vec<Vec<u8>> {
    let mut bytes = Vec::new();
    let options = OpusOptions { packets_per_page, ..Default::default() };
    let mut writer = OpusWriter::new(Pipe::new(&mut bytes), RATE as u32, options).unwrap();
    writer.write(samples).unwrap();
    writer.finish().unwrap();
    drop(writer);
    split(&bytes)
}

fn split(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut starts: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, w)| *w == b"OggS").map(|(i, _)| i).collect();
    starts.push(bytes.len());
    starts.windows(2).map(|w| bytes[w[0]..w[1]].to_vec()).collect()
}

async fn say(socket: &mut Socket, pages: &[Vec<u8>]) {
    for page in pages {
        socket.binary([&[1], &page[..]].concat()).await;
    }
}

/// What the server says until it has said `frames` numbers, or has closed: audio, text and the close code.
async fn hear(socket: &mut Socket, frames: usize) -> (Vec<u8>, String, Option<u16>) {
    let (mut audio, mut text) = (Vec::new(), String::new());
    while text.split(' ').count() <= frames {
        match socket.next().await {
            Message::Binary(bytes) => match bytes[0] {
                1 => audio.extend_from_slice(&bytes[1..]),
                2 => text += std::str::from_utf8(&bytes[1..]).unwrap(),
                other => panic!("{other}: {bytes:?}"),
            },
            Message::Close(frame) => return (audio, text, frame.map(|f| f.code.into())),
            other => panic!("{other:?}"),
        }
    }
    (audio, text, None)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_is_answered_in_sound_and_text() {
    let server = start(Parrot { longest: 50, ..Default::default() }, 2, Limits::default()).await;
    let said = speech(52);
    for packets in [1, 4] {
        let mut socket =
            server.socket("/api/chat?text_temperature=0.7&audio_topk=250&audio_seed=7&pad_mult=0").await;
        assert_eq!(&socket.next_binary().await[..], [0; 9], "the handshake");
        let head = socket.next_binary().await;
        assert!(head.starts_with(b"\x01OggS") && head.windows(8).any(|w| w == b"OpusTags"), "{head:?}");
        // Greetings, pings and buttons do no harm.
        for message in [&[0u8][..], &[6], &[3, 0], b"\x02hello", b"\x04{}"] {
            socket.binary(message.to_vec()).await;
        }
        socket.text("no message").await;
        say(&mut socket, &pages(&said, packets)).await;
        let (audio, text, code) = hear(&mut socket, 1000).await;
        assert_eq!(code, Some(1000), "it ends when the model has hung up");
        let numbers: Vec<usize> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
        assert_eq!(numbers, (1..=50).collect::<Vec<_>>());
        let heard = decode_bytes(&[&head[1..], &audio].concat(), None, &DecodeLimits::default()).unwrap();
        // 49 frames were answered; the last packets wait for the end of a stream that has none.
        assert!((heard.seconds() - 49.0 * 0.08).abs() < 0.1, "{}", heard.seconds());
        let per_sample = heard.sample_rate as usize / RATE;
        let at = |sample: usize| loudness(&heard.samples, sample * per_sample);
        let (loud, soft) = (at(10_000), at(14_000));
        assert!(loud > 0.05 && soft < 0.02, "{loud} {soft}");
    }
    server.until(TALKING, 0.0).await;
    assert!(server.metric("voce_audio_seconds_total{dir=\"out\"}").await > 7.0);
    assert!(server.metric("voce_audio_seconds_total{dir=\"in\"}").await > 7.0);
}

fn loudness(samples: &[f32], at: usize) -> f32 {
    let part = &samples[at..at + 1000];
    (part.iter().map(|s| s * s).sum::<f32>() / 1000.0).sqrt()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_without_a_codec_send_and_get_samples() {
    let server = start(Parrot { longest: 6, ..Default::default() }, 1, Limits::default()).await;
    let mut socket = server.socket("/api/chat?format=Pcm").await;
    assert_eq!(&socket.next_binary().await[..], [0; 9]);
    let said = speech(6);
    let bytes: Vec<u8> = said.iter().flat_map(|s| ((s * 32767.0) as i16).to_le_bytes()).collect();
    // Pieces of any size, half samples too.
    for piece in bytes.chunks(1001) {
        socket.binary([&[1], piece].concat()).await;
    }
    let (audio, text, code) = hear(&mut socket, 1000).await;
    assert_eq!((text.as_str(), code), ("1 2 3 4 5 6 ", Some(1000)));
    assert_eq!(audio.len(), 5 * FRAME * 2);
    let worst = audio.chunks(2).zip(bytes.chunks(2)).map(|(a, b)| {
        let of = |c: &[u8]| i32::from(i16::from_le_bytes([c[0], c[1]]));
        (of(a) - of(b)).abs()
    });
    assert!(worst.max().unwrap() <= 1);
    let refused = server.try_socket("/api/chat?format=Mp3", &[]).await.err().unwrap();
    assert!(matches!(refused, Error::Http(r) if r.status() == StatusCode::BAD_REQUEST));
}

/// moshi-server ends after 4096 steps or six minutes; here only the client does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conversation_lasts_as_long_as_its_client_wants() {
    let server = start(Parrot::default(), 1, Limits::default()).await;
    let mut socket = server.socket("/api/chat?format=Pcm").await;
    socket.next_binary().await;
    let mut second = vec![0; 1 + 2 * 10 * FRAME];
    second[0] = 1;
    for _ in 0..460 {
        socket.binary(second.clone()).await;
        hear(&mut socket, 10).await;
    }
    socket.binary(second).await;
    assert!(hear(&mut socket, 1).await.1.starts_with("4601 "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_of_60_and_120_ms_are_heard() {
    let server = start(Parrot::default(), 1, Limits::default()).await;
    for n in [3, 6] {
        let mut socket = server.socket("/api/chat").await;
        let whole = pages(&speech(30), 3).concat();
        say(&mut socket, &long_packets(&whole, n)).await;
        socket.next_binary().await;
        let (_, text, _) = hear(&mut socket, 25).await;
        assert!(text.starts_with("1 2 3 "), "{text}");
        drop(socket);
        server.until(TALKING, 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_are_limited_where_a_client_asks() {
    let server = start(Parrot::default(), 1, Limits::default()).await;
    let mut socket = server.socket("/api/chat?max_steps=5").await;
    socket.next_binary().await;
    say(&mut socket, &pages(&speech(20), 1)).await;
    let (_, text, code) = hear(&mut socket, 1000).await;
    // The first frame has text alone.
    assert_eq!((text.as_str(), code), ("1 2 3 4 5 6 ", Some(1000)));
    for query in ["max_steps=x", "audio_temperature=warm", "text_topk=-1"] {
        let refused = server.try_socket(&format!("/api/chat?{query}"), &[]).await.err().unwrap();
        assert!(matches!(refused, Error::Http(r) if r.status() == StatusCode::BAD_REQUEST), "{query}");
    }
    server.until(TALKING, 0.0).await;
    // What only the model can refuse is told when it is asked.
    let mut socket = server.socket("/api/chat?audio_temperature=11").await;
    socket.next_binary().await;
    socket.next_binary().await;
    say(&mut socket, &pages(&speech(1), 1)[..1]).await;
    let told = socket.next_binary().await;
    assert!(told[0] == 5 && String::from_utf8_lossy(&told).contains("use 0 to 10"), "{told:?}");
    assert_eq!(socket.closed().await.0, 1008);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_than_there_are_slots_are_told_and_come_in_when_one_goes() {
    let server = start(Parrot::default(), 1, Limits::default()).await;
    let mut idle = server.socket("/api/chat").await;
    let mut first = server.socket("/api/chat").await;
    first.next_binary().await;
    say(&mut first, &pages(&speech(4), 1)).await;
    hear(&mut first, 1).await;
    assert_eq!(server.metric(TALKING).await, 1.0, "a socket that says nothing takes no slot");
    let mut second = server.socket("/api/chat").await;
    let told = second.next_binary().await;
    assert!(told[0] == 5 && String::from_utf8_lossy(&told).contains("slots are taken"), "{told:?}");
    assert_eq!(second.closed().await.0, 1013);
    // One that was there before is told when it speaks.
    idle.next_binary().await;
    idle.next_binary().await;
    say(&mut idle, &pages(&speech(1), 1)[..1]).await;
    assert_eq!(idle.next_binary().await[0], 5);
    assert_eq!(idle.closed().await.0, 1013);
    drop(first);
    // The slot is free as soon as it is said to be: nobody is refused in between.
    server.until(TALKING, 0.0).await;
    for _ in 0..20 {
        let mut next = server.socket("/api/chat").await;
        next.next_binary().await;
        say(&mut next, &pages(&speech(3), 1)).await;
        let (_, text, _) = hear(&mut next, 1).await;
        assert_eq!(text, "1 ");
        drop(next);
        server.until(TALKING, 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_stops_reading_ends_alone() {
    // A torrent of text fills any socket.
    let parrot = Parrot { word: "abcdefgh", times: 16 * 1024, ..Default::default() };
    let limits = Limits { write_stall: Duration::from_millis(200), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let partners = vec![parrot.served("loud", 1), Parrot::default().served("quiet", 1)];
    let server = Setup { options, speak: false, partners, ..Default::default() }.start().await;
    let mut deaf = server.socket("/api/chat?model=loud").await;
    let mut other = server.socket("/api/chat?model=quiet").await;
    other.next_binary().await;
    let spoken = pages(&speech(60), 1);
    let (now, later) = spoken.split_at(spoken.len() / 2);
    say(&mut deaf, &pages(&speech(400), 10)[..]).await;
    say(&mut other, now).await;
    hear(&mut other, 20).await;
    server.until("voce_cancelled_total{reason=\"client_gone\"}", 1.0).await;
    server.until(TALKING, 1.0).await;
    say(&mut other, later).await;
    hear(&mut other, 20).await;
    drop(deaf);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_message_ends_its_own_socket_only() {
    let server = start(Parrot::default(), 3, Limits::default()).await;
    let mut good = server.socket("/api/chat").await;
    good.next_binary().await;
    for bad in [vec![], vec![10], vec![255, 1], [&[1u8][..], &[7; 500]].concat()] {
        let mut socket = server.socket("/api/chat").await;
        socket.next_binary().await;
        socket.next_binary().await;
        socket.binary(bad).await;
        assert_eq!(socket.next_binary().await[0], 5);
        assert_eq!(socket.closed().await.0, 1008);
    }
    server.until(TALKING, 0.0).await;
    say(&mut good, &pages(&speech(8), 1)).await;
    assert!(hear(&mut good, 2).await.1.starts_with("1 2 "));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_brings_hardly_any_audio_loses_its_slot() {
    let limits = Limits { slot_idle: Duration::from_millis(60), ..Limits::default() };
    let server = start(Parrot::default(), 1, limits).await;
    let mut socket = server.socket("/api/chat").await;
    say(&mut socket, &pages(&speech(2), 1)[..3]).await;
    assert_eq!(socket.closed().await.0, 1008);
    server.until(TALKING, 0.0).await;
    assert_eq!(server.metric("voce_cancelled_total{reason=\"idle\"}").await, 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_path_has_its_own_model_and_some_need_no_key() {
    let mount = |path: &str, model: &str, open| Mount {
        model: Some(model.into()),
        open,
        ..Mount::new(path, Serves::Dialogue)
    };
    let options = ServerOptions {
        keys: vec!["k".into()],
        mounts: vec![mount("/api/hibiki", "b", true), mount("/api/closed", "a", false)],
        ..Default::default()
    };
    let partners = vec![
        Parrot { word: "a", ..Default::default() }.served("a", 2),
        Parrot { word: "b", ..Default::default() }.served("b", 2),
    ];
    let server = Setup { options, speak: false, partners, ..Default::default() }.start().await;
    for (path, key, expected) in [
        ("/api/hibiki", None, "b1 "),
        ("/api/hibiki?model=a", None, "b1 "),
        ("/api/closed", Some("k"), "a1 "),
        ("/api/chat?model=b", Some("k"), "b1 "),
        ("/api/chat", Some("k"), "a1 "),
    ] {
        let headers: Vec<_> = key.map(|k| ("kyutai-api-key", k)).into_iter().collect();
        let mut socket = server.try_socket(path, &headers).await.unwrap();
        socket.next_binary().await;
        say(&mut socket, &pages(&speech(3), 1)).await;
        assert_eq!(hear(&mut socket, 1).await.1, expected, "{path}");
    }
    for path in ["/api/closed", "/api/chat"] {
        let refused = server.try_socket(path, &[]).await.err().unwrap();
        assert!(matches!(refused, Error::Http(r) if r.status() == StatusCode::UNAUTHORIZED), "{path}");
    }
    let refused = server.try_socket("/api/chat?model=c", &[("kyutai-api-key", "k")]).await.err().unwrap();
    assert!(matches!(refused, Error::Http(r) if r.status() == StatusCode::NOT_FOUND));
}

#[tokio::test]
async fn without_a_model_there_is_no_dialogue() {
    let server = Setup { speak: false, ..Default::default() }.start().await;
    let refused = server.try_socket("/api/chat", &[]).await.err().unwrap();
    assert!(matches!(refused, Error::Http(r) if r.status() == StatusCode::SERVICE_UNAVAILABLE));
}
