//! One live stream through a router: messages both ways, and another machine when the one it has goes or dies.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::upgrade::Upgraded;
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;

use super::end::{End, Ended};
use super::frame::Bad;
use super::held::Held;
use super::inbox::{Data, Said, Sender};
use super::node::{Holds, Nodes};
use super::opening::{Opened, Opening, counts, is_full, open};
use super::policy::Health;
use super::ticks::Ticks;
use crate::core::limits;

/// Silence of a machine that does not answer probes, after which it is pinged, and given up.
const QUIET: Duration = Duration::from_secs(2);
const DEAD: Duration = Duration::from_secs(5);
/// How long another machine is looked for, and the pause between two rounds.
const SEARCH: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

/// What a stream has to look at.
enum Event {
    /// Its machine says something, or is gone.
    Back(Result<Said, Ended>),
    /// Its client says something, or is gone.
    Front(Result<Said, Ended>),
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
    /// One side said so.
    Closed(Option<CloseFrame>),
    /// The client has gone.
    Gone,
    /// The client breaks the rules.
    Refused(Bad),
    /// Its machine is gone and no other can go on with it.
    Lost,
}

impl Stream {
    /// A stream between a client and a machine, both upgraded, of which the machine has this many messages already.
    pub(super) fn new(
        nodes: Arc<Nodes>,
        opening: Opening,
        (front, back): (Upgraded, Upgraded),
        holds: Holds,
        held: Held,
        counts: (u64, u64),
    ) -> io::Result<Self> {
        let (front, back) = (End::new(front, Sender::Client)?, End::new(back, Sender::Machine)?);
        let (taken, told) = counts;
        let held = held.after(taken);
        Ok(Self { nodes, opening, front, back, holds, held, next: taken, told, skip: 0, token: None })
    }

    /// Runs to the end.
    pub(super) async fn run(mut self) {
        let over = self.relay().await;
        let has_said_goodbye = matches!(over, Over::Closed(_));
        let frame = match over {
            Over::Closed(frame) => frame,
            Over::Gone => None,
            Over::Refused(bad) => Some(refusal(bad)),
            Over::Lost => {
                self.nodes.counts.lost.fetch_add(1, Ordering::Relaxed);
                let reason =
                    "the machine of this stream is gone and no other can go on with it: connect again";
                Some(CloseFrame { code: CloseCode::Restart, reason: reason.into() })
            }
        };
        self.back.close(frame.as_ref().filter(|_| has_said_goodbye));
        self.front.close(frame.as_ref());
        let _ = tokio::time::timeout(limits::WS_CLOSE, poll_fn(|cx| self.poll_goodbye(cx))).await;
    }

    /// Both sides have had the last word, and the client has answered it or is gone.
    fn poll_goodbye(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.back.poll_sent(cx);
        self.front.poll_sent(cx);
        let mut is_answered = self.front.is_broken || self.front.has_closed;
        while !is_answered {
            is_answered = ready!(self.front.poll_said(cx)).is_err() || self.front.has_closed;
        }
        if self.back.is_busy() || self.front.is_busy() { Poll::Pending } else { Poll::Ready(()) }
    }

    async fn relay(&mut self) -> Over {
        let mut ticks = Ticks::new();
        loop {
            if !self.back.is_busy()
                && !self.back.is_broken
                && let Some(frame) = self.held.get(self.next).cloned()
            {
                self.next += 1;
                self.back.give(frame);
            }
            let event = poll_fn(|cx| self.poll_event(cx, &mut ticks)).await;
            if self.front.is_broken {
                return Over::Gone;
            }
            let gone_on = match event {
                Event::Back(said) => self.pass_back(said).await,
                Event::Front(said) => self.pass_on(said),
                Event::Room => Ok(()),
                Event::Tick => self.look().await,
            };
            if let Err(over) = gone_on {
                return over;
            }
        }
    }

    /// The next thing to look at: what both sockets have to send goes out first, and neither is read while the other has not
    /// taken what came before.
    fn poll_event(&mut self, cx: &mut Context<'_>, ticks: &mut Ticks) -> Poll<Event> {
        self.back.poll_sent(cx);
        self.front.poll_sent(cx);
        if !self.front.is_busy()
            && let Poll::Ready(said) = self.back.poll_said(cx)
        {
            return Poll::Ready(Event::Back(said));
        }
        let is_open = !self.back.is_busy() && !self.back.is_broken;
        let all_sent = self.next == self.held.end();
        if is_open
            && all_sent
            && let Poll::Ready(said) = self.front.poll_said(cx)
        {
            return Poll::Ready(Event::Front(said));
        }
        if is_open && !all_sent || self.front.is_broken {
            return Poll::Ready(Event::Room);
        }
        ticks.poll_tick(cx).map(|()| Event::Tick)
    }

    /// Holds what the client says for its machine.
    fn pass_on(&mut self, said: Result<Said, Ended>) -> Result<(), Over> {
        self.front.heard = Instant::now();
        match said {
            Ok(Said::Data(data)) => {
                self.held.push(data.frame, self.front.heard, self.next);
                Ok(())
            }
            Ok(Said::Ping(_) | Said::Pong) => Ok(()),
            Ok(Said::Close(frame)) => Err(Over::Closed(frame)),
            Err(Ended::Gone) => Err(Over::Gone),
            Err(Ended::Bad(bad)) => Err(Over::Refused(bad)),
        }
    }

    /// Passes on what a machine says.
    async fn pass_back(&mut self, said: Result<Said, Ended>) -> Result<(), Over> {
        self.back.heard = Instant::now();
        match said {
            Ok(Said::Data(data)) => {
                let is_lasting = !is_passing(&data);
                if self.skip > 0 {
                    self.skip -= u64::from(is_lasting);
                    return Ok(());
                }
                self.told += u64::from(is_lasting);
                self.front.give(data.frame);
                Ok(())
            }
            Ok(Said::Ping(word)) => {
                if let Some((token, taken)) = std::str::from_utf8(&word).ok().and_then(saved) {
                    self.token = Some(token.to_owned());
                    self.held.saved(taken);
                }
                Ok(())
            }
            Ok(Said::Pong) => Ok(()),
            Ok(Said::Close(frame)) => {
                let restart = frame.as_ref().filter(|f| f.code == CloseCode::Restart);
                let Some(token) = restart.and_then(|f| f.reason.strip_prefix("moved ")) else {
                    return Err(Over::Closed(frame));
                };
                self.go_on(Some(token)).await?;
                self.nodes.counts.moved.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => self.revive().await,
        }
    }

    /// Looks at who has been silent for too long.
    async fn look(&mut self) -> Result<(), Over> {
        let silent = self.front.heard.elapsed();
        if silent > limits::WS_IDLE {
            return Err(Over::Gone);
        }
        if silent > limits::WS_PING && !self.front.is_busy() {
            self.front.ping();
        }
        let quiet = self.back.heard.elapsed();
        if quiet < QUIET || self.nodes.fleet(|fleet| fleet.node(self.holds.node).0) == Health::Up {
            return Ok(());
        }
        if quiet > DEAD {
            return self.revive().await;
        }
        if !self.back.is_busy() {
            self.back.ping();
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
                    self.back = End::new(upgraded, Sender::Machine).map_err(|_| Over::Lost)?;
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

/// What a client that breaks the rules is told.
fn refusal(bad: Bad) -> CloseFrame {
    let code = match bad {
        Bad::Protocol => CloseCode::Protocol,
        Bad::TooLong => CloseCode::Size,
        Bad::NotText => CloseCode::Invalid,
    };
    CloseFrame { code, reason: "".into() }
}

/// Token and number of messages of a machine's word that it has saved a stream.
fn saved(word: &str) -> Option<(&str, u64)> {
    let (token, taken) = word.strip_prefix("saved ")?.split_once(' ')?;
    Some((token, taken.parse().ok()?))
}

/// Whether a message of a machine will soon be replaced by another, as servers count them: interim results and steps.
fn is_passing(data: &Data) -> bool {
    let payload = data.payload();
    if !data.is_text {
        return payload.get(1..).is_some_and(|b| b.starts_with(b"\xa4type\xa4Step"));
    }
    let is = |what: &str| memchr::memmem::find(payload, what.as_bytes()).is_some();
    is("\"is_final\":false") || is("\"status\":\"Active\"") || is("\"status\":\"Paused\"")
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::super::frame::{Head, Kind};
    use super::super::inbox::Inbox;
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
        let data = |kind: Kind, payload: &[u8]| {
            let mut bytes = BytesMut::new();
            Head { kind, is_last: true, mask: None, length: payload.len() as u64 }.put(&mut bytes);
            bytes.extend_from_slice(payload);
            match Inbox::new(Sender::Machine, 1000, &bytes).next() {
                Ok(Some(Said::Data(data))) => is_passing(&data),
                other => panic!("{other:?}"),
            }
        };
        let (binary, text) = (|b: &[u8]| data(Kind::Binary, b), |t: &str| data(Kind::Text, t.as_bytes()));
        assert!(binary(b"\x84\xa4type\xa4Step\xa8step_idx"));
        assert!(!binary(b"\x83\xa4type\xa4Word\xa4text"));
        assert!(!binary(b""));
        assert!(text(r#"{"is_final":false,"type":"Results"}"#));
        assert!(text(r#"{"status":"Active"}"#));
        assert!(text(r#"{"status":"Paused"}"#));
        assert!(!text(r#"{"status":"Complete"}"#));
        assert!(!text(r#"{"is_final":true,"type":"Results"}"#));
    }
}
