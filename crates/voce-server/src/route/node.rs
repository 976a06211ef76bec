//! The machines behind a router: their addresses, what is known of them, and how they are asked.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use super::policy::{Fleet, Health, Report};

/// How often machines are asked how they are, and how long they may take to answer or to be reached.
const PROBE: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(1);
/// Most machines.
const MAX_NODES: usize = 16_384;
/// Most bytes of such an answer.
const MAX_ANSWER: usize = 4096;

/// The machines, and what became of streams.
pub(super) struct Nodes {
    inside: Mutex<Inside>,
    pub(super) counts: Counts,
}

struct Inside {
    fleet: Fleet,
    places: Vec<Place>,
}

/// Where a machine is.
struct Place {
    address: SocketAddr,
    /// No name stands for it any more: when it is down, another may have its place.
    is_retired: bool,
    /// Streams that it has.
    streams: usize,
}

/// A machine as the router's status shows it.
pub(super) struct NodeStatus {
    pub(super) address: SocketAddr,
    pub(super) health: Health,
    pub(super) room: u32,
    pub(super) streams: usize,
}

/// What became of streams.
#[derive(Default)]
pub(super) struct Counts {
    /// Moved from a machine on its way out.
    pub(super) moved: AtomicU64,
    /// Gone on with after their machine died.
    pub(super) revived: AtomicU64,
    /// Given up.
    pub(super) lost: AtomicU64,
}

/// What `/readyz` answers.
#[derive(Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    free: Option<u32>,
    #[serde(default)]
    slots: Option<u32>,
}

impl Nodes {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let inside = Mutex::new(Inside { fleet: Fleet::new(0, seed), places: Vec::new() });
        Arc::new(Self { inside, counts: Counts::default() })
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with what is known of machines.
    pub(super) fn fleet<T>(&self, what: impl FnOnce(&mut Fleet) -> T) -> T {
        what(&mut self.inside().fleet)
    }

    fn address(&self, node: usize) -> SocketAddr {
        self.inside().places[node].address
    }

    /// Names stand for these machines now. Returns the numbers of those that are new.
    pub(super) fn update(&self, found: &[SocketAddr]) -> Vec<usize> {
        let mut inside = self.inside();
        let Inside { fleet, places } = &mut *inside;
        for place in places.iter_mut() {
            place.is_retired = !found.contains(&place.address);
        }
        let mut new = Vec::new();
        for &address in found {
            if places.iter().any(|p| p.address == address) {
                continue;
            }
            let place = Place { address, is_retired: false, streams: 0 };
            let is_free = |i: &usize| {
                places[*i].is_retired && places[*i].streams == 0 && fleet.node(*i).0 == Health::Down
            };
            match (0..places.len()).find(is_free) {
                Some(free) => {
                    places[free] = place;
                    fleet.replace(free);
                    new.push(free);
                }
                None if places.len() < MAX_NODES => {
                    places.push(place);
                    new.push(fleet.add());
                }
                None => tracing::warn!(%address, "there are more servers than a router takes"),
            }
        }
        new
    }

    /// Every machine.
    pub(super) fn status(&self) -> Vec<NodeStatus> {
        let inside = self.inside();
        let one = |(i, place): (usize, &Place)| {
            let (health, room) = inside.fleet.node(i);
            NodeStatus { address: place.address, health, room, streams: place.streams }
        };
        inside.places.iter().enumerate().map(one).collect()
    }

    /// Asks a machine how it is, until it is down and no name stands for it.
    pub(super) async fn watch(self: Arc<Self>, node: usize) {
        let address = self.address(node);
        let mut kept: Option<SendRequest<Empty<bytes::Bytes>>> = None;
        loop {
            let asked = tokio::time::timeout(PATIENCE, self.probe(node, &mut kept)).await;
            match asked.ok().flatten() {
                Some(report) => self.fleet(|fleet| fleet.reported(node, report)),
                None => {
                    kept = None;
                    let mut inside = self.inside();
                    if inside.places[node].address != address {
                        return;
                    }
                    inside.fleet.missed(node);
                    if inside.places[node].is_retired && inside.fleet.node(node).0 == Health::Down {
                        return;
                    }
                }
            }
            tokio::time::sleep(PROBE).await;
        }
    }

    async fn probe(
        &self,
        node: usize,
        kept: &mut Option<SendRequest<Empty<bytes::Bytes>>>,
    ) -> Option<Report> {
        let is_open = match kept {
            Some(connection) => connection.ready().await.is_ok(),
            None => false,
        };
        if !is_open {
            *kept = Some(self.connect(node).await.ok()?);
        }
        let connection = kept.as_mut()?;
        let host = self.address(node).to_string();
        let request = Request::get("/readyz").header("host", host).body(Empty::new()).ok()?;
        let response = connection.send_request(request).await.ok()?;
        let status = response.status();
        let body = http_body_util::Limited::new(response.into_body(), MAX_ANSWER).collect().await.ok()?;
        let answer: Answer = serde_json::from_slice(&body.to_bytes()).ok()?;
        let is_ready = status == StatusCode::OK && answer.status == "ok";
        // A server that does not say has room until it refuses.
        let slots = answer.slots.unwrap_or(1).max(1);
        Some(Report { is_ready, free: answer.free.unwrap_or(slots), slots })
    }

    /// A connection to a machine.
    pub(super) async fn connect<B>(&self, node: usize) -> Result<SendRequest<B>, std::io::Error>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let late = || std::io::Error::from(std::io::ErrorKind::TimedOut);
        let stream = TcpStream::connect(self.address(node));
        let stream = tokio::time::timeout(PATIENCE, stream).await.map_err(|_| late())??;
        stream.set_nodelay(true)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(std::io::Error::other)?;
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    /// Sends a request to a machine.
    pub(super) async fn send<B>(
        &self,
        node: usize,
        request: Request<B>,
    ) -> Result<Response<Incoming>, std::io::Error>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let mut connection = self.connect(node).await?;
        connection.send_request(request).await.map_err(std::io::Error::other)
    }

    /// Counts a stream of a machine until the value is dropped.
    pub(super) fn hold(self: &Arc<Self>, node: usize) -> Holds {
        self.inside().places[node].streams += 1;
        Holds { nodes: self.clone(), node }
    }
}

/// A stream of a machine.
pub(super) struct Holds {
    nodes: Arc<Nodes>,
    pub(super) node: usize,
}

impl Drop for Holds {
    fn drop(&mut self) {
        self.nodes.inside().places[self.node].streams -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(n: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, n], 8080))
    }

    #[test]
    fn machines_come_and_go_by_their_names() {
        let nodes = Nodes::new(1);
        assert_eq!(nodes.update(&[at(1), at(2), at(2)]), [0, 1]);
        let holds = nodes.hold(0);
        assert!(nodes.update(&[at(2)]).is_empty());
        nodes.fleet(|fleet| fleet.failed(0));
        // A stream is still there: its place is not given away.
        assert_eq!(nodes.update(&[at(2), at(3)]), [2]);
        drop(holds);
        assert_eq!(nodes.update(&[at(2), at(3), at(4)]), [0]);
        let all: Vec<_> = nodes.status().iter().map(|n| (n.address, n.health)).collect();
        assert_eq!(all, [(at(4), Health::Unknown), (at(2), Health::Unknown), (at(3), Health::Unknown)]);
    }
}
