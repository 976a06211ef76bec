//! Beside other machines: a balancer is told how much room there is, and one without room says so before an upgrade.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use futures_util::SinkExt as _;
use tokio::io::AsyncReadExt as _;
use tokio_tungstenite::tungstenite::{Error, Message};
use voce_server::ServerOptions;
use voce_server::ears::NullEars;

use crate::patience::{TcpStream, Web, connect_async, within};
use crate::server::{Running, Setup};
use crate::socket::Socket;

const LISTEN: &str = "/v1/listen?encoding=linear16&sample_rate=16000";
const ACTIVE: &str = "voce_streams_active{kind=\"recognition\"}";

async fn start(options: ServerOptions) -> Running {
    Setup { options, speak: false, hear: Some(Arc::new(NullEars)), hear_slots: 2, ..Default::default() }
        .start()
        .await
}

/// A stream that holds a slot.
async fn stream(server: &Running, active: f64) -> Socket {
    let mut socket = server.socket(LISTEN).await;
    socket.binary(vec![0; 640]).await;
    server.until(ACTIVE, active).await;
    socket
}

async fn line(server: &Running) -> String {
    let mut line = String::new();
    TcpStream::connect(server.agent.unwrap()).await.unwrap().read_to_string(&mut line).await.unwrap();
    line
}

#[tokio::test]
async fn a_balancer_is_told_how_much_room_there_is() {
    let agent = Some("127.0.0.1:0".parse().unwrap());
    let mut server = start(ServerOptions { agent, ..ServerOptions::default() }).await;
    assert_eq!(line(&server).await, "up ready 100%\n");
    let first = stream(&server, 1.0).await;
    assert_eq!(line(&server).await, "up ready 50%\n");
    let second = stream(&server, 2.0).await;
    assert_eq!(line(&server).await, "up ready 0%\n");
    // Somebody who connects and reads nothing keeps nobody waiting.
    let silent = TcpStream::connect(server.agent.unwrap()).await.unwrap();
    assert_eq!(line(&server).await, "up ready 0%\n");
    drop(second);
    server.until(ACTIVE, 1.0).await;
    assert_eq!(line(&server).await, "up ready 50%\n");
    // On its way out it says so as long as a stream goes on.
    server.stop();
    server.when("word that it drains", async || line(&server).await == "drain\n").await;
    drop((first, silent));
    server.gone().await;
}

#[tokio::test]
async fn without_a_slot_there_is_no_upgrade_where_that_is_asked_for() {
    let server = start(ServerOptions { refuse_upgrades: true, ..ServerOptions::default() }).await;
    let _streams = (stream(&server, 1.0).await, stream(&server, 2.0).await);
    for path in [LISTEN, "/v1/realtime?intent=transcription", "/api/asr-streaming", "/v2/decode/stream/x"] {
        match server.try_socket(path, &[]).await {
            Err(Error::Http(response)) => {
                assert_eq!(response.status(), 503, "{path}");
                assert!(response.headers().contains_key("retry-after"), "{path}");
                let body = response.into_body().unwrap_or_default();
                assert!(body.is_empty() || String::from_utf8_lossy(&body).contains("busy"), "{path}");
            }
            Err(other) => panic!("{path}: {other}"),
            Ok(_) => panic!("{path} was upgraded"),
        }
    }
    assert_eq!(server.metric(ACTIVE).await, 2.0);
}

#[tokio::test]
async fn without_that_setting_the_socket_is_told() {
    let server = start(ServerOptions::default()).await;
    let _streams = (stream(&server, 1.0).await, stream(&server, 2.0).await);
    let mut third = server.socket(LISTEN).await;
    assert_eq!(third.next_json().await["err_code"], "busy");
    assert_eq!(third.closed().await.0, 1013);
}

/// HAProxy with the project's own configuration in front of two servers; `None` where it is not installed.
pub(crate) struct Balancer(Child, pub(crate) SocketAddr);

impl Balancer {
    pub(crate) async fn start(one: &Running, two: &Running) -> Option<Self> {
        // A port that was free a moment ago.
        let at = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("haproxy");
        let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/haproxy/haproxy.cfg");
        command.args(["-db", "-f", config]).env("VOCE_LISTEN", at.to_string());
        for (name, server) in [("ONE", one), ("TWO", two)] {
            let agent = server.agent.unwrap();
            command.env(format!("VOCE_{name}"), server.addr.to_string());
            command.env(format!("VOCE_{name}_AGENT_HOST"), agent.ip().to_string());
            command.env(format!("VOCE_{name}_AGENT_PORT"), agent.port().to_string());
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let mut this = Self(child, at);
        let connected = async {
            while TcpStream::connect(at).await.is_err() {
                assert!(this.0.try_wait().unwrap().is_none(), "haproxy has ended: {config}");
                tokio::task::yield_now().await;
            }
        };
        within("haproxy", at, connected).await;
        Some(this)
    }

    async fn socket(&self) -> Result<Web, Error> {
        connect_async(format!("ws://{}{LISTEN}", self.1)).await.map(|(socket, _)| socket)
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
#[allow(clippy::print_stderr)]
async fn haproxy_goes_to_the_machine_that_has_room() {
    let options = || ServerOptions {
        agent: Some("127.0.0.1:0".parse().unwrap()),
        refuse_upgrades: true,
        ..ServerOptions::default()
    };
    let (mut one, mut two) = (start(options()).await, start(options()).await);
    let Some(balancer) = Balancer::start(&one, &two).await else {
        return eprintln!("skipped: haproxy is not installed");
    };
    // Four slots on two machines are four streams, whichever machine is asked first.
    let mut streams = Vec::new();
    for taken in 1..=4 {
        let mut socket = balancer.socket().await.unwrap();
        socket.send(Message::binary(vec![0; 640])).await.unwrap();
        streams.push(socket);
        let active = async || one.metric(ACTIVE).await + two.metric(ACTIVE).await >= f64::from(taken);
        one.when(format!("{taken} streams"), active).await;
    }
    assert_eq!((one.metric(ACTIVE).await, two.metric(ACTIVE).await), (2.0, 2.0));
    match balancer.socket().await {
        Err(Error::Http(response)) => assert_eq!(response.status(), 503),
        other => panic!("{other:?}"),
    }
    drop(streams);
    one.until(ACTIVE, 0.0).await;
    two.until(ACTIVE, 0.0).await;
    // A machine on its way out is not asked any more: it answers 503 and the next one takes the stream.
    one.stop();
    one.gone().await;
    let mut socket = balancer.socket().await.unwrap();
    socket.send(Message::binary(vec![0; 640])).await.unwrap();
    two.until(ACTIVE, 1.0).await;
    drop(balancer);
    two.stop();
    two.gone().await;
}
