//! Wyoming on its own port.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use voce_audio::RawEncoding;
use voce_audio::encode::encode_raw;
use voce_audio::wav::put_s16le;
use voce_server::ServerOptions;

use crate::counter::Counter;
use crate::listening::audio;
use crate::patience::TcpStream;
use crate::server::{Running, Setup};

/// A client of Wyoming's.
pub(crate) struct Client(BufReader<TcpStream>);

async fn start() -> (Running, Client) {
    let options =
        ServerOptions { wyoming: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..Default::default() };
    let server =
        Setup { options, hear: Some(Arc::new(Counter::default())), ..Default::default() }.start().await;
    let client = connect(&server).await;
    (server, client)
}

pub(crate) async fn connect(server: &Running) -> Client {
    Client(BufReader::new(TcpStream::connect(server.wyoming.unwrap()).await.unwrap()))
}

impl Client {
    pub(crate) async fn send(&mut self, kind: &str, data: Value, payload: &[u8]) {
        let data = data.to_string();
        let head = json!({"type": kind, "data_length": data.len(), "payload_length": payload.len()});
        self.0.write_all(format!("{head}\n{data}").as_bytes()).await.unwrap();
        self.0.write_all(payload).await.unwrap();
    }

    pub(crate) async fn next(&mut self) -> Option<(String, Value, Vec<u8>)> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await.unwrap() == 0 {
            return None;
        }
        let head: Value = serde_json::from_str(&line).unwrap();
        let mut data = vec![0; head["data_length"].as_u64().unwrap_or(0) as usize];
        self.0.read_exact(&mut data).await.unwrap();
        let mut payload = vec![0; head["payload_length"].as_u64().unwrap_or(0) as usize];
        self.0.read_exact(&mut payload).await.unwrap();
        let data = if data.is_empty() { Value::Null } else { serde_json::from_slice(&data).unwrap() };
        Some((head["type"].as_str().unwrap().to_owned(), data, payload))
    }
}

#[tokio::test]
async fn describes_itself() {
    let (_server, mut client) = start().await;
    client.0.write_all(b"{\"type\": \"describe\"}\n").await.unwrap();
    let (kind, info, _) = client.next().await.unwrap();
    assert_eq!(kind, "info");
    assert_eq!(info["asr"][0]["models"][0]["name"], "counter");
    assert_eq!(info["asr"][0]["supports_transcript_streaming"], true);
    assert_eq!(info["tts"][0]["voices"][0]["name"], "voice");
    client.send("ping", json!({"text": "x"}), &[]).await;
    assert_eq!(client.next().await.unwrap().0, "pong");
}

#[tokio::test]
async fn transcribes() {
    let (_server, mut client) = start().await;
    let mut pcm = Vec::new();
    put_s16le(&audio("##.#", 16_000), &mut pcm);
    let format = json!({"rate": 16_000, "width": 2, "channels": 1});
    for _ in 0..2 {
        client.send("transcribe", json!({"language": "en"}), &[]).await;
        client.send("audio-start", format.clone(), &[]).await;
        for chunk in pcm.chunks(2_048) {
            client.send("audio-chunk", format.clone(), chunk).await;
        }
        client.send("audio-stop", json!({}), &[]).await;
        let mut chunks = String::new();
        assert_eq!(client.next().await.unwrap().0, "transcript-start");
        loop {
            let (kind, data, _) = client.next().await.unwrap();
            match kind.as_str() {
                "transcript-chunk" => chunks.push_str(data["text"].as_str().unwrap()),
                "transcript" => {
                    assert_eq!(data["text"], "w1 w2 w3");
                    break;
                }
                other => panic!("{other}"),
            }
        }
        assert_eq!(chunks, "w1 w2 w3 ");
        assert_eq!(client.next().await.unwrap().0, "transcript-stop");
    }
}

#[tokio::test]
async fn samples_are_integers_of_any_width() {
    let (_server, mut client) = start().await;
    let samples = audio("##.#", 16_000);
    for (width, encoding) in [(1, RawEncoding::S8), (3, RawEncoding::S24le), (4, RawEncoding::S32le)] {
        let mut pcm = Vec::new();
        encode_raw(&samples, encoding, &mut pcm);
        let format = json!({"rate": 16_000, "width": width, "channels": 1});
        client.send("audio-start", format.clone(), &[]).await;
        // Pieces that cut samples.
        for chunk in pcm.chunks(2_051) {
            client.send("audio-chunk", format.clone(), chunk).await;
        }
        client.send("audio-stop", json!({}), &[]).await;
        loop {
            let (kind, data, _) = client.next().await.unwrap();
            match kind.as_str() {
                "transcript" => assert_eq!(data["text"], "w1 w2 w3", "{width}"),
                "transcript-stop" => break,
                "transcript-start" | "transcript-chunk" => {}
                other => panic!("{other}: {data}"),
            }
        }
    }
    client.send("audio-start", json!({"rate": 16_000, "width": 5, "channels": 1}), &[]).await;
    let (kind, data, _) = client.next().await.unwrap();
    assert!(kind == "error" && data["text"].as_str().unwrap().contains("width of 5 bytes"), "{kind} {data}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speaks_whole_and_streamed_text() {
    let (_server, mut client) = start().await;
    client.send("synthesize", json!({"text": "Hello there.", "voice": {"name": "nobody"}}), &[]).await;
    let (kind, format, _) = client.next().await.unwrap();
    assert_eq!((kind.as_str(), &format["rate"]), ("audio-start", &json!(2400)));
    let mut bytes = 0;
    loop {
        let (kind, _, payload) = client.next().await.unwrap();
        if kind == "audio-stop" {
            break;
        }
        assert_eq!(kind, "audio-chunk");
        bytes += payload.len();
    }
    assert!(bytes >= 384);
    client.send("synthesize-start", json!({}), &[]).await;
    for piece in ["Hello ", "there. ", "And ", "you."] {
        client.send("synthesize-chunk", json!({"text": piece}), &[]).await;
    }
    client.send("synthesize", json!({"text": "Hello there. And you."}), &[]).await;
    client.send("synthesize-stop", json!({}), &[]).await;
    let mut kinds = Vec::new();
    loop {
        let (kind, ..) = client.next().await.unwrap();
        let done = kind == "synthesize-stopped";
        kinds.push(kind);
        if done {
            break;
        }
    }
    assert_eq!(kinds.first().unwrap(), "audio-start");
    assert!(kinds.iter().any(|k| k == "audio-chunk"));
    assert_eq!(kinds[kinds.len() - 2], "audio-stop");
}

#[tokio::test]
async fn what_is_not_wyoming() {
    let (server, _client) = start().await;
    for bad in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"[]\n".to_vec(),
        b"{}\n".to_vec(),
        b"{\"type\": \"audio-chunk\", \"payload_length\": 99999999999}\n".to_vec(),
        b"{\"type\": \"audio-chunk\", \"payload_length\": -1}\n".to_vec(),
        b"{\"type\": \"x\", \"data_length\": 3}\nabc".to_vec(),
        vec![b'x'; 65_536],
    ] {
        let mut client = connect(&server).await;
        client.0.write_all(&bad).await.unwrap();
        assert_eq!(client.next().await.unwrap().0, "error", "{:?}", &bad[..10.min(bad.len())]);
        assert!(client.next().await.is_none());
    }
    let mut client = connect(&server).await;
    // Chunks without a start, a bad rate, and a wrong order do no harm.
    client.send("audio-chunk", json!({}), &[1, 2, 3]).await;
    client.send("audio-stop", json!({}), &[]).await;
    client.send("audio-start", json!({"rate": 0, "width": 2, "channels": 1}), &[]).await;
    assert_eq!(client.next().await.unwrap().0, "error");
    client.send("synthesize", json!({"text": ""}), &[]).await;
    assert_eq!(client.next().await.unwrap().0, "error");
    client.send("ping", json!({}), &[]).await;
    assert_eq!(client.next().await.unwrap().0, "pong");
}
