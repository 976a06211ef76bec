//! Messages that would grow to many times their size: packets without end, long audio at once, arrays and lists without
//! number. Each is refused with a code or taken in pieces, and others go on.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::StatusCode;
use ogg::writing::{PacketWriteEndInfo, PacketWriter};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use voce_server::limits::{MAX_AUDIO_MESSAGE, MAX_CONTROL_MESSAGE, MAX_FRAME_MESSAGE, MAX_HOTWORDS};

use crate::counter::Counter;
use crate::server::{Body, Part, Running, Setup};
use crate::socket::Socket;

const LISTENING: &str = "voce_streams_active{kind=\"recognition\"}";

async fn start() -> Running {
    let setup = Setup { speak: false, hear: Some(Arc::new(Counter::default())), ..Default::default() };
    setup.start().await
}

/// An Ogg Opus stream whose third packet has `bytes`.
fn endless_opus(bytes: usize) -> Vec<u8> {
    let mut writer = PacketWriter::new(Vec::new());
    let head = b"OpusHead\x01\x01\x00\x00\x80\xbb\x00\x00\x00\x00\x00".to_vec();
    let tags = b"OpusTags\x00\x00\x00\x00\x00\x00\x00\x00".to_vec();
    writer.write_packet(head, 1, PacketWriteEndInfo::EndPage, 0).unwrap();
    writer.write_packet(tags, 1, PacketWriteEndInfo::EndPage, 0).unwrap();
    writer.write_packet(vec![0; bytes], 1, PacketWriteEndInfo::NormalPacket, 0).unwrap();
    writer.into_inner()
}

/// A Matroska stream with a block that claims 64 GiB, and the first `bytes` of it.
fn endless_block(bytes: usize) -> Vec<u8> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../voce-audio/tests/fixtures/tone_48k_opus.webm");
    let file = std::fs::read(path).unwrap();
    let find = |id: &[u8]| file.windows(id.len()).position(|w| w == id).unwrap();
    let segment = find(&[0x18, 0x53, 0x80, 0x67]) + 4;
    let mut stream = file[..find(&[0x1f, 0x43, 0xb6, 0x75])].to_vec();
    stream[segment + 1..segment + 8].fill(0xff);
    stream.extend([0x1f, 0x43, 0xb6, 0x75, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    stream.extend([0xe7, 0x81, 0x00, 0xa3, 0x01, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00]);
    stream.resize(stream.len() + bytes, 0);
    stream
}

/// Sends all of it, as far as the server takes it; then what the server said, and the code that it closed with.
async fn flood(socket: Socket, messages: Vec<Message>) -> (Vec<Message>, u16) {
    let (mut sink, mut stream) = socket.0.split();
    let sent = tokio::spawn(async move {
        for message in messages {
            if sink.send(message).await.is_err() {
                break;
            }
        }
    });
    let mut said = Vec::new();
    let code = loop {
        match stream.next().await {
            Some(Ok(Message::Close(Some(frame)))) => break frame.code.into(),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            Some(Ok(message)) => said.push(message),
            other => panic!("closed without a word: {other:?}"),
        }
    };
    sent.abort();
    (said, code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_without_end_close_the_socket() {
    let server = start().await;
    for stream in [endless_opus(3 << 20), endless_block(3 << 20)] {
        let socket = server.socket("/v1/listen").await;
        let messages = stream.chunks(50_000).map(|c| Message::binary(c.to_vec())).collect();
        let (said, code) = flood(socket, messages).await;
        let Some(Message::Text(text)) = said.last() else { panic!("{said:?}") };
        let error: Value = serde_json::from_str(text).unwrap();
        assert_eq!((error["type"].as_str(), code), (Some("Error"), 1008));
        assert_eq!(error["err_code"], "packet_too_large");
        // The same as one message.
        let socket = server.socket("/v1/listen").await;
        let (_, code) = flood(socket, vec![Message::binary(stream)]).await;
        assert_eq!(code, 1008);
    }
    let socket = server.socket("/api/asr-streaming").await;
    let pack = |data: &[u8]| rmp_serde::to_vec_named(&json!({"type": "OggOpus", "data": data})).unwrap();
    let messages = endless_opus(3 << 20).chunks(50_000).map(|c| Message::binary(pack(c))).collect();
    let (said, code) = flood(socket, messages).await;
    let Some(Message::Binary(bytes)) = said.last() else { panic!("{said:?}") };
    let error: Value = rmp_serde::from_slice(bytes).unwrap();
    assert_eq!((error["type"].as_str(), code), (Some("Error"), 1008));
    assert!(error["message"].as_str().unwrap().contains("packet"), "{error}");
    // As files, they are refused with the same code.
    for stream in [endless_opus(2 << 20), endless_block(2 << 20)] {
        let request = server.request("POST", "/v1/listen").header("content-type", "audio/x");
        let reply = server.send(request.body(Body::new(stream.into())).unwrap()).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    }
    server.until(LISTENING, 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_audio_in_one_message_is_heard_whole() {
    let server = start().await;
    // Loud all the time: 160 s at the slowest rate, in one message, and what follows it comes after it.
    let audio = vec![0u8; 160 * 4_000];
    let mut socket = server.socket("/v1/realtime").await;
    socket.until("session.created").await;
    let format = json!({"type": "audio/pcmu", "rate": 4_000});
    let input = json!({"format": format, "turn_detection": null});
    let session = json!({"type": "transcription", "audio": {"input": input}});
    socket.json(json!({"type": "session.update", "session": session})).await;
    socket.until("session.updated").await;
    for text in [BASE64.encode(&audio), BASE64.encode(&audio).replace('/', "\\/")] {
        let append = format!("{{\"type\":\"input_audio_buffer.append\",\"audio\":\"{text}\"}}");
        socket.text(&append).await;
        socket.json(json!({"type": "input_audio_buffer.commit"})).await;
        let done = socket.until("conversation.item.input_audio_transcription.completed").await;
        // Resampling leaves a little for the commit.
        let words = done["transcript"].as_str().unwrap().split(' ').count();
        assert!((319..=320).contains(&words), "{words}");
    }
    // The same on the other roads that raw audio takes.
    let mut socket = server.socket("/v1/listen?encoding=mulaw&sample_rate=4000&endpointing=false").await;
    socket.binary(audio).await;
    socket.json(json!({"type": "CloseStream"})).await;
    let mut words = 0;
    loop {
        let message = socket.next_json().await;
        if message["type"] == "Metadata" {
            break;
        }
        words += message["channel"]["alternatives"][0]["words"].as_array().unwrap().len();
    }
    assert!((319..=320).contains(&words), "{words}");
    let mut socket = server.socket("/v2/decode/stream/x").await;
    let pcm: Vec<u8> = (0..15 * 16_000).flat_map(|_| 20_000i16.to_le_bytes()).collect();
    socket.binary(pcm).await;
    socket.binary(vec![0]).await;
    let last = loop {
        let message = socket.next_json().await;
        if message["status"] == "Complete" {
            break message;
        }
    };
    assert_eq!(last["transcription"].as_str().unwrap().split(' ').count(), 30);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn base64_that_breaks_far_behind_is_refused_whole() {
    let server = start().await;
    let mut socket = server.socket("/v1/realtime").await;
    socket.until("session.created").await;
    let mut audio = BASE64.encode(vec![0; 300_000]);
    audio.replace_range(399_990..399_991, "*");
    socket.json(json!({"type": "input_audio_buffer.append", "audio": audio, "event_id": "bad"})).await;
    let error = socket.next_json().await;
    assert_eq!(error["error"]["event_id"], "bad");
    // None of it was taken.
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    assert_eq!(socket.next_json().await["error"]["code"], "input_audio_buffer_commit_empty");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn arrays_without_number() {
    let server = start().await;
    // Numbers of a byte each: an array that claims what it brings.
    let pcm = |n: u32| {
        let mut message = b"\x82\xa4type\xa5Audio\xa3pcm\xdd".to_vec();
        message.extend(n.to_be_bytes());
        message.resize(message.len() + n as usize, 1);
        Message::binary(message)
    };
    let (said, code) = flood(server.socket("/api/asr-streaming").await, vec![pcm(300_000)]).await;
    let Some(Message::Binary(bytes)) = said.last() else { panic!("{said:?}") };
    let error: Value = rmp_serde::from_slice(bytes).unwrap();
    assert!(error["message"].as_str().unwrap().contains("more than"), "{error}");
    assert_eq!(code, 1008);
    let (_, code) =
        flood(server.socket("/api/asr-streaming").await, vec![pcm(MAX_FRAME_MESSAGE as u32)]).await;
    assert_eq!(code, 1009);
    // Each route has a message of its own.
    for (path, most) in [
        ("/api/asr-streaming", MAX_FRAME_MESSAGE),
        ("/v2/decode/stream/x", MAX_FRAME_MESSAGE),
        ("/v1/listen?encoding=linear16", MAX_AUDIO_MESSAGE),
    ] {
        let (_, code) = flood(server.socket(path).await, vec![Message::binary(vec![0; most + 1])]).await;
        assert_eq!(code, 1009, "{path}");
    }
    // Words of control are short, whatever the route takes otherwise.
    let long = format!("[{}0]", "0,".repeat(MAX_CONTROL_MESSAGE / 2));
    let (said, code) = flood(server.socket("/v1/listen").await, vec![Message::text(long.clone())]).await;
    assert!(said[0].to_text().unwrap().contains("too_large"), "{said:?}");
    assert_eq!(code, 1008);
    let mut socket = server.socket("/v1/realtime").await;
    socket.until("session.created").await;
    socket.text(&format!("{{\"type\":\"session.update\",\"session\":{long}}}")).await;
    assert_eq!(socket.next_json().await["error"]["code"], "too_large");
    let opaque = json!({"audio_buffer": [0, 0], "opaque": long});
    assert_eq!(server.post("/v2/decode/batch/x", &opaque).await.status, StatusCode::BAD_REQUEST);
    let opaque = json!({"audio_buffer": [0, 0], "opaque": {"a": [1]}});
    assert_eq!(server.post("/v2/decode/batch/x", &opaque).await.json()["opaque"], json!({"a": [1]}));
    server.until(LISTENING, 0.0).await;
}

#[tokio::test]
async fn keywords_without_number() {
    let server = start().await;
    let wav = crate::listening::wav("#", 16_000);
    let send = async |words: &str| {
        let form = [("keywords", Part::Text(words)), ("file", Part::File("a.wav", &wav))];
        server.form("/v1/audio/transcriptions", &form).await.status
    };
    assert_eq!(send(&"a,".repeat(MAX_HOTWORDS)).await, StatusCode::OK);
    assert_eq!(send(&"a,".repeat(MAX_HOTWORDS + 1)).await, StatusCode::BAD_REQUEST);
    assert_eq!(send(&",".repeat(1 << 20)).await, StatusCode::BAD_REQUEST);
    assert_eq!(send(&"a,".repeat(1 << 19)).await, StatusCode::BAD_REQUEST);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pauses_without_number() {
    let server = Setup::default().start().await;
    // Twelve hours of silence in 16 KiB.
    let text = "[pause:30s]".repeat(1_480);
    for body in [json!({"input": text}), json!({"input": text, "stream_format": "sse"})] {
        let reply = server.post("/v1/audio/speech", &body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST);
        assert!(reply.text().contains("together"), "{}", reply.text());
    }
    let reply = server.post("/api/tts_streaming", &json!({"text": text})).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    // The same where text arrives as it is written.
    let socket = server.socket("/api/tts_streaming?format=PcmMessagePack").await;
    let messages = vec![Message::text("[pause:30s]".repeat(11)), Message::binary(vec![0])];
    let (said, code) = flood(socket, messages).await;
    assert_eq!(code, 1008);
    let Some(Message::Binary(bytes)) = said.last() else { panic!("{said:?}") };
    assert!(rmp_serde::from_slice::<Value>(bytes).unwrap()["message"].as_str().unwrap().contains("together"));
}
