//! One of a stream's two sockets: one read a frame in, one write a frame out, and nothing copied between them.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWrite as _};
use tokio::net::TcpStream;
use tungstenite::protocol::CloseFrame;

use super::frame::{Bad, Kind, control};
use super::inbox::{Inbox, Said, Sender};
use crate::core::limits;

/// Why nothing more comes from a peer.
#[derive(Debug)]
pub(super) enum Ended {
    /// The connection is closed or broken.
    Gone,
    /// It is not listened to any longer.
    Bad(Bad),
}

/// A socket with what has come and what has to go.
pub(super) struct End {
    stream: TcpStream,
    sender: Sender,
    inbox: Inbox,
    /// Bytes that are being sent, and a control frame to send after them.
    out: Bytes,
    word: Option<Bytes>,
    /// The way out is closed; what came before is still to be read.
    pub(super) is_broken: bool,
    /// The peer has said goodbye, and the router has.
    pub(super) has_closed: bool,
    is_closing: bool,
    /// When something last came.
    pub(super) heard: Instant,
}

impl End {
    /// The end at which `sender` is.
    pub(super) fn new(upgraded: Upgraded, sender: Sender) -> io::Result<Self> {
        // Routers and the machines behind them speak plain TCP.
        let parts = upgraded
            .downcast::<TokioIo<TcpStream>>()
            .map_err(|_| io::Error::from(io::ErrorKind::Unsupported))?;
        let inbox = Inbox::new(sender, limits::MAX_WS_MESSAGE, &parts.read_buf);
        let (stream, out, heard) = (parts.io.into_inner(), Bytes::new(), Instant::now());
        Ok(Self {
            stream,
            sender,
            inbox,
            out,
            word: None,
            is_broken: false,
            has_closed: false,
            is_closing: false,
            heard,
        })
    }

    /// Whether something is not sent yet.
    pub(super) fn is_busy(&self) -> bool {
        !self.out.is_empty() || self.word.is_some()
    }

    /// Gives a frame to the way out, which is not busy.
    pub(super) fn give(&mut self, frame: Bytes) {
        debug_assert!(!self.is_busy());
        self.out = frame;
    }

    /// Says something about the connection. A later pong stands for an earlier one; nothing follows a goodbye.
    fn say(&mut self, kind: Kind, payload: &[u8]) {
        if !self.is_closing {
            self.is_closing = kind == Kind::Close;
            self.word = Some(control(kind, payload, self.sender == Sender::Machine));
        }
    }

    /// Asks for a sign of life.
    pub(super) fn ping(&mut self) {
        self.say(Kind::Ping, &[]);
    }

    /// Says goodbye.
    pub(super) fn close(&mut self, frame: Option<&CloseFrame>) {
        let payload = frame.map(|f| [&u16::from(f.code).to_be_bytes(), f.reason.as_bytes()].concat());
        self.say(Kind::Close, &payload.unwrap_or_default());
    }

    /// Sends what was given to the way out as far as it goes.
    pub(super) fn poll_sent(&mut self, cx: &mut Context<'_>) {
        while self.is_busy() {
            if self.out.is_empty()
                && let Some(word) = self.word.take()
            {
                self.out = word;
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.out) {
                Poll::Ready(Ok(sent)) if sent > 0 => self.out.advance(sent),
                Poll::Ready(_) => {
                    (self.out, self.word, self.is_broken) = (Bytes::new(), None, true);
                }
                Poll::Pending => return,
            }
        }
    }

    /// The next thing that the peer says. Pings are answered.
    pub(super) fn poll_said(&mut self, cx: &mut Context<'_>) -> Poll<Result<Said, Ended>> {
        loop {
            if let Some(said) = self.inbox.next().map_err(Ended::Bad)? {
                match &said {
                    Said::Ping(payload) => self.say(Kind::Pong, payload),
                    Said::Close(_) => self.has_closed = true,
                    Said::Data(_) | Said::Pong => {}
                }
                return Poll::Ready(Ok(said));
            }
            let mut room = self.inbox.room();
            if !matches!(ready!(pin!(self.stream.read_buf(&mut room)).poll(cx)), Ok(n) if n > 0) {
                return Poll::Ready(Err(Ended::Gone));
            }
        }
    }
}
