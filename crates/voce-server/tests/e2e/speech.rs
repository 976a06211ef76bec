//! `POST /v1/audio/speech`, voices and models.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use serde_json::{Value, json};
use voce_audio::{DecodeLimits, decode_bytes};

use crate::server::{Body, Part, Running, Setup, model};

/// Samples of one frame of the small model.
const FRAME: usize = 192;

async fn speak(server: &Running, extra: Value) -> crate::server::Reply {
    let mut body = json!({"model": "tts-1", "input": "Hello there.", "voice": "alloy", "seed": 1});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    server.post("/v1/audio/speech", &body).await
}

#[tokio::test]
async fn every_format_decodes_to_the_same_speech() {
    let server = Setup::default().start().await;
    let wav = speak(&server, json!({"response_format": "wav"})).await;
    assert_eq!(wav.header("content-type"), "audio/wav");
    assert_eq!(&wav.body[4..8], [0xff; 4], "a stream's length is open");
    let reference = decode_bytes(&wav.body, None, &DecodeLimits::default());
    // 2400 Hz is below what the decoder takes from strangers: read the samples by hand.
    assert!(reference.is_err());
    let samples: Vec<f32> = wav.body[44..]
        .as_chunks::<2>()
        .0
        .iter()
        .map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0)
        .collect();
    assert!(samples.len() >= FRAME && samples.len().is_multiple_of(FRAME), "{}", samples.len());
    let seconds = samples.len() as f64 / 2400.0;
    for (format, kind, rate) in [("opus", "audio/ogg", 48_000), ("mp3", "audio/mpeg", 8_000)] {
        let reply = speak(&server, json!({"response_format": format})).await;
        assert_eq!((reply.status, reply.header("content-type")), (StatusCode::OK, kind));
        let audio = decode_bytes(&reply.body, Some(format), &DecodeLimits::default()).unwrap();
        assert_eq!(audio.sample_rate, rate, "{format}");
        assert!((audio.seconds() - seconds).abs() < 0.3, "{format}: {} for {seconds}", audio.seconds());
    }
    let flac = speak(&server, json!({"response_format": "flac"})).await;
    assert_eq!(flac.header("content-type"), "audio/flac");
    assert!(flac.body.starts_with(b"fLaC"));
    for (format, kind, bytes) in [
        ("pcm", "audio/pcm;rate=24000;channels=1", 48_000),
        ("mulaw", "audio/basic;rate=8000;channels=1", 8_000),
        ("alaw", "audio/pcm;rate=8000;channels=1", 8_000),
    ] {
        let reply = speak(&server, json!({"response_format": format})).await;
        assert_eq!(reply.header("content-type"), kind);
        let length = reply.body.len() as f64 / f64::from(bytes);
        assert!((length - seconds).abs() < 0.01, "{format}: {length} for {seconds}");
    }
    // OpenAI's default.
    assert_eq!(speak(&server, json!({})).await.header("content-type"), "audio/mpeg");
}

#[tokio::test]
async fn markup_is_taken_out_unless_the_request_keeps_it() {
    let server = Setup::default().start().await;
    let say = async |extra: Value| speak(&server, extra).await.body;
    let plain = say(json!({"response_format": "pcm"})).await;
    let marked = "**Hello** [there](https://a.b/c).";
    assert_eq!(plain, say(json!({"response_format": "pcm", "input": marked})).await);
    let kept = json!({"response_format": "pcm", "input": marked, "normalize": false});
    assert_ne!(plain, say(kept).await);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_audio() {
    let server = Setup::default().start().await;
    let one = speak(&server, json!({"response_format": "pcm"})).await.body;
    assert_eq!(one, speak(&server, json!({"response_format": "pcm"})).await.body);
    assert_ne!(one, speak(&server, json!({"response_format": "pcm", "seed": 2})).await.body);
    assert_eq!(one, speak(&server, json!({"response_format": "pcm", "voice": {"id": "voice"}})).await.body);
}

#[tokio::test]
async fn speed_changes_the_length() {
    let server = Setup::default().start().await;
    let length =
        async |speed: f64| speak(&server, json!({"response_format": "pcm", "speed": speed})).await.body.len();
    let normal = length(1.0).await;
    assert!(length(2.0).await.abs_diff(normal / 2) <= 40);
    assert!(length(0.5).await.abs_diff(normal * 2) <= 40);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audio_comes_while_it_is_made() {
    let server = Setup { endless: true, ..Default::default() }.start().await;
    let body = json!({"input": "On and on.", "response_format": "wav"});
    let mut reply = server.open(server.json_request("/v1/audio/speech", &body)).await;
    assert!(reply.headers().contains_key("x-voce-first-audio-ms"));
    // An endless text has no end to wait for: what arrives was sent before it.
    let mut got = 0;
    while got < 44 + 20 * FRAME * 2 {
        got += reply.body_mut().frame().await.unwrap().unwrap().into_data().unwrap().len();
    }
}

#[tokio::test]
async fn events_carry_the_same_bytes() {
    let server = Setup::default().start().await;
    let plain = speak(&server, json!({"response_format": "pcm"})).await.body;
    let reply = speak(&server, json!({"response_format": "pcm", "stream_format": "sse"})).await;
    assert_eq!(reply.header("content-type"), "text/event-stream");
    let events: Vec<Value> = reply
        .text()
        .split("\n\n")
        .filter(|e| !e.is_empty())
        .map(|e| serde_json::from_str(e.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let (last, deltas) = events.split_last().unwrap();
    let mut bytes = Vec::new();
    for delta in deltas {
        assert_eq!(delta["type"], "speech.audio.delta");
        bytes.extend(BASE64.decode(delta["audio"].as_str().unwrap()).unwrap());
    }
    assert_eq!(bytes, plain);
    assert_eq!(last["type"], "speech.audio.done");
    let usage = &last["usage"];
    let sum = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
    assert!(deltas.len() > 1);
}

#[tokio::test]
async fn what_is_refused_and_why() {
    let server = Setup::default().start().await;
    for (extra, code, says) in [
        (json!({"response_format": "aac"}), "bad_request", "wav, pcm, flac, opus"),
        (json!({"response_format": "x".repeat(10_000)}), "bad_request", "not supported"),
        (json!({"speed": 9.0}), "bad_request", "0.25 to 4"),
        (json!({"speed": "fast"}), "bad_request", "JSON"),
        (json!({"stream_format": "ws"}), "bad_request", "audio or sse"),
        (json!({"voice": "nobody"}), "unknown_voice", "known voices are voice"),
        (json!({"voice": "../../etc/passwd"}), "unknown_voice", "unknown voice"),
        (json!({"voice": model("drifting").join("prompt.wav")}), "unknown_voice", "unknown voice"),
        (json!({"voice": 7}), "bad_request", "JSON"),
        (json!({"input": ""}), "bad_text", "text"),
        (json!({"input": " \n "}), "bad_text", "text"),
        (json!({"input": "x".repeat(65_537)}), "bad_request", "65536"),
        (json!({"model": "gpt-9"}), "model_not_found", "small"),
        (json!({"temperature": -1.0}), "bad_request", "temperature"),
    ] {
        let reply = speak(&server, extra.clone()).await;
        assert!(reply.status.is_client_error(), "{extra}: {reply:?}");
        assert_eq!(reply.error(), code, "{extra}");
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(says), "{extra}: {message}");
        assert!(message.len() < 500, "{message}");
        assert!(!message.contains("safetensors"), "a server takes no files: {message}");
    }
    for body in ["", "{", "[]", "{\"input\": 1}", &"[".repeat(100_000)] {
        let request =
            server.request("POST", "/v1/audio/speech").body(Body::new(body.to_owned().into())).unwrap();
        assert_eq!(server.send(request).await.error(), "bad_request");
    }
    let reply = server.post("/v1/audio/translations", &json!({})).await;
    assert!(reply.json()["error"]["message"].as_str().unwrap().contains("not supported"));
    // Nothing of this has cost a slot.
    assert_eq!(server.metric("voce_streams_active{kind=\"speech\"}").await, 0.0);
}

#[tokio::test]
async fn models_by_name_and_alias() {
    let mut setup = Setup::default();
    setup.options.aliases.push(("mine".into(), "small".into()));
    let server = setup.start().await;
    let list = server.get("/v1/models").await.json();
    assert_eq!((list["object"].as_str(), list["data"][0]["id"].as_str()), (Some("list"), Some("small")));
    for name in ["small", "tts-1", "gpt-4o-mini-tts", "mine"] {
        assert_eq!(server.get(&format!("/v1/models/{name}")).await.json()["id"], "small", "{name}");
    }
    assert_eq!(server.get("/v1/models/other").await.error(), "model_not_found");
}

#[tokio::test]
async fn a_voice_is_cloned_used_and_removed() {
    let server = Setup::default().start().await;
    let clip = crate::listening::wav("####", 24_000);
    let add = async |name: &str, data: &[u8]| {
        let fields = [("name", Part::Text(name)), ("audio_sample", Part::File("clip.wav", data))];
        server.form("/v1/audio/voices", &fields).await
    };
    let reply = add("anna", &clip).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    assert_eq!(reply.json()["id"], "anna");
    let list = server.get("/v1/audio/voices").await.json();
    let names: Vec<&str> = list["voices"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert_eq!(names, ["anna", "voice"]);
    assert_eq!((&list["default"], &list["cloning"]), (&"voice".into(), &true.into()));
    let anna = speak(&server, json!({"voice": "anna", "response_format": "pcm"})).await;
    assert_eq!(anna.status, StatusCode::OK);
    for (name, data, says) in [
        ("anna", &clip[..], "delete it first"),
        ("../x", &clip, "no name"),
        ("", &clip, "no field 'name'"),
        ("bert", b"not audio at all", "unsupported"),
        ("bert", b"", "empty"),
    ] {
        let reply = add(name, data).await;
        assert!(reply.status.is_client_error(), "{name}: {reply:?}");
        assert!(reply.text().contains(says), "{name}: {}", reply.text());
        assert!(!reply.text().contains(".clip"), "{}", reply.text());
    }
    let delete = async |name: &str| {
        server
            .send(
                server.request("DELETE", &format!("/v1/audio/voices/{name}")).body(Body::default()).unwrap(),
            )
            .await
    };
    assert_eq!(delete("anna").await.json()["deleted"], true);
    assert_eq!(delete("anna").await.error(), "unknown_voice");
    // Neither the clips nor what failed is left behind.
    assert_eq!(std::fs::read_dir(server.store.voices().dir()).unwrap().count(), 0);
    assert_eq!(speak(&server, json!({"voice": "anna"})).await.error(), "unknown_voice");
}

#[tokio::test]
async fn forms_that_are_none() {
    let server = Setup::default().start().await;
    let request = server.request("POST", "/v1/audio/voices").body(Body::new("x".into())).unwrap();
    assert!(server.send(request).await.text().contains("multipart"));
    let request =
        server.request("POST", "/v1/audio/voices").header("content-type", "multipart/form-data; boundary=b");
    assert_eq!(
        server.send(request.body(Body::new("--b\r\nbroken".into())).unwrap()).await.error(),
        "bad_request"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_in_a_churning_batch_is_what_it_is_alone() {
    let server = std::sync::Arc::new(Setup { speak_slots: 4, ..Default::default() }.start().await);
    let body = |seed: u64| json!({"input": "Hello there, you.", "response_format": "pcm", "seed": seed});
    let mut alone = Vec::new();
    for seed in 0..6 {
        alone.push(server.post("/v1/audio/speech", &body(seed)).await.body);
    }
    let mut tasks = Vec::new();
    for task in 0..4u64 {
        let server = server.clone();
        tasks.push(tokio::spawn(async move {
            let mut heard = Vec::new();
            for i in 0..12u64 {
                let seed = (task * 5 + i) % 6;
                let request = server.json_request("/v1/audio/speech", &body(seed));
                if (task + i).is_multiple_of(3) {
                    // Some hang up in the middle.
                    let mut response = server.open(request).await;
                    let _ = response.body_mut().frame().await;
                    continue;
                }
                let reply = server.send(request).await;
                // One who has hung up may still hold a slot for a moment.
                if reply.status == StatusCode::OK {
                    heard.push((seed, reply.body));
                }
            }
            heard
        }));
    }
    let mut compared = 0;
    for task in tasks {
        for (seed, bytes) in task.await.unwrap() {
            assert!(bytes == alone[seed as usize], "seed {seed}");
            compared += 1;
        }
    }
    assert!(compared > 10, "{compared}");
}
