//! One live stream through a router: messages both ways, and another machine when the one it has goes or dies.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_tungstenite::WebSocketStream;
use tungstenite::Message;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

use super::held::Held;
use super::node::{Holds, Nodes};
use super::policy::Health;
use crate::core::limits;
use crate::handover::{HEADER, TAKEN, TOLD};

/// How often silent ends are looked at.
const TICK: Duration = Duration::from_secs(1);
/// Silence of a machine that does not answer probes, after which it is pinged, and given up.
const QUIET: Duration = Duration::from_secs(2);
const DEAD: Duration = Duration::from_secs(5);
/// How long another machine is looked for, and the pause between two rounds.
const SEARCH: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The request that a stream began with, to be made again elsewhere.
pub(super) struct Opening {
    pub(super) path: String,
    query: Option<String>,
    headers: HeaderMap,
}

impl Opening {
    /// A request, and the token that it has.
    pub(super) fn new(uri: &hyper::Uri, headers: HeaderMap) -> (Self, Option<String>) {
        let parts = || uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty());
        let token = parts().find_map(|part| part.strip_prefix("resume=")).map(str::to_owned);
        let rest: Vec<&str> = parts().filter(|part| !part.starts_with("resume=")).collect();
        let query = Some(rest.join("&")).filter(|query| !query.is_empty());
        (Self { path: uri.path().to_owned(), query, headers }, token)
    }

    /// The request, with a token where the stream goes on.
    pub(super) fn request(&self, token: Option<&str>) -> Request<Empty<Bytes>> {
        let resume = token.map(|t| format!("resume={t}"));
        let query: Vec<&str> = self.query.as_deref().into_iter().chain(resume.as_deref()).collect();
        let uri =
            if query.is_empty() { self.path.clone() } else { format!("{}?{}", self.path, query.join("&")) };
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri.parse().unwrap_or_default();
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(HEADER, axum::http::HeaderValue::from_static("close"));
        request
    }
}

/// One of a stream's two sockets.
struct End {
    socket: Socket,
    /// Something was given to the socket and is not sent yet.
    is_dirty: bool,
    /// The way out is closed; what came before is still to be read.
    is_broken: bool,
    heard: Instant,
}

impl End {
    async fn new(upgraded: Upgraded, role: Role) -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(limits::WS_READ_BUFFER)
            .write_buffer_size(0)
            .max_write_buffer_size(2 * limits::MAX_WS_MESSAGE)
            .max_message_size(Some(limits::MAX_WS_MESSAGE))
            .max_frame_size(Some(limits::MAX_WS_MESSAGE));
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), role, Some(config)).await;
        Self { socket, is_dirty: false, is_broken: false, heard: Instant::now() }
    }

    /// Gives a message to the way out; false where it is closed.
    async fn feed(&mut self, message: Message) -> bool {
        self.is_dirty = true;
        self.socket.feed(message).await.is_ok()
    }

    /// Sends what was given to the way out as far as it goes.
    fn poll_sent(&mut self, cx: &mut Context<'_>) {
        if self.is_dirty
            && let Poll::Ready(sent) = self.socket.poll_flush_unpin(cx)
        {
            self.is_dirty = false;
            self.is_broken |= sent.is_err();
        }
    }
}

/// What a stream has to look at.
enum Event {
    /// Its machine says something, or is gone.
    Back(Option<Result<Message, tungstenite::Error>>),
    /// Its client says something, or is gone.
    Front(Option<Result<Message, tungstenite::Error>>),
    /// There is room for the next message of the client.
    Room,
    /// Some time has passed.
    Tick,
}

/// A stream with its client and its machine.
pub(super) struct Stream {
    nodes: Arc<Nodes>,
    opening: Opening,
    front: End,
    back: End,
    holds: Holds,
    held: Held,
    /// Number of the next message for the machine.
    next: u64,
    /// Lasting messages that the client has had, and those to come that it has had already.
    told: u64,
    skip: u64,
    /// What the machine has saved of it.
    token: Option<String>,
}

/// Why a stream ended.
enum Over {
    /// One side said so, or is gone.
    Closed(Option<CloseFrame>),
    /// The client has gone.
    Gone,
    /// Its machine is gone and no other can go on with it.
    Lost,
}

impl Stream {
    /// A stream between a client and a machine, both upgraded, of which the machine has this many messages already.
    pub(super) async fn new(
        nodes: Arc<Nodes>,
        opening: Opening,
        (front, back): (Upgraded, Upgraded),
        holds: Holds,
        held: Held,
        counts: (u64, u64),
    ) -> Self {
        let (front, back) = (End::new(front, Role::Server).await, End::new(back, Role::Client).await);
        let (taken, told) = counts;
        let held = held.after(taken);
        Self { nodes, opening, front, back, holds, held, next: taken, told, skip: 0, token: None }
    }

    /// Runs to the end.
    pub(super) async fn run(mut self) {
        let over = self.relay().await;
        let frame = match over {
            Over::Closed(frame) => frame,
            Over::Gone => None,
            Over::Lost => {
                self.nodes.counts.lost.fetch_add(1, Ordering::Relaxed);
                let reason =
                    "the machine of this stream is gone and no other can go on with it: connect again";
                Some(CloseFrame { code: CloseCode::Restart, reason: reason.into() })
            }
        };
        let goodbye = async {
            let _ = self.back.socket.send(Message::Close(None)).await;
            let _ = self.front.socket.send(Message::Close(frame)).await;
            while let Some(Ok(_)) = self.front.socket.next().await {}
        };
        let _ = tokio::time::timeout(limits::WS_CLOSE, goodbye).await;
    }

    async fn relay(&mut self) -> Over {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if !self.back.is_dirty
                && !self.back.is_broken
                && let Some(message) = self.held.get(self.next).cloned()
            {
                self.next += 1;
                self.back.is_broken = !self.back.feed(message).await;
            }
            let event = poll_fn(|cx| self.poll_event(cx, &mut tick)).await;
            if self.front.is_broken {
                return Over::Gone;
            }
            match event {
                Event::Back(message) => {
                    self.back.heard = Instant::now();
                    if let Err(over) = self.pass_back(message).await {
                        return over;
                    }
                }
                Event::Front(message) => {
                    self.front.heard = Instant::now();
                    match message {
                        Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                            self.held.push(message, self.front.heard, self.next);
                        }
                        Some(Ok(Message::Close(frame))) => {
                            let _ = self.back.socket.send(Message::Close(frame.clone())).await;
                            return Over::Closed(frame);
                        }
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => return Over::Gone,
                    }
                }
                Event::Room => {}
                Event::Tick => {
                    if let Err(over) = self.look().await {
                        return over;
                    }
                }
            }
        }
    }

    /// The next thing to look at: what both sockets have to send goes out first, and neither is read while the other has not
    /// taken what came before.
    fn poll_event(&mut self, cx: &mut Context<'_>, tick: &mut Interval) -> Poll<Event> {
        self.back.poll_sent(cx);
        self.front.poll_sent(cx);
        if !self.front.is_dirty
            && let Poll::Ready(message) = self.back.socket.poll_next_unpin(cx)
        {
            return Poll::Ready(Event::Back(message));
        }
        let all_sent = self.next == self.held.end() && !self.back.is_dirty && !self.back.is_broken;
        if all_sent && let Poll::Ready(message) = self.front.socket.poll_next_unpin(cx) {
            return Poll::Ready(Event::Front(message));
        }
        let has_room = !self.back.is_dirty && !self.back.is_broken && self.next < self.held.end();
        if has_room || self.front.is_broken {
            return Poll::Ready(Event::Room);
        }
        tick.poll_tick(cx).map(|_| Event::Tick)
    }

    /// Passes on what a machine says.
    async fn pass_back(&mut self, message: Option<Result<Message, tungstenite::Error>>) -> Result<(), Over> {
        match message {
            Some(Ok(message @ (Message::Text(_) | Message::Binary(_)))) => {
                let is_lasting = !is_passing(&message);
                if self.skip > 0 {
                    self.skip -= u64::from(is_lasting);
                    return Ok(());
                }
                self.told += u64::from(is_lasting);
                if self.front.feed(message).await { Ok(()) } else { Err(Over::Gone) }
            }
            Some(Ok(Message::Ping(word))) => {
                if let Some((token, taken)) = std::str::from_utf8(&word).ok().and_then(saved) {
                    self.token = Some(token.to_owned());
                    self.held.saved(taken);
                }
                // The answer goes out with the next message, or now.
                self.back.is_dirty = true;
                Ok(())
            }
            Some(Ok(Message::Close(Some(frame)))) => {
                let token = frame.reason.strip_prefix("moved ").map(str::to_owned);
                match token.filter(|_| frame.code == CloseCode::Restart) {
                    Some(token) => {
                        self.go_on(Some(&token)).await?;
                        self.nodes.counts.moved.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    }
                    None => Err(Over::Closed(Some(frame))),
                }
            }
            Some(Ok(Message::Close(None))) => Err(Over::Closed(None)),
            Some(Ok(_)) => Ok(()),
            Some(Err(_)) | None => self.revive().await,
        }
    }

    /// Looks at who has been silent for too long.
    async fn look(&mut self) -> Result<(), Over> {
        let silent = self.front.heard.elapsed();
        if silent > limits::WS_IDLE {
            return Err(Over::Gone);
        }
        if silent > limits::WS_PING && !self.front.is_dirty {
            self.front.feed(Message::Ping(Bytes::new())).await;
        }
        let quiet = self.back.heard.elapsed();
        if quiet < QUIET || self.nodes.fleet(|fleet| fleet.node(self.holds.node).0) == Health::Up {
            return Ok(());
        }
        if quiet > DEAD {
            return self.revive().await;
        }
        if !self.back.is_dirty {
            self.back.feed(Message::Ping(Bytes::new())).await;
        }
        Ok(())
    }

    /// The machine has died: goes on from what it saved, or from the start where all of the stream is held.
    async fn revive(&mut self) -> Result<(), Over> {
        self.nodes.fleet(|fleet| fleet.failed(self.holds.node));
        let token = self.token.clone();
        if token.is_none() && !self.held.is_whole() {
            return Err(Over::Lost);
        }
        self.go_on(token.as_deref()).await?;
        self.nodes.counts.revived.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Goes on at another machine, or from the start without a token.
    async fn go_on(&mut self, token: Option<&str>) -> Result<(), Over> {
        let begun = Instant::now();
        while begun.elapsed() < SEARCH {
            match open(&self.nodes, &self.opening, token).await {
                Opened::Stream(holds, response) => {
                    let (taken, told) = counts(response.headers());
                    if !self.held.reaches(taken) {
                        tracing::warn!("a stream has moved whose last messages are not held any more");
                        return Err(Over::Lost);
                    }
                    let upgraded = hyper::upgrade::on(response).await.map_err(|_| Over::Lost)?;
                    self.back = End::new(upgraded, Role::Client).await;
                    self.holds = holds;
                    self.next = taken;
                    self.skip = self.told.saturating_sub(told);
                    self.token = None;
                    return Ok(());
                }
                Opened::Answer(response) if !is_full(response.status()) => {
                    tracing::warn!(status = response.status().as_u16(), "a stream could not go on elsewhere");
                    return Err(Over::Lost);
                }
                Opened::Answer(_) | Opened::Nobody => tokio::time::sleep(PAUSE).await,
            }
        }
        Err(Over::Lost)
    }
}

/// Messages of a stream that a machine has, and lasting ones that it has sent, by the head of its answer.
pub(super) fn counts(headers: &HeaderMap) -> (u64, u64) {
    let count = |name: &str| {
        headers.get(name).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok()).unwrap_or(0)
    };
    (count(TAKEN), count(TOLD))
}

/// What came of opening a stream.
pub(super) enum Opened {
    /// A machine has agreed to a WebSocket.
    Stream(Holds, hyper::Response<Incoming>),
    /// The last one that was asked has answered otherwise.
    Answer(hyper::Response<Incoming>),
    /// Nobody could be asked.
    Nobody,
}

/// Whether another machine may say yes.
pub(super) fn is_full(status: StatusCode) -> bool {
    matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
}

/// Opens a stream at the best machine that takes it.
pub(super) async fn open(nodes: &Arc<Nodes>, opening: &Opening, token: Option<&str>) -> Opened {
    let (mut tried, mut last) = (Vec::new(), Opened::Nobody);
    loop {
        let Some(node) = nodes.fleet(|fleet| fleet.choose(&tried)) else { return last };
        tried.push(node);
        match nodes.send(node, opening.request(token)).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                return Opened::Stream(nodes.hold(node), response);
            }
            Ok(response) if is_full(response.status()) => {
                nodes.fleet(|fleet| fleet.refused(node));
                last = Opened::Answer(response);
            }
            Ok(response) => return Opened::Answer(response),
            Err(error) => {
                tracing::debug!(%error, node, "a machine cannot be reached");
                nodes.fleet(|fleet| fleet.failed(node));
            }
        }
    }
}

/// Token and number of messages of a machine's word that it has saved a stream.
fn saved(word: &str) -> Option<(&str, u64)> {
    let (token, taken) = word.strip_prefix("saved ")?.split_once(' ')?;
    Some((token, taken.parse().ok()?))
}

/// Whether a message will soon be replaced by another, as servers count them: interim results and steps.
fn is_passing(message: &Message) -> bool {
    let has = |text: &[u8], what: &[u8]| memchr::memmem::find(text, what).is_some();
    match message {
        Message::Binary(bytes) => bytes.get(1..).is_some_and(|b| b.starts_with(b"\xa4type\xa4Step")),
        Message::Text(text) => {
            let is = |what: &str| has(text.as_bytes(), what.as_bytes());
            is("\"is_final\":false") || is("\"status\":\"Active\"") || is("\"status\":\"Paused\"")
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_machines() {
        assert_eq!(saved("saved abc 17"), Some(("abc", 17)));
        for none in ["", "saved", "saved abc", "saved abc x", "moved abc 17"] {
            assert_eq!(saved(none), None, "{none}");
        }
    }

    #[test]
    fn what_another_message_replaces_is_not_counted() {
        assert!(is_passing(&Message::binary(&b"\x84\xa4type\xa4Step\xa8step_idx"[..])));
        assert!(!is_passing(&Message::binary(&b"\x83\xa4type\xa4Word\xa4text"[..])));
        assert!(!is_passing(&Message::binary(Vec::new())));
        assert!(is_passing(&Message::text(r#"{"is_final":false,"type":"Results"}"#)));
        assert!(is_passing(&Message::text(r#"{"status":"Active"}"#)));
        assert!(is_passing(&Message::text(r#"{"status":"Paused"}"#)));
        assert!(!is_passing(&Message::text(r#"{"status":"Complete"}"#)));
        assert!(!is_passing(&Message::text(r#"{"is_final":true,"type":"Results"}"#)));
    }

    #[test]
    fn a_token_goes_behind_what_was_asked() {
        let new = |uri: &'static str| Opening::new(&hyper::Uri::from_static(uri), HeaderMap::new());
        let (mut opening, token) = new("/v1/listen");
        assert_eq!(token, None);
        assert_eq!(opening.request(None).uri(), "/v1/listen");
        assert_eq!(opening.request(Some("t")).uri(), "/v1/listen?resume=t");
        opening.query = Some("encoding=linear16".into());
        let request = opening.request(Some("t"));
        assert_eq!(request.uri(), "/v1/listen?encoding=linear16&resume=t");
        assert_eq!(request.headers()[HEADER], "close");
        // One that came along is for the first time alone.
        let (opening, token) = new("/v1/listen?a=1&resume=x&b=2");
        assert_eq!((opening.query.as_deref(), token.as_deref()), (Some("a=1&b=2"), Some("x")));
    }
}
