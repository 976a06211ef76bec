//! The four doors of live recognition with real speech and the small recogniser: what a client sends, what it is told, and how
//! it goes on elsewhere.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::handshake::client::Response;
use tokio_tungstenite::tungstenite::{Error, Message};
use voce_audio::{DecodeLimits, decode_file, resample};
use voce_engine::listener::{Listener, ListenerOptions};
use voce_engine::store::{Settings, Store};
use voce_server::{HandoverOptions, Secret, ServerOptions};

use crate::patience::{Web, connect_async, within};
use crate::server::{Running, Setup};
use crate::socket::Socket;

/// Seconds of a message.
const PIECE: f64 = 0.08;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The small recogniser that comes with the binary.
pub(crate) fn ear(slots: usize) -> Listener {
    let settings = Settings::from_vars(|name| (name == "HOME").then(|| "/nowhere".into())).unwrap();
    let options = ListenerOptions::default().with_threads(1).with_slots(slots);
    Listener::open(&Store::new(settings), root().join("models/nano-ear").to_str().unwrap(), &options).unwrap()
}

/// Clips of real speech from one on, with pauses, at 16 kHz.
pub(crate) fn speech(first: usize, clips: usize) -> Vec<f32> {
    let folder = root().join("crates/voce/tests/fixtures/speech");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "opus"));
    files.sort();
    let mut all = Vec::new();
    for clip in 0..clips {
        let audio = decode_file(&files[(first + clip) % files.len()], &DecodeLimits::default()).unwrap();
        all.extend(resample(&audio.to_mono(), audio.sample_rate, 16_000));
        all.extend([0.0; 12_000]);
    }
    all
}

/// A secret, and the machines at these addresses as peers.
pub(crate) fn handover(peers: &[SocketAddr]) -> HandoverOptions {
    let mut options = HandoverOptions::new(Secret::new("a secret for the tests").unwrap());
    options.peers = peers.iter().map(|at| format!("http://{at}")).collect();
    options
}

/// A server with the small recogniser.
pub(crate) async fn start(options: ServerOptions, slots: usize) -> Running {
    let setup = Setup {
        options,
        speak: false,
        listen: vec![Box::new(move || Ok(ear(slots + 2)))],
        hear_slots: slots,
        ..Default::default()
    };
    setup.start().await
}

/// Addresses that were free a moment ago.
pub(crate) fn addresses<const N: usize>() -> [SocketAddr; N] {
    let taken: [_; N] = std::array::from_fn(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    taken.map(|listener| listener.local_addr().unwrap())
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Door {
    Moshi,
    Deepgram,
    Realtime,
    Rnnt,
}

impl Door {
    pub(crate) const ALL: [Self; 4] = [Self::Moshi, Self::Deepgram, Self::Realtime, Self::Rnnt];

    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Moshi => "/api/asr-streaming?x=1",
            Self::Deepgram => {
                "/v1/listen?encoding=linear16&sample_rate=24000&interim_results=true&vad_events=true"
            }
            Self::Realtime => "/v1/realtime?intent=transcription",
            Self::Rnnt => "/v2/decode/stream/any?x=1",
        }
    }

    /// What a client sends for these samples, to the end.
    pub(crate) fn messages(self, samples: &[f32]) -> Vec<Message> {
        let pack = |value: Value| Message::binary(rmp_serde::to_vec_named(&value).unwrap());
        let rate = if self == Self::Rnnt { 16_000 } else { 24_000 };
        let samples = resample(samples, 16_000, rate);
        let pcm = |piece: &[f32]| -> Vec<u8> {
            piece.iter().flat_map(|s| ((s * 32767.0) as i16).to_le_bytes()).collect()
        };
        let piece = |piece: &[f32]| match self {
            Self::Moshi => pack(json!({"type": "Audio", "pcm": piece})),
            Self::Deepgram | Self::Rnnt => Message::binary(pcm(piece)),
            Self::Realtime => {
                let audio = BASE64.encode(pcm(piece));
                Message::text(json!({"type": "input_audio_buffer.append", "audio": audio}).to_string())
            }
        };
        let mut all: Vec<Message> = samples.chunks((f64::from(rate) * PIECE) as usize).map(piece).collect();
        match self {
            Self::Moshi => {
                // A marker in the middle is answered in its place.
                all.insert(all.len() / 3, pack(json!({"type": "Marker", "id": 7})));
                all.push(pack(json!({"type": "Marker", "id": 8})));
            }
            Self::Deepgram => all.push(Message::text(r#"{"type":"CloseStream"}"#)),
            Self::Realtime => {
                let update = json!({"type": "session.update", "session": {"type": "transcription", "audio": {
                    "input": {"turn_detection": {"type": "server_vad", "silence_duration_ms": 400}},
                }}});
                all.insert(0, Message::text(update.to_string()));
                // The second commit has nothing to tell, and so is the last that is answered.
                let commit = Message::text(r#"{"type":"input_audio_buffer.commit"}"#);
                all.extend([commit.clone(), piece(&[0.0; 10]), commit]);
            }
            Self::Rnnt => all.push(Message::binary(vec![0])),
        }
        all
    }

    pub(crate) fn read(self, message: &Message) -> Value {
        match message {
            Message::Binary(bytes) => rmp_serde::from_slice(bytes).unwrap(),
            Message::Text(text) => serde_json::from_str(text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// Whether a message may be told in other pieces the next time.
    pub(crate) fn is_passing(self, value: &Value) -> bool {
        ["Active", "Paused"].iter().any(|status| value["status"] == *status)
            || value["type"] == "Step"
            || value["is_final"] == false
    }

    /// Whether a message is the last one.
    pub(crate) fn is_last(self, value: &Value, sent_all: bool) -> bool {
        match self {
            Self::Moshi => value["type"] == "Marker" && value["id"] == 8,
            Self::Deepgram => value["type"] == "Metadata",
            Self::Realtime => {
                sent_all
                    && value["type"] == "conversation.item.input_audio_transcription.completed"
                    && value["transcript"] == ""
            }
            Self::Rnnt => value["status"] == "Complete",
        }
    }

    /// The token and the number of messages that were taken, where a message says that the stream has moved.
    fn moved(self, value: &Value) -> Option<(String, usize)> {
        let is_one = ["Moved", "session.moved"].iter().any(|kind| value["type"] == *kind);
        is_one.then(|| {
            (value["token"].as_str().unwrap().to_owned(), value["messages"].as_u64().unwrap() as usize)
        })
    }
}

/// What a client was told, and how.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Lasting messages.
    pub(crate) lasting: Vec<Value>,
    /// Times that it moved.
    pub(crate) moves: usize,
    /// When messages came.
    pub(crate) answers: Vec<Instant>,
}

impl Told {
    /// Lasting messages without their numbers, those that say that audio was committed apart, and the numbers: when a client
    /// commits is not tied to what is heard meanwhile.
    pub(crate) fn settled(&self) -> (Vec<Value>, Vec<Value>, Vec<Value>) {
        let mut plain = self.lasting.clone();
        let numbers =
            plain.iter_mut().filter_map(|value| value.as_object_mut()?.remove("event_id")).collect();
        let (heard, committed) =
            plain.into_iter().partition(|value| value["type"] != "input_audio_buffer.committed");
        (heard, committed, numbers)
    }

    /// Words in order.
    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        // The older RNN-T route says all of it again and again.
        if let Some(all) = self.lasting.iter().rev().find_map(|value| value["transcription"].as_str()) {
            return all.split_whitespace().map(str::to_owned).collect();
        }
        for value in &self.lasting {
            let texts =
                [&value["text"], &value["channel"]["alternatives"][0]["transcript"], &value["transcript"]];
            if value["type"] == "Word" || value["is_final"] == true || value["transcript"].is_string() {
                words.extend(
                    texts
                        .iter()
                        .filter_map(|t| t.as_str())
                        .flat_map(str::split_whitespace)
                        .map(str::to_owned),
                );
            }
        }
        words
    }
}

pub(crate) async fn connect(
    at: SocketAddr,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<Socket, Error> {
    let mut request = format!("ws://{at}{path}").into_client_request().unwrap();
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().unwrap());
    }
    connect_async(request).await.map(|(socket, _)| Socket(socket))
}

/// Connects; a balancer that does not know yet who is there is asked again, as its clients do.
async fn reach(url: &str) -> (Web, Response) {
    let at = url.strip_prefix("ws://").and_then(|rest| rest.split('/').next()?.parse().ok());
    let connected = async {
        loop {
            match connect_async(url).await {
                Ok(connected) => return connected,
                Err(Error::Http(response)) if response.status() == 503 => {}
                Err(other) => panic!("{url}: {other}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(format!("a door at {url}"), at.expect("an address"), connected).await
}

/// A stream from its first message to its last. Goes on with its token at `again` when it is told that it has moved; `pace` is
/// the time between two messages; `sent` is told how many were sent; a message waits until `may` says yes to
/// its number and the times that the stream has moved.
pub(crate) async fn client(
    door: Door,
    at: SocketAddr,
    again: impl Fn(usize) -> SocketAddr,
    messages: &[Message],
    pace: Duration,
    sent: impl Fn(usize),
    may: impl Fn(usize, usize) -> bool,
) -> Told {
    let mut told = Told::default();
    let mut next = 0;
    let mut socket = Socket(reach(&format!("ws://{at}{}", door.path())).await.0);
    let mut clock = tokio::time::interval(pace.max(Duration::from_micros(1)));
    loop {
        let received = tokio::select! {
            biased;
            received = socket.0.next() => received,
            _ = clock.tick(), if next < messages.len() => {
                if !may(next, told.moves) {
                    continue;
                }
                // Who has moved is told so by what it reads next.
                if socket.0.send(messages[next].clone()).await.is_ok() {
                    next += 1;
                    sent(next);
                }
                continue;
            }
        };
        let message = match received {
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => message,
            Some(Ok(Message::Close(frame))) => {
                let frame = frame.expect("a reason");
                let token =
                    frame.reason.strip_prefix("moved ").unwrap_or_else(|| panic!("{door:?}: {frame:?}"));
                assert_eq!(u16::from(frame.code), 1012);
                told.moves += 1;
                let path = format!("{}&resume={token}", door.path());
                let url = format!("ws://{}{path}", again(told.moves));
                let (on, answer) = reach(&url).await;
                // The head of the answer says what the last message before the end said.
                let taken: usize = answer.headers()["voce-taken"].to_str().unwrap().parse().unwrap();
                if door != Door::Rnnt {
                    let last = told.lasting.pop().unwrap();
                    assert_eq!(door.moved(&last), Some((token.to_owned(), taken)), "{last}");
                }
                (socket, next) = (Socket(on), taken);
                continue;
            }
            Some(Ok(_)) => continue,
            other => panic!("{door:?}: {other:?} after {next} messages"),
        };
        told.answers.push(Instant::now());
        let value = door.read(&message);
        if door.is_passing(&value) {
            continue;
        }
        let is_last = door.is_last(&value, next == messages.len());
        told.lasting.push(value);
        if is_last {
            return told;
        }
    }
}
