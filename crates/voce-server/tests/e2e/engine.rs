//! The engine's own recogniser behind the protocols, with random weights: what it hears there is what it hears alone.

use std::sync::Arc;

use serde_json::{Value, json};
use voce_engine::listener::{ListenEvent, ListenRequest, Listener, ListenerOptions};

use crate::listening::{audio, wav};
use crate::server::{Part, Setup};

fn open() -> Listener {
    let options = ListenerOptions::default().with_threads(1).with_slots(6);
    Listener::random("nano-ear", 3, &options).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_hear_what_one_hears_alone() {
    let alone = {
        let listener = open();
        let (mut sender, stream) = listener.listen(&ListenRequest::default()).unwrap();
        let samples: Vec<f32> =
            audio("#.##.", 16_000).iter().map(|s| (s * 32767.0) as i16 as f32 / 32768.0).collect();
        sender.push(&samples).unwrap();
        sender.finish();
        let finals = stream.filter_map(|e| match e.unwrap() {
            ListenEvent::Final(segment) => Some(segment.text),
            _ => None,
        });
        finals.collect::<Vec<_>>().join(" ")
    };
    let setup =
        Setup { speak: false, listen: vec![Box::new(|| Ok(open()))], hear_slots: 4, ..Default::default() };
    let server = Arc::new(setup.start().await);
    let file = Arc::new(wav("#.##.", 16_000));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (server, file) = (server.clone(), file.clone());
        tasks.push(tokio::spawn(async move {
            let mut texts = Vec::new();
            for _ in 0..2 {
                let fields = [("model", Part::Text("whisper-1")), ("file", Part::File("a.wav", &file))];
                texts.push(server.form("/v1/audio/transcriptions", &fields).await.json()["text"].clone());
            }
            texts
        }));
    }
    for task in tasks {
        for text in task.await.unwrap() {
            assert_eq!(text.as_str().unwrap().trim(), alone.trim());
        }
    }
    // And live, with a marker at the end.
    let mut socket = server.socket("/api/asr-streaming").await;
    let next = |bytes: bytes::Bytes| rmp_serde::from_slice::<Value>(&bytes).unwrap();
    assert_eq!(next(socket.next_binary().await)["type"], "Ready");
    for pcm in audio("#.", 24_000).chunks(1920) {
        socket.binary(rmp_serde::to_vec_named(&json!({"type": "Audio", "pcm": pcm})).unwrap()).await;
    }
    socket.binary(rmp_serde::to_vec_named(&json!({"type": "Marker", "id": 3})).unwrap()).await;
    loop {
        let message = next(socket.next_binary().await);
        if message["type"] == "Marker" {
            assert_eq!(message["id"], 3);
            break;
        }
    }
}
