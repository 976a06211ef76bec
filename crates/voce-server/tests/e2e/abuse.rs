//! What really ended other servers, sent to this one: bombs, forged headers, floods, deep JSON, clients that neither read
//! nor write. Each is answered or closed, and the server is as it was.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;
use voce_audio::AudioSink as _;
use voce_audio::encode::{OpusOptions, OpusWriter};
use voce_audio::output::Pipe;
use voce_audio::wav::{WavSample, wav_header};
use voce_server::ears::NullEars;
use voce_server::limits::{MAX_APPEND, MAX_JSON_DEPTH, MAX_TEXT, MAX_VOICE_SAMPLE};
use voce_server::{Limits, ServerOptions};

use crate::counter::Counter;
use crate::listening::{audio, wav};
use crate::mp4;
use crate::patience::{TcpStream, within};
use crate::server::{Body, Part, Reply, Running, Setup};

const LISTENING: &str = "voce_streams_active{kind=\"recognition\"}";
const SPEAKING: &str = "voce_streams_active{kind=\"speech\"}";

async fn start() -> Running {
    let setup = Setup { hear: Some(Arc::new(Counter::default())), hear_slots: 8, ..Default::default() };
    setup.start().await
}

/// A message with audio for every socket that hears.
pub(crate) fn first_words() -> [(&'static str, Message); 4] {
    let samples = audio("#", 4_800);
    let pcm: Vec<u8> = samples.iter().flat_map(|s| ((s * 3e4) as i16).to_le_bytes()).collect();
    let append = json!({"type": "input_audio_buffer.append", "audio": BASE64.encode(&pcm)});
    let packed = rmp_serde::to_vec_named(&json!({"type": "Audio", "pcm": samples})).unwrap();
    [
        ("/v1/realtime", Message::text(append.to_string())),
        ("/api/asr-streaming", Message::binary(packed)),
        ("/v1/listen?encoding=linear16", Message::binary(pcm.clone())),
        ("/v2/decode/stream/x", Message::binary(pcm)),
    ]
}

/// Every route that takes a file, with the file.
async fn through_every_door(server: &Running, file: &[u8]) -> Vec<(&'static str, Reply)> {
    let mut replies = Vec::new();
    let form = [("model", Part::Text("whisper-1")), ("file", Part::File("a", file))];
    replies.push(("transcriptions", server.form("/v1/audio/transcriptions", &form).await));
    for (name, path) in [("moshi", "/api/asr-streaming"), ("deepgram", "/v1/listen")] {
        let request = server.request("POST", path).header("content-type", "audio/x");
        replies.push((name, server.send(request.body(Body::new(file.to_vec().into())).unwrap()).await));
    }
    let form = [("name", Part::Text("someone")), ("audio_sample", Part::File("a", file))];
    replies.push(("voices", server.form("/v1/audio/voices", &form).await));
    replies
}

fn opus_silence(seconds: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let options = OpusOptions { bitrate: 6_000, complexity: 0, packets_per_page: 50 };
    let mut writer = OpusWriter::new(Pipe::new(&mut bytes), 8_000, options).unwrap();
    for _ in 0..seconds {
        writer.write(&[0.0; 8_000]).unwrap();
    }
    writer.finish().unwrap();
    drop(writer);
    bytes
}

/// A FLAC header that claims 655,350 Hz and eight channels.
fn forged_flac() -> Vec<u8> {
    let mut flac = b"fLaC\x80\x00\x00\x22".to_vec();
    flac.extend([0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    flac.extend([0x9f, 0xff, 0x6f, 0xf0, 0xff, 0xff, 0xff, 0xff]);
    flac.extend([0; 16]);
    flac
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bomb_of_opus_stops_at_every_door() {
    let server = start().await;
    // Ten minutes and a second are a third of a megabyte, and 38 MiB as samples.
    let bomb = opus_silence(601);
    assert!(bomb.len() < 1 << 20, "{}", bomb.len());
    for (door, reply) in through_every_door(&server, &bomb).await {
        // A voice is made from the first half minute, and the rest is not decoded.
        if door != "voices" {
            assert_eq!(reply.error(), "too_long", "{door}");
        }
        assert!(!reply.status.is_server_error(), "{door}: {}", reply.text());
    }
    server.until(LISTENING, 0.0).await;
}

#[tokio::test]
async fn forged_headers_stop_at_every_door() {
    let server = start().await;
    let files = [
        ("flac", forged_flac()),
        ("wav of 655,350 Hz", wav_header(655_350, WavSample::S16, Some(1000))),
        ("wav without a rate", wav_header(0, WavSample::S16, Some(1000))),
        ("wav of 9 channels", {
            let mut bytes = wav("#", 16_000);
            bytes[22] = 9;
            bytes
        }),
    ];
    for (name, file) in files {
        for (door, reply) in through_every_door(&server, &file).await {
            assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{name} at {door}: {}", reply.text());
        }
    }
    server.until(LISTENING, 0.0).await;
}

#[tokio::test]
async fn an_mp4_of_four_thousand_million_samples() {
    let server = start().await;
    for (name, file) in mp4::forged() {
        for (door, reply) in through_every_door(&server, &file).await {
            assert!(!reply.status.is_server_error(), "{name} at {door}: {}", reply.text());
            assert!(reply.status.is_client_error() || door != "voices", "{name} at {door}");
        }
    }
    server.until(LISTENING, 0.0).await;
}

#[tokio::test]
async fn broken_heads_of_every_container() {
    let server = start().await;
    // 33 bytes of ID3 once ended a probe; so may the first bytes of anything.
    let mut files = vec![
        b"ID3\x04\x00\x00\x00\x00\x00\x17TIT2\x00\x00\x00\x0d\x00\x00\x03aaaaaaaaaa".to_vec(),
        forged_flac(),
        opus_silence(1),
        wav("#", 16_000),
        mp4::forged().remove(0).1,
    ];
    files.push(
        b"\x1a\x45\xdf\xa3\x9fB\x86\x81\x01B\xf7\x81\x01B\xf2\x81\x04B\xf3\x81\x08B\x82\x84webm".to_vec(),
    );
    files.push(b"FORM\xff\xff\xff\xffAIFFCOMM\x00\x00\x00\x12\x00\x01\xff\xff\xff\xff\x00\x10".to_vec());
    for file in files {
        for length in [1, 4, 12, 33, 44, 100].into_iter().filter(|n| *n < file.len()).chain([file.len()]) {
            for (door, reply) in through_every_door(&server, &file[..length]).await {
                assert!(
                    !reply.status.is_server_error(),
                    "{:?} at {door}: {}",
                    &file[..length.min(16)],
                    reply.text()
                );
                if door == "voices" && reply.status == StatusCode::OK {
                    let remove = server.request("DELETE", "/v1/audio/voices/someone");
                    server.send(remove.body(Body::default()).unwrap()).await;
                }
            }
        }
    }
    server.until(LISTENING, 0.0).await;
}

#[tokio::test]
async fn an_append_of_15_mib_and_a_byte_more() {
    let setup = Setup { speak: false, hear: Some(Arc::new(NullEars)), hear_slots: 1, ..Default::default() };
    let server = setup.start().await;
    let mut socket = server.socket("/v1/realtime").await;
    socket.until("session.created").await;
    let append =
        |bytes: usize| json!({"type": "input_audio_buffer.append", "audio": BASE64.encode(vec![0; bytes])});
    socket.json(append(MAX_APPEND)).await;
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    assert_eq!(socket.next_json().await["type"], "input_audio_buffer.committed");
    socket.until("conversation.item.input_audio_transcription.completed").await;
    socket.json(append(MAX_APPEND + 1)).await;
    let error = socket.next_json().await;
    assert_eq!((error["type"].as_str(), error["error"]["code"].as_str()), (Some("error"), Some("too_large")));
    // The session goes on.
    socket.json(append(2)).await;
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    assert_eq!(socket.next_json().await["type"], "input_audio_buffer.committed");
}

#[tokio::test]
async fn texts_and_clips_at_the_limit_and_one_past_it() {
    let server = start().await;
    let speak = async |n: usize| {
        // Spaces are nothing to say: the limit is looked at before.
        let body = json!({"input": format!("Hi.{}", " ".repeat(n - 3)), "response_format": "pcm"});
        server.post("/v1/audio/speech", &body).await
    };
    assert_eq!(speak(MAX_TEXT).await.status, StatusCode::OK);
    assert_eq!(speak(MAX_TEXT + 1).await.status, StatusCode::BAD_REQUEST);
    let clip = async |n: usize| {
        let data = vec![0; n];
        let form = [("name", Part::Text("x")), ("audio_sample", Part::File("a.wav", &data))];
        server.form("/v1/audio/voices", &form).await
    };
    assert_eq!(clip(MAX_VOICE_SAMPLE).await.status, StatusCode::BAD_REQUEST);
    assert_eq!(clip(MAX_VOICE_SAMPLE + 1).await.status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn deep_json_is_refused_everywhere() {
    let server = start().await;
    let deep = |levels: usize| format!("{}0{}", "[".repeat(levels), "]".repeat(levels));
    let with = |levels: usize| {
        format!("{{\"input\": \"Hi.\", \"response_format\": \"pcm\", \"x\": {}}}", deep(levels - 1))
    };
    let send = async |path: &str, body: String| {
        let request = server.request("POST", path).header("content-type", "application/json");
        server.send(request.body(Body::new(body.into())).unwrap()).await
    };
    assert_eq!(send("/v1/audio/speech", with(MAX_JSON_DEPTH)).await.status, StatusCode::OK);
    assert!(send("/v1/audio/speech", with(MAX_JSON_DEPTH + 1)).await.text().contains("nested deeper"));
    for path in ["/v1/audio/speech", "/api/tts_streaming", "/v2/decode/batch/x"] {
        for levels in [100, 100_000] {
            assert_eq!(send(path, deep(levels)).await.status, StatusCode::BAD_REQUEST, "{path}");
        }
    }
    for path in ["/v1/realtime", "/v1/listen?encoding=linear16"] {
        let mut socket = server.socket(path).await;
        socket.text(&deep(100_000)).await;
        loop {
            match socket.next().await {
                Message::Text(text) => {
                    let event: Value = serde_json::from_str(&text).unwrap();
                    if event["type"].as_str().is_some_and(|t| t.eq_ignore_ascii_case("error")) {
                        break;
                    }
                }
                other => panic!("{path}: {other:?}"),
            }
        }
    }
    // MessagePack may nest as well.
    let mut socket = server.socket("/api/asr-streaming").await;
    socket.binary(vec![0x91; 1 << 20]).await;
    assert_eq!(socket.closed().await.0, 1008);
}

#[tokio::test]
async fn packed_bodies_are_refused_unseen() {
    let server = start().await;
    // Ten megabytes of zeros in ten kilobytes would be this: it is not looked at.
    let gzip = [
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xed, 0xc1, 1, 1, 0, 0, 0, 0x80, 0x90, 0xfe, 0xaf, 0xee, 8, 0, 0,
        0,
    ];
    for path in [
        "/v1/audio/speech",
        "/v1/audio/transcriptions",
        "/v1/listen",
        "/api/asr-streaming",
        "/v2/decode/batch/x",
    ] {
        for encoding in ["gzip", "br", "deflate", "zstd", "GZIP, gzip"] {
            let request = server
                .request("POST", path)
                .header("content-encoding", encoding)
                .header("content-type", "multipart/form-data; boundary=b");
            let reply = server.send(request.body(Body::new(gzip.to_vec().into())).unwrap()).await;
            assert!(reply.text().contains("Content-Encoding"), "{path} {encoding}: {}", reply.text());
        }
    }
    let plain = server.request("POST", "/api/asr-streaming").header("content-encoding", "identity");
    let reply = server.send(plain.body(Body::new(wav("#", 16_000).into())).unwrap()).await;
    assert_eq!(reply.status, StatusCode::OK);
}

#[tokio::test]
async fn nothing_is_ever_fetched() {
    let server = start().await;
    let trap = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/voice.wav", trap.local_addr().unwrap());
    server.post("/v1/audio/speech", &json!({"input": "Hi.", "voice": url, "voice_url": url})).await;
    server.post("/v1/audio/speech", &json!({"input": "Hi.", "voice": {"id": url}, "model": url})).await;
    server.post("/v1/listen", &json!({"url": url})).await;
    server.post("/api/tts_streaming", &json!({"text": "Hi.", "voice": url})).await;
    let form = [("file", Part::Text(url.as_str())), ("url", Part::Text(&url)), ("model", Part::Text(&url))];
    server.form("/v1/audio/transcriptions", &form).await;
    let form = [("name", Part::Text("x")), ("audio_sample", Part::Text(&url)), ("consent", Part::Text(&url))];
    server.form("/v1/audio/voices", &form).await;
    let _ = server.try_socket(&format!("/api/tts_streaming?voice={url}&format=Pcm"), &[]).await;
    let _ = server.try_socket(&format!("/v1/listen?callback={url}"), &[]).await;
    server.until(SPEAKING, 0.0).await;
    let caught = tokio::time::timeout(Duration::from_millis(20), trap.accept()).await;
    assert!(caught.is_err(), "somebody came for {url}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_dialect_frees_its_slot_when_its_client_is_gone() {
    let setup = Setup {
        endless: true,
        hear: Some(Arc::new(Counter::default())),
        hear_slots: 1,
        speak_slots: 1,
        ..Default::default()
    };
    let server = setup.start().await;
    for (path, message) in first_words() {
        for messages in 1..4 {
            let mut socket = server.socket(path).await;
            for _ in 0..messages {
                let _ = socket.0.send(message.clone()).await;
            }
            server.until(LISTENING, 1.0).await;
            // No close frame: the client is just gone.
            drop(socket);
            server.until(LISTENING, 0.0).await;
        }
    }
    for frames in 0..3 {
        let body = json!({"input": "On and on.", "response_format": "pcm"});
        let mut speech = server.open(server.json_request("/v1/audio/speech", &body)).await;
        for _ in 0..frames {
            speech.body_mut().frame().await.unwrap().unwrap();
        }
        drop(speech);
        server.until(SPEAKING, 0.0).await;
        let mut socket = server.socket("/api/tts_streaming?format=Pcm").await;
        socket.text("On and on. And on.").await;
        server.until(SPEAKING, 1.0).await;
        for _ in 0..frames {
            socket.next_binary().await;
        }
        drop(socket);
        server.until(SPEAKING, 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_far_ahead_of_the_model_is_seen_to_go() {
    // The recogniser takes nothing, so the server reads nothing more; what nobody has read waits in the socket.
    let hear = Arc::new(Counter { stuck: true });
    let server = Setup { speak: false, hear: Some(hear), hear_slots: 1, ..Default::default() }.start().await;
    for (path, message) in first_words() {
        let mut socket = server.socket(path).await;
        for _ in 0..5 {
            socket.0.send(message.clone()).await.unwrap();
        }
        server.until(LISTENING, 1.0).await;
        drop(socket);
        server.until(LISTENING, 0.0).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audio_comes_before_its_end_in_every_format() {
    // Speech that never ends can only be heard by those who get it as it is made.
    let server = Setup { endless: true, ..Default::default() }.start().await;
    for format in ["pcm", "wav", "flac", "opus", "mp3", "mulaw"] {
        for stream in ["audio", "sse"] {
            let body = json!({"input": "On and on.", "response_format": format, "stream_format": stream});
            let mut speech = server.open(server.json_request("/v1/audio/speech", &body)).await;
            assert_eq!(speech.status(), StatusCode::OK, "{format} {stream}");
            let mut bytes = 0;
            while bytes < 5_000 {
                bytes += speech.body_mut().frame().await.unwrap().unwrap().into_data().unwrap().len();
            }
        }
    }
    let mut posted =
        server.open(server.json_request("/api/tts_streaming", &json!({"text": "On and on."}))).await;
    assert!(posted.body_mut().frame().await.unwrap().unwrap().into_data().unwrap().starts_with(b"RIFF"));
    drop(posted);
    server.until(SPEAKING, 0.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_that_never_read_are_cut_off() {
    let limits = Limits { write_stall: Duration::from_millis(100), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let server = Setup { options, endless: true, speak_slots: 2, ..Default::default() }.start().await;
    let mut clients = Vec::new();
    for format in ["Pcm", "PcmMessagePack"] {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stream = socket.connect(server.addr).await.unwrap();
        let head = format!(
            "GET /api/tts_streaming?format={format} HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // A text frame with the mask 0: "Go on. And on."
        let text = b"Go on. And on.";
        let mut frame = vec![0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(text);
        stream.write_all(&frame).await.unwrap();
        clients.push(stream);
    }
    server.until(SPEAKING, 2.0).await;
    server.until(SPEAKING, 0.0).await;
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_silent_sockets_do_not_slow_the_probe() {
    let limits = Limits { header_timeout: Duration::from_millis(300), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let server = Setup { options, speak: false, ..Default::default() }.start().await;
    let mut clients = Vec::new();
    for i in 0..400 {
        let mut stream = TcpStream::connect(server.addr).await.unwrap();
        // Some say nothing, some half a word, some a word and a half.
        let said: &[u8] = match i % 3 {
            0 => b"",
            1 => b"GET /li",
            _ => b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nX-",
        };
        stream.write_all(said).await.unwrap();
        clients.push(stream);
    }
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
    // All of them are closed by the server, without having said a whole request.
    for mut stream in clients {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
        assert!(!rest.starts_with(b"HTTP/1.1 200"));
    }
    server.until("voce_connections", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encoders_side_by_side() {
    let server = Arc::new(Setup { speak_slots: 8, ..Default::default() }.start().await);
    let mut tasks = Vec::new();
    for i in 0..24 {
        let format = ["mp3", "opus", "flac", "wav"][i % 4];
        let server = server.clone();
        tasks.push(tokio::spawn(async move {
            let body = json!({"input": "Hello there.", "response_format": format, "seed": 1});
            let said = async {
                loop {
                    let reply = server.post("/v1/audio/speech", &body).await;
                    if reply.status == StatusCode::OK {
                        return (format, reply.body);
                    }
                    assert_eq!(reply.error(), "busy");
                }
            };
            within("a free slot", server.addr, said).await
        }));
    }
    let mut seen = HashSet::new();
    for task in tasks {
        let (format, body) = task.await.unwrap();
        // Ogg pages carry a serial number of their own.
        if format != "opus" {
            seen.insert((format, body));
        }
    }
    assert_eq!(seen.len(), 3, "each format gives the same bytes each time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_controls_cost_nothing() {
    let server = start().await;
    // Markers, commits and finals, thousands of them, with and without audio between them: all are answered in order.
    let socket = server.socket("/api/asr-streaming").await;
    let pack = |v: Value| rmp_serde::to_vec_named(&v).unwrap();
    let (mut sink, mut stream) = socket.0.split();
    let sent = tokio::spawn(async move {
        for id in 0..2_000 {
            if id % 3 == 0 {
                sink.send(Message::binary(pack(json!({"type": "Audio", "pcm": [0.0, 0.0]})))).await.unwrap();
            }
            sink.send(Message::binary(pack(json!({"type": "Marker", "id": id})))).await.unwrap();
        }
        sink
    });
    let mut next = 0;
    while next < 2_000 {
        let message = stream.next().await.expect("a message").expect("no error");
        let Message::Binary(bytes) = message else { continue };
        let message: Value = rmp_serde::from_slice(&bytes).unwrap();
        if message["type"] == "Marker" {
            assert_eq!(message["id"], next);
            next += 1;
        }
    }
    drop((sent.await.unwrap(), stream));
    let socket = server.socket("/v1/realtime").await;
    let (mut sink, mut stream) = socket.0.split();
    let sent = tokio::spawn(async move {
        for _ in 0..500 {
            let append = json!({"type": "input_audio_buffer.append", "audio": "AAAA"});
            sink.send(Message::text(append.to_string())).await.unwrap();
            sink.send(Message::text("{\"type\": \"input_audio_buffer.commit\"}")).await.unwrap();
        }
        sink
    });
    let (mut committed, mut completed) = (Vec::new(), Vec::new());
    while completed.len() < 500 {
        let message = stream.next().await.expect("a message").expect("no error");
        let Message::Text(text) = message else { continue };
        let event: Value = serde_json::from_str(&text).unwrap();
        match event["type"].as_str().unwrap() {
            "input_audio_buffer.committed" => committed.push(event["item_id"].clone()),
            "conversation.item.input_audio_transcription.completed" => {
                completed.push(event["item_id"].clone())
            }
            "session.created" => {}
            other => panic!("{other}: {event}"),
        }
    }
    assert_eq!(committed, completed);
    drop((sent.await.unwrap(), stream));
    let mut socket = server.socket("/v1/listen?encoding=linear16&sample_rate=16000").await;
    for _ in 0..500 {
        socket.text("{\"type\": \"Finalize\"}").await;
        socket.text("{\"type\": \"KeepAlive\"}").await;
    }
    drop(socket);
    server.until(LISTENING, 0.0).await;
}
