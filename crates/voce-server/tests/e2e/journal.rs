//! Streams that are kept: whole files of what was heard and said, and streams that go on where they cannot be.

use std::path::Path;
use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};
use voce_server::{JournalOptions, ServerOptions};

use crate::counter::Counter;
use crate::listening::wav;
use crate::server::{Part, Running, Setup};

async fn start(root: &Path) -> Running {
    let journal = JournalOptions {
        tokens: Some(root.join("tokens")),
        audio: Some(root.join("audio")),
        ..JournalOptions::default()
    };
    let options = ServerOptions { journal, ..Default::default() };
    Setup { options, hear: Some(Arc::new(Counter::default())), ..Default::default() }.start().await
}

async fn talk(server: &Running) {
    let body = json!({"input": "Keep this.", "response_format": "pcm"});
    assert_eq!(server.post("/v1/audio/speech", &body).await.status, StatusCode::OK);
    let file = wav("#.#", 16_000);
    let heard = server.form("/v1/audio/transcriptions", &[("file", Part::File("a.wav", &file))]).await;
    assert_eq!(heard.json()["text"], "w1 w2");
}

/// Files of a folder whose names contain a word.
fn files(root: &Path, word: &str) -> Vec<Vec<u8>> {
    let days = std::fs::read_dir(root).into_iter().flatten().flatten();
    let files = days.flat_map(|day| std::fs::read_dir(day.path()).unwrap().flatten());
    files
        .filter(|f| f.file_name().to_string_lossy().contains(word))
        .map(|f| std::fs::read(f.path()).unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_heard_and_said_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = start(dir.path()).await;
    talk(&server).await;
    server.until("voce_journal_files_total{outcome=\"written\"}", 4.0).await;
    let lines = |word: &str| -> Vec<Value> {
        let file = files(&dir.path().join("tokens"), word).remove(0);
        std::str::from_utf8(&file).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    };
    let heard = lines("recognition");
    assert_eq!((heard[0]["model"].as_str(), heard[1]["text"].as_str()), (Some("counter"), Some("w1 w2")));
    assert_eq!(heard[2], json!({"seconds": 1.5, "error": null, "dropped": 0}));
    let said = lines("speech");
    assert_eq!(said[1]["text"], "Keep this.");
    let frames = said[2]["frames"].as_u64().unwrap() as usize;
    assert!(frames > 0 && said[2]["error"].is_null(), "{said:?}");
    // The audio as the recogniser heard it, and as the voice made it: frames of 192 samples.
    let sizes = |word| files(&dir.path().join("audio"), word).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!((sizes("recognition"), sizes("speech")), (vec![44 + 48_000], vec![44 + 2 * frames * 192]));
    assert_eq!(server.metric("voce_journal_dropped_total{what=\"audio\"}").await, 0.0);
    server.stop();
    server.gone().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_go_on_where_nothing_can_be_kept() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("audio"), "a file where a folder should be").unwrap();
    std::fs::write(dir.path().join("tokens"), "the same").unwrap();
    let server = start(dir.path()).await;
    talk(&server).await;
    server.until("voce_journal_files_total{outcome=\"failed\"}", 4.0).await;
    assert!(server.metric("voce_journal_dropped_total{what=\"audio\"}").await >= 2.0);
    assert!(server.metric("voce_journal_dropped_total{what=\"tokens\"}").await >= 4.0);
    talk(&server).await;
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn nothing_is_kept_by_default() {
    let server = Setup { hear: Some(Arc::new(Counter::default())), ..Default::default() }.start().await;
    talk(&server).await;
    assert_eq!(server.metric("voce_journal_files_total{outcome=\"written\"}").await, 0.0);
}
