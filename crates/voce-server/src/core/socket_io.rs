//! A TCP stream whose reader may not leave it full for ever, and whose end is seen by those who do not read from it.

use std::future::Future;
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;

/// How often an unread socket is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// The other end of a connection.
#[derive(Clone)]
pub(crate) struct Peer(Arc<TcpStream>);

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

    /// Waits until the other side has gone, whatever it has said before that nobody has read.
    pub(crate) async fn gone(&self) {
        loop {
            match self.0.ready(Interest::READABLE).await {
                Ok(ready) if !ready.is_read_closed() => {}
                _ => return,
            }
            // What waits to be read makes the socket ready all the time.
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Ends a connection whose peer takes nothing for too long, and with it whatever was being made for that peer.
pub(crate) struct StallGuard {
    stream: Arc<TcpStream>,
    patience: Duration,
    alarm: Option<Pin<Box<Sleep>>>,
}

impl StallGuard {
    pub(crate) fn new(stream: TcpStream, patience: Duration) -> Self {
        Self { stream: Arc::new(stream), patience, alarm: None }
    }

    /// The other end.
    pub(crate) fn peer(&self) -> Peer {
        Peer(self.stream.clone())
    }

    /// Starts or checks the alarm when a write must wait, and stops it when one went through.
    fn watch<T>(&mut self, cx: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.alarm = None;
            return result;
        }
        let patience = self.patience;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
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
        let stream = &self.stream;
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        poll_try(cx, |cx| stream.poll_read_ready(cx), || stream.try_read_buf(buf).map(|_| ()))
    }
}

impl AsyncWrite for StallGuard {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let stream = &self.stream;
        let result = poll_try(cx, |cx| stream.poll_write_ready(cx), || stream.try_write(buf));
        self.watch(cx, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = &self.stream;
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
        Poll::Ready(SockRef::from(&*self.stream).shutdown(Shutdown::Write))
    }
}
