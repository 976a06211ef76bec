//! Before models are loaded: live, not ready, and the address is taken.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use voce_server::{Lobby, ServeError};

use crate::patience::TcpStream;

async fn ask(addr: std::net::SocketAddr, head: &str) -> String {
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut got = String::new();
    socket.read_to_string(&mut got).await.unwrap();
    got
}

#[tokio::test]
async fn clients_are_told_to_wait_while_models_load() {
    let lobby = Lobby::open("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = lobby.addr();
    let taken = Lobby::open(addr).await;
    assert!(matches!(taken, Err(ServeError::Bind { .. })), "known before anything is loaded");
    let asked = lobby
        .wait(async {
            // One that says nothing keeps nobody waiting.
            let _silent = TcpStream::connect(addr).await.unwrap();
            let live = ask(addr, "GET /livez HTTP/1.1\r\nhost: a\r\n\r\n").await;
            let ready = ask(addr, "GET /readyz?x=1 HTTP/1.1\r\nhost: a\r\n\r\n").await;
            let work =
                ask(addr, "POST /v1/audio/speech HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n{}").await;
            let noise = ask(addr, &format!("{}\r\n\r\n", "x".repeat(9000))).await;
            [live, ready, work, noise]
        })
        .await;
    let [live, ready, work, noise] = asked;
    assert!(live.starts_with("HTTP/1.1 200 ") && live.ends_with(r#"{"status":"ok"}"#), "{live}");
    assert!(ready.starts_with("HTTP/1.1 503 ") && ready.contains("loading"), "{ready}");
    for text in [work, noise] {
        assert!(text.starts_with("HTTP/1.1 503 ") && text.contains("retry-after: 1"), "{text}");
        let body = text.split("\r\n\r\n").nth(1).unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"]["code"], "loading");
    }
}
