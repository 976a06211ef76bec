//! A server on a port of its own, with a small voice and a recogniser that counts, and a plain HTTP client.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use voce_engine::fault::Faults;
use voce_engine::speaker::Overlap;
use voce_engine::store::{Patience, Settings, Store};
use voce_engine::{EngineError, SpeakRequest, Speaker, SpeakerOptions};
use voce_server::ears::{EarOptions, Hears, OpenListener, Recogniser};
use voce_server::mouth::{MouthOptions, OpenSpeaker};
use voce_server::partner::PartnerOptions;
use voce_server::{Ended, Models, RoomsOptions, Server, ServerOptions};

use crate::patience::{TcpStream, within};
use crate::watchdog;

/// A small model's folder: 2400 Hz, 192 samples a frame.
pub(crate) fn model(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../voce-models/tests/fixtures/pocket").join(name)
}

/// What a test wants of its server.
pub(crate) struct Setup {
    pub(crate) options: ServerOptions,
    pub(crate) speak: bool,
    pub(crate) speak_slots: usize,
    /// Speech never ends by itself.
    pub(crate) endless: bool,
    /// Speech ends when all is said, however long that is.
    pub(crate) whole: bool,
    pub(crate) keep_alive: Option<std::time::Duration>,
    pub(crate) keep_warm: Option<std::time::Duration>,
    /// Faults of the voice.
    pub(crate) faults: Faults,
    /// The codec on a thread of its own.
    pub(crate) beside: bool,
    /// Places that the voice is at.
    pub(crate) parts: usize,
    /// Opens the voice in another way, once for each place.
    pub(crate) voices: Vec<OpenVoice>,
    /// The voice is opened when it is first asked for.
    pub(crate) lazy: bool,
    /// Speech requests that may wait.
    pub(crate) queue: usize,
    pub(crate) hear: Option<Arc<dyn Recogniser>>,
    /// Replicas of a recogniser of the engine, in its place.
    pub(crate) listen: Vec<OpenListener>,
    pub(crate) hear_slots: usize,
    /// Further recognisers, by their names.
    pub(crate) others: Vec<EarOptions>,
    /// Models that hold conversations.
    pub(crate) partners: Vec<PartnerOptions>,
    pub(crate) rooms: Vec<RoomsOptions>,
}

/// Opens a voice with the server's store.
pub(crate) type OpenVoice = Box<dyn Fn(&Store) -> Result<Speaker, EngineError> + Send + Sync>;

impl Default for Setup {
    fn default() -> Self {
        Self {
            options: ServerOptions::default(),
            speak: true,
            speak_slots: 4,
            endless: false,
            whole: false,
            keep_alive: None,
            keep_warm: None,
            faults: Faults::default(),
            beside: false,
            parts: 1,
            voices: Vec::new(),
            lazy: false,
            queue: 0,
            hear: None,
            listen: Vec::new(),
            hear_slots: 4,
            others: Vec::new(),
            partners: Vec::new(),
            rooms: Vec::new(),
        }
    }
}

/// A running server.
pub(crate) struct Running {
    pub(crate) addr: SocketAddr,
    pub(crate) wyoming: Option<SocketAddr>,
    pub(crate) agent: Option<SocketAddr>,
    pub(crate) store: Store,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Ended>>,
    _dir: tempfile::TempDir,
}

impl Setup {
    pub(crate) async fn start(self) -> Running {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(Settings {
            hub_cache: dir.path().join("hub"),
            voce_home: dir.path().join("voce"),
            endpoint: "http://127.0.0.1:9".into(),
            token: None,
            offline: true,
            keep_packed: None,
            patience: Patience::default(),
        });
        let mut models = Models::default();
        if self.speak {
            let (for_speaker, slots) = (store.clone(), self.speak_slots);
            let (faults, keep_warm, beside) = (self.faults.clone(), self.keep_warm, self.beside);
            let open = move || {
                let options = SpeakerOptions::default()
                    .with_threads(if beside { 2 } else { 1 })
                    .with_slots(slots)
                    .with_overlap(if beside { Overlap::Beside } else { Overlap::InTurn })
                    .with_keep_warm(keep_warm)
                    .with_faults(faults.clone());
                Speaker::open(&for_speaker, model("drifting").to_str().unwrap(), &options)
            };
            let mut mouth = MouthOptions::new("small", Box::new(open.clone()));
            mouth.open.extend((1..self.parts).map(|_| Box::new(open.clone()) as OpenSpeaker));
            if !self.voices.is_empty() {
                let with_store = |open: OpenVoice| {
                    let store = store.clone();
                    Box::new(move || open(&store)) as OpenSpeaker
                };
                mouth.open = self.voices.into_iter().map(with_store).collect();
            }
            mouth.preload = !self.lazy;
            mouth.slots = slots;
            mouth.keep_alive = self.keep_alive;
            mouth.queue = self.queue;
            let eos_threshold = self.endless.then_some(1e9);
            let max_frames = if self.endless { Some(400_000) } else { Some(12) };
            let max_frames = max_frames.filter(|_| !self.whole);
            mouth.request = SpeakRequest::default()
                .with_eos_threshold(eos_threshold)
                .with_max_frames(max_frames)
                .with_lockstep(1);
            models.mouths.push(mouth);
        }
        let hears = if self.listen.is_empty() {
            self.hear.map(Hears::Other)
        } else {
            Some(Hears::Engine(self.listen))
        };
        if let Some(hears) = hears {
            models.ears.push(EarOptions::new("counter", self.hear_slots, hears));
        }
        models.ears.extend(self.others);
        models.partners = self.partners;
        models.rooms = self.rooms;
        let server = Server::bind(self.options, models, store.clone()).await.unwrap();
        watchdog::arm(Some(server.addr()));
        within("the models", server.addr(), server.load()).await.unwrap();
        let (addr, wyoming, agent) = (server.addr(), server.wyoming_addr(), server.agent_addr());
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.run(async move {
            let _ = stopped.await;
        }));
        Running { addr, wyoming, agent, store, stop: Some(stop), task: Some(task), _dir: dir }
    }
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    async fn of(response: Response<Incoming>) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.into_body().collect().await.map(|b| b.to_bytes()).expect("a whole body");
        Self { status, headers, body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The code of the error that it is.
    #[track_caller]
    pub(crate) fn error(&self) -> String {
        assert!(!self.status.is_success(), "{self:?}");
        let code = self.json()["error"]["code"].as_str().unwrap().to_owned();
        assert!(!self.json()["error"]["message"].as_str().unwrap().is_empty());
        code
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }
}

pub(crate) type Body = Full<Bytes>;

impl Running {
    /// Sends a request and gives the answer's head; its body is still to come.
    pub(crate) async fn open(&self, request: Request<Body>) -> Response<Incoming> {
        self.try_open(request).await.expect("an answer")
    }

    /// The same of a server that may be on its way out.
    pub(crate) async fn try_open(&self, request: Request<Body>) -> Option<Response<Incoming>> {
        let stream = TcpStream::connect(self.addr).await.ok()?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(connection);
        sender.send_request(request).await.ok()
    }

    /// A connection from another address of this machine.
    pub(crate) async fn connect_from(&self, address: &str) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
        socket.connect(self.addr).await.unwrap().into()
    }

    /// A request from there.
    pub(crate) async fn send_from(&self, address: &str, request: Request<Body>) -> Reply {
        let stream = self.connect_from(address).await;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Reply::of(sender.send_request(request).await.unwrap()).await
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        Reply::of(self.open(request).await).await
    }

    /// A request with a key.
    pub(crate) fn keyed(&self, key: &str, method: &str, path: &str) -> hyper::http::request::Builder {
        self.request(method, path).header("authorization", format!("Bearer {key}"))
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> hyper::http::request::Builder {
        Request::builder().method(method).uri(path).header("host", self.addr.to_string())
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(self.request("GET", path).body(Body::default()).unwrap()).await
    }

    pub(crate) fn json_request(&self, path: &str, body: &Value) -> Request<Body> {
        let request = self.request("POST", path).header("content-type", "application/json");
        request.body(Full::new(body.to_string().into())).unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.send(self.json_request(path, body)).await
    }

    pub(crate) async fn form(&self, path: &str, fields: &[(&str, Part<'_>)]) -> Reply {
        self.send(self.form_request(self.request("POST", path), fields)).await
    }

    pub(crate) fn form_request(
        &self,
        request: hyper::http::request::Builder,
        fields: &[(&str, Part<'_>)],
    ) -> Request<Body> {
        let boundary = "----a-boundary";
        let mut body = Vec::new();
        for (name, part) in fields {
            body.extend(format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"").bytes());
            match part {
                Part::Text(text) => body.extend(format!("\r\n\r\n{text}\r\n").bytes()),
                Part::File(file, data) => {
                    body.extend(format!("; filename=\"{file}\"\r\nContent-Type: audio/x\r\n\r\n").bytes());
                    body.extend_from_slice(data);
                    body.extend(b"\r\n");
                }
            }
        }
        body.extend(format!("--{boundary}--\r\n").bytes());
        let kind = format!("multipart/form-data; boundary={boundary}");
        request.header("content-type", kind).body(Full::new(body.into())).unwrap()
    }

    /// The value of a series; one that is not there yet is zero.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let text = self.get("/metrics").await.text().to_owned();
        text.lines().find_map(|l| l.strip_prefix(series)).map_or(0.0, |value| value.trim().parse().unwrap())
    }

    /// Waits until a series has a value; one that counts may go past it.
    #[track_caller]
    pub(crate) fn until(&self, series: &str, value: f64) -> impl Future<Output = ()> {
        let counts = series.split('{').next().is_some_and(|name| name.ends_with("_total"));
        self.when(format!("{series} {value}"), async move || {
            let now = self.metric(series).await;
            now == value || counts && now > value
        })
    }

    /// Waits until something is so.
    #[track_caller]
    pub(crate) fn when(
        &self,
        what: impl std::fmt::Display,
        mut is_so: impl AsyncFnMut() -> bool,
    ) -> impl Future<Output = ()> {
        within(what, self.addr, async move {
            while !is_so().await {
                tokio::task::yield_now().await;
            }
        })
    }

    /// Waits until the server is ready.
    #[track_caller]
    pub(crate) fn until_ready(&self) -> impl Future<Output = ()> {
        self.when("a ready server", async || self.get("/readyz").await.status == StatusCode::OK)
    }

    /// Asks the server to go.
    pub(crate) fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }

    /// Waits until it has gone, and says how.
    pub(crate) async fn gone(&mut self) -> Ended {
        within("the server's end", self.addr, self.task.take().unwrap()).await.unwrap()
    }
}

pub(crate) enum Part<'a> {
    Text(&'a str),
    File(&'a str, &'a [u8]),
}
