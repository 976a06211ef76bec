//! The older RNN-T server's routes.

use hyper::StatusCode;
use serde_json::json;
use voce_audio::wav::put_s16le;

use crate::listening::{audio, start};

fn pcm(pattern: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_s16le(&audio(pattern, 16_000), &mut bytes);
    bytes
}

#[tokio::test]
async fn a_stream() {
    let server = start().await;
    let mut socket = server.socket("/v2/decode/stream/parakeet").await;
    socket.binary(vec![1]).await;
    for part in pcm("##..#").chunks(3_201) {
        socket.binary(part.to_vec()).await;
    }
    socket.binary(vec![0]).await;
    let mut seen = Vec::new();
    loop {
        let m = socket.next_json().await;
        let (status, text) =
            (m["status"].as_str().unwrap().to_owned(), m["transcription"].as_str().unwrap().to_owned());
        let done = status == "Complete";
        seen.push((status, text));
        if done {
            break;
        }
    }
    assert_eq!(seen.first().unwrap(), &("Active".to_owned(), "w1".to_owned()));
    assert!(seen.contains(&("Paused".to_owned(), "w1 w2".to_owned())), "{seen:?}");
    assert_eq!(seen.last().unwrap(), &("Complete".to_owned(), "w1 w2 w3".to_owned()));
    assert_eq!(socket.closed().await.0, 1000);
}

#[tokio::test]
async fn a_batch() {
    let server = start().await;
    let reply =
        server.post("/v2/decode/batch/x", &json!({"audio_buffer": pcm("#.#"), "opaque": {"id": 5}})).await;
    assert_eq!(reply.json()["transcription"], "w1 w2");
    assert_eq!((&reply.json()["status"], &reply.json()["opaque"]["id"]), (&json!("Complete"), &json!(5)));
    for bad in [json!({}), json!({"audio_buffer": [256]}), json!({"audio_buffer": "x"})] {
        assert_eq!(server.post("/v2/decode/batch/x", &bad).await.status, StatusCode::BAD_REQUEST);
    }
    let long = server.post("/v2/decode/batch/x", &json!({"audio_buffer": vec![0u8; 960_002]})).await;
    assert_eq!(long.status, StatusCode::BAD_REQUEST);
}
