//! A WebSocket as protocols see it: frames in, frames out, pings and silence minded, closed with a code.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use tokio::time::{Instant, Sleep};
use tokio_tungstenite::WebSocketStream;
use tungstenite::error::ProtocolError;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Message, Utf8Bytes};

use super::aside::{self, Work};
use super::caller::Caller;
use super::drain::Session;
use super::error::ServerError;
use super::frames::{Claim, Frames, Verdict};
use super::limits::{self, Limits};
use super::socket_io::Peer;
use super::state::AppState;
use super::trace::{self, Meter, Stage};
pub(crate) use super::upgrade::Upgrade;

/// What arrives.
pub(crate) enum Frame {
    Text(Utf8Bytes),
    Binary(Bytes),
    /// The other side has gone.
    Closed,
    /// The other side has not said anything for too long.
    Silent,
    /// Neither side has sent a message for too long.
    NoData,
    /// The conversation has taken as long as one may.
    TooLong,
    /// The server is on its way out and time is up.
    Stop,
}

/// The other side cannot be written to any more.
#[derive(Debug)]
pub(crate) struct Gone;

/// A socket with its patience.
pub(crate) struct Wire {
    socket: WebSocketStream<Frames<TokioIo<Upgraded>>>,
    claim: Arc<Claim>,
    /// A message was given out, and may still be held.
    delivered: bool,
    born: Instant,
    /// When the other side last showed that it is there, and when a message last went either way.
    heard: Instant,
    used: Instant,
    alarm: Pin<Box<Sleep>>,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
    limits: Limits,
    peer: Option<Peer>,
    meter: Meter,
    /// Messages of the other side since the stream began, and lasting ones that it was sent.
    taken: u64,
    told: u64,
    _session: Session,
}

/// Upgrades a request and runs a protocol on it whose messages have at most `max_message` bytes.
pub(crate) fn upgrade<F, Fut>(state: &AppState, upgrade: Upgrade, max_message: usize, run: F) -> Response
where
    F: FnOnce(Wire) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    switch(state, upgrade, max_message, Box::new(move |wire| Box::pin(run(wire))))
}

fn switch(
    state: &AppState,
    upgrade: Upgrade,
    max_message: usize,
    run: Box<dyn FnOnce(Wire) -> Work + Send>,
) -> Response {
    let limits = state.options.limits.clone();
    let drain = state.drain.clone();
    let session = drain.session();
    let (peer, caller, budget) = (Peer::current(), Caller::current(), state.budget.clone());
    let (trace, meter) = (trace::current(), Meter::new(Stage::SocketWrite));
    let max_message = max_message.min(limits.ws_message);
    let config = WebSocketConfig::default()
        .read_buffer_size(limits::WS_READ_BUFFER)
        .write_buffer_size(0)
        .max_write_buffer_size(limits::WS_WRITE_BUFFER.max(limits.ws_message))
        .max_message_size(Some(max_message))
        .max_frame_size(Some(max_message));
    let (on_upgrade, response) = upgrade.accept();
    aside::spawn(async move {
        let upgraded = match on_upgrade.await {
            Ok(upgraded) => TokioIo::new(upgraded),
            Err(error) => return tracing::debug!(%error, "a WebSocket did not come to be"),
        };
        let claim = Arc::new(Claim::new(budget, caller));
        let frames = Frames::new(upgraded, max_message, claim.clone());
        let socket = WebSocketStream::from_raw_socket(frames, Role::Server, Some(config)).await;
        let now = Instant::now();
        let wire = Wire {
            socket,
            claim,
            delivered: false,
            born: now,
            heard: now,
            used: now,
            alarm: Box::pin(tokio::time::sleep(
                limits.ws_ping.min(limits.socket_idle).min(limits.session_time),
            )),
            stop: Box::pin(async move { drain.over().await }),
            limits,
            peer,
            meter,
            taken: 0,
            told: 0,
            _session: session,
        };
        trace::within(trace, caller.scope(run(wire))).await;
    });
    response
}

impl Wire {
    /// The next frame. May be dropped and called again without losing one. What the last one held is free by now.
    pub(crate) async fn recv(&mut self) -> Frame {
        if std::mem::take(&mut self.delivered) {
            self.claim.release();
        }
        loop {
            tokio::select! {
                message = self.socket.next() => {
                    self.heard = Instant::now();
                    match message {
                        Some(Ok(Message::Text(text))) => {
                            self.take();
                            return Frame::Text(text);
                        }
                        Some(Ok(Message::Binary(data))) => {
                            self.take();
                            return Frame::Binary(data);
                        }
                        Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                        Some(Ok(Message::Close(_))) => self.answer_close().await,
                        Some(Err(error)) => self.refuse(error).await,
                        None => {}
                    }
                    return Frame::Closed;
                }
                () = self.stop.as_mut() => return Frame::Stop,
                () = self.alarm.as_mut() => {
                    if let Some(end) = self.look().await {
                        return end;
                    }
                }
            }
        }
    }

    /// Counts a message that is given out.
    fn take(&mut self) {
        self.used = self.heard;
        self.delivered = true;
        self.taken += 1;
    }

    /// Messages that were given out since the stream began, and lasting ones that were sent.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.taken, self.told)
    }

    /// Goes on counting where another machine was.
    pub(crate) fn count_from(&mut self, taken: u64, told: u64) {
        (self.taken, self.told) = (taken, told);
    }

    /// Looks at what is due: the end of the conversation, or a ping.
    async fn look(&mut self) -> Option<Frame> {
        if self.claim.is_waiting() {
            // It is the server that does not read.
            self.heard = Instant::now();
        }
        let (now, limits) = (Instant::now(), &self.limits);
        let (end, unused) = (self.born + limits.session_time, self.used + limits.socket_idle);
        let mut next = if now >= self.heard + limits.ws_idle {
            return Some(Frame::Silent);
        } else if now >= end {
            return Some(Frame::TooLong);
        } else if now >= unused {
            return Some(Frame::NoData);
        } else if now >= self.heard + limits.ws_ping {
            if self.socket.send(Message::Ping(Bytes::new())).await.is_err() {
                return Some(Frame::Closed);
            }
            self.heard + self.limits.ws_idle
        } else {
            self.heard + limits.ws_ping
        };
        next = next.min(end).min(unused);
        self.alarm.as_mut().reset(next);
        None
    }

    /// The next frame where there is room for one; else the end of the connection, should it come before there is.
    pub(crate) async fn recv_if(&mut self, has_room: bool) -> Frame {
        if has_room {
            return self.recv().await;
        }
        let gone = async {
            match &self.peer {
                Some(peer) => peer.gone().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = gone => Frame::Closed,
            () = self.stop.as_mut() => Frame::Stop,
        }
    }

    /// The other side's goodbye is answered by the next read, which ends the socket.
    async fn answer_close(&mut self) {
        let _ = tokio::time::timeout(limits::WS_GOODBYE, self.socket.next()).await;
    }

    /// Tells a client that breaks the rules of WebSockets which one it broke.
    async fn refuse(&mut self, error: tungstenite::Error) {
        let (code, reason) = match (self.claim.verdict(), error) {
            (Some(Verdict::NoRoom), _) => {
                (CloseCode::Again, "too many large messages at once: send smaller ones")
            }
            (Some(Verdict::Slow), _) => {
                (CloseCode::Policy, "a large message came too slowly: send smaller ones")
            }
            (_, tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => return,
            (_, tungstenite::Error::Protocol(_)) => (CloseCode::Protocol, ""),
            (_, tungstenite::Error::Utf8(_)) => (CloseCode::Invalid, ""),
            (_, tungstenite::Error::Capacity(_)) => (CloseCode::Size, ""),
            _ => return,
        };
        let frame = CloseFrame { code, reason: reason.into() };
        let said = self.socket.send(Message::Close(Some(frame)));
        let _ = tokio::time::timeout(limits::WS_GOODBYE, said).await;
    }

    /// Pings with a word of at most 125 bytes; who cannot be reached is found out later.
    pub(crate) async fn ping(&mut self, word: String) {
        let _ = self.socket.send(Message::Ping(word.into())).await;
    }

    /// Sends what another message will soon replace: it is not counted.
    pub(crate) async fn passing(&mut self, message: Message) -> Result<(), Gone> {
        let sent = self.send(message).await;
        self.told -= 1;
        sent
    }

    /// Sends a text.
    pub(crate) async fn text(&mut self, text: impl Into<Utf8Bytes>) -> Result<(), Gone> {
        self.send(Message::Text(text.into())).await
    }

    /// Sends a value as JSON.
    pub(crate) async fn json(&mut self, value: &impl Serialize) -> Result<(), Gone> {
        let text = serde_json::to_string(value).map_err(|_| Gone)?;
        self.text(text).await
    }

    /// Sends bytes.
    pub(crate) async fn binary(&mut self, data: impl Into<Bytes>) -> Result<(), Gone> {
        self.send(Message::Binary(data.into())).await
    }

    async fn send(&mut self, message: Message) -> Result<(), Gone> {
        let begun = self.meter.begin();
        let sent = self.socket.send(message).await.map_err(|_| Gone);
        self.meter.end(begun);
        self.used = Instant::now();
        self.told += 1;
        sent
    }

    /// Closes with an error's code and text.
    pub(crate) async fn fail(self, error: &ServerError) {
        let mut reason = error.message();
        // A close frame holds 123 bytes of text.
        let mut end = reason.len().min(120);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        reason.truncate(end);
        self.close(error.close_code(), &reason).await;
    }

    /// Ends a socket for the reason that a frame gave; `Closed` needs no word.
    pub(crate) async fn end(self, frame: Frame) {
        match frame {
            Frame::Stop => self.fail(&ServerError::Draining).await,
            Frame::Silent => self.close(1008, "nothing was heard for too long").await,
            Frame::NoData => self.close(1008, "no message came or went for too long: connect again").await,
            Frame::TooLong => {
                self.close(1008, "the session has lasted as long as one may: connect again").await
            }
            Frame::Closed => {}
            Frame::Text(_) | Frame::Binary(_) => self.close(1000, "").await,
        }
    }

    /// Says goodbye and waits a moment for the answer, so that what was sent is read before the socket goes.
    pub(crate) async fn close(mut self, code: u16, reason: &str) {
        let frame = CloseFrame { code: code.into(), reason: reason.into() };
        if self.socket.send(Message::Close(Some(frame))).await.is_err() {
            return;
        }
        self.claim.release();
        let rest = async { while let Some(Ok(_)) = self.socket.next().await {} };
        let _ = tokio::time::timeout(limits::WS_CLOSE, rest).await;
    }
}
