//! A router in front of several servers, for clients that know nothing of handover: new streams go where there is room, and
//! live recognition goes on elsewhere when its machine drains or dies. Everything else passes through.

mod dice;
mod end;
mod frame;
mod held;
mod inbox;
mod node;
mod opening;
mod pass;
pub mod policy;
mod stream;
mod threads;
mod ticks;

use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::core::aside::{self, Boxed, Work};
use crate::core::drain::{Drain, Session};
use crate::core::limits;
use crate::core::server::ServeError;
use node::Nodes;
use threads::{Seat, Threads};

/// How long messages of a stream are held for another machine.
pub const HOLD: Duration = Duration::from_secs(10);
/// Bytes of them, of one stream.
pub const HOLD_BYTES: usize = 4 << 20;
/// How often names are looked up.
const LOOK_UP: Duration = Duration::from_secs(5);
/// Bytes of a request's head.
const MAX_HEAD: usize = 64 * 1024;
/// Pause after an accept that failed, which is mostly for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How a router is set up.
#[derive(Clone, Debug)]
pub struct RouteOptions {
    /// Where it listens; port 0 takes any.
    pub addr: SocketAddr,
    /// The servers, as `HOST:PORT`; names are looked up again and again, and stand for all of their addresses.
    pub to: Vec<String>,
    /// How long messages of a stream are held for another machine.
    pub hold: Duration,
    /// Bytes of them, of one stream.
    pub hold_bytes: usize,
    /// Sockets open at once.
    pub connections: usize,
    /// How long streams have at the end.
    pub drain: Duration,
}

impl RouteOptions {
    /// The usual settings in front of these servers.
    pub fn new(addr: SocketAddr, to: Vec<String>) -> Self {
        let (connections, drain) = (limits::MAX_CONNECTIONS, limits::DRAIN);
        Self { addr, to, hold: HOLD, hold_bytes: HOLD_BYTES, connections, drain }
    }
}

/// A router that listens and has not begun to answer.
pub struct Route {
    listener: TcpListener,
    threads: Threads,
    shared: Arc<Shared>,
}

/// What every connection sees.
struct Shared {
    options: RouteOptions,
    nodes: Arc<Nodes>,
    drain: Drain,
}

impl Route {
    /// Takes the address.
    pub async fn bind(options: RouteOptions) -> Result<Self, ServeError> {
        let addr = options.addr;
        let listener = TcpListener::bind(addr).await.map_err(|source| ServeError::Bind { addr, source })?;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|e| ServeError::Set(format!("no random numbers: {e}")))?;
        let nodes = Nodes::new(u64::from_le_bytes(seed));
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads =
            Threads::start(threads).map_err(|e| ServeError::Set(format!("cannot start threads: {e}")))?;
        Ok(Self { listener, threads, shared: Arc::new(Shared { options, nodes, drain: Drain::default() }) })
    }

    /// Where it listens.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr().ok()
    }

    /// Routes until `stop`; then streams in flight have their time.
    pub fn run(self, stop: impl Future<Output = ()> + Send + 'static) -> Boxed<'static, ()> {
        self.pass_on(Box::pin(stop))
    }

    fn pass_on(self, mut stop: Work) -> Boxed<'static, ()> {
        Box::pin(async move {
            let Self { listener, threads, shared } = self;
            let watching = aside::spawn(find(shared.clone()));
            let places = Arc::new(Semaphore::new(shared.options.connections));
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    () = stop.as_mut() => break,
                };
                let (stream, from) = match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                // A connection for which there is no place is closed at once.
                let Ok(place) = places.clone().try_acquire_owned() else { continue };
                let _ = stream.set_nodelay(true);
                // The thread that serves it waits for its socket, and no other.
                let Ok(stream) = stream.into_std() else { continue };
                let seat = threads.seat();
                let thread = seat.thread.clone();
                let guest = Arc::new(Guest { _place: place, _session: shared.drain.session(), _seat: seat });
                let shared = shared.clone();
                thread.spawn(async move {
                    match TcpStream::from_std(stream) {
                        Ok(stream) => connection(shared, stream, from, guest).await,
                        Err(error) => tracing::warn!(%error, "cannot serve a connection"),
                    }
                });
            }
            drop(listener);
            shared.drain.begin(shared.options.drain);
            let _ = tokio::time::timeout(shared.options.drain, shared.drain.idle()).await;
            watching.abort();
            // Streams that are still there end with their threads.
            drop(threads);
        })
    }
}

/// What a connection takes until it and the stream that it became are over.
struct Guest {
    _place: OwnedSemaphorePermit,
    _session: Session,
    _seat: Seat,
}

/// Answers the requests of a connection.
async fn connection(shared: Arc<Shared>, stream: TcpStream, from: SocketAddr, guest: Arc<Guest>) {
    let for_requests = shared.clone();
    let service = service_fn(move |request| pass::handle(for_requests.clone(), from, guest.clone(), request));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        () = shared.drain.begun() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// Finds the servers that the names stand for, and watches them, for ever.
async fn find(shared: Arc<Shared>) {
    let mut watches = JoinSet::new();
    loop {
        let (mut found, mut failed) = (Vec::new(), false);
        for name in &shared.options.to {
            match tokio::net::lookup_host(name).await {
                Ok(addresses) => found.extend(addresses),
                Err(error) => {
                    failed = true;
                    tracing::warn!(%error, name, "the name of a server cannot be looked up");
                }
            }
        }
        // A name that cannot be looked up now takes no server away.
        if failed {
            found.extend(shared.nodes.status().iter().map(|node| node.address));
        }
        for node in shared.nodes.update(&found) {
            let watch: Work = Box::pin(shared.nodes.clone().watch(node));
            watches.spawn(watch);
        }
        while watches.try_join_next().is_some() {}
        tokio::time::sleep(LOOK_UP).await;
    }
}
