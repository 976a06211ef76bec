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
