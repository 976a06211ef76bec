//! Voices: cloning is work as other work is, what a key may keep has an end, and a voice is its maker's.

use hyper::StatusCode;
use serde_json::{Value, json};
use voce_engine::fault::{FaultPoint, Faults};
use voce_server::{Limits, ServerOptions};

use crate::listening::wav;
use crate::server::{Body, Part, Reply, Running, Setup};

async fn start(limits: Limits) -> Running {
    let keys = vec!["k1".into(), "k2".into()];
    let options = ServerOptions { keys, limits, open_metrics: true, ..Default::default() };
    Setup { options, ..Default::default() }.start().await
}

async fn add(server: &Running, key: &str, name: &str) -> Reply {
    let clip = wav("####", 24_000);
    let fields = [("name", Part::Text(name)), ("audio_sample", Part::File("clip.wav", &clip[..]))];
    server.send(server.form_request(server.keyed(key, "POST", "/v1/audio/voices"), &fields)).await
}

async fn remove(server: &Running, key: &str, name: &str) -> Reply {
    let request = server.keyed(key, "DELETE", &format!("/v1/audio/voices/{name}"));
    server.send(request.body(Body::default()).unwrap()).await
}

async fn names(server: &Running, key: &str) -> Value {
    let request = server.keyed(key, "GET", "/v1/audio/voices").body(Body::default()).unwrap();
    server.send(request).await.json()["voices"].clone()
}

async fn speak(server: &Running, key: &str, voice: &str) -> Reply {
    let body = json!({"input": "Hi.", "response_format": "pcm", "voice": voice}).to_string();
    server.send(server.keyed(key, "POST", "/v1/audio/speech").body(Body::new(body.into())).unwrap()).await
}

#[tokio::test]
async fn a_voice_belongs_to_the_key_that_made_it() {
    let server = start(Limits::default()).await;
    assert_eq!(add(&server, "k1", "anna").await.status, StatusCode::OK);
    assert_eq!(names(&server, "k1").await, json!(["anna", "voice"]));
    assert_eq!(speak(&server, "k1", "anna").await.status, StatusCode::OK);
    // For the other key it is as if it were not there, but its name is taken.
    assert_eq!(names(&server, "k2").await, json!(["voice"]));
    let reply = speak(&server, "k2", "anna").await;
    assert_eq!(reply.error(), "unknown_voice");
    assert!(!reply.text().contains("known voices are anna"), "{}", reply.text());
    assert_eq!(remove(&server, "k2", "anna").await.error(), "unknown_voice");
    assert!(add(&server, "k2", "anna").await.text().contains("delete it first"));
    // Nor does a clone take the place of a voice of the model.
    assert!(add(&server, "k2", "voice").await.text().contains("delete it first"));
    assert_eq!(speak(&server, "k1", "voice").await.status, StatusCode::OK);
    assert_eq!(remove(&server, "k1", "anna").await.json()["deleted"], true);
    assert_eq!(add(&server, "k2", "anna").await.status, StatusCode::OK);
    assert_eq!(names(&server, "k1").await, json!(["voice"]));
    assert_eq!(remove(&server, "k2", "anna").await.status, StatusCode::OK);
    assert_eq!(std::fs::read_dir(server.store.voices().dir()).unwrap().count(), 0);
}

#[tokio::test]
async fn shared_voices_are_the_operators() {
    let server = start(Limits::default()).await;
    assert_eq!(add(&server, "k1", "anna").await.status, StatusCode::OK);
    // As `voce voice add` would leave it: a file without an owner.
    let voices = server.store.voices();
    std::fs::copy(voices.path("anna").unwrap(), voices.path("house").unwrap()).unwrap();
    for key in ["k1", "k2"] {
        assert_eq!(speak(&server, key, "house").await.status, StatusCode::OK);
        let reply = remove(&server, key, "house").await;
        assert_eq!((reply.status, reply.error().as_str()), (StatusCode::FORBIDDEN, "forbidden"));
    }
    assert!(voices.find("house").is_ok());
    // No key or name of it is written down.
    let owner = std::fs::read_to_string(voices.dir().join("anna.owner")).unwrap();
    assert!(owner.len() == 32 && !owner.contains("k1"), "{owner}");
}

#[tokio::test]
async fn quotas_at_the_limit_and_one_past_it() {
    let server = start(Limits { voices: 3, voices_per_key: 2, ..Limits::default() }).await;
    for (key, name, code) in [
        ("k1", "a", None),
        ("k1", "b", None),
        ("k1", "c", Some("over_quota")),
        ("k2", "d", None),
        ("k2", "e", Some("over_quota")),
    ] {
        let reply = add(&server, key, name).await;
        assert_eq!((!reply.status.is_success()).then(|| reply.error()).as_deref(), code, "{name}");
    }
    // The operator's do not count.
    let voices = server.store.voices();
    std::fs::copy(voices.path("a").unwrap(), voices.path("house").unwrap()).unwrap();
    assert_eq!(remove(&server, "k1", "a").await.status, StatusCode::OK);
    assert_eq!(add(&server, "k2", "e").await.status, StatusCode::OK);
    let bytes = std::fs::metadata(voices.path("b").unwrap()).unwrap().len();
    for (most, code) in [(2 * bytes, None), (2 * bytes - 1, Some("over_quota"))] {
        let server = start(Limits { voice_bytes_per_key: most, ..Limits::default() }).await;
        assert_eq!(add(&server, "k1", "a").await.status, StatusCode::OK);
        let reply = add(&server, "k1", "b").await;
        assert_eq!((!reply.status.is_success()).then(|| reply.error()).as_deref(), code, "{most}");
        assert_eq!(names(&server, "k1").await.as_array().unwrap().len(), if code.is_some() { 2 } else { 3 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloning_takes_a_slot_and_few_are_cloned_at_once() {
    let faults = Faults::default();
    let options = ServerOptions { keys: vec!["k1".into()], open_metrics: true, ..Default::default() };
    let setup = Setup { options, faults: faults.clone(), speak_slots: 2, ..Default::default() };
    let server = std::sync::Arc::new(setup.start().await);
    faults.hold_at(FaultPoint::Clone);
    let first = tokio::spawn({
        let server = server.clone();
        async move { add(&server, "k1", "first").await }
    });
    server.until("voce_budget_used{what=\"clones\"}", 1.0).await;
    server.until("voce_streams_active{kind=\"speech\"}", 1.0).await;
    let reply = add(&server, "k1", "second").await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::TOO_MANY_REQUESTS, "busy"));
    // Speech goes on beside it, in the slot that is left.
    assert_eq!(speak(&server, "k1", "voice").await.status, StatusCode::OK);
    // A client that goes away gives nothing back before the work is done.
    first.abort();
    assert_eq!(add(&server, "k1", "second").await.error(), "busy");
    faults.release();
    server.until("voce_budget_used{what=\"clones\"}", 0.0).await;
    server.until("voce_streams_active{kind=\"speech\"}", 0.0).await;
    assert_eq!(add(&server, "k1", "second").await.status, StatusCode::OK);
}
