//! Models that die, hang or idle: readiness says so, streams are told, and the model comes back.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::StatusCode;
use serde_json::{Value, json};
use voce_engine::EngineError;
use voce_engine::fault::{FaultPoint, Faults};
use voce_engine::listener::{ListenRequest, Listener, ListenerOptions};
use voce_server::ears::OpenListener;
use voce_server::{Limits, ServerOptions};

use crate::listening::{audio, wav};
use crate::server::{Part, Running, Setup};

fn body(seed: u64) -> Value {
    json!({"input": "On and on.", "response_format": "pcm", "seed": seed})
}

pub(crate) fn ears(faults: &Faults, keep_warm: Option<Duration>) -> OpenListener {
    let faults = faults.clone();
    Box::new(move || {
        let options = ListenerOptions::default()
            .with_threads(1)
            .with_slots(4)
            .with_keep_warm(keep_warm)
            .with_faults(faults.clone());
        Listener::random("nano-ear", 3, &options)
    })
}

async fn hearing(faults: &Faults) -> Running {
    let setup = Setup { speak: false, listen: vec![ears(faults, None)], ..Default::default() };
    setup.start().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_have_run_once_before_anyone_is_answered() {
    let voice = Faults::default();
    voice.hold_at(FaultPoint::Stream);
    let starting = tokio::spawn(Setup { faults: voice.clone(), ..Default::default() }.start());
    held(&voice).await;
    assert!(!starting.is_finished());
    voice.release();
    assert_eq!(starting.await.unwrap().get("/readyz").await.status, StatusCode::OK);
    let ear = Faults::default();
    ear.hold_at(FaultPoint::Stream);
    let setup = Setup { speak: false, listen: vec![ears(&ear, None)], ..Default::default() };
    let starting = tokio::spawn(setup.start());
    held(&ear).await;
    assert!(!starting.is_finished());
    ear.release();
    assert_eq!(starting.await.unwrap().get("/readyz").await.status, StatusCode::OK);
}

/// Waits until a model waits at a fault.
async fn held(faults: &Faults) {
    let faults = faults.clone();
    tokio::task::spawn_blocking(move || faults.wait_held()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voice_at_two_places_loses_the_streams_of_one() {
    let faults = Faults::default();
    let setup = Setup { parts: 2, faults: faults.clone(), endless: true, ..Default::default() };
    let server = setup.start().await;
    let mut streams = Vec::new();
    for seed in 0..2 {
        let mut stream = server.open(server.json_request("/v1/audio/speech", &body(seed))).await;
        stream.body_mut().frame().await.unwrap().unwrap();
        streams.push(stream);
    }
    // The first of the two to come there dies; its next load waits.
    faults.hold_at(FaultPoint::Stream);
    faults.panic_at(FaultPoint::Step);
    let mut whole = Vec::new();
    for mut stream in streams {
        // More than is on its way already: a stream that goes on gives as much as one likes.
        let mut broken = false;
        for _ in 0..2000 {
            match stream.body_mut().frame().await {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => {
                    broken = true;
                    break;
                }
            }
        }
        if !broken {
            whole.push(stream);
        }
    }
    assert_eq!(whole.len(), 1, "a request went to each place, and one of them died");
    held(&faults).await;
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK, "the other one is there");
    faults.release();
    server.until("voce_model_restarts_total{model=\"small\"}", 1.0).await;
    assert!(whole[0].body_mut().frame().await.unwrap().is_ok());
    let mut again = server.open(server.json_request("/v1/audio/speech", &body(7))).await;
    again.body_mut().frame().await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voice_that_dies_ends_its_streams_and_comes_back() {
    for (beside, point) in [(false, FaultPoint::Step), (false, FaultPoint::Codec), (true, FaultPoint::Codec)]
    {
        let faults = Faults::default();
        let server =
            Setup { beside, faults: faults.clone(), endless: true, ..Default::default() }.start().await;
        let mut streams = Vec::new();
        for seed in 0..2 {
            let mut stream = server.open(server.json_request("/v1/audio/speech", &body(seed))).await;
            stream.body_mut().frame().await.unwrap().unwrap();
            streams.push(stream);
        }
        // The next load waits, so that the time without a model can be seen.
        faults.panic_at(point);
        faults.hold_at(FaultPoint::Stream);
        for mut stream in streams {
            let mut broken = false;
            while let Some(frame) = stream.body_mut().frame().await {
                broken |= frame.is_err();
            }
            assert!(broken, "a stream must not look whole");
        }
        held(&faults).await;
        let reply = server.get("/readyz").await;
        assert_eq!(
            (reply.status, reply.json()["status"].as_str()),
            (StatusCode::SERVICE_UNAVAILABLE, Some("loading"))
        );
        assert_eq!(server.get("/livez").await.status, StatusCode::OK);
        assert_eq!(server.metric("voce_model_ready{model=\"small\"}").await, 0.0);
        faults.release();
        server.until_ready().await;
        assert_eq!(server.metric("voce_model_restarts_total{model=\"small\"}").await, 1.0);
        assert_eq!(server.metric("voce_model_ready{model=\"small\"}").await, 1.0);
        let mut again = server.open(server.json_request("/v1/audio/speech", &body(0))).await;
        assert_eq!(again.status(), StatusCode::OK);
        again.body_mut().frame().await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recogniser_that_dies_tells_its_streams_and_comes_back() {
    let faults = Faults::default();
    let server = hearing(&faults).await;
    let file = wav("#.#", 16_000);
    let send =
        async || server.form("/v1/audio/transcriptions", &[("file", Part::File("a.wav", &file))]).await;
    let before = send().await.json();
    // One stream waits for audio, and one brings the model down.
    let mut idle = server.socket("/v1/realtime?intent=transcription").await;
    assert_eq!(idle.next_json().await["type"], "session.created");
    let pcm: Vec<u8> = audio("#", 24_000).iter().flat_map(|s| ((s * 32767.0) as i16).to_le_bytes()).collect();
    use base64::Engine as _;
    let base64 = base64::engine::general_purpose::STANDARD.encode(&pcm);
    idle.json(json!({"type": "input_audio_buffer.append", "audio": base64})).await;
    server.until("voce_streams_active{kind=\"recognition\"}", 1.0).await;
    faults.panic_at(FaultPoint::Step);
    let reply = send().await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "stopped"));
    loop {
        let event = idle.next_json().await;
        if event["type"] == "error" || event["type"] == "conversation.item.input_audio_transcription.failed" {
            break;
        }
    }
    server.until("voce_model_restarts_total{model=\"counter\"}", 1.0).await;
    server.until_ready().await;
    assert_eq!(send().await.json()["text"], before["text"]);
    // The second death is noticed as well.
    faults.panic_at(FaultPoint::Step);
    assert_eq!(send().await.error(), "stopped");
    server.until("voce_model_restarts_total{model=\"counter\"}", 2.0).await;
}

/// The model is dead when one of its lanes is; the other's streams are heard to their end as long as somebody holds it.
#[test]
fn a_lane_that_dies_tells_its_streams_and_is_the_end_of_the_model() {
    let faults = Faults::default();
    let options =
        ListenerOptions::default().with_threads(1).with_slots(4).with_lanes(2).with_faults(faults.clone());
    let listener = Listener::random("nano-ear", 3, &options).unwrap();
    let request = ListenRequest::default();
    let (mut dies, broken) = listener.listen(&request).unwrap();
    let (mut lives, whole) = listener.listen(&request).unwrap();
    faults.panic_at(FaultPoint::Step);
    // It may be hung up before all of it is taken.
    let _ = dies.push(&[0.1; 32_000]);
    dies.finish();
    match broken.last() {
        Some(Err(EngineError::Stopped(why))) => assert!(why.contains("panicked"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(!listener.pulse().is_alive());
    assert!(matches!(listener.listen(&request), Err(EngineError::Stopped(_))));
    lives.push(&[0.1; 32_000]).unwrap();
    lives.finish();
    assert!(whole.into_iter().all(|event| event.is_ok()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_dies_while_nobody_looks_comes_back() {
    let faults = Faults::default();
    let keep_warm = Some(Duration::from_millis(1));
    let setup = Setup { speak: false, listen: vec![ears(&faults, keep_warm)], ..Default::default() };
    let server = setup.start().await;
    // The step that keeps it warm panics: no stream is there to tell.
    faults.panic_at(FaultPoint::Step);
    server.until("voce_model_restarts_total{model=\"counter\"}", 1.0).await;
    server.until_ready().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_one_stream_ends_that_stream_only() {
    let faults = Faults::default();
    let server = hearing(&faults).await;
    let file = wav("#.#", 16_000);
    let send =
        async || server.form("/v1/audio/transcriptions", &[("file", Part::File("a.wav", &file))]).await;
    let before = send().await.json();
    let mut other = server.socket("/api/asr-streaming").await;
    other.next_binary().await;
    let audio = json!({"type": "Audio", "pcm": [0.0, 0.0]});
    other.binary(rmp_serde::to_vec_named(&audio).unwrap()).await;
    server.until("voce_streams_active{kind=\"recognition\"}", 1.0).await;
    faults.panic_at(FaultPoint::Stream);
    let reply = send().await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::INTERNAL_SERVER_ERROR, "internal"));
    assert!(!reply.text().contains("planted"));
    // The other stream goes on to its end, and the model was never away.
    other.binary(rmp_serde::to_vec_named(&json!({"type": "Marker", "id": 3})).unwrap()).await;
    loop {
        let message: Value = rmp_serde::from_slice(&other.next_binary().await).unwrap();
        if message["type"] == "Marker" {
            break;
        }
    }
    assert_eq!(send().await.json()["text"], before["text"]);
    assert_eq!(server.metric("voce_model_restarts_total{model=\"counter\"}").await, 0.0);
    // The same for a voice.
    let faults = Faults::default();
    let server = Setup { faults: faults.clone(), endless: true, ..Default::default() }.start().await;
    let mut first = server.open(server.json_request("/v1/audio/speech", &body(1))).await;
    first.body_mut().frame().await.unwrap().unwrap();
    faults.panic_at(FaultPoint::Stream);
    let reply = server.post("/v1/audio/speech", &body(2)).await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::INTERNAL_SERVER_ERROR, "internal"));
    for _ in 0..5 {
        first.body_mut().frame().await.unwrap().unwrap();
    }
    assert_eq!(server.metric("voce_model_restarts_total{model=\"small\"}").await, 0.0);
    server.until("voce_streams_active{kind=\"speech\"}", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_hangs_makes_the_server_not_ready_until_it_ends() {
    let faults = Faults::default();
    let limits = Limits { stuck_step: Duration::from_millis(20), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let server = Setup { options, faults: faults.clone(), ..Default::default() }.start().await;
    faults.hold_at(FaultPoint::Step);
    let request = server.json_request("/v1/audio/speech", &json!({"input": "Hi.", "response_format": "pcm"}));
    let (speech, ()) = tokio::join!(server.send(request), async {
        let stuck = async || {
            let reply = server.get("/readyz").await;
            let is_so = reply.status == StatusCode::SERVICE_UNAVAILABLE;
            assert!(!is_so || reply.json()["status"] == "stuck", "{}", reply.text());
            is_so
        };
        server.when("a server that is stuck", stuck).await;
        assert_eq!(server.metric("voce_model_ready{model=\"small\"}").await, 0.0);
        faults.release();
    });
    assert_eq!(speech.status, StatusCode::OK);
    server.until_ready().await;
    assert_eq!(server.metric("voce_model_restarts_total{model=\"small\"}").await, 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_models_are_kept_warm_and_speak_as_before() {
    let keep_warm = Some(Duration::from_millis(1));
    for beside in [false, true] {
        let cold = Setup { beside, ..Default::default() }.start().await;
        let speak = json!({"input": "Hi.", "response_format": "pcm", "seed": 7});
        let expected = cold.post("/v1/audio/speech", &speak).await.body;
        let warm = Setup { beside, keep_warm, ..Default::default() }.start().await;
        for _ in 0..3 {
            let before = warm.metric("voce_warm_steps_total{model=\"small\"}").await;
            // Both threads of the model, several times.
            warm.until("voce_warm_steps_total{model=\"small\"}", before + 6.0).await;
            assert_eq!(warm.post("/v1/audio/speech", &speak).await.body, expected);
        }
        assert_eq!(cold.metric("voce_warm_steps_total{model=\"small\"}").await, 0.0);
    }
    let faults = Faults::default();
    let file = wav("#.##", 16_000);
    let mut texts = Vec::new();
    for keep_warm in [None, keep_warm] {
        let setup = Setup { speak: false, listen: vec![ears(&faults, keep_warm)], ..Default::default() };
        let server = setup.start().await;
        if keep_warm.is_some() {
            server.until("voce_warm_steps_total{model=\"counter\"}", 3.0).await;
        }
        let reply = server.form("/v1/audio/transcriptions", &[("file", Part::File("a.wav", &file))]).await;
        texts.push(reply.json()["text"].clone());
    }
    assert_eq!(texts[0], texts[1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_load_is_there_for_an_autoscaler() {
    let server = Setup { endless: true, speak_slots: 2, queue: 1, ..Default::default() }.start().await;
    assert_eq!(server.metric("voce_load_ratio{kind=\"speech\"}").await, 0.0);
    let mut streams = Vec::new();
    for seed in 0..2 {
        let mut stream = server.open(server.json_request("/v1/audio/speech", &body(seed))).await;
        stream.body_mut().frame().await.unwrap().unwrap();
        streams.push(stream);
        let load = server.metric("voce_load_ratio{kind=\"speech\"}").await;
        assert_eq!(load, streams.len() as f64 / 2.0);
    }
    let third = server.json_request("/v1/audio/speech", &body(3));
    tokio::select! {
        _ = server.open(third) => panic!("it must wait"),
        () = server.until("voce_load_ratio{kind=\"speech\"}", 1.5) => {}
    }
    drop(streams);
    server.until("voce_load_ratio{kind=\"speech\"}", 0.0).await;
    server.until("voce_queue_waiting{kind=\"speech\"}", 0.0).await;
}
