//! The time before models are loaded: the address is taken, the process is live, and nothing is ready.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::aside;
use super::server::ServeError;

/// Longest head of a request that is looked at.
const HEAD: usize = 4096;
/// How long a client may take to send it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clients that are answered at once; others wait in the system's queue.
const AT_ONCE: usize = 64;

/// An address that answers that it is not ready.
pub struct Lobby {
    pub(super) listener: TcpListener,
    addr: SocketAddr,
    seats: Arc<Semaphore>,
}

impl Lobby {
    /// Takes the address; what is wrong with it is known before anything is loaded.
    pub async fn open(addr: SocketAddr) -> Result<Self, ServeError> {
        let listener = TcpListener::bind(addr).await.map_err(|source| ServeError::Bind { addr, source })?;
        let addr = listener.local_addr().unwrap_or(addr);
        Ok(Self { listener, addr, seats: Arc::new(Semaphore::new(AT_ONCE)) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Does some work, and answers clients meanwhile: live, and not ready.
    pub async fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            let next = async {
                // The semaphore is never closed.
                let seat = self.seats.clone().acquire_owned().await.ok();
                (seat, self.listener.accept().await)
            };
            tokio::select! {
                biased;
                done = &mut work => return done,
                (seat, accepted) = next => match accepted {
                    Ok((socket, _)) => {
                        aside::spawn(async move {
                            let _ = tokio::time::timeout(PATIENCE, answer(socket)).await;
                            drop(seat);
                        });
                    }
                    // Out of descriptors, or a client that was gone at once.
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                },
            }
        }
    }
}

/// Reads the head of a request and says what there is to say.
async fn answer(mut socket: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(512);
    while !head.windows(4).any(|w| w == b"\r\n\r\n") && head.len() < HEAD {
        if socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let path = head.split(|&b| b == b' ' || b == b'?').nth(1).unwrap_or_default();
    let (status, body) = match path {
        b"/livez" | b"/v1/health/live" => ("200 OK", r#"{"status":"ok"}"#),
        b"/readyz" | b"/health" | b"/v1/health/ready" => {
            ("503 Service Unavailable\r\nretry-after: 1", r#"{"status":"loading"}"#)
        }
        _ => (
            "503 Service Unavailable\r\nretry-after: 1",
            r#"{"error":{"message":"models are still being loaded: try again in a moment","type":"server_error","code":"loading"}}"#,
        ),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncache-control: no-store\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(text.as_bytes()).await?;
    socket.shutdown().await?;
    // What the client still sends is taken, so that the answer is not lost with a reset.
    let mut rest = [0u8; HEAD];
    while socket.read(&mut rest).await? > 0 {}
    Ok(())
}
