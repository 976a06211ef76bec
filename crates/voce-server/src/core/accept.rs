//! The accept loop: one task a connection, a timer on its request head, a guard on its reader, a bound on their number.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::aside::Work;
use super::caller::{self, Caller};
use super::socket_io::StallGuard;
use super::state::AppState;

/// Bytes of a request's head.
const MAX_HEAD: usize = 64 * 1024;
/// Pause after an accept that failed, which is mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the server drains, and waits for those in flight.
pub(crate) async fn run(listener: TcpListener, router: Router, state: AppState) {
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = state.drain.begun() => break,
            // Ended tasks are forgotten as they end, not at the end of the server.
            Some(_) = tasks.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let ip = stream.peer_addr().map_or_else(|_| Caller::default().address, |a| a.ip());
        let caller = Caller { key: None, address: caller::address(ip) };
        let Ok(place) = state.budget.connections.take(&caller, 1) else {
            state.metrics.error("too_many_connections");
            drop(stream);
            continue;
        };
        let (router, state) = (router.clone(), state.clone());
        let work: Work = Box::pin(async move {
            state.metrics.connections.inc();
            connection(stream, router, &state).await;
            state.metrics.connections.dec();
            drop(place);
        });
        tasks.spawn(work);
    }
    drop(listener);
    let mut rest = async || {
        while tasks.join_next().await.is_some() {}
        state.drain.idle().await;
    };
    if tokio::time::timeout(state.drain.time(), rest()).await.is_err() {
        state.drain.end();
        let _ = tokio::time::timeout(super::limits::WS_CLOSE, rest()).await;
    }
    tasks.shutdown().await;
}

async fn connection(stream: TcpStream, router: Router, state: &AppState) {
    // Frames of audio are small and wanted at once.
    let _ = stream.set_nodelay(true);
    let limits = &state.options.limits;
    let io = StallGuard::new(stream, limits.write_stall);
    let peer = io.peer();
    let io = TokioIo::new(io);
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .max_buf_size(MAX_HEAD)
        .serve_connection(io, TowerToHyperService::new(router))
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let serve = async {
        tokio::select! {
            result = serving.as_mut() => result,
            () = state.drain.begun() => {
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        }
    };
    let result = peer.scope(serve).await;
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}
