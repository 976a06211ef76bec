//! Kyutai's speech behind moshi-server's route, small and with random weights: words with their own times, voices in files
//! and voices that clients send.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;
use voce_engine::{Speaker, SpeakerOptions};
use voce_nn::weights::SafetensorsFile;
use voce_nn::{Precision, Weights as _};

use crate::server::{OpenVoice, Running, Setup};

const TEXT: &str = "hello there, this is a tiny test";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/kyutai/say")
}

async fn start() -> Running {
    let open: OpenVoice = Box::new(|store| {
        let options =
            SpeakerOptions::default().with_precision(Some(Precision::F32)).with_threads(1).with_slots(2);
        Speaker::open(store, folder().to_str().unwrap(), &options)
    });
    Setup { voices: vec![open], whole: true, ..Default::default() }.start().await
}

fn pack(value: &Value) -> Vec<u8> {
    rmp_serde::to_vec_named(value).unwrap()
}

#[derive(Deserialize)]
struct Heard {
    r#type: String,
    #[serde(default)]
    pcm: Vec<f32>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    start_s: f64,
    #[serde(default)]
    stop_s: f64,
}

/// Samples, and words with their times.
type Said = (Vec<f32>, Vec<(String, f64, f64)>);

/// Speaks the text word by word, after a first message where there is one.
async fn say(server: &Running, query: &str, first: Option<Value>) -> Said {
    say_and(server, query, first, &[]).await
}

/// The same, with messages after the end of the text.
async fn say_and(server: &Running, query: &str, first: Option<Value>, after: &[Value]) -> Said {
    let path = format!("/api/tts_streaming?format=PcmMessagePack&temperature=0&seed=1{query}");
    let mut socket = server.socket(&path).await;
    if let Some(first) = first {
        socket.binary(pack(&first)).await;
    }
    for word in TEXT.split(' ') {
        socket.binary(pack(&json!({"type": "Text", "text": word}))).await;
    }
    socket.binary(pack(&json!({"type": "Eos"}))).await;
    for message in after {
        socket.binary(pack(message)).await;
    }
    let (mut samples, mut words) = (Vec::new(), Vec::new());
    loop {
        match socket.next().await {
            Message::Binary(bytes) => {
                let heard: Heard = rmp_serde::from_slice(&bytes).unwrap();
                match heard.r#type.as_str() {
                    "Audio" => samples.extend(heard.pcm),
                    "Text" => words.push((heard.text, heard.start_s, heard.stop_s)),
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_have_the_times_at_which_they_are_spoken() {
    let server = start().await;
    let (samples, words) = say(&server, "", None).await;
    let texts: Vec<&str> = words.iter().map(|(text, ..)| text.as_str()).collect();
    assert_eq!(texts, TEXT.split(' ').collect::<Vec<_>>());
    let seconds = samples.len() as f64 / 24_000.0;
    for pair in words.windows(2) {
        assert!(pair[0].1 < pair[1].1, "{words:?}");
    }
    for (text, start, stop) in &words {
        assert!(start <= stop && *start <= seconds, "{text}: {start} to {stop} of {seconds}");
        // Times are whole steps of the model, and no guesses by letters.
        assert!((start / 0.08 - (start / 0.08).round()).abs() < 1e-6, "{start}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voice_that_is_sent_is_the_one_of_its_file() {
    let server = start().await;
    let file = SafetensorsFile::open(&folder().join("voices/ben.wav.abcd@7.safetensors")).unwrap();
    let rows = file.get("speaker_wavs", &[]).unwrap().unwrap();
    let voice = json!({"type": "Voice", "embeddings": rows.values, "shape": rows.shape});
    let anna = say(&server, "&voice=anna.wav", None).await.0;
    let ben = say(&server, "&voice=ben.wav", None).await.0;
    assert_ne!(anna, ben);
    assert_eq!(say(&server, "&voice=anna.wav", Some(voice)).await.0, ben);
    // What is no voice of this model leaves the one that was asked for.
    for bad in [
        json!({"type": "Voice", "embeddings": [0.5], "shape": [1, 1, 1]}),
        json!({"type": "Voice", "embeddings": [0.5, 0.5], "shape": [1000, 1000]}),
        json!({"type": "Voice", "embeddings": [], "shape": []}),
    ] {
        assert_eq!(say(&server, "&voice=anna.wav", Some(bad)).await.0, anna);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_after_the_end_are_not_spoken() {
    let server = start().await;
    let plain = say(&server, "", None).await;
    let late = |n: usize| vec![json!({"type": "Text", "text": "late"}); n];
    for after in [late(1), late(200), vec![json!({"type": "Eos"}), json!({"type": "Text", "text": "late"})]] {
        assert_eq!(say_and(&server, "", None, &after).await, plain);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_to_say_is_the_end_and_no_error() {
    let server = start().await;
    for text in ["\u{1f600}", "<b></b>"] {
        let mut socket = server.socket("/api/tts_streaming?format=PcmMessagePack").await;
        socket.binary(pack(&json!({"type": "Text", "text": text}))).await;
        socket.binary(pack(&json!({"type": "Eos"}))).await;
        let Message::Binary(ready) = socket.next().await else { panic!("{text}") };
        assert_eq!(rmp_serde::from_slice::<Heard>(&ready).unwrap().r#type, "Ready");
        let Message::Close(frame) = socket.next().await else { panic!("{text}") };
        assert_eq!(frame.map(|f| u16::from(f.code)), Some(1000), "{text}");
    }
}
