//! A voice model with speakers, languages and instructions, and one that clones with a text, behind the speech routes.

use hyper::StatusCode;
use serde_json::{Value, json};
use voce_engine::{Speaker, SpeakerOptions};

use crate::server::{OpenVoice, Part, Reply, Running, Setup};

/// A server over one of the small models that speak in codes.
async fn serve(case: &'static str) -> Running {
    let open: OpenVoice = Box::new(move |store| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../voce-models/tests/fixtures/qwen/");
        let options = SpeakerOptions::default().with_threads(1).with_slots(4);
        Speaker::open(store, &format!("{folder}{case}"), &options)
    });
    Setup { voices: vec![open], ..Default::default() }.start().await
}

async fn speak(server: &Running, extra: Value) -> Reply {
    let mut body = json!({"input": "Hello there.", "seed": 1, "temperature": 0, "response_format": "pcm"});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    server.post("/v1/audio/speech", &body).await
}

#[tokio::test]
async fn speakers_languages_and_instructions_are_heard() {
    let server = serve("custom_1b7").await;
    let list = server.get("/v1/audio/voices").await.json();
    assert!(list["voices"].as_array().unwrap().contains(&"serena".into()), "{list}");
    let said = async |extra: Value| {
        let reply = speak(&server, extra).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        reply.body
    };
    let plain = said(json!({"voice": "serena", "language": "English"})).await;
    assert_eq!(plain, said(json!({"voice": "Serena", "language": "en"})).await, "names of any case");
    assert_ne!(plain, said(json!({"voice": "aiden", "language": "English"})).await);
    assert_ne!(plain, said(json!({"voice": "serena", "language": "Japanese"})).await);
    let slow = json!({"voice": "serena", "language": "English", "instructions": "Speak slowly."});
    assert_ne!(plain, said(slow).await);
    let reply = speak(&server, json!({"voice": "serena", "language": "klingon"})).await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::BAD_REQUEST, "bad_request"));
    assert!(reply.text().contains("japanese"), "{}", reply.text());
    let reply = speak(&server, json!({"voice": "nobody"})).await;
    assert!(reply.text().contains("serena"), "{}", reply.text());
    // It cannot clone, and says so.
    let clip = std::fs::read(wav()).unwrap();
    let fields = [("name", Part::Text("anna")), ("audio_sample", Part::File("clip.wav", &clip))];
    let reply = server.form("/v1/audio/voices", &fields).await;
    assert!(
        reply.error() == "no_cloning" && reply.text().contains("cannot clone a voice"),
        "{}",
        reply.text()
    );
}

fn wav() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../voce-models/tests/fixtures/qwen/base_1b7/ref.wav")
}

#[tokio::test]
async fn voices_are_cloned_with_and_without_a_text() {
    let server = serve("base_1b7").await;
    let clip = std::fs::read(wav()).unwrap();
    for (name, text) in [("anna", Some("the reference words")), ("bert", None)] {
        let mut fields = vec![("name", Part::Text(name)), ("audio_sample", Part::File("clip.wav", &clip))];
        fields.extend(text.map(|text| ("text", Part::Text(text))));
        let reply = server.form("/v1/audio/voices", &fields).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    }
    let mut said = Vec::new();
    for voice in ["anna", "bert", "anna"] {
        let reply = speak(&server, json!({"voice": voice, "input": "Yes."})).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
        said.push(reply.body);
    }
    assert!(said[0] == said[2] && said[0] != said[1]);
}
