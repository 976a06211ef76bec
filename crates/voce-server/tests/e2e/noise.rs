//! Random messages, in any order, on every socket: each gets an answer or an end, and the server stays as it was.

use std::sync::Arc;

use futures_util::{SinkExt as _, StreamExt as _};
use hyper::StatusCode;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::counter::Counter;
use crate::server::Setup;

const CASES: usize = 60;

/// What clients say, and what they should not.
fn message() -> impl Strategy<Value = Message> {
    let kinds = prop::sample::select(vec![
        "session.update",
        "transcription_session.update",
        "input_audio_buffer.append",
        "input_audio_buffer.commit",
        "input_audio_buffer.clear",
        "KeepAlive",
        "Finalize",
        "CloseStream",
        "Init",
        "Audio",
        "OggOpus",
        "Marker",
        "Text",
        "Eos",
        "Voice",
        "nothing",
        "",
    ]);
    let values = prop_oneof![
        Just(json!(null)),
        any::<i64>().prop_map(|n| json!(n)),
        any::<f64>().prop_map(|n| json!(n)),
        "[A-Za-z0-9+/=]{0,40}".prop_map(|s| json!(s)),
        Just(json!({"type": "transcription", "audio": {"input": {"turn_detection": null}}})),
        Just(json!([0.0, 0.5, -1e30])),
        Just(json!([1, 2, 300])),
        Just(json!("T2dnUwAC")),
    ];
    let names = prop::sample::select(vec![
        "audio", "session", "pcm", "data", "id", "text", "final", "model", "shape",
    ]);
    let fields = prop::collection::vec((names, values), 0..4);
    let object = (kinds, fields).prop_map(|(kind, fields)| {
        let mut object = json!({"type": kind});
        for (name, value) in fields {
            object[name] = value;
        }
        object
    });
    prop_oneof![
        4 => object.clone().prop_map(|o| Message::text(o.to_string())),
        4 => object.prop_map(|o| Message::binary(rmp_serde::to_vec_named(&o).unwrap())),
        2 => prop::collection::vec(any::<u8>(), 0..64).prop_map(Message::binary),
        1 => ".{0,40}".prop_map(Message::text),
        1 => prop::collection::vec(any::<u8>(), 0..20).prop_map(|p| Message::Ping(p.into())),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_messages_do_no_harm() {
    let setup = Setup {
        hear: Some(Arc::new(Counter::default())),
        hear_slots: 8,
        speak_slots: 8,
        ..Default::default()
    };
    let server = setup.start().await;
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let paths = [
        "/v1/realtime?intent=transcription",
        "/api/asr-streaming",
        "/api/tts_streaming?format=PcmMessagePack",
        "/v1/listen?encoding=linear16&interim_results=true",
        "/v1/listen",
        "/v2/decode/stream/x",
    ];
    let talk = prop::collection::vec(message(), 1..12);
    for case in 0..CASES {
        let messages = talk.new_tree(&mut runner).unwrap().current();
        let path = paths[case % paths.len()];
        let mut socket = server.socket(path).await.0;
        for message in messages {
            // A server that has closed takes no more.
            if socket.send(message).await.is_err() {
                break;
            }
        }
        let _ = socket.close(None).await;
        while let Some(Ok(_)) = socket.next().await {}
    }
    server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
    server.until("voce_streams_active{kind=\"speech\"}", 0.0).await;
    assert_eq!(server.get("/livez").await.status, StatusCode::OK);
    assert_eq!(server.metric("voce_errors_total{type=\"internal\"}").await, 0.0);
    let speech = server.post("/v1/audio/speech", &json!({"input": "Hi.", "response_format": "pcm"})).await;
    assert_eq!(speech.status, StatusCode::OK);
}
