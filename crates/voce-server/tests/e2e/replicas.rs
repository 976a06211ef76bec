//! A model on several devices, all three kinds alike: streams go where the fewest are, lack of memory passes, and a lost device
//! ends the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::StatusCode;
use serde_json::json;
use voce_engine::fault::{FaultPoint, Faults};
use voce_engine::talker::{TalkRequest, Talker, TalkerOptions};
use voce_engine::{Speaker, SpeakerOptions};
use voce_models::dialogue::{Dialogue, DialogueError, DialogueInfo, Partner, Uttered};
use voce_runtime::cuda::{Device, Reserved};
use voce_runtime::{Exec, RuntimeError};
use voce_server::partner::PartnerOptions;
use voce_server::{Ended, Limits, ServerOptions};

use crate::server::{OpenVoice, Running, Setup, model};

/// Opens the voice on a device.
fn on(device: &Arc<Device>, faults: &Faults) -> OpenVoice {
    let (device, faults) = (device.clone(), faults.clone());
    Box::new(move |store| {
        let options = SpeakerOptions::default()
            .with_threads(1)
            .with_slots(2)
            .with_device(device.clone().into())
            .with_faults(faults.clone());
        Speaker::open(store, model("drifting").to_str().unwrap(), &options)
    })
}

async fn say(server: &Running) -> hyper::body::Bytes {
    let body = json!({"input": "Hi.", "response_format": "pcm", "seed": 5});
    let reply = server.post("/v1/audio/speech", &body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    reply.body
}

const READY: &str = "voce_replicas_ready{model=\"small\"}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voice_on_two_devices_is_one_voice_and_a_lost_device_ends_the_process() {
    let devices = [Device::emulated().unwrap(), Device::emulated().unwrap()];
    let faults = Faults::default();
    let voices = devices.iter().map(|d| on(d, &faults)).collect();
    let limits = Limits { drain: Duration::from_millis(200), ..Limits::default() };
    let options = ServerOptions { limits, ..Default::default() };
    let mut server = Setup { options, voices, ..Default::default() }.start().await;
    assert_eq!(server.metric("voce_replicas{model=\"small\"}").await, 2.0);
    assert_eq!(server.metric(READY).await, 2.0);
    // The same request says the same wherever it is; a stream holds one device, so that the next goes to the other.
    let alone = say(&server).await;
    faults.hold_at(FaultPoint::Step);
    let body = json!({"input": "Hi.", "response_format": "pcm", "seed": 5});
    let (first, second) = (server.json_request("/v1/audio/speech", &body), say(&server));
    let release = async {
        server.until("voce_streams_active{kind=\"speech\"}", 2.0).await;
        faults.release();
    };
    let (first, second, ()) = tokio::join!(server.send(first), second, release);
    assert_eq!((&first.body, &second), (&alone, &alone));
    assert!(devices.iter().all(|d| d.used() > 0), "both hold the model");
    // A device that is lost does not come back: the process ends, and says why.
    devices[0].lose();
    // Half of the requests go to the other one, until the server takes no more.
    while let Some(reply) = server.try_open(server.json_request("/v1/audio/speech", &body)).await {
        let _ = reply.into_body().collect().await;
    }
    match server.gone().await {
        Ended::Broken(reason) => assert!(reason.contains("lost"), "{reason}"),
        Ended::Stopped => panic!("nobody told it to stop"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voice_that_died_for_want_of_memory_comes_back_when_there_is_some() {
    let memory = Arc::new(AtomicU64::new(1 << 30));
    let device = Device::emulated_with(memory.clone()).unwrap();
    let faults = Faults::default();
    let server = Setup { voices: vec![on(&device, &faults)], ..Default::default() }.start().await;
    let before = say(&server).await;
    // Another program takes the memory, and the model dies: there is no room for a new one.
    memory.store(0, Ordering::Relaxed);
    faults.panic_at(FaultPoint::Step);
    let body = json!({"input": "Hi.", "response_format": "pcm", "seed": 5});
    let mut dies = server.open(server.json_request("/v1/audio/speech", &body)).await;
    while let Some(Ok(_)) = dies.body_mut().frame().await {}
    server.until(READY, 0.0).await;
    let reply = server.get("/readyz").await;
    assert_eq!(
        (reply.status, reply.json()["status"].as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, Some("loading"))
    );
    let refused = server.post("/v1/audio/speech", &body).await;
    assert_eq!((refused.status, refused.header("retry-after")), (StatusCode::SERVICE_UNAVAILABLE, "1"));
    // The other program ends.
    memory.store(1 << 30, Ordering::Relaxed);
    server.until(READY, 1.0).await;
    assert_eq!(server.metric("voce_model_restarts_total{model=\"small\"}").await, 1.0);
    assert_eq!(say(&server).await, before);
}

/// Says nothing, a frame at a time.
struct Mute(DialogueInfo);
struct MuteSlots;

impl Dialogue for Mute {
    fn info(&self) -> &DialogueInfo {
        &self.0
    }
    fn check(&self, _: &TalkRequest) -> Result<(), DialogueError> {
        Ok(())
    }
    fn partner(&self, _: usize) -> Box<dyn Partner> {
        Box::new(MuteSlots)
    }
}

impl Partner for MuteSlots {
    fn reserve(&mut self, _: &mut Exec) -> Result<Reserved, RuntimeError> {
        Ok(Reserved::default())
    }
    fn start(&mut self, _: &mut Exec, _: usize, _: &TalkRequest) {}
    fn step(&mut self, _: &mut Exec, _: &[usize], _: &[f32]) {}
    fn fetch(
        &mut self,
        _: &mut Exec,
        live: &[usize],
        out: &mut Vec<Uttered>,
    ) -> Vec<(&'static str, Duration)> {
        out.extend(live.iter().map(|_| Uttered::default()));
        Vec::new()
    }
    fn free(&mut self, _: usize) {}
    fn warm(&mut self, _: &mut Exec) {}
}

/// A dialogue model that says nothing; it is kept warm, so that it steps by itself.
pub(crate) fn mute(faults: &Faults) -> PartnerOptions {
    let faults = faults.clone();
    let open = move || {
        let info = DialogueInfo {
            family: "Mute",
            sample_rate: 100,
            frame_size: 8,
            longest: None,
            stages: Vec::new(),
        };
        let keep_warm = Some(Duration::from_millis(1));
        let options = TalkerOptions::default()
            .with_threads(1)
            .with_slots(3)
            .with_keep_warm(keep_warm)
            .with_faults(faults.clone());
        Talker::new(Arc::new(Mute(info)), &options)
    };
    PartnerOptions::new("mute", 3, Box::new(open))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dialogue_is_admitted_counted_and_revived_as_the_others_are() {
    let faults = Faults::default();
    let partners = vec![mute(&faults)];
    let server = Setup { speak: false, partners, ..Default::default() }.start().await;
    assert_eq!(server.get("/readyz").await.status, StatusCode::OK);
    assert_eq!(server.metric("voce_slots{kind=\"dialogue\"}").await, 3.0);
    assert_eq!(server.metric("voce_load_ratio{kind=\"dialogue\"}").await, 0.0);
    assert_eq!(server.metric("voce_model_ready{model=\"mute\"}").await, 1.0);
    let listed = server.get("/v1/models/mute").await;
    assert_eq!(listed.json()["task"], "speech-to-speech", "{}", listed.text());
    // It dies while nobody looks, and comes back.
    faults.panic_at(FaultPoint::Step);
    server.until("voce_model_restarts_total{model=\"mute\"}", 1.0).await;
    server.until_ready().await;
}
