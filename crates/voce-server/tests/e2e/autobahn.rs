//! The WebSocket layer by itself: what RFC 6455 asks, over a plain socket, and Autobahn's suite where it is installed.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use voce_engine::store::{Patience, Settings, Store};
use voce_server::{Models, Server, ServerOptions};

use crate::patience::TcpStream;
use crate::watchdog;

/// A server that says back what it hears.
struct Echo {
    addr: SocketAddr,
    _stop: oneshot::Sender<()>,
    _dir: tempfile::TempDir,
}

async fn start() -> Echo {
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
    let server = Server::bind(ServerOptions::default(), Models::default(), store).await.unwrap().with_echo();
    let addr = server.addr();
    watchdog::arm(Some(addr));
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(server.run(async move {
        let _ = stopped.await;
    }));
    Echo { addr, _stop: stop, _dir: dir }
}

/// A frame as it came.
#[derive(Debug, PartialEq)]
struct Frame {
    first: u8,
    payload: Vec<u8>,
}

struct Client(TcpStream);

const FIN: u8 = 0x80;
const CONTINUED: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

impl Client {
    async fn connect(echo: &Echo) -> Self {
        let mut stream = TcpStream::connect(echo.addr).await.unwrap();
        let head = "GET /echo HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{answer}");
        // Compression is not offered: a packed message cannot be larger than it looks.
        assert!(!answer.to_lowercase().contains("deflate"), "{answer}");
        Self(stream)
    }

    /// Sends a frame; `first` is its first byte.
    async fn send(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = vec![first];
        match payload.len() {
            n @ 0..=125 => bytes.push(0x80 | n as u8),
            n @ 126..=0xffff => {
                bytes.push(0x80 | 126);
                bytes.extend((n as u16).to_be_bytes());
            }
            n => {
                bytes.push(0x80 | 127);
                bytes.extend((n as u64).to_be_bytes());
            }
        }
        let mask = [0x12, 0x34, 0x56, 0x78];
        bytes.extend(mask);
        bytes.extend(payload.iter().enumerate().map(|(i, b)| b ^ mask[i % 4]));
        // A server that has closed already may not take it.
        let _ = self.0.write_all(&bytes).await;
    }

    /// The next frame; `None` at the end.
    async fn next(&mut self) -> Option<Frame> {
        let first = self.0.read_u8().await.ok()?;
        let length = self.0.read_u8().await.ok()?;
        assert_eq!(length & 0x80, 0, "servers do not mask");
        let length = match length {
            126 => u64::from(self.0.read_u16().await.ok()?),
            127 => self.0.read_u64().await.ok()?,
            n => u64::from(n),
        };
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).await.ok()?;
        Some(Frame { first, payload })
    }

    #[track_caller]
    fn is(frame: Option<Frame>, first: u8, payload: &[u8]) {
        let frame = frame.expect("a frame");
        assert_eq!((frame.first, &frame.payload[..]), (first, payload));
    }

    /// Reads to the end: the close code, where there was one.
    async fn closed(&mut self) -> Option<u16> {
        let mut code = None;
        while let Some(frame) = self.next().await {
            if frame.first == FIN | CLOSE {
                code = frame.payload.first_chunk().map(|c| u16::from_be_bytes(*c));
            }
        }
        code
    }
}

#[tokio::test]
async fn messages_of_every_length_class() {
    let echo = start().await;
    let mut client = Client::connect(&echo).await;
    for length in [0, 1, 125, 126, 127, 128, 65_535, 65_536, 1 << 20] {
        let payload = vec![b'*'; length];
        client.send(FIN | TEXT, &payload).await;
        Client::is(client.next().await, FIN | TEXT, &payload);
        client.send(FIN | BINARY, &payload).await;
        Client::is(client.next().await, FIN | BINARY, &payload);
    }
}

#[tokio::test]
async fn pings_are_answered_also_between_fragments() {
    let echo = start().await;
    let mut client = Client::connect(&echo).await;
    client.send(FIN | PING, b"hello").await;
    Client::is(client.next().await, FIN | PONG, b"hello");
    client.send(FIN | PONG, b"unasked").await;
    client.send(TEXT, b"frag").await;
    client.send(FIN | PING, &[0xff; 125]).await;
    Client::is(client.next().await, FIN | PONG, &[0xff; 125]);
    client.send(CONTINUED, b"").await;
    client.send(FIN | CONTINUED, b"ment").await;
    Client::is(client.next().await, FIN | TEXT, b"fragment");
    // A letter of three bytes may come in three parts.
    for part in [&[0xe2][..], &[0x82]] {
        client.send(if part[0] == 0xe2 { TEXT } else { CONTINUED }, part).await;
    }
    client.send(FIN | CONTINUED, &[0xac]).await;
    Client::is(client.next().await, FIN | TEXT, "\u{20ac}".as_bytes());
}

#[tokio::test]
async fn what_breaks_the_rules_is_closed_with_its_code() {
    let echo = start().await;
    type Frames<'a> = &'a [(u8, &'a [u8])];
    let cases: [(&str, u16, Frames<'_>); 17] = [
        ("a reserved bit", 1002, &[(FIN | 0x40 | TEXT, b"x")]),
        ("three reserved bits", 1002, &[(FIN | 0x70 | BINARY, b"x")]),
        ("a reserved opcode", 1002, &[(FIN | 3, b"x")]),
        ("a reserved control", 1002, &[(FIN | 11, b"x")]),
        ("a continuation of nothing", 1002, &[(FIN | CONTINUED, b"x")]),
        ("a message inside another", 1002, &[(TEXT, b"x"), (FIN | TEXT, b"y")]),
        ("a ping in parts", 1002, &[(PING, b"x")]),
        ("a ping of 126 bytes", 1002, &[(FIN | PING, &[0; 126])]),
        ("a close of 126 bytes", 1002, &[(FIN | CLOSE, &[3; 126])]),
        ("a close of one byte", 1002, &[(FIN | CLOSE, &[3])]),
        ("text that is none", 1007, &[(FIN | TEXT, &[0xff, 0xfe])]),
        ("half a letter at the end", 1007, &[(TEXT, &[0xe2, 0x82]), (FIN | CONTINUED, b"")]),
        ("half of a pair", 1007, &[(FIN | TEXT, &[0xed, 0xa0, 0x80])]),
        ("too long a form", 1007, &[(FIN | TEXT, &[0xc0, 0xaf])]),
        ("a letter past the last", 1007, &[(FIN | TEXT, &[0xf4, 0x90, 0x80, 0x80])]),
        ("a close code of nobody", 1002, &[(FIN | CLOSE, &999u16.to_be_bytes())]),
        ("a close code that is not sent", 1002, &[(FIN | CLOSE, &1005u16.to_be_bytes())]),
    ];
    for (name, code, frames) in cases {
        let mut client = Client::connect(&echo).await;
        for (first, payload) in frames {
            client.send(*first, payload).await;
        }
        assert_eq!(client.closed().await, Some(code), "{name}");
    }
    // A frame without a mask.
    let mut client = Client::connect(&echo).await;
    client.0.write_all(&[FIN | TEXT, 1, b'x']).await.unwrap();
    assert_eq!(client.closed().await, Some(1002));
    // A frame that promises more than a message may have.
    let mut client = Client::connect(&echo).await;
    client.0.write_all(&[FIN | BINARY, 0x80 | 127, 0x7f, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]).await.unwrap();
    assert_eq!(client.closed().await, Some(1009));
}

#[tokio::test]
async fn goodbyes_are_answered() {
    let echo = start().await;
    for (said, answered) in
        [(&[][..], None), (&[0x03, 0xe8], Some(1000)), (&[0x0b, 0xb8, b'b', b'y', b'e'], Some(3000))]
    {
        let mut client = Client::connect(&echo).await;
        client.send(FIN | CLOSE, said).await;
        let frame = client.next().await.expect("an answer");
        assert_eq!(frame.first, FIN | CLOSE);
        assert_eq!(frame.payload.first_chunk().map(|c| u16::from_be_bytes(*c)), answered);
        assert_eq!(client.next().await, None);
    }
}

/// Cases that are not run: compression (12, 13), which is not offered.
const EXCLUDED: [&str; 2] = ["12.*", "13.*"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::print_stderr)]
#[ignore = "needs Autobahn: VOCE_WSTEST names its wstest, and VOCE_WSTEST_CASES what to run"]
async fn autobahn() {
    let wstest = std::env::var("VOCE_WSTEST").expect("VOCE_WSTEST names Autobahn's wstest");
    let cases = std::env::var("VOCE_WSTEST_CASES").unwrap_or_else(|_| "*".into());
    let echo = start().await;
    let dir = tempfile::tempdir().unwrap();
    let (spec, reports) = (dir.path().join("spec.json"), dir.path().join("reports"));
    let text = json!({
        "outdir": reports, "cases": cases.split(',').collect::<Vec<_>>(), "exclude-cases": EXCLUDED,
        "servers": [{"agent": "voce", "url": format!("ws://{}/echo", echo.addr)}],
    });
    std::fs::write(&spec, text.to_string()).unwrap();
    let mut command = Command::new(wstest);
    command.args(["-m", "fuzzingclient", "-s"]).arg(&spec).current_dir(dir.path());
    let status = tokio::task::spawn_blocking(move || command.status()).await.unwrap().unwrap();
    assert!(status.success());
    let index: Value = serde_json::from_slice(&std::fs::read(reports.join("index.json")).unwrap()).unwrap();
    let results = index["voce"].as_object().unwrap();
    let bad: Vec<_> = results
        .iter()
        .filter(|(_, r)| {
            let fine =
                |name: &str| ["OK", "NON-STRICT", "INFORMATIONAL"].contains(&r[name].as_str().unwrap());
            !fine("behavior") || !fine("behaviorClose")
        })
        .collect();
    let strict = results.values().filter(|r| r["behavior"] == "OK").count();
    eprintln!("Autobahn: {} cases, {strict} of them OK in the strict sense", results.len());
    assert!(bad.is_empty(), "{bad:#?}");
}
