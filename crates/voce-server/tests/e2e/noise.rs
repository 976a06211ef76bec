//! Random messages, right ones and wrong ones in any order, on every socket and on Wyoming's port: each conversation is
//! answered or ended, and the server stays as it was. `VOCE_NOISE_MESSAGES` asks for more of them, `VOCE_NOISE_SEED` for others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Message;
use voce_server::ServerOptions;

use crate::counter::Counter;
use crate::dice::Dice;
use crate::listening::audio;
use crate::patience::TcpStream;
use crate::server::{Running, Setup};

/// Messages of a run that nobody asked to be longer.
const MESSAGES: usize = 3_000;
/// Messages of the longest conversation.
const LONGEST: usize = 24;
/// How long an answer may take; far more than it does.
const PATIENCE: Duration = Duration::from_secs(30);
/// Conversations side by side.
const SIDE_BY_SIDE: usize = 4;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// A value of any type, with a taste for the extremes.
fn value(dice: &mut Dice) -> Value {
    match dice.below(14) {
        0 => Value::Null,
        1 => json!(dice.next() as i64),
        2 => json!(i64::MIN),
        3 => json!(u64::MAX),
        4 => json!(f64::MAX),
        5 => json!(-0.0),
        6 => json!(""),
        7 => json!(dice.text(40)),
        8 => json!([]),
        9 => json!([0.0, 1e300, -1]),
        10 => json!({}),
        11 => json!(true),
        12 => json!("\u{0}\u{ffff}\u{202e}"),
        _ => json!(24_000),
    }
}

/// Now and then, a field is another one, or gone.
fn spoil(dice: &mut Dice, mut object: Value) -> Value {
    if let Some(map) = object.as_object_mut()
        && dice.one_in(4)
    {
        let names: Vec<String> = map.keys().cloned().collect();
        if let Some(name) = names.get(dice.below(names.len().max(1))) {
            if dice.one_in(3) {
                map.remove(name);
            } else {
                let value = value(dice);
                map.insert(name.clone(), value);
            }
        }
    }
    object
}

fn pcm(dice: &mut Dice) -> Vec<u8> {
    let length = dice.below(4_000);
    dice.bytes(length)
}

fn realtime(dice: &mut Dice) -> Value {
    match dice.below(9) {
        0 => {
            let mut input = json!({
                "format": {"type": *dice.pick(&["audio/pcm", "audio/pcmu", "audio/pcma", "audio/mp3"]), "rate": *dice.pick(&[8_000, 24_000, 48_000, 0, -1])},
                "transcription": {"model": *dice.pick(&["whisper-1", "none", ""]), "language": "en"},
                "turn_detection": {"type": "server_vad", "silence_duration_ms": *dice.pick(&[500i64, 80, 0, -5, 1 << 40])},
            });
            if dice.one_in(3) {
                input["turn_detection"] = Value::Null;
            }
            json!({"type": "session.update", "session": spoil(dice, json!({"type": "transcription", "audio": {"input": input}}))})
        }
        1 => {
            json!({"type": "transcription_session.update", "session": spoil(dice, json!({"input_audio_format": "g711_ulaw"}))})
        }
        2 => json!({"type": "session.update", "model": "whisper-1"}),
        3 | 4 => json!({"type": "input_audio_buffer.append", "audio": BASE64.encode(pcm(dice))}),
        5 => json!({"type": "input_audio_buffer.append", "audio": dice.text(60)}),
        6 => json!({"type": "input_audio_buffer.commit"}),
        7 => json!({"type": "input_audio_buffer.commit", "final": dice.one_in(2)}),
        _ => json!({"type": "input_audio_buffer.clear"}),
    }
}

fn moshi(dice: &mut Dice, speaks: bool) -> Vec<u8> {
    let pattern = *dice.pick(&["#", ".", ""]);
    let message = match (dice.below(6), speaks) {
        (0, false) => json!({"type": "Init"}),
        (1 | 2, false) => json!({"type": "Audio", "pcm": audio(pattern, 24_000)}),
        (3, false) => json!({"type": "Marker", "id": value(dice)}),
        (4, false) => json!({"type": "OggOpus", "data": dice.bytes(60)}),
        (0, true) => json!({"type": "Eos"}),
        (1, true) => json!({"type": "Voice", "embeddings": [0.5], "shape": [1, 1, value(dice)]}),
        (_, true) => json!({"type": "Text", "text": dice.text(30)}),
        _ => json!({"type": dice.text(8)}),
    };
    rmp_serde::to_vec_named(&spoil(dice, message)).unwrap()
}

/// What somebody on this path might say next.
fn message(dice: &mut Dice, path: &str) -> Message {
    let mut bytes = match path {
        p if p.starts_with("/v1/realtime") => {
            let event = realtime(dice);
            spoil(dice, event).to_string().into_bytes()
        }
        p if p.starts_with("/api/") => moshi(dice, p.contains("tts")),
        p if p.starts_with("/v1/listen") && dice.one_in(2) => {
            let kind = *dice.pick(&["KeepAlive", "Finalize", "CloseStream", "Configure", ""]);
            spoil(dice, json!({"type": kind})).to_string().into_bytes()
        }
        _ => match dice.below(4) {
            0 => vec![dice.next() as u8],
            1 => Vec::new(),
            _ => pcm(dice),
        },
    };
    // A message may be broken on its way.
    if dice.one_in(8) {
        dice.break_bytes(&mut bytes);
    }
    let is_text = path.starts_with("/v1/realtime") || bytes.first() == Some(&b'{');
    match (dice.below(20), String::from_utf8(bytes)) {
        (0, text) => Message::Ping(
            text.map_or_else(|e| e.into_bytes(), String::into_bytes).into_iter().take(125).collect(),
        ),
        (1, Ok(text)) => Message::binary(text.into_bytes()),
        (_, Ok(text)) if is_text => Message::text(text),
        (_, Ok(text)) => Message::binary(text.into_bytes()),
        (_, Err(bytes)) => Message::binary(bytes.into_bytes()),
    }
}

const PATHS: [&str; 9] = [
    "/v1/realtime?intent=transcription",
    "/v1/realtime",
    "/api/asr-streaming",
    "/api/asr-streaming",
    "/api/tts_streaming?format=PcmMessagePack",
    "/v1/listen?encoding=linear16&interim_results=true&vad_events=true&utterance_end_ms=500",
    "/v1/listen?encoding=mulaw&sample_rate=8000",
    "/v1/listen",
    "/v2/decode/stream/x",
];

/// A conversation on a WebSocket; it ends with a ping that is answered, or with the end of the socket.
async fn converse(server: &Running, dice: &mut Dice, messages: usize) {
    let path = *dice.pick(&PATHS);
    let (mut sink, mut stream) = server.socket(path).await.0.split();
    let mut said: Vec<Message> = (0..messages).map(|_| message(dice, path)).collect();
    let last = b"the last word".to_vec();
    said.push(Message::Ping(last.clone().into()));
    let sending = async {
        for message in said {
            // A server that has closed takes no more.
            if sink.send(message).await.is_err() {
                break;
            }
        }
    };
    let reading = async {
        loop {
            match stream.next().await {
                Some(Ok(Message::Pong(payload))) if payload == last => break,
                Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                Some(Ok(_)) => {}
            }
        }
    };
    tokio::join!(sending, reading);
    // Some say goodbye and some do not.
    if dice.one_in(2) {
        let _ = sink.send(Message::Close(None)).await;
        while let Some(Ok(_)) = stream.next().await {}
    }
}

fn event(dice: &mut Dice) -> Vec<u8> {
    let format = json!({"rate": *dice.pick(&[16_000, 22_050, 0, -1]), "width": *dice.pick(&[2, 1, 4, 9]), "channels": *dice.pick(&[1, 2, 0])});
    let (kind, data, payload) = match dice.below(12) {
        0 => ("describe", json!({}), Vec::new()),
        1 => ("ping", json!({"text": dice.text(10)}), Vec::new()),
        2 => ("transcribe", json!({"language": "en", "name": dice.text(5)}), Vec::new()),
        3 | 4 => ("audio-start", json!({"rate": 16_000, "width": 2, "channels": 1}), Vec::new()),
        5 => ("audio-start", format, Vec::new()),
        6 | 7 => ("audio-chunk", format, pcm(dice)),
        8 => ("audio-stop", json!({}), Vec::new()),
        9 => ("synthesize", json!({"text": dice.text(20), "voice": {"name": dice.text(4)}}), Vec::new()),
        10 => (
            *dice.pick(&["synthesize-start", "synthesize-chunk", "synthesize-stop"]),
            json!({"text": "Hello there."}),
            Vec::new(),
        ),
        _ => ("run-satellite", json!({}), dice.bytes(10)),
    };
    let data = spoil(dice, data).to_string();
    let head =
        json!({"type": kind, "version": "1.7", "data_length": data.len(), "payload_length": payload.len()});
    let mut bytes = spoil(dice, head).to_string().into_bytes();
    bytes.push(b'\n');
    bytes.extend(data.bytes());
    bytes.extend(payload);
    if dice.one_in(12) {
        dice.break_bytes(&mut bytes);
    }
    bytes
}

/// A conversation with Wyoming; whatever was said, it ends soon after the client has no more to say.
async fn converse_in_wyoming(server: &Running, dice: &mut Dice, messages: usize) {
    let stream = TcpStream::connect(server.wyoming.unwrap()).await.unwrap();
    let said: Vec<Vec<u8>> = (0..messages).map(|_| event(dice)).collect();
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        for event in said {
            if write.write_all(&event).await.is_err() {
                break;
            }
        }
        let _ = write.shutdown().await;
    };
    let reading = async {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(1..) = read.read(&mut buffer).await {}
    };
    tokio::join!(sending, reading);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_messages_do_no_harm() {
    let options =
        ServerOptions { wyoming: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..Default::default() };
    let setup = Setup {
        options,
        hear: Some(Arc::new(Counter::default())),
        hear_slots: SIDE_BY_SIDE,
        speak_slots: SIDE_BY_SIDE,
        ..Default::default()
    };
    let server = Arc::new(setup.start().await);
    let (total, seed) = (setting("VOCE_NOISE_MESSAGES", MESSAGES), setting("VOCE_NOISE_SEED", 1));
    let mut tasks = Vec::new();
    for part in 0..SIDE_BY_SIDE {
        let server = server.clone();
        tasks.push(tokio::spawn(async move {
            let mut sent = 0;
            for number in 0.. {
                if sent >= total / SIDE_BY_SIDE {
                    break;
                }
                // Each conversation can be had again by its number.
                let mut dice = Dice::new((seed as u64) << 40 | (part as u64) << 32 | number);
                let messages = 1 + dice.below(LONGEST);
                sent += messages;
                let done = tokio::time::timeout(PATIENCE, async {
                    if dice.one_in(4) {
                        converse_in_wyoming(&server, &mut dice, messages).await;
                    } else {
                        converse(&server, &mut dice, messages).await;
                    }
                });
                assert!(done.await.is_ok(), "conversation {number} of part {part}, seed {seed}, has no end");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
    server.until("voce_streams_active{kind=\"speech\"}", 0.0).await;
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
    assert_eq!(server.metric("voce_errors_total{type=\"internal\"}").await, 0.0);
    let speech = server.post("/v1/audio/speech", &json!({"input": "Hi.", "response_format": "pcm"})).await;
    assert_eq!(speech.status, StatusCode::OK);
}
