//! The built-in voice behind the doors: what it cannot do is refused by name.

use hyper::StatusCode;
use serde_json::json;
use voce_engine::store::Store;
use voce_engine::{Speaker, SpeakerOptions};

use crate::server::{Part, Running, Setup};

async fn small_voice() -> Running {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nano-voice");
    let open = move |store: &Store| Speaker::open(store, folder, &SpeakerOptions::default().with_threads(1));
    Setup { voices: vec![Box::new(open)], whole: true, ..Default::default() }.start().await
}

#[tokio::test]
async fn what_it_cannot_say_is_named() {
    let server = small_voice().await;
    for (text, says) in [
        ("Привет, как дела?", "speaks English and does not know the letters П р и в е т"),
        ("Hello Мир world.", "letters М и р:"),
        ("你好世界", "你 好 世 界"),
        ("مرحبا", "م ر ح ب ا"),
        ("!!!", "nothing to say"),
        ("...", "nothing to say"),
        ("☺", "nothing to say"),
    ] {
        let reply = server.post("/v1/audio/speech", &json!({"input": text, "response_format": "pcm"})).await;
        assert_eq!((reply.status, reply.error().as_str()), (StatusCode::BAD_REQUEST, "bad_text"), "{text}");
        assert!(reply.text().contains(says), "{text}: {}", reply.text());
    }
    for text in ["Café “Łódź” – 5 € ☺!", "No. 5..."] {
        let reply = server.post("/v1/audio/speech", &json!({"input": text, "response_format": "pcm"})).await;
        assert!(reply.status == StatusCode::OK && reply.body.len() > 1_000, "{text}: {}", reply.status);
    }
}

#[tokio::test]
async fn its_own_language_is_taken_however_it_is_written_and_no_other() {
    let server = small_voice().await;
    let speak = async |language: &str| {
        let body = json!({"input": "Hello.", "response_format": "pcm", "language": language});
        server.post("/v1/audio/speech", &body).await
    };
    for language in ["en", "english", "EN", "en-US", "en_GB", "English", ""] {
        assert_eq!(speak(language).await.status, StatusCode::OK, "{language}");
    }
    for language in ["de", "german", "xx"] {
        let reply = speak(language).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{language}");
        assert!(reply.text().contains("english") && reply.text().contains(language), "{}", reply.text());
    }
}

#[tokio::test]
async fn it_says_that_it_cannot_clone() {
    let server = small_voice().await;
    assert_eq!(server.get("/v1/audio/voices").await.json()["cloning"], false);
    let clip = crate::listening::wav("####", 24_000);
    for text in [None, Some("What is said.")] {
        let mut fields = vec![("name", Part::Text("anna")), ("audio_sample", Part::File("clip.wav", &clip))];
        fields.extend(text.map(|text| ("text", Part::Text(text))));
        let reply = server.form("/v1/audio/voices", &fields).await;
        assert_eq!((reply.status, reply.error().as_str()), (StatusCode::BAD_REQUEST, "no_cloning"));
        assert!(reply.text().contains("nano-voice cannot clone"), "{}", reply.text());
        assert!(reply.text().contains("voce pull pocket --cloning"), "{}", reply.text());
    }
    assert_eq!(std::fs::read_dir(server.store.voices().dir()).unwrap().count(), 0);
    assert_eq!(server.get("/v1/audio/voices").await.json()["voices"], json!(["voice"]));
}

#[tokio::test]
async fn text_without_stops_is_cut_into_what_it_can_say() {
    let server = small_voice().await;
    let text = "the river runs down to the sea past the old mill and the bridge ".repeat(8);
    let body = json!({"input": text, "response_format": "pcm", "stream_format": "sse", "seed": 1});
    let reply = server.post("/v1/audio/speech", &body).await;
    let done = reply.text().lines().rfind(|line| line.contains("speech.audio.done")).unwrap().to_owned();
    assert!(!done.contains("unended"), "{done}");
    assert!(server.metric("voce_passages_unended_total").await < 1.0);
    assert!(server.metric("voce_passages_spoken_again_total").await < 1.0);
}
