//! A WebSocket client for tests.

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::Value;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::patience::{Web, connect_async, within};
use crate::server::Running;

pub(crate) struct Socket(pub(crate) Web);

impl Running {
    pub(crate) async fn socket(&self, path: &str) -> Socket {
        self.try_socket(path, &[]).await.unwrap()
    }

    pub(crate) async fn try_socket(
        &self,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Socket, Error> {
        let mut request = format!("ws://{}{path}", self.addr).into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        connect_async(request).await.map(|(socket, _)| Socket(socket))
    }

    /// A socket from another address of this machine.
    pub(crate) async fn socket_from(&self, address: &str, path: &str) -> Socket {
        let stream = self.connect_from(address).await;
        let url = format!("ws://{}{path}", self.addr);
        Socket(tokio_tungstenite::client_async(url, stream).await.unwrap().0)
    }
}

impl Socket {
    pub(crate) async fn json(&mut self, value: Value) {
        self.0.send(Message::text(value.to_string())).await.unwrap();
    }

    pub(crate) async fn text(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    pub(crate) async fn binary(&mut self, bytes: impl Into<bytes::Bytes>) {
        self.0.send(Message::binary(bytes)).await.unwrap();
    }

    /// The next message that is not a ping.
    pub(crate) async fn next(&mut self) -> Message {
        let at = self.0.get_ref().at();
        let message = async {
            loop {
                match self.0.next().await.expect("a message").expect("no error") {
                    Message::Ping(_) | Message::Pong(_) => {}
                    message => return message,
                }
            }
        };
        within("a message", at, message).await
    }

    pub(crate) async fn next_json(&mut self) -> Value {
        match self.next().await {
            Message::Text(text) => serde_json::from_str(&text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The next event of a type; others before it are given to `seen`.
    pub(crate) async fn until(&mut self, kind: &str) -> Value {
        let at = self.0.get_ref().at();
        let event = async {
            loop {
                let event = self.next_json().await;
                if event["type"] == kind {
                    return event;
                }
                assert_ne!(event["type"], "error", "{event}");
            }
        };
        within(kind, at, event).await
    }

    pub(crate) async fn next_binary(&mut self) -> bytes::Bytes {
        match self.next().await {
            Message::Binary(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    /// Reads to the end: the code that the server closed with.
    pub(crate) async fn closed(&mut self) -> (u16, String) {
        let at = self.0.get_ref().at();
        let closed = async {
            loop {
                match self.0.next().await {
                    Some(Ok(Message::Close(Some(CloseFrame { code, reason })))) => {
                        return (code.into(), reason.as_str().to_owned());
                    }
                    Some(Ok(Message::Close(None))) => return (1005, String::new()),
                    Some(Ok(_)) => {}
                    other => panic!("closed without a word: {other:?}"),
                }
            }
        };
        within("the close", at, closed).await
    }
}
