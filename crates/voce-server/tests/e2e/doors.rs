//! Families behind doors that other tests open for other models: Wyoming and moshi-server's protocol for Qwen3-TTS, Wyoming
//! and OpenAI's routes for Kyutai's models.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use voce_engine::listener::{Listener, ListenerOptions};
use voce_engine::store::{Settings, Store};
use voce_engine::{Precision, Speaker, SpeakerOptions};
use voce_server::ServerOptions;

use crate::server::{OpenVoice, Part, Running, Setup};
use crate::wyoming::{Client, connect};

const TEXT: &str = "hello there, this is a tiny test";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures").join(name)
}

fn with_wyoming() -> ServerOptions {
    ServerOptions { wyoming: Some(SocketAddr::from(([127, 0, 0, 1], 0))), ..Default::default() }
}

/// A server that speaks with a small model.
async fn speaking(name: &'static str, whole: bool) -> Running {
    let open: OpenVoice = Box::new(move |store| {
        let options =
            SpeakerOptions::default().with_precision(Some(Precision::F32)).with_threads(1).with_slots(2);
        Speaker::open(store, fixture(name).to_str().unwrap(), &options)
    });
    Setup { options: with_wyoming(), voices: vec![open], whole, ..Default::default() }.start().await
}

/// The rate and the samples of speech until an event of a kind.
async fn heard(client: &mut Client, last: &str) -> (u64, Vec<u8>) {
    let (mut rate, mut pcm) = (0, Vec::new());
    loop {
        let (kind, data, payload) = client.next().await.unwrap();
        match kind.as_str() {
            "audio-start" => rate = data["rate"].as_u64().unwrap(),
            "audio-chunk" => pcm.extend(payload),
            kind if kind == last => return (rate, pcm),
            "audio-stop" => {}
            other => panic!("{other}: {data}"),
        }
    }
}

/// Speaks whole and arriving text with a voice, and without one.
async fn through_wyoming(server: &Running, voice: Value, (rate, frame): (u64, usize)) {
    let mut client = connect(server).await;
    for voice in [voice.clone(), Value::Null, json!({"name": "nobody", "language": "tlh"})] {
        client.send("synthesize", json!({"text": TEXT, "voice": voice}), &[]).await;
        let (got, pcm) = heard(&mut client, "audio-stop").await;
        assert_eq!((got, pcm.len() % (2 * frame)), (rate, 0));
        assert!(pcm.len() >= 2 * frame, "{voice}");
    }
    client.send("synthesize-start", json!({"voice": voice}), &[]).await;
    for piece in ["hello ", "there, this ", "is a tiny ", "test."] {
        client.send("synthesize-chunk", json!({"text": piece}), &[]).await;
    }
    client.send("synthesize-stop", json!({}), &[]).await;
    let (got, pcm) = heard(&mut client, "synthesize-stopped").await;
    assert_eq!((got, pcm.len() % (2 * frame)), (rate, 0));
    assert!(pcm.len() >= 2 * frame);
}

/// Voices that Wyoming tells of: names and languages.
async fn described(server: &Running) -> (Vec<String>, Vec<String>) {
    let mut client = connect(server).await;
    client.send("describe", json!({}), &[]).await;
    let (_, info, _) = client.next().await.unwrap();
    let voices = info["tts"][0]["voices"].as_array().unwrap();
    let names = voices.iter().map(|voice| voice["name"].as_str().unwrap().to_owned()).collect();
    (names, serde_json::from_value(voices[0]["languages"].clone()).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qwen_speaks_through_wyoming() {
    let server = speaking("qwen/custom_1b7", false).await;
    let (names, languages) = described(&server).await;
    assert!(names.contains(&"serena".to_owned()), "{names:?}");
    assert!(["zh", "en", "ja"].iter().all(|tag| languages.contains(&(*tag).to_owned())), "{languages:?}");
    through_wyoming(&server, json!({"name": "Serena", "language": "ja-JP"}), (2400, 192)).await;
    through_wyoming(&server, json!({"speaker": "aiden"}), (2400, 192)).await;
    // Text beside the frames, without a voice of its own.
    let server = speaking("qwen/base_1b7", false).await;
    through_wyoming(&server, Value::Null, (24_000, 1920)).await;
}

#[derive(Deserialize)]
struct Said {
    r#type: String,
    #[serde(default)]
    pcm: Vec<f32>,
    #[serde(default)]
    text: String,
}

/// Words through moshi-server's protocol: samples at 24 kHz, and the words that were told.
async fn through_moshi(server: &Running, query: &str) -> (Vec<f32>, Vec<String>) {
    let pack = |value: &Value| rmp_serde::to_vec_named(value).unwrap();
    let path = format!("/api/tts_streaming?format=PcmMessagePack&temperature=0&seed=1{query}");
    let mut socket = server.socket(&path).await;
    for word in TEXT.split(' ') {
        socket.binary(pack(&json!({"type": "Text", "text": word}))).await;
    }
    socket.binary(pack(&json!({"type": "Eos"}))).await;
    let (mut samples, mut words) = (Vec::new(), Vec::new());
    loop {
        match socket.next().await {
            Message::Binary(bytes) => {
                let said: Said = rmp_serde::from_slice(&bytes).unwrap();
                match said.r#type.as_str() {
                    "Audio" => samples.extend(said.pcm),
                    "Text" => words.push(said.text),
                    "Ready" => {}
                    other => panic!("{other}: {}", String::from_utf8_lossy(&bytes)),
                }
            }
            Message::Close(frame) => {
                assert_eq!(frame.map(|f| u16::from(f.code)), Some(1000));
                return (samples, words);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// 16-bit samples of OpenAI's route.
async fn through_openai(server: &Running, extra: Value) -> Vec<f32> {
    let mut body = json!({"input": TEXT, "seed": 1, "temperature": 0, "response_format": "pcm"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let reply = server.post("/v1/audio/speech", &body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    reply.body.chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qwen_speaks_moshis_protocol() {
    let server = speaking("qwen/custom_1b7", false).await;
    let (serena, words) = through_moshi(&server, "&voice=serena").await;
    assert_eq!(words, TEXT.split(' ').collect::<Vec<_>>());
    assert_eq!(serena, through_moshi(&server, "&voice=serena&cfg_alpha=1.5").await.0);
    assert_ne!(serena, through_moshi(&server, "&voice=aiden").await.0);
    // As long as what OpenAI's route gives, in whole frames.
    let plain = through_openai(&server, json!({"voice": "serena"})).await;
    assert!(serena.len().abs_diff(plain.len()) < 1920, "{} and {}", serena.len(), plain.len());
    let said = server.post("/api/tts_streaming", &json!({"text": [TEXT, "Yes."], "voice": "serena"})).await;
    assert!(said.body.starts_with(b"RIFF") && said.body.len() > 44 + 2 * 192, "{}", said.body.len());
    let server = speaking("qwen/base_1b7", false).await;
    assert!(through_moshi(&server, "").await.0.len() >= 1920);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kyutais_speech_is_the_same_through_every_door() {
    let server = speaking("kyutai/say", true).await;
    let (anna, _) = through_moshi(&server, "&voice=anna.wav").await;
    let same = through_openai(&server, json!({"voice": "anna.wav"})).await;
    assert_eq!(same.len(), anna.len());
    let worst = same.iter().zip(&anna).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4, "{worst}");
    assert_ne!(same, through_openai(&server, json!({"voice": "ben.wav"})).await);
    let (names, _) = described(&server).await;
    assert!(names.contains(&"anna.wav".to_owned()), "{names:?}");
    through_wyoming(&server, json!({"name": "ben.wav"}), (24_000, 1920)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kyutais_recogniser_hears_through_wyoming() {
    let folder = fixture("kyutai/stt_heads");
    let wav = std::fs::read(folder.join("audio.wav")).unwrap();
    let open = move || {
        let settings = Settings::from_vars(|name| (name == "HOME").then(|| "/nowhere".into())).unwrap();
        let options =
            ListenerOptions::default().with_precision(Some(Precision::F32)).with_threads(1).with_slots(3);
        Listener::open(&Store::new(settings), folder.to_str().unwrap(), &options)
    };
    let setup =
        Setup { options: with_wyoming(), speak: false, listen: vec![Box::new(open)], ..Default::default() };
    let server = setup.start().await;
    let fields = [("model", Part::Text("whisper-1")), ("file", Part::File("a.wav", &wav))];
    let whole = server.form("/v1/audio/transcriptions", &fields).await.json()["text"].clone();
    let mut client = connect(&server).await;
    // As the model hears it, and at other rates: half as many frames, or one more than twice as many.
    for (rate, channels) in [(24_000, 1), (48_000, 1), (24_000, 2), (11_025, 1)] {
        let format = json!({"rate": rate, "width": 2, "channels": channels});
        client.send("transcribe", json!({"language": "en"}), &[]).await;
        client.send("audio-start", format.clone(), &[]).await;
        for chunk in wav[44..].chunks(2_048) {
            client.send("audio-chunk", format.clone(), chunk).await;
        }
        client.send("audio-stop", json!({}), &[]).await;
        let mut chunks = String::new();
        let text = loop {
            let (kind, data, _) = client.next().await.unwrap();
            match kind.as_str() {
                "transcript-start" => {}
                "transcript-chunk" => chunks.push_str(data["text"].as_str().unwrap()),
                "transcript" => break data["text"].as_str().unwrap().to_owned(),
                other => panic!("{other}: {data}"),
            }
        };
        assert_eq!(client.next().await.unwrap().0, "transcript-stop");
        assert!(!text.is_empty() && !chunks.is_empty(), "{rate} Hz, {channels} channels");
        if (rate, channels) == (24_000, 1) {
            assert_eq!(Value::from(text), whole);
        }
    }
}
