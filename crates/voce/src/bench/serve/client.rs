//! One client: a WebSocket that sends audio at the pace of speech and times what comes back.

use std::time::{Duration, Instant};

use futures_util::{SinkExt, StreamExt};
use hdrhistogram::Histogram;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

/// Bytes of a millisecond of 16-bit 16 kHz audio.
const MS_BYTES: usize = 32;

/// An open stream.
pub(super) struct Stream {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
}

/// What a client saw, in microseconds.
pub(super) struct Heard {
    /// From asking to the answer.
    pub(super) answers: Histogram<u64>,
    /// How late frames were sent.
    pub(super) late: Histogram<u64>,
    /// Frames sent.
    pub(super) frames: u64,
    /// Questions that had no answer.
    pub(super) unanswered: u64,
}

impl Default for Heard {
    fn default() -> Self {
        Self { answers: super::histogram(), late: super::histogram(), frames: 0, unanswered: 0 }
    }
}

impl Heard {
    pub(super) fn join(&mut self, other: &Heard) {
        let _ = self.answers.add(&other.answers);
        let _ = self.late.add(&other.late);
        self.frames += other.frames;
        self.unanswered += other.unanswered;
    }
}

impl Stream {
    /// Connects; refusals are errors.
    pub(super) async fn open(url: &str, key: Option<&str>) -> Result<Self, String> {
        let mut request = url.into_client_request().map_err(|e| e.to_string())?;
        if let Some(key) = key {
            let value = format!("Token {key}").parse().map_err(|_| "the key cannot be sent".to_owned())?;
            request.headers_mut().insert("authorization", value);
        }
        let (mut socket, _) = tokio_tungstenite::connect_async_with_config(request, None, true)
            .await
            .map_err(|e| e.to_string())?;
        // A server may refuse after the upgrade: it then closes at once, and a question is not answered.
        let ask = Message::text(r#"{"type":"Finalize"}"#);
        socket.send(ask).await.map_err(|e| e.to_string())?;
        loop {
            match socket.next().await {
                Some(Ok(Message::Text(text))) if text.contains("\"Results\"") => return Ok(Self { socket }),
                Some(Ok(Message::Close(frame))) => {
                    return Err(frame.map_or("closed".into(), |f| format!("closed with {}", f.code)));
                }
                Some(Ok(_)) => {}
                Some(Err(e)) => return Err(e.to_string()),
                None => return Err("closed".into()),
            }
        }
    }

    /// Sends a frame each `frame` for `length`, and asks each `ask`.
    pub(super) async fn pace(
        mut self,
        length: Duration,
        frame: Duration,
        ask: Duration,
    ) -> Result<Heard, String> {
        let mut heard = Heard::default();
        let audio = Bytes::from(vec![0u8; MS_BYTES * frame.as_millis() as usize]);
        let begun = Instant::now();
        let (mut next, mut asking) = (begun, begun + ask);
        let mut asked: Option<Instant> = None;
        while begun.elapsed() < length {
            tokio::select! {
                biased;
                message = self.socket.next() => match message {
                    Some(Ok(Message::Text(text))) => {
                        if text.contains("\"from_finalize\":true") && let Some(at) = asked.take() {
                            heard.answers.saturating_record(at.elapsed().as_micros() as u64);
                        }
                    }
                    Some(Ok(Message::Close(_))) | None => return Err("closed by the server".into()),
                    Some(Ok(_)) => {}
                    Some(Err(e)) => return Err(e.to_string()),
                },
                () = tokio::time::sleep_until(next.into()) => {
                    let late = next.elapsed();
                    heard.late.saturating_record(late.as_micros() as u64);
                    self.socket.send(Message::Binary(audio.clone())).await.map_err(|e| e.to_string())?;
                    heard.frames += 1;
                    next += frame;
                    if next >= asking {
                        heard.unanswered += u64::from(asked.is_some());
                        asked = Some(Instant::now());
                        asking += ask;
                        let question = Message::text(r#"{"type":"Finalize"}"#);
                        self.socket.send(question).await.map_err(|e| e.to_string())?;
                    }
                }
            }
        }
        let _ = self.socket.close(None).await;
        Ok(heard)
    }
}
