//! `voce route` in front of two `voce serve`: one server is told to stop, the next one is killed, and the transcript is the one
//! that a single server gives.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Message;
use voce_audio::{DecodeLimits, decode_file, resample};

use crate::patience::{Ends as _, LIMIT, until};
use crate::sandbox::Sandbox;
use crate::serve::{Server, ask, start};

const PATH: &str = "/v1/listen?encoding=linear16&sample_rate=16000";

/// A process that ends with the test.
struct Router(Child, String);

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn route(sandbox: &Sandbox, servers: &[&str]) -> Router {
    let args = ["route", "--port", "0", "--json", "--to", &servers.join(",")];
    let mut child = sandbox.command(&args).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let line = child.line();
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
    Router(child, said["addr"].as_str().unwrap().to_owned())
}

/// Pieces of 80 ms of real speech.
fn speech() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech");
    let mut samples = Vec::new();
    for clip in ["1867-154075-0003", "3947-13262-0016", "5789-70653-0013"] {
        let audio = decode_file(&folder.join(format!("{clip}.opus")), &DecodeLimits::default()).unwrap();
        samples.extend(resample(&audio.to_mono(), audio.sample_rate, 16_000));
        samples.extend([0.0; 8_000]);
    }
    let bytes: Vec<u8> = samples.iter().flat_map(|s| ((s * 32767.0) as i16).to_le_bytes()).collect();
    bytes.chunks(2560).map(<[u8]>::to_vec).collect()
}

/// The finals of a stream; `at` is told before each piece is sent.
async fn hear(addr: &str, pieces: &[Vec<u8>], mut at: impl FnMut(usize)) -> Vec<Value> {
    let (socket, _) = connect_async(format!("ws://{addr}{PATH}")).await.unwrap();
    let (mut out, mut from) = socket.split();
    let reading = tokio::spawn(async move {
        let mut finals = Vec::new();
        while let Some(Ok(message)) = from.next().await {
            match message {
                Message::Text(text) => {
                    let value: Value = serde_json::from_str(&text).unwrap();
                    if value["type"] == "Metadata" {
                        break;
                    }
                    assert_eq!(value["type"], "Results", "{value}");
                    finals.push(value);
                }
                Message::Close(frame) => panic!("{frame:?}"),
                _ => {}
            }
        }
        finals
    });
    for (i, piece) in pieces.iter().enumerate() {
        at(i);
        out.send(Message::binary(piece.clone())).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    out.send(Message::text(r#"{"type":"CloseStream"}"#)).await.unwrap();
    reading.await.unwrap()
}

fn status(router: &Router) -> Value {
    serde_json::from_slice(&ask(&router.1, "GET", "/route/status", "", "").1).unwrap()
}

fn signal(server: &Server, signal: &str) {
    let pid = server.child.id().to_string();
    assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
}

/// Which of the servers has the stream.
fn holder(router: &Router) -> usize {
    let mut found = None;
    until("a server that has the stream", || {
        let status = status(router);
        found = status["servers"].as_array().unwrap().iter().position(|s| s["streams"] == 1);
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn a_stream_outlives_a_server_that_stops_and_one_that_is_killed() {
    let sandbox = Sandbox::new();
    let secret = sandbox.out("secret");
    std::fs::write(&secret, "a secret for the tests\n").unwrap();
    let folder = sandbox.out("handover");
    let (secret, folder) = (secret.to_str().unwrap(), folder.to_str().unwrap());
    let serve = || {
        let args = [
            "--no-speak",
            "--hear-slots",
            "2",
            "--handover-secret-file",
            secret,
            "--handover-dir",
            folder,
            "--checkpoint",
            "300ms",
        ];
        start(&sandbox, &args)
    };
    let mut servers: Vec<Option<Server>> = (0..3).map(|_| Some(serve())).collect();
    let pieces = speech();
    let addresses: Vec<String> = servers.iter().flatten().map(|s| s.addr.clone()).collect();
    let router = route(&sandbox, &addresses.iter().map(String::as_str).collect::<Vec<_>>());
    let all_up = || status(&router)["servers"].as_array().unwrap().iter().all(|s| s["health"] == "up");
    until("servers that are up", all_up);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let hear = async |addr: &str, at: &mut dyn FnMut(usize)| {
        let heard = hear(addr, &pieces, at);
        tokio::time::timeout(LIMIT, heard).await.expect("the last words in time")
    };
    let alone = runtime.block_on(hear(&addresses[0], &mut |_| {}));
    assert!(alone.len() > 2, "{alone:?}");
    let through = runtime.block_on(hear(&router.1, &mut |i| {
        if i == pieces.len() / 3 {
            let server = servers[holder(&router)].take().unwrap();
            signal(&server, "-TERM");
            // Its streams go on elsewhere before it ends.
            let mut server = server;
            assert_eq!(server.child.ends().code(), Some(0));
        }
        if i == 2 * pieces.len() / 3 {
            let mut at = 0;
            until("a server that lives and has the stream", || {
                at = holder(&router);
                servers[at].is_some()
            });
            signal(servers[at].as_ref().unwrap(), "-KILL");
            servers[at].take().unwrap().child.ends();
        }
    }));
    assert_eq!(through, alone);
    let status = status(&router);
    assert_eq!(
        (&status["moved"], &status["revived"], &status["lost"]),
        (&1.into(), &1.into(), &0.into()),
        "{status}"
    );
}
