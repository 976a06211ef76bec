//! A TCP stream whose reader must keep a rate while it leaves the socket full, and whose end is seen by those who do not read
//! from it.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Shutdown};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

use super::caller::{self, Caller};
use super::limits::READER_RATE;
use super::pace::Pace;

/// How often an unread socket is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// The other end of a connection.
#[derive(Clone)]
pub(crate) struct Peer(Arc<Inside>);

struct Inside {
    stream: TcpStream,
    address: IpAddr,
}

tokio::task_local! {
    static PEER: Peer;
}

impl Peer {
    /// Runs what belongs to this connection.
    pub(crate) async fn scope<F: Future>(self, what: F) -> F::Output {
        PEER.scope(self, what).await
    }

    /// The other end of the connection that the present task belongs to.
    pub(crate) fn current() -> Option<Self> {
        PEER.try_with(Peer::clone).ok()
    }

    /// Where it is, as limits see it.
    pub(crate) fn address(&self) -> IpAddr {
        self.0.address
    }

    /// Waits until the other side has gone, whatever it has said before that nobody has read.
    pub(crate) async fn gone(&self) {
        loop {
            match self.0.stream.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                _ => return,
            }
            // What waits to be read makes the socket ready all the time.
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A stream that errs when its reader takes too little for too long.
pub(crate) struct StallGuard {
    inside: Arc<Inside>,
    pace: Pace,
    /// Since when a write waits, and until when it may.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl StallGuard {
    /// A stream whose reader may be this far behind its rate.
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Self {
        let ip = stream.peer_addr().map_or_else(|_| Caller::default().address, |a| a.ip());
        let inside = Inside { stream, address: caller::address(ip) };
        Self { inside: Arc::new(inside), pace: Pace::new(patience, READER_RATE), waiting: None }
    }

    /// The other end.
    pub(crate) fn peer(&self) -> Peer {
        Peer(self.inside.clone())
    }

    /// Counts what a write took; one that waits has as long as the reader's pace allows.
    fn watch(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(result) = result {
            if let Some((since, _)) = self.waiting.take() {
                self.pace.count(since.elapsed(), *result.as_ref().unwrap_or(&0));
            } else if let Ok(bytes) = result {
                self.pace.count(Duration::ZERO, bytes);
            }
            return Poll::Ready(result);
        }
        let left = self.pace.left();
        let begin = || (Instant::now(), Box::pin(tokio::time::sleep(left)));
        let (_, alarm) = self.waiting.get_or_insert_with(begin);
        ready!(alarm.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Tries until the socket has to be waited for.
fn poll_try<T>(
    cx: &mut Context<'_>,
    poll_ready: impl Fn(&mut Context<'_>) -> Poll<io::Result<()>>,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> Poll<io::Result<T>> {
    loop {
        ready!(poll_ready(cx))?;
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

impl AsyncRead for StallGuard {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = &self.inside.stream;
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        poll_try(cx, |cx| stream.poll_read_ready(cx), || stream.try_read_buf(buf).map(|_| ()))
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let stream = &self.inside.stream;
        let result = poll_try(cx, |cx| stream.poll_write_ready(cx), || stream.try_write(buf));
        self.watch(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = &self.inside.stream;
        let result = poll_try(cx, |cx| stream.poll_write_ready(cx), || stream.try_write_vectored(bufs));
        self.watch(cx, result)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Sockets have nothing to flush.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&self.inside.stream).shutdown(Shutdown::Write))
    }
}
