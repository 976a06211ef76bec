//! Limits of all that tests wait for: at the limit a test fails, and says what it waited for and what `/metrics` said.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::client::Response;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::watchdog;

/// The longest wait, on a machine that has other things to do.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Waits for something at a server.
#[track_caller]
pub(crate) fn within<T>(
    what: impl std::fmt::Display,
    at: SocketAddr,
    work: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let place = std::panic::Location::caller();
    async move {
        let (mut work, mut late) = (pin!(work), pin!(late(at)));
        std::future::poll_fn(move |cx| match work.as_mut().poll(cx) {
            Poll::Ready(done) => Poll::Ready(done),
            Poll::Pending => late.as_mut().poll(cx).map(|said| panic!("{place}: {what}: {said}")),
        })
        .await
    }
}

/// What is to be said of a wait that began now and lasts too long.
async fn late(at: SocketAddr) -> String {
    tokio::time::sleep(LIMIT).await;
    let series = tokio::task::spawn_blocking(move || watchdog::series(at)).await.unwrap_or_default();
    format!("not within {LIMIT:?}; {series}")
}

/// A connection whose other end may be silent for so long and no longer while somebody reads or writes.
pub(crate) struct TcpStream {
    stream: tokio::net::TcpStream,
    at: SocketAddr,
    reading: Late,
    writing: Late,
}

/// What is to be said of a wait, while there is one.
type Late = Option<Pin<Box<dyn Future<Output = String> + Send>>>;

impl TcpStream {
    /// The address of the other end.
    pub(crate) fn at(&self) -> SocketAddr {
        self.at
    }

    pub(crate) async fn connect(at: SocketAddr) -> io::Result<Self> {
        within("a connection", at, tokio::net::TcpStream::connect(at)).await.map(Self::from)
    }
}

/// What came of a look at a connection, or the error of one that waits for too long.
fn patiently<T>(
    wait: &mut Late,
    at: SocketAddr,
    cx: &mut Context<'_>,
    came: Poll<io::Result<T>>,
) -> Poll<io::Result<T>> {
    if came.is_ready() {
        *wait = None;
        return came;
    }
    let late = wait.get_or_insert_with(|| Box::pin(late(at)));
    late.as_mut().poll(cx).map(|said| {
        *wait = None;
        Err(io::Error::new(io::ErrorKind::TimedOut, format!("{at} neither speaks nor hears: {said}")))
    })
}

impl std::fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.stream.fmt(f)
    }
}

impl From<tokio::net::TcpStream> for TcpStream {
    fn from(stream: tokio::net::TcpStream) -> Self {
        let at = stream.peer_addr().expect("it is connected");
        Self { stream, at, reading: None, writing: None }
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let came = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let at = self.at;
        patiently(&mut self.reading, at, cx, came)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let came = Pin::new(&mut self.stream).poll_write(cx, bytes);
        let at = self.at;
        patiently(&mut self.writing, at, cx, came)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A WebSocket over such a connection.
pub(crate) type Web = WebSocketStream<TcpStream>;

/// Opens a WebSocket at an address.
pub(crate) async fn connect_async(request: impl IntoClientRequest) -> Result<(Web, Response), Error> {
    let request = request.into_client_request()?;
    let at = request.uri().authority().and_then(|a| a.as_str().parse().ok()).expect("an address");
    client_async(request, TcpStream::connect(at).await?).await
}
