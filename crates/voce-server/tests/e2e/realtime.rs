//! `WS /v1/realtime` in its three dialects.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use voce_audio::wav::put_s16le;
use voce_server::ears::NullEars;
use voce_server::{Limits, ServerOptions};

use crate::counter::Counter;
use crate::listening::{audio, start};
use crate::patience::TcpStream;
use crate::server::Setup;
use crate::socket::Socket;

fn pcm(pattern: &str, rate: usize) -> String {
    let mut bytes = Vec::new();
    put_s16le(&audio(pattern, rate), &mut bytes);
    BASE64.encode(bytes)
}

async fn append(socket: &mut Socket, pattern: &str, rate: usize) {
    socket.json(json!({"type": "input_audio_buffer.append", "audio": pcm(pattern, rate)})).await;
}

#[tokio::test]
async fn what_came_after_a_turn_can_be_committed() {
    let server = start().await;
    let mut socket = server.socket("/v1/realtime?intent=transcription").await;
    let session = json!({"type": "transcription", "audio": {"input": {
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
    }}});
    socket.json(json!({"type": "session.update", "session": session})).await;
    // The turn is found after half a second of silence, when a second of it is there already.
    append(&mut socket, "##..", 24_000).await;
    let turn = socket.until("conversation.item.input_audio_transcription.completed").await;
    assert_eq!(turn["transcript"], "w1 w2");
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    let committed = socket.until("input_audio_buffer.committed").await;
    assert_eq!(committed["previous_item_id"], turn["item_id"]);
    let rest = socket.until("conversation.item.input_audio_transcription.completed").await;
    assert_eq!((&rest["item_id"], &rest["transcript"]), (&committed["item_id"], &json!("")));
    // Now there is nothing any more.
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    let error = socket.next_json().await;
    assert_eq!(error["error"]["code"], "input_audio_buffer_commit_empty", "{error}");
}

#[tokio::test]
async fn every_turn_and_every_commit_completes_an_item_that_was_announced() {
    let server = start().await;
    let mut socket = server.socket("/v1/realtime?intent=transcription").await;
    let session = json!({"type": "transcription", "audio": {"input": {
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
    }}});
    socket.json(json!({"type": "session.update", "session": session})).await;
    // The commit comes before the turn's end, which is earlier in the audio, is found.
    for pattern in ["##..", "#"] {
        append(&mut socket, pattern, 24_000).await;
        socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    }
    let (mut committed, mut completed) = (Vec::new(), Vec::new());
    while completed.last().is_none_or(|(_, text)| *text != "w3") {
        let event = socket.next_json().await;
        let item = event["item_id"].clone();
        match event["type"].as_str().unwrap() {
            "input_audio_buffer.committed" => committed.push(item),
            "conversation.item.input_audio_transcription.completed" => {
                assert!(committed.contains(&item), "{event}");
                completed.push((item, event["transcript"].as_str().unwrap().to_owned()));
            }
            "error" => panic!("{event}"),
            _ => {}
        }
    }
    assert!(completed.iter().map(|(item, _)| item).eq(&committed), "{committed:?} {completed:?}");
    assert_eq!(completed[0].1, "w1 w2");
}

#[tokio::test]
async fn the_current_dialect_with_turns_found_by_silence() {
    let server = start().await;
    let mut socket = server.socket("/v1/realtime?intent=transcription").await;
    let created = socket.next_json().await;
    assert_eq!(created["type"], "session.created");
    assert_eq!(created["session"]["type"], "transcription");
    assert_eq!(created["session"]["audio"]["input"]["format"]["rate"], 24_000);
    let session = json!({"type": "transcription", "audio": {"input": {
        "format": {"type": "audio/pcm", "rate": 24_000},
        "transcription": {"model": "gpt-4o-transcribe", "language": "en"},
        "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
    }}});
    socket.json(json!({"type": "session.update", "session": session})).await;
    let updated = socket.next_json().await;
    assert_eq!(
        (updated["type"].as_str(), &updated["session"]["audio"]["input"]["transcription"]["language"]),
        (Some("session.updated"), &json!("en"))
    );
    // The resampler looks ahead, so a little more than the pattern is needed.
    append(&mut socket, "##..", 24_000).await;
    let started = socket.next_json().await;
    assert_eq!(
        (started["type"].as_str(), &started["audio_start_ms"]),
        (Some("input_audio_buffer.speech_started"), &json!(0))
    );
    let item = started["item_id"].clone();
    let mut text = String::new();
    for _ in 0..2 {
        let delta = socket.next_json().await;
        assert_eq!(
            (delta["type"].as_str(), &delta["item_id"]),
            (Some("conversation.item.input_audio_transcription.delta"), &item)
        );
        text.push_str(delta["delta"].as_str().unwrap());
    }
    assert_eq!(text, "w1 w2");
    assert_eq!(socket.next_json().await["type"], "input_audio_buffer.speech_stopped");
    let committed = socket.next_json().await;
    assert_eq!((&committed["item_id"], &committed["previous_item_id"]), (&item, &Value::Null));
    let completed = socket.next_json().await;
    assert_eq!(completed["type"], "conversation.item.input_audio_transcription.completed");
    assert_eq!((&completed["item_id"], &completed["transcript"]), (&item, &json!("w1 w2")));
    // The next turn is another item.
    append(&mut socket, "#...", 24_000).await;
    let committed = socket.until("input_audio_buffer.committed").await;
    assert_eq!(committed["previous_item_id"], item);
    let completed = socket.until("conversation.item.input_audio_transcription.completed").await;
    assert_eq!((&completed["transcript"], &completed["item_id"]), (&json!("w3"), &committed["item_id"]));
}

#[tokio::test]
async fn turns_committed_by_hand() {
    let server = start().await;
    let mut socket = server.socket("/v1/realtime?intent=transcription&model=whisper-1").await;
    socket.until("session.created").await;
    let session = json!({"type": "transcription", "audio": {"input": {"turn_detection": null}}});
    socket.json(json!({"type": "session.update", "session": session})).await;
    assert_eq!(
        socket.until("session.updated").await["session"]["audio"]["input"]["turn_detection"],
        Value::Null
    );
    socket.json(json!({"type": "input_audio_buffer.commit", "event_id": "mine"})).await;
    let error = socket.next_json().await;
    assert_eq!(
        (&error["error"]["code"], &error["error"]["event_id"]),
        (&json!("input_audio_buffer_commit_empty"), &json!("mine"))
    );
    append(&mut socket, "#.#", 24_000).await;
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    let committed = socket.until("input_audio_buffer.committed").await;
    let completed = socket.until("conversation.item.input_audio_transcription.completed").await;
    assert_eq!((&completed["transcript"], &completed["item_id"]), (&json!("w1 w2"), &committed["item_id"]));
    // What is cleared is not heard.
    append(&mut socket, "###", 24_000).await;
    socket.json(json!({"type": "input_audio_buffer.clear"})).await;
    socket.until("input_audio_buffer.cleared").await;
    append(&mut socket, ".", 24_000).await;
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    let completed = socket.until("conversation.item.input_audio_transcription.completed").await;
    assert_eq!(completed["transcript"], "");
}

#[tokio::test]
async fn the_older_dialect_and_the_telephone() {
    let server = start().await;
    let mut socket = server
        .try_socket("/v1/realtime?intent=transcription", &[("openai-beta", "realtime=v1")])
        .await
        .unwrap();
    assert_eq!(socket.next_json().await["type"], "transcription_session.created");
    let session = json!({
        "input_audio_format": "g711_ulaw", "input_audio_transcription": {"model": "whisper-1"},
        "turn_detection": {"type": "server_vad"},
    });
    socket.json(json!({"type": "transcription_session.update", "session": session})).await;
    assert_eq!(socket.next_json().await["type"], "transcription_session.updated");
    let mut bytes = Vec::new();
    voce_audio::encode::encode_raw(&audio("##...", 8_000), voce_audio::RawEncoding::Mulaw, &mut bytes);
    socket.json(json!({"type": "input_audio_buffer.append", "audio": BASE64.encode(bytes)})).await;
    let completed = socket.until("conversation.item.input_audio_transcription.completed").await;
    assert_eq!(completed["transcript"], "w1 w2");
}

#[tokio::test]
async fn vllms_dialect() {
    let server = start().await;
    let mut socket = server.socket("/v1/realtime").await;
    assert_eq!(socket.next_json().await["type"], "session.created");
    socket.json(json!({"type": "session.update", "model": "counter"})).await;
    socket.until("session.updated").await;
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    append(&mut socket, "#.", 16_000).await;
    append(&mut socket, "#", 16_000).await;
    socket.json(json!({"type": "input_audio_buffer.commit", "final": true})).await;
    let mut text = String::new();
    loop {
        let event = socket.next_json().await;
        match event["type"].as_str().unwrap() {
            "transcription.delta" => text.push_str(event["delta"].as_str().unwrap()),
            "transcription.done" => {
                assert_eq!(event["text"], "w1 w2");
                break;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(text, "w1 w2");
    // An end without audio is an end.
    socket.json(json!({"type": "input_audio_buffer.commit", "final": true})).await;
    assert_eq!(socket.next_json().await["text"], "");
}

#[tokio::test]
async fn what_clients_should_not_send() {
    let server = start().await;
    let mut socket = server.socket("/v1/realtime?intent=transcription").await;
    socket.until("session.created").await;
    for bad in [
        "",
        "{",
        "null",
        "[]",
        "{\"type\": 7}",
        "{\"type\": \"response.create\"}",
        "{\"type\": \"session.update\"}",
        "{\"type\": \"session.update\", \"session\": {\"type\": \"realtime\"}}",
        "{\"type\": \"session.update\", \"session\": {\"audio\": {\"input\": {\"format\": {\"type\": \"audio/mp3\"}}}}}",
        "{\"type\": \"session.update\", \"session\": {\"audio\": {\"input\": {\"format\": {\"type\": \"audio/pcm\", \"rate\": 1e18}}}}}",
        "{\"type\": \"session.update\", \"session\": {\"audio\": {\"input\": {\"transcription\": {\"model\": \"none\"}}}}}",
        "{\"type\": \"session.update\", \"session\": {\"turn_detection\": {\"silence_duration_ms\": 99999999999}}}",
        "{\"type\": \"input_audio_buffer.append\"}",
        "{\"type\": \"input_audio_buffer.append\", \"audio\": \"***\"}",
        "{\"type\": \"input_audio_buffer.append\", \"audio\": 5}",
    ] {
        socket.text(bad).await;
        let event = socket.next_json().await;
        if bad.contains("1e18") {
            // Not an integer: the format's own rate stands.
            assert_eq!(event["type"], "session.updated");
            continue;
        }
        assert_eq!(event["type"], "error", "{bad}: {event}");
        assert!(event["error"]["message"].as_str().unwrap().len() < 500);
    }
    socket.binary(vec![1, 2, 3]).await;
    assert_eq!(socket.next_json().await["type"], "error");
    // And the session lives: odd bytes are halves of samples that come together.
    let mut bytes = Vec::new();
    put_s16le(&audio("#..", 24_000), &mut bytes);
    for part in bytes.chunks(1_001) {
        socket.json(json!({"type": "input_audio_buffer.append", "audio": BASE64.encode(part)})).await;
    }
    socket.json(json!({"type": "session.update", "session": {"type": "transcription"}})).await;
    assert_eq!(
        socket.until("conversation.item.input_audio_transcription.completed").await["transcript"],
        "w1"
    );
}

#[tokio::test]
async fn a_conversation_is_not_a_transcription() {
    let server = start().await;
    assert!(server.try_socket("/v1/realtime?intent=conversation", &[]).await.is_err());
    assert!(server.try_socket("/v1/realtime?model=gpt-realtime", &[]).await.is_err());
}

#[tokio::test]
async fn the_next_stream_is_refused_with_1013() {
    let server = Setup { speak: false, hear: Some(Arc::new(NullEars)), hear_slots: 1, ..Default::default() }
        .start()
        .await;
    let mut first = server.socket("/v1/realtime?intent=transcription").await;
    first.until("session.created").await;
    // A slot is taken with the first audio.
    append(&mut first, "#", 24_000).await;
    server.until("voce_streams_active{kind=\"recognition\"}", 1.0).await;
    let mut second = server.socket("/v1/realtime?intent=transcription").await;
    let error = second.next_json().await;
    assert_eq!((error["type"].as_str(), error["error"]["code"].as_str()), (Some("error"), Some("busy")));
    assert_eq!(second.closed().await.0, 1013);
    drop(first);
    server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
    let mut third = server.socket("/v1/realtime?intent=transcription").await;
    assert_eq!(third.next_json().await["type"], "session.created");
}

#[tokio::test]
async fn a_silent_socket_is_pinged_and_closed() {
    let limits = Limits {
        ws_ping: Duration::from_millis(20),
        ws_idle: Duration::from_millis(60),
        ..Limits::default()
    };
    let options = ServerOptions { limits, ..Default::default() };
    let setup = Setup { options, speak: false, hear: Some(Arc::new(NullEars)), ..Default::default() };
    let server = setup.start().await;
    // A client that answers pings stays; this one does not read them, so it goes.
    let stream = TcpStream::connect(server.addr).await.unwrap();
    let mut stream = tokio::io::BufReader::new(stream);
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let head = "GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    let text = String::from_utf8_lossy(&rest);
    assert!(text.contains("101 Switching Protocols") && text.contains("session.created"), "{text}");
    assert!(rest.windows(2).any(|w| w == [0x89, 0]), "a ping");
    assert!(text.contains("nothing was heard"), "{text}");
    server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
}

#[tokio::test]
async fn a_message_past_the_limit_ends_the_socket_only() {
    let limits = Limits { ws_message: 10_000, ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let server =
        Setup { options, speak: false, hear: Some(Arc::new(Counter::default())), ..Default::default() }
            .start()
            .await;
    let mut socket = server.socket("/v1/realtime").await;
    socket.until("session.created").await;
    let message = |n: usize| {
        let text = json!({"type": "nothing", "x": ""}).to_string();
        text.replace("\"x\":\"\"", &format!("\"x\":\"{}\"", "y".repeat(n - text.len())))
    };
    socket.text(&message(10_000)).await;
    assert_eq!(socket.next_json().await["type"], "error");
    socket.text(&message(10_001)).await;
    server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
    server.socket("/v1/realtime").await.until("session.created").await;
}

#[tokio::test]
async fn a_recogniser_that_takes_nothing_holds_the_client_back() {
    let server = Setup { speak: false, hear: Some(Arc::new(Counter { stuck: true })), ..Default::default() }
        .start()
        .await;
    let mut socket = server.socket("/v1/realtime").await;
    socket.until("session.created").await;
    append(&mut socket, "#", 24_000).await;
    // The first message waits; the server reads no further until it is taken, and holds no more than that.
    socket.text("{\"type\": \"nothing\"}").await;
    let answered = tokio::time::timeout(Duration::from_millis(50), socket.next_json()).await;
    assert!(answered.is_err(), "{answered:?}");
    drop(socket);
}

#[tokio::test]
async fn a_stop_ends_sockets_with_1012() {
    let limits = Limits { drain: Duration::from_millis(20), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let mut server =
        Setup { options, speak: false, hear: Some(Arc::new(NullEars)), ..Default::default() }.start().await;
    let mut socket = server.socket("/v1/realtime").await;
    socket.until("session.created").await;
    server.stop();
    assert_eq!(socket.closed().await.0, 1012);
    server.gone().await;
}
