//! `/v1/audio/jobs` on a folder: an id at once, the text later, nothing lost with the server, nothing shown to other keys.

use std::path::Path;

use hyper::StatusCode;
use serde_json::{Value, json};
use voce_engine::listener::{Listener, ListenerOptions};
use voce_server::{JobsOptions, JobsPlace, Limits, ServerOptions};

use crate::listening::wav;
use crate::server::{Body, Part, Reply, Running, Setup};

const PATH: &str = "/v1/audio/jobs";

async fn start(dir: &Path, keys: &[&str], limits: Limits) -> Running {
    let open = || {
        let options = ListenerOptions::default().with_threads(1).with_slots(2);
        Listener::random("nano-ear", 3, &options)
    };
    let jobs = JobsOptions { at_once: Some(1), ..JobsOptions::new(JobsPlace::Folder(dir.to_owned())) };
    let keys = keys.iter().map(|k| (*k).to_owned()).collect();
    let options = ServerOptions { keys, limits, jobs: Some(jobs), open_metrics: true, ..Default::default() };
    Setup { speak: false, listen: vec![Box::new(open)], hear_slots: 2, options, ..Default::default() }
        .start()
        .await
}

async fn submit(server: &Running, key: &str, file: &[u8], fields: &[(&str, &str)]) -> Reply {
    let mut form = vec![("file", Part::File("talk.wav", file))];
    form.extend(fields.iter().map(|(name, value)| (*name, Part::Text(value))));
    server.send(server.form_request(server.keyed(key, "POST", PATH), &form)).await
}

async fn ask(server: &Running, key: &str, method: &str, path: &str) -> Reply {
    server.send(server.keyed(key, method, &format!("{PATH}{path}")).body(Body::default()).unwrap()).await
}

fn id(reply: &Reply) -> String {
    assert_eq!(reply.status, StatusCode::ACCEPTED, "{}", reply.text());
    reply.json()["id"].as_str().unwrap().to_owned()
}

/// Follows a job to its end by its events.
async fn follow(server: &Running, key: &str, id: &str) -> Vec<Value> {
    let reply = ask(server, key, "GET", &format!("/{id}/events")).await;
    assert_eq!(reply.header("content-type"), "text/event-stream");
    let events = reply.text().split("\n\n").filter_map(|e| e.strip_prefix("data: "));
    events.map(|e| serde_json::from_str(e).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_is_taken_at_once_and_its_text_is_fetched_later() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path(), &["k1", "k2"], Limits::default()).await;
    let file = wav("#.##.", 16_000);
    let heard = [("model", Part::Text("whisper-1")), ("file", Part::File("a.wav", &file))];
    let heard = server
        .send(server.form_request(server.keyed("k1", "POST", "/v1/audio/transcriptions"), &heard))
        .await;
    let text = heard.json()["text"].as_str().unwrap().to_owned();
    let job = submit(&server, "k1", &file, &[("model", "whisper-1")]).await;
    assert_eq!((&job.json()["object"], &job.json()["model"]), (&json!("audio.job"), &json!("counter")));
    let id = id(&job);
    let events = follow(&server, "k1", &id).await;
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["job"]["status"]),
        (&json!("job.completed"), &json!("completed")),
        "{last}"
    );
    assert_eq!((&last["job"]["duration"], &last["job"]["file_name"]), (&json!(2.5), &json!("talk.wav")));
    let result = ask(&server, "k1", "GET", &format!("/{id}/result")).await;
    assert_eq!(result.header("content-type"), "application/json");
    assert_eq!(
        (result.json()["text"].as_str(), &result.json()["model"]),
        (Some(text.as_str()), &json!("counter"))
    );
    // Its recording is gone, and nobody else sees it.
    assert!(!dir.path().join(format!("{id}.input")).exists());
    for (method, path) in [("GET", ""), ("GET", "/result"), ("GET", "/events"), ("DELETE", "")] {
        assert_eq!(ask(&server, "k2", method, &format!("/{id}{path}")).await.error(), "job_not_found");
    }
    assert_eq!(ask(&server, "k2", "GET", "").await.json()["data"], json!([]));
    assert_eq!(ask(&server, "k1", "GET", "").await.json()["data"].as_array().unwrap().len(), 1);
    // The counter follows the record.
    server.until("voce_job_events_total{outcome=\"done\"}", 1.0).await;
    assert_eq!(server.metric("voce_jobs{phase=\"done\"}").await, 1.0);
    // Nothing on disk names a key.
    let record = std::fs::read_to_string(dir.path().join(format!("{id}.job"))).unwrap();
    assert!(!record.contains("k1"), "{record}");
    assert_eq!(ask(&server, "k1", "DELETE", &format!("/{id}")).await.json()["deleted"], true);
    assert_eq!(ask(&server, "k1", "GET", &format!("/{id}")).await.error(), "job_not_found");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, [".voce-server.lock"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits { job: 100_000, jobs_per_key: 2, ..Limits::default() };
    let server = start(dir.path(), &["k1"], limits).await;
    let file = wav("#", 16_000);
    let big = wav("########", 16_000);
    for (file, fields, error) in [
        (&file[..], &[("response_format", "doc")][..], "bad_request"),
        (&file, &[("model", "other")], "model_not_found"),
        (&file, &[("endpoint_ms", "soon")], "bad_request"),
        (&[], &[], "bad_request"),
        (&big, &[], "too_large"),
    ] {
        assert_eq!(submit(&server, "k1", file, fields).await.error(), error);
    }
    let form = server.form_request(server.keyed("k1", "POST", PATH), &[("model", Part::Text("x"))]);
    assert_eq!(server.send(form).await.error(), "bad_request");
    // Nothing of all that stays.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    let poisoned = id(&submit(&server, "k1", b"this is no audio", &[]).await);
    let last = follow(&server, "k1", &poisoned).await.pop().unwrap();
    assert_eq!(last["type"], "job.failed");
    let told = last["job"]["error"]["message"].as_str().unwrap();
    assert!(told.contains("talk.wav") && !told.contains(dir.path().to_str().unwrap()), "{told}");
    assert_eq!(ask(&server, "k1", "GET", &format!("/{poisoned}/result")).await.status, StatusCode::CONFLICT);
    id(&submit(&server, "k1", &file, &[]).await);
    assert_eq!(submit(&server, "k1", &file, &[]).await.error(), "over_quota");
    server.until("voce_job_events_total{outcome=\"failed\"}", 1.0).await;
    // A server that keeps none says so.
    let without = Setup { speak: false, ..Default::default() }.start().await;
    assert_eq!(without.get(PATH).await.error(), "no_jobs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_wait_for_the_next_server_and_cancelled_ones_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let file = wav(&"#.##.#".repeat(30), 16_000);
    let mut server = start(dir.path(), &["k1", "k2"], Limits::default()).await;
    let text = [("response_format", "text")];
    let first = id(&submit(&server, "k1", &file, &text).await);
    let second = id(&submit(&server, "k1", &file, &text).await);
    let revoked = id(&submit(&server, "k2", &file, &text).await);
    let cancelled = id(&submit(&server, "k1", &file, &text).await);
    let reply = ask(&server, "k1", "DELETE", &format!("/{cancelled}")).await.json();
    assert_eq!(reply["status"], "cancelled");
    assert_eq!(ask(&server, "k1", "GET", &format!("/{cancelled}/result")).await.error(), "no_result");
    assert!(!dir.path().join(format!("{cancelled}.input")).exists());
    server.stop();
    server.gone().await;
    drop(server);
    let still = |id: &str| dir.path().join(format!("{id}.input")).exists();
    assert!(still(&second) || still(&revoked), "some work is left for the next one");
    let server = start(dir.path(), &["k1"], Limits::default()).await;
    for id in [&first, &second] {
        assert_eq!(follow(&server, "k1", id).await.pop().unwrap()["type"], "job.completed");
    }
    let result = |id: &str| ask_text(&server, format!("/{id}/result"));
    assert_eq!(result(&first).await, result(&second).await);
    // Whose key is not accepted any more, his jobs are not done.
    server.until("voce_jobs{phase=\"waiting\"}", 0.0).await;
    server.until("voce_jobs{phase=\"running\"}", 0.0).await;
    let record = std::fs::read_to_string(dir.path().join(format!("{revoked}.job"))).unwrap();
    assert!(record.contains("invalid_api_key") || record.contains("\"done\""), "{record}");
    assert_eq!(ask(&server, "k1", "GET", &format!("/{revoked}")).await.error(), "job_not_found");
}

async fn ask_text(server: &Running, path: String) -> String {
    ask(server, "k1", "GET", &path).await.text().to_owned()
}
