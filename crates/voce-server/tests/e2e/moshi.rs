//! moshi-server's routes: MessagePack, Opus both ways, markers.

use std::sync::Arc;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Error;
use voce_audio::encode::{OpusOptions, OpusWriter};
use voce_audio::output::Pipe;
use voce_audio::{AudioSink as _, DecodeLimits, decode_bytes};
use voce_server::ServerOptions;

use crate::counter::Counter;
use crate::listening::{audio, start, wav};
use crate::server::{Body, Setup};
use crate::socket::Socket;

fn pack(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

async fn any_message(socket: &mut Socket) -> Value {
    rmp_serde::from_slice(&socket.next_binary().await).unwrap()
}

/// The next message that is not a `Step`.
async fn message(socket: &mut Socket) -> Value {
    loop {
        let message = any_message(socket).await;
        if message["type"] != "Step" {
            return message;
        }
    }
}

#[tokio::test]
async fn steps_tell_pauses() {
    let server = start().await;
    let mut socket = server.socket("/api/asr-streaming").await;
    assert_eq!(any_message(&mut socket).await["type"], "Ready");
    for frame in frames("..#......") {
        socket.binary(pack(&frame)).await;
    }
    socket.binary(pack(&json!({"type": "Marker", "id": 0}))).await;
    let (mut steps, mut word_at) = (Vec::new(), 0);
    loop {
        let m = any_message(&mut socket).await;
        match m["type"].as_str().unwrap() {
            "Step" => steps.push(m),
            "Word" => word_at = steps.len(),
            "EndWord" => {}
            "Marker" => break,
            other => panic!("{other}: {m}"),
        }
    }
    // 4.5 s, of which the resampler holds a little back, are 50 frames of 80 ms in halves of a second; each is told once, and the word stands before the frame in which it was certain.
    let numbers: Vec<u64> = steps.iter().map(|s| s["step_idx"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(numbers.len(), 50);
    assert_eq!(word_at, 12);
    let paused = |at: usize| -> Vec<bool> {
        let prs = steps[at]["prs"].as_array().unwrap();
        prs.iter().map(|p| p.as_f64().unwrap() > 0.5).collect()
    };
    assert_eq!(paused(5), [true; 4]);
    assert_eq!(paused(15), [false; 4]);
    // The word ended at 1.5 s.
    assert_eq!(paused(26), [true, false, false, false]);
    assert_eq!(paused(45), [true, true, true, false]);
    assert!(steps.iter().all(|s| s["buffered_pcm"].is_u64()));
    // A new beginning counts anew.
    socket.binary(pack(&json!({"type": "Init"}))).await;
    server.when("a new beginning", async || any_message(&mut socket).await["type"] == "Ready").await;
    for frame in frames("..") {
        socket.binary(pack(&frame)).await;
    }
    assert_eq!(any_message(&mut socket).await["step_idx"], 0);
}

fn frames(pattern: &str) -> Vec<Value> {
    audio(pattern, 24_000).chunks(1920).map(|pcm| json!({"type": "Audio", "pcm": pcm})).collect()
}

#[tokio::test]
async fn words_and_markers_in_their_order() {
    let server = start().await;
    let mut socket = server.socket("/api/asr-streaming").await;
    assert_eq!(message(&mut socket).await, json!({"type": "Ready"}));
    for frame in frames("##.#.") {
        socket.binary(pack(&frame)).await;
    }
    socket.binary(pack(&json!({"type": "Marker", "id": 7}))).await;
    let mut got = Vec::new();
    loop {
        let m = message(&mut socket).await;
        if m["type"] == "Marker" {
            assert_eq!(m["id"], 7);
            break;
        }
        got.push(m);
    }
    let words: Vec<&str> = got.iter().filter_map(|m| m["text"].as_str()).collect();
    assert_eq!(words, ["w1", "w2", "w3"]);
    assert_eq!(got[0], json!({"type": "Word", "text": "w1", "start_time": 0.0}));
    assert_eq!(got[1], json!({"type": "EndWord", "stop_time": 0.5}));
    // A client's Init starts anew.
    socket.binary(pack(&json!({"type": "Init"}))).await;
    assert_eq!(message(&mut socket).await["type"], "Ready");
    for frame in frames("#.") {
        socket.binary(pack(&frame)).await;
    }
    assert_eq!(message(&mut socket).await["text"], "w1");
}

fn opus(pattern: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = OpusWriter::new(
        Pipe::new(&mut bytes),
        24_000,
        OpusOptions { packets_per_page: 3, ..Default::default() },
    )
    .unwrap();
    writer.write(&audio(pattern, 24_000)).unwrap();
    writer.finish().unwrap();
    drop(writer);
    bytes
}

/// The same speech in packets of 20 ms times `n`, a page each.
pub(crate) fn long_packets(bytes: &[u8], n: usize) -> Vec<Vec<u8>> {
    let mut reader = ogg::PacketReader::new(std::io::Cursor::new(bytes));
    let mut packets = Vec::new();
    while let Some(packet) = reader.read_packet().unwrap() {
        packets.push(packet.data);
    }
    let (heads, speech) = packets.split_at(2);
    let mut joined: Vec<Vec<u8>> = Vec::new();
    let mut rest = speech;
    while let Some(first) = rest.first() {
        // Only packets of the same kind can be one, and only those that hold one frame.
        let alike = rest.iter().take(n).take_while(|p| p[0] == first[0] && p[0] & 3 == 0).count().max(1);
        let (group, later) = rest.split_at(alike);
        rest = later;
        if alike == 1 {
            joined.push(first.clone());
            continue;
        }
        let mut packet = vec![first[0] | 3, 0x80 | alike as u8];
        for frame in &group[..alike - 1] {
            match frame.len() - 1 {
                length @ 0..=251 => packet.push(length as u8),
                length => packet.extend([252 + (length % 4) as u8, ((length - 252 - length % 4) / 4) as u8]),
            }
        }
        group.iter().for_each(|frame| packet.extend_from_slice(&frame[1..]));
        joined.push(packet);
    }
    assert!(joined.len() < speech.len() / 2, "{} of {}", joined.len(), speech.len());
    let mut pages = Vec::new();
    let mut at = 0;
    for (i, packet) in heads.iter().chain(&joined).enumerate() {
        let mut page = Vec::new();
        let end = if i + 1 == heads.len() + joined.len() {
            ogg::PacketWriteEndInfo::EndStream
        } else {
            ogg::PacketWriteEndInfo::EndPage
        };
        if i >= 2 {
            at += 960 * n as u64;
        }
        let mut writer = ogg::PacketWriter::new(&mut page);
        // A writer of its own begins each page with number 0: the reader is asked to take it all the same.
        writer.write_packet(packet.clone(), 42, end, at).unwrap();
        drop(writer);
        page[18..22].copy_from_slice(&(i as u32).to_le_bytes());
        if i > 0 {
            page[5] &= !2;
        }
        seal(&mut page);
        pages.push(page);
    }
    pages
}

/// Writes a page's checksum.
fn seal(page: &mut [u8]) {
    page[22..26].fill(0);
    let mut sum = 0u32;
    for byte in page.iter() {
        sum ^= u32::from(*byte) << 24;
        for _ in 0..8 {
            sum = if sum >> 31 == 1 { (sum << 1) ^ 0x04c1_1db7 } else { sum << 1 };
        }
    }
    page[22..26].copy_from_slice(&sum.to_le_bytes());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opus_packets_of_60_and_120_ms() {
    let server = start().await;
    for n in [3, 6] {
        let mut socket = server.socket("/api/asr-streaming").await;
        for page in long_packets(&opus("##.#.."), n) {
            socket.binary(pack(&json!({"type": "OggOpus", "data": page}))).await;
        }
        socket.binary(pack(&json!({"type": "Marker", "id": 1}))).await;
        let mut words = Vec::new();
        loop {
            let m = message(&mut socket).await;
            match m["type"].as_str().unwrap() {
                "Word" => words.push(m["text"].clone()),
                "Marker" => break,
                "Ready" | "EndWord" => {}
                other => panic!("{other}: {m}"),
            }
        }
        assert_eq!(words, ["w1", "w2", "w3"], "{n}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opus_in_pages_of_any_length() {
    // 60 ms pages, several in a message, and pages torn apart: what ended the original for everyone.
    let server = start().await;
    for size in [97, 1_000, 100_000] {
        let mut socket = server.socket("/api/asr-streaming").await;
        assert_eq!(message(&mut socket).await["type"], "Ready");
        for part in opus("##..").chunks(size) {
            socket.binary(pack(&json!({"type": "OggOpus", "data": part}))).await;
        }
        socket.binary(pack(&json!({"type": "Marker", "id": 1}))).await;
        let mut words = 0;
        loop {
            let m = message(&mut socket).await;
            match m["type"].as_str().unwrap() {
                "Word" => words += 1,
                "EndWord" => {}
                "Marker" => break,
                other => panic!("{other}: {m}"),
            }
        }
        assert_eq!(words, 2, "{size}");
    }
}

#[tokio::test]
async fn bad_messages_end_their_own_socket_only() {
    let server = start().await;
    let mut good = server.socket("/api/asr-streaming").await;
    assert_eq!(message(&mut good).await["type"], "Ready");
    for bad in [
        vec![],
        vec![0xc1],
        vec![0xdd, 0x7f, 0xff, 0xff, 0xff],
        pack(&json!({"type": "Foo"})),
        pack(&json!({"type": "Text", "text": "x"})),
        vec![0x91; 10_000],
    ] {
        let mut socket = server.socket("/api/asr-streaming").await;
        message(&mut socket).await;
        socket.binary(bad).await;
        assert_eq!(message(&mut socket).await["type"], "Error");
        assert_eq!(socket.closed().await.0, 1008);
    }
    let mut socket = server.socket("/api/asr-streaming").await;
    message(&mut socket).await;
    socket.text("text is no message").await;
    socket.binary(pack(&json!({"type": "OggOpus", "data": vec![1u8; 5000]}))).await;
    assert_eq!(message(&mut socket).await["type"], "Error");
    for frame in frames("#.") {
        good.binary(pack(&frame)).await;
    }
    assert_eq!(message(&mut good).await["text"], "w1");
}

#[tokio::test]
async fn no_free_channels() {
    let server = Setup {
        speak_slots: 1,
        endless: true,
        hear: Some(Arc::new(Counter::default())),
        hear_slots: 1,
        ..Default::default()
    }
    .start()
    .await;
    for path in ["/api/asr-streaming", "/api/tts_streaming?format=PcmMessagePack"] {
        let mut first = server.socket(path).await;
        assert_eq!(message(&mut first).await["type"], "Ready");
        // A slot is taken with the first audio or text.
        let (data, kind) = match path.contains("asr") {
            true => (json!({"type": "Audio", "pcm": [0.0, 0.0]}), "recognition"),
            false => (json!({"type": "Text", "text": "On"}), "speech"),
        };
        first.binary(pack(&data)).await;
        server.until(&format!("voce_streams_active{{kind=\"{kind}\"}}"), 1.0).await;
        let mut second = server.socket(path).await;
        assert_eq!(message(&mut second).await, json!({"type": "Error", "message": "no free channels"}));
        assert_eq!(second.closed().await.0, 1013);
        let used: Vec<Value> = server.get("/api/modules_info").await.json().as_array().unwrap().clone();
        assert!(used.iter().any(|m| m["used_slots"] == "1" && m["total_slots"] == "1"), "{used:?}");
    }
}

#[tokio::test]
async fn keys_as_moshi_server_takes_them() {
    let options = ServerOptions { keys: vec!["public_token".into()], ..Default::default() };
    let server =
        Setup { options, speak: false, hear: Some(Arc::new(Counter::default())), ..Default::default() }
            .start()
            .await;
    let status = |e: Error| match e {
        Error::Http(response) => response.status(),
        other => panic!("{other}"),
    };
    let refused = server.try_socket("/api/asr-streaming", &[]).await.err().unwrap();
    assert_eq!(status(refused), StatusCode::UNAUTHORIZED);
    let refused =
        server.try_socket("/api/asr-streaming?auth_id=public_token", &[("kyutai-api-key", "wrong")]).await;
    assert_eq!(status(refused.err().unwrap()), StatusCode::UNAUTHORIZED);
    assert!(server.try_socket("/api/asr-streaming?auth_id=public_token", &[]).await.is_ok());
    assert!(server.try_socket("/api/asr-streaming", &[("kyutai-api-key", "public_token")]).await.is_ok());
    assert_eq!(server.get("/api/build_info").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_file_by_post() {
    let server = start().await;
    let request =
        server.request("POST", "/api/asr-streaming").body(Body::new(wav("#.#", 16_000).into())).unwrap();
    let reply = server.send(request).await;
    let expected = json!([
        {"type": "Word", "text": "w1", "start_time": 0.0}, {"type": "EndWord", "stop_time": 0.5},
        {"type": "Word", "text": "w2", "start_time": 1.0}, {"type": "EndWord", "stop_time": 1.5},
    ]);
    assert_eq!(reply.json(), expected);
}

#[derive(Deserialize)]
struct Audio {
    pcm: Vec<f32>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speech_from_words_as_they_come() {
    let server = Setup::default().start().await;
    let mut socket =
        server.socket("/api/tts_streaming?format=PcmMessagePack&voice=expresso/some.wav&cfg_alpha=1.5").await;
    assert_eq!(message(&mut socket).await["type"], "Ready");
    for word in ["Hello", "there", "you."] {
        socket.binary(pack(&json!({"type": "Text", "text": word}))).await;
    }
    socket.binary(pack(&json!({"type": "Eos"}))).await;
    let (mut samples, mut words) = (0, Vec::new());
    let code = loop {
        match socket.next().await {
            tokio_tungstenite::tungstenite::Message::Binary(bytes) => {
                let m: Value = rmp_serde::from_slice(&bytes).unwrap();
                match m["type"].as_str().unwrap() {
                    "Audio" => {
                        let audio: Audio = rmp_serde::from_slice(&bytes).unwrap();
                        assert_eq!(audio.pcm.len(), 1920);
                        samples += audio.pcm.len();
                    }
                    "Text" => {
                        assert!(m["start_s"].as_f64() < m["stop_s"].as_f64());
                        words.push(m["text"].as_str().unwrap().to_owned());
                    }
                    other => panic!("{other}"),
                }
            }
            tokio_tungstenite::tungstenite::Message::Close(frame) => break frame.map(|f| u16::from(f.code)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(code, Some(1000));
    assert!(samples >= 1920, "{samples}");
    assert_eq!(words, ["Hello", "there", "you."]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_other_formats() {
    let server = Setup::default().start().await;
    let mut lengths = Vec::new();
    for format in ["Pcm", "OggOpus", "OggOpusMessagePack"] {
        let mut socket = server.socket(&format!("/api/tts_streaming?format={format}&seed=1")).await;
        socket.text("Hello there.").await;
        socket.binary(vec![0]).await;
        let mut bytes = Vec::new();
        loop {
            match socket.next().await {
                tokio_tungstenite::tungstenite::Message::Binary(data) if format == "OggOpusMessagePack" => {
                    #[derive(Deserialize)]
                    struct Ogg {
                        #[serde(default)]
                        data: Vec<u8>,
                    }
                    bytes.extend(rmp_serde::from_slice::<Ogg>(&data).unwrap().data);
                }
                tokio_tungstenite::tungstenite::Message::Binary(data) => bytes.extend_from_slice(&data),
                _ => break,
            }
        }
        lengths.push(match format {
            "Pcm" => bytes.len() as f64 / 4.0 / 24_000.0,
            _ => decode_bytes(&bytes, None, &DecodeLimits::default()).unwrap().seconds(),
        });
    }
    assert!(lengths.iter().all(|l| (l - lengths[0]).abs() < 0.085 && *l > 0.05), "{lengths:?}");
    assert!(server.try_socket("/api/tts_streaming?format=Mp3", &[]).await.is_err());
    let wav =
        server.post("/api/tts_streaming", &json!({"text": ["Hello there.", "You."], "voice": "x"})).await;
    assert_eq!(wav.header("content-type"), "audio/wav");
    assert!(wav.body.starts_with(b"RIFF\xff\xff\xff\xff"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_with_nothing_to_say_ends_well() {
    let server = Setup::default().start().await;
    for format in ["PcmMessagePack", "Pcm"] {
        for texts in [&[][..], &["\u{1f600}"], &["<b></b>"], &[" ", "\u{1f600}", "<br>"]] {
            let mut socket = server.socket(&format!("/api/tts_streaming?format={format}")).await;
            if format == "PcmMessagePack" {
                assert_eq!(message(&mut socket).await["type"], "Ready");
            }
            for text in texts {
                socket.text(text).await;
            }
            socket.binary(vec![0]).await;
            // No error, no word and no sound: the end.
            match socket.next().await {
                tokio_tungstenite::tungstenite::Message::Close(frame) => {
                    assert_eq!(frame.map(|f| u16::from(f.code)), Some(1000), "{texts:?}");
                }
                other => panic!("{texts:?}: {other:?}"),
            }
        }
    }
}
