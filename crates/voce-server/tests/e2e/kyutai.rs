//! Kyutai's recogniser behind the protocols, small and with random weights: what the published package hears is what
//! clients are told.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use voce_engine::listener::{Listener, ListenerOptions};
use voce_engine::store::{Settings, Store};

use crate::server::{Part, Running, Setup};

/// Samples of a frame.
const FRAME: usize = 1920;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/kyutai/stt_heads")
}

fn open() -> Listener {
    let settings = Settings::from_vars(|name| (name == "HOME").then(|| "/nowhere".into())).unwrap();
    let options =
        ListenerOptions::default().with_precision(Some("f32".parse().unwrap())).with_threads(1).with_slots(3);
    Listener::open(&Store::new(settings), folder().to_str().unwrap(), &options).unwrap()
}

async fn start() -> Running {
    let setup =
        Setup { speak: false, listen: vec![Box::new(|| Ok(open()))], hear_slots: 2, ..Default::default() };
    setup.start().await
}

fn pcm() -> Vec<u8> {
    std::fs::read(folder().join("audio.wav")).unwrap()[44..].to_vec()
}

fn samples() -> Vec<f32> {
    pcm().chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
}

/// Probabilities of the model's heads in every step, as the package computed them.
fn heads() -> Vec<f32> {
    let bytes = std::fs::read(folder().join("dump.safetensors")).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let place = |i: usize| header["heads"]["data_offsets"][i].as_u64().unwrap() as usize;
    let values = data[place(0)..place(1)].chunks_exact(4);
    values.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn pack(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_for_every_frame_words_with_their_ends_and_markers_that_change_nothing() {
    let server = start().await;
    let mut socket = server.socket("/api/asr-streaming").await;
    let heads = heads();
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(folder().join("messages.json")).unwrap()).unwrap();
    let pieces: Vec<Vec<f32>> = samples().chunks(700).map(<[f32]>::to_vec).collect();
    for (i, pcm) in pieces.iter().enumerate() {
        socket.binary(pack(&json!({"type": "Audio", "pcm": pcm}))).await;
        if i == pieces.len() / 2 {
            socket.binary(pack(&json!({"type": "Marker", "id": 40}))).await;
        }
    }
    socket.binary(pack(&json!({"type": "Marker", "id": 41}))).await;
    // Clients send silence until the model has passed the end.
    for _ in 0..20 {
        socket.binary(pack(&json!({"type": "Audio", "pcm": vec![0.0f32; FRAME]}))).await;
    }
    let (mut steps, mut ends, mut starts, mut markers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    while markers.len() < 2 {
        let m: Value = rmp_serde::from_slice(&socket.next_binary().await).unwrap();
        match m["type"].as_str().unwrap() {
            "Ready" => {}
            "Step" => steps.push(m),
            "Word" => starts.push(m["start_time"].as_f64().unwrap()),
            "EndWord" => ends.push(m["stop_time"].as_f64().unwrap()),
            "Marker" => markers.push((m["id"].as_i64().unwrap(), steps.len())),
            other => panic!("{other}: {m}"),
        }
    }
    // After the model's delay of six frames, and 0.4 s.
    let frames = samples().len().div_ceil(FRAME);
    let half = ((pieces.len() / 2 + 1) * 700).div_ceil(FRAME);
    assert_eq!(markers, [(40, half + 11), (41, frames + 11)]);
    for (i, step) in steps.iter().enumerate() {
        assert_eq!(step["step_idx"].as_u64(), Some(i as u64), "one for each frame that was sent");
        assert!(step["buffered_pcm"].is_u64());
        // The package has put silence behind the audio for as long as its delay.
        for (head, p) in step["prs"].as_array().unwrap().iter().enumerate().filter(|_| i < frames + 6) {
            let want = heads[((i + 1) * 4 + head) * 6];
            assert!((p.as_f64().unwrap() - f64::from(want)).abs() < 1e-4, "{p} and {want}");
        }
    }
    let messages = json["messages"].as_array().unwrap().iter();
    let want: Vec<f64> =
        messages.filter(|m| m["type"] == "EndWord").map(|m| m["stop_time"].as_f64().unwrap()).collect();
    assert!(ends.len() >= want.len() && !starts.is_empty());
    assert!(ends.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5), "{ends:?} {want:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_and_live_sessions_of_the_other_protocols() {
    let server = start().await;
    let wav = std::fs::read(folder().join("audio.wav")).unwrap();
    let fields = [("model", Part::Text("whisper-1")), ("file", Part::File("a.wav", &wav))];
    // The small model does not say what it hears.
    let named = [("language", Part::Text("en")), ("file", Part::File("a.wav", &wav))];
    let refused = server.form("/v1/audio/transcriptions", &named).await;
    assert!(refused.error() == "bad_request" && refused.text().contains("config.json"), "{}", refused.text());
    let text = server.form("/v1/audio/transcriptions", &fields).await.json()["text"].clone();
    assert!(!text.as_str().unwrap().is_empty());
    // Realtime, with turns by the model's own guess at pauses.
    let mut socket = server.socket("/v1/realtime?intent=transcription").await;
    assert_eq!(socket.next_json().await["type"], "session.created");
    let update = |detection: Value| {
        let input = json!({"turn_detection": detection});
        json!({"type": "session.update", "session": {"type": "transcription", "audio": {"input": input}}})
    };
    socket.json(update(json!({"type": "semantic_vad", "eagerness": "hasty"}))).await;
    assert_eq!(socket.next_json().await["type"], "error");
    socket.json(update(json!({"type": "semantic_vad", "eagerness": "low"}))).await;
    let updated = socket.next_json().await;
    let detection = &updated["session"]["audio"]["input"]["turn_detection"];
    assert_eq!(*detection, json!({"type": "semantic_vad", "eagerness": "low"}), "{updated}");
    let audio = BASE64.encode(pcm());
    socket.json(json!({"type": "input_audio_buffer.append", "audio": audio})).await;
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    let mut heard = Vec::new();
    loop {
        let event = socket.next_json().await;
        match event["type"].as_str().unwrap() {
            "conversation.item.input_audio_transcription.delta" => {
                heard.push(event["delta"].as_str().unwrap().trim().to_owned());
            }
            "conversation.item.input_audio_transcription.completed" => break,
            _ => {}
        }
    }
    assert!(!heard.is_empty());
    // Deepgram.
    let mut socket = server.socket("/v1/listen?encoding=linear16&sample_rate=24000&channels=1").await;
    socket.binary(pcm()).await;
    socket.json(json!({"type": "CloseStream"})).await;
    let mut words = Vec::new();
    loop {
        let event = socket.next_json().await;
        if event["type"] == "Metadata" {
            break;
        }
        if event["is_final"] == true {
            let text = event["channel"]["alternatives"][0]["transcript"].as_str().unwrap_or_default();
            words.extend(text.split_whitespace().map(str::to_owned));
        }
    }
    assert!(!words.is_empty());
}
