//! What a router passes on, with a machine behind it that says everything back: frames of every kind and length, clients that
//! break the rules or do not read, goodbyes, and the number of connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_async};
use voce_server::route::{Route, RouteOptions};

use crate::patience::{TcpStream, Web, connect_async, within};
use crate::watchdog;

type Client = Web;

/// Messages of a flood, and bytes of each.
const FLOOD: u32 = 2000;
const LONG: usize = 16 * 1024;

/// A router and the machine behind it.
struct Routed {
    at: SocketAddr,
    /// Lets the machine read on after it was told to wait.
    go_on: Arc<Notify>,
    stop: oneshot::Sender<()>,
}

async fn start(set: impl FnOnce(&mut RouteOptions)) -> Routed {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let go_on = Arc::new(Notify::new());
    let mut options =
        RouteOptions::new("127.0.0.1:0".parse().unwrap(), vec![listener.local_addr().unwrap().to_string()]);
    set(&mut options);
    tokio::spawn(machine(listener, go_on.clone()));
    let route = Route::bind(options).await.unwrap();
    let at = route.addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    tokio::spawn(route.run(async move {
        let _ = stopped.await;
    }));
    let routed = Routed { at, go_on, stop };
    watchdog::arm(Some(at));
    let up = async {
        while routed.status().await["servers"][0]["health"] != "up" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("a machine that is up", at, up).await;
    routed
}

/// A machine: ready, and an echo.
async fn machine(listener: TcpListener, go_on: Arc<Notify>) {
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let go_on = go_on.clone();
        tokio::spawn(async move {
            let mut head = [0; 11];
            while stream.peek(&mut head).await.unwrap() < head.len() {}
            if head != *b"GET /readyz" {
                return echo(accept_async(stream).await.unwrap(), &go_on).await;
            }
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|n| n > 0) {
                let body = r#"{"status":"ok","free":8,"slots":8}"#;
                let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
    }
}

/// Says back what it hears; some words it obeys.
async fn echo(mut socket: WebSocketStream<tokio::net::TcpStream>, go_on: &Notify) {
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Text(text) if text == "flood" => {
                for n in 0..FLOOD {
                    if socket.send(numbered(n)).await.is_err() {
                        return;
                    }
                }
            }
            Message::Text(text) if text == "wait" => go_on.notified().await,
            Message::Text(text) if text == "close" => {
                let frame = CloseFrame { code: CloseCode::Library(4321), reason: "enough".into() };
                let _ = socket.close(Some(frame)).await;
            }
            message @ (Message::Text(_) | Message::Binary(_)) => {
                let _ = socket.send(message).await;
            }
            Message::Close(Some(frame)) => assert_eq!(frame.reason, "bye"),
            _ => {}
        }
    }
}

fn numbered(n: u32) -> Message {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(LONG, n as u8);
    Message::binary(bytes)
}

impl Routed {
    async fn try_client(&self) -> Result<Client, Error> {
        connect_async(format!("ws://{}/v1/listen", self.at)).await.map(|(socket, _)| socket)
    }

    async fn client(&self) -> Client {
        self.try_client().await.unwrap()
    }

    async fn status(&self) -> Value {
        let mut stream = TcpStream::connect(self.at).await.unwrap();
        let request = b"GET /route/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap()
    }

    /// The machine is blamed for nothing.
    async fn is_well(&self) {
        let status = self.status().await;
        assert_eq!(status["servers"][0]["health"], "up", "{status}");
        assert!(["moved", "revived", "lost"].iter().all(|what| status[what] == 0), "{status}");
    }
}

async fn next(client: &mut Client) -> Message {
    client.next().await.unwrap().unwrap()
}

/// Whether what is sent comes back.
async fn check(client: &mut Client, message: Message) {
    client.send(message.clone()).await.unwrap();
    assert_eq!(next(client).await, message);
}

#[tokio::test]
async fn every_message_passes_both_ways() {
    let routed = start(|_| {}).await;
    let mut client = routed.client().await;
    for length in [0, 1, 125, 126, 2560, 0xffff, 0x1_0000, 1 << 20] {
        check(&mut client, Message::binary(vec![7; length])).await;
        check(&mut client, Message::text("é".repeat(length / 2))).await;
    }
    let ping = Message::Ping("there?".into());
    client.send(ping).await.unwrap();
    assert_eq!(next(&mut client).await, Message::Pong("there?".into()));
    // In parts, with a ping between them, and another message behind.
    let text = "über alles";
    let part = |from: usize, to: usize, kind: Data| {
        let is_last = to == text.len();
        Message::Frame(Frame::message(text.as_bytes()[from..to].to_vec(), OpCode::Data(kind), is_last))
    };
    for message in [
        part(0, 1, Data::Text),
        part(1, 4, Data::Continue),
        Message::Ping("now".into()),
        part(4, text.len(), Data::Continue),
    ] {
        client.feed(message).await.unwrap();
    }
    client.send(Message::text("next")).await.unwrap();
    let mut all = Vec::new();
    while all.len() < 3 {
        all.push(next(&mut client).await);
    }
    assert!(all.contains(&Message::Pong("now".into())), "{all:?}");
    all.retain(Message::is_text);
    assert_eq!(all, [Message::text(text), Message::text("next")]);
    let bye = CloseFrame { code: CloseCode::Normal, reason: "bye".into() };
    client.close(Some(bye.clone())).await.unwrap();
    assert_eq!(next(&mut client).await, Message::Close(Some(bye)));
    assert!(client.next().await.is_none());
    // And what a machine says at its end.
    let mut client = routed.client().await;
    client.send(Message::text("close")).await.unwrap();
    let Message::Close(Some(frame)) = next(&mut client).await else { panic!() };
    assert_eq!((u16::from(frame.code), frame.reason.as_str()), (4321, "enough"));
    routed.is_well().await;
}

#[tokio::test]
async fn clients_that_break_the_rules_are_told_and_harm_nobody() {
    let routed = start(|_| {}).await;
    let mut other = routed.client().await;
    let cases: [(&[u8], u16); 8] = [
        (b"\x82\x03abc", 1002),
        (b"\xc2\x80\0\0\0\0", 1002),
        (b"\x83\x80\0\0\0\0", 1002),
        (b"\x80\x80\0\0\0\0", 1002),
        (b"\x09\x80\0\0\0\0", 1002),
        (b"\x81\x81\0\0\0\0\xff", 1007),
        (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 1009),
        (b"\x82\xff\0\0\0\0\x01\x50\0\x01\0\0\0\0", 1009),
    ];
    for (bytes, code) in cases {
        let mut bad = routed.client().await;
        check(&mut bad, Message::text("good so far")).await;
        bad.get_mut().write_all(bytes).await.unwrap();
        let Message::Close(Some(frame)) = next(&mut bad).await else { panic!("{bytes:?}") };
        assert_eq!(u16::from(frame.code), code, "{bytes:?}");
        check(&mut other, Message::text("still here")).await;
    }
    // Others break off in the middle of a frame.
    let mut bad = routed.client().await;
    bad.get_mut().write_all(b"\x82\xfe\x10").await.unwrap();
    drop(bad);
    check(&mut other, Message::text("still here")).await;
    routed.is_well().await;
}

#[tokio::test]
async fn who_does_not_read_stops_nobody_else_and_loses_nothing() {
    let routed = start(|_| {}).await;
    let (mut slow, mut other) = (routed.client().await, routed.client().await);
    slow.send(Message::text("flood")).await.unwrap();
    for _ in 0..100 {
        check(&mut other, Message::binary(vec![1; 2560])).await;
    }
    for n in 0..FLOOD {
        assert!(next(&mut slow).await == numbered(n), "{n}");
    }
    // A machine that does not read is waited for.
    slow.send(Message::text("wait")).await.unwrap();
    let (mut sink, mut source) = slow.split();
    let sending = tokio::spawn(async move {
        for n in 0..FLOOD {
            sink.send(numbered(n)).await.unwrap();
        }
    });
    for _ in 0..100 {
        check(&mut other, Message::binary(vec![1; 2560])).await;
    }
    assert!(!sending.is_finished());
    routed.go_on.notify_one();
    for n in 0..FLOOD {
        assert!(source.next().await.unwrap().unwrap() == numbered(n), "{n}");
    }
    sending.await.unwrap();
    routed.is_well().await;
}

#[tokio::test]
async fn a_stream_is_a_connection_to_its_end() {
    let routed = start(|options| options.connections = 1).await;
    let again = async || {
        let client = async {
            loop {
                match routed.try_client().await {
                    Ok(client) => return client,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        within("room for a client", routed.at, client).await
    };
    // The last look at the status may not be over yet.
    let mut one = again().await;
    check(&mut one, Message::text("one")).await;
    assert!(routed.try_client().await.is_err());
    check(&mut one, Message::text("still here")).await;
    drop(one);
    check(&mut again().await, Message::text("two")).await;
}

#[tokio::test]
async fn what_is_left_when_time_is_up_ends() {
    let routed = start(|options| options.drain = Duration::ZERO).await;
    let mut client = routed.client().await;
    check(&mut client, Message::text("here")).await;
    routed.stop.send(()).unwrap();
    assert!(!matches!(client.next().await, Some(Ok(_))));
}
