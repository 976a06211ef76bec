//! Live recognition that moves to another machine: a session is packed between two messages, left where others find it, and
//! gone on with by whoever brings its token. One mechanism for every dialect.

mod arrive;
mod depot;
pub(crate) mod door;
mod leave;
mod parcel;
mod seal;
mod shelf;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;

pub(crate) use arrive::Entry;
pub(crate) use leave::{Baggage, Leave, Moved};
pub use seal::{MIN_SECRET, Secret};
pub use shelf::MAX_PARCELS;

use crate::core::aside;
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::metrics::Metrics;
use depot::{Depot, Folder, Peers};
use parcel::Parcel;
use seal::{Id, Token};
use shelf::Shelf;

/// Where machines leave and take parcels.
pub(crate) const PATH: &str = "/v1/handover";
/// How long a client has to come to another machine.
pub const HANDOVER_TIME: Duration = Duration::from_secs(60);
/// Bytes of all parcels that a machine or a folder holds.
pub const HANDOVER_BYTES: usize = 1 << 30;
/// Bytes of one parcel.
pub const MAX_PARCEL: usize = 128 << 20;
/// Parcels that are sent at once: a machine on its way out has as many as it has streams.
const SENT_AT_ONCE: usize = 8;
/// A client's header that says how it is told: `close` for the close frame alone, as proxies like it.
pub(crate) const HEADER: &str = "voce-handover";
/// Headers of an upgrade that goes on with a stream: messages that were taken, and lasting ones that were sent.
pub(crate) const TAKEN: &str = "voce-taken";
/// See [`TAKEN`].
pub(crate) const TOLD: &str = "voce-told";

/// The dialects whose sessions move.
pub(crate) const MOSHI: &str = "moshi";
/// See [`MOSHI`].
pub(crate) const DEEPGRAM: &str = "deepgram";
/// See [`MOSHI`].
pub(crate) const REALTIME: &str = "realtime";
/// See [`MOSHI`].
pub(crate) const RNNT: &str = "rnnt";

/// How streams move between machines.
#[derive(Clone, Debug)]
pub struct HandoverOptions {
    /// What the machines share.
    pub secret: Secret,
    /// Other machines, as `http://HOST:PORT`; a name that stands for several addresses is all of them.
    pub peers: Vec<String>,
    /// A folder that all machines see, in place of peers.
    pub folder: Option<PathBuf>,
    /// How long a client has to come to another machine.
    pub time: Duration,
    /// Bytes of parcels that are held here for others.
    pub bytes: usize,
    /// How often streams are saved while they go on, so that they survive a machine that dies; never where absent.
    pub checkpoint: Option<Duration>,
}

impl HandoverOptions {
    /// The usual settings.
    pub fn new(secret: Secret) -> Self {
        let (time, bytes) = (HANDOVER_TIME, HANDOVER_BYTES);
        Self { secret, peers: Vec::new(), folder: None, time, bytes, checkpoint: None }
    }
}

/// Why a stream cannot be gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandoverError {
    /// The server is not set up for it.
    #[error("this server takes no streams over: start it with --handover-secret-file, or begin a new stream")]
    Off,
    /// The token is not one of this service's, or of another key.
    #[error("the token is not one that this service made for this key: begin a new stream")]
    Bad,
    /// The token's time is over.
    #[error("the token is too old: begin a new stream")]
    Expired,
    /// Nothing waits for it.
    #[error(
        "no stream waits for this token: it was gone on with already, or its machine is lost: begin a new stream"
    )]
    Unknown,
    /// It is of another route or model.
    #[error(
        "the token is of a stream of another model or protocol: use the route and the model that it began with"
    )]
    Other,
    /// The weights here are others.
    #[error("this machine has other weights than the one that the stream comes from: begin a new stream")]
    Weights,
}

impl HandoverError {
    /// The short stable name.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Off => "handover_off",
            Self::Bad => "bad_token",
            Self::Expired => "token_expired",
            Self::Unknown => "token_unknown",
            Self::Other => "other_stream",
            Self::Weights => "other_weights",
        }
    }
}

/// What a server knows of streams that move.
pub(crate) struct Handover {
    options: HandoverOptions,
    shelf: Shelf,
    depot: Option<Arc<dyn Depot>>,
    sending: Semaphore,
    metrics: Metrics,
}

impl Handover {
    pub(crate) fn new(options: HandoverOptions, metrics: Metrics) -> Self {
        let HandoverOptions { secret, peers, folder, time, bytes, .. } = &options;
        let depot: Option<Arc<dyn Depot>> = match folder {
            Some(folder) => Some(Arc::new(Folder::new(folder, *time, *bytes))),
            None if peers.is_empty() => None,
            None => Some(Arc::new(Peers::new(peers, secret.clone()))),
        };
        let shelf = Shelf::new(*bytes);
        Self { shelf, depot, sending: Semaphore::new(SENT_AT_ONCE), metrics, options }
    }

    /// Leaves a session where others find it; the token is good for this caller alone.
    async fn send(&self, id: Id, parcel: &Parcel, caller: &Caller) -> Result<String, String> {
        let token = Token::new(id, self.options.time);
        let sealed = self.options.secret.close(&token, &parcel.to_bytes());
        if sealed.len() > MAX_PARCEL.min(self.options.bytes) {
            return Err(format!("the stream's state has {} bytes, which is too much to move", sealed.len()));
        }
        self.pass(id, sealed.into()).await?;
        Ok(token.text(&self.options.secret, caller))
    }

    /// Gives a sealed parcel to the depot.
    async fn pass(&self, id: Id, sealed: Bytes) -> Result<(), String> {
        let depot = self.depot.clone().ok_or("neither peers nor a folder are named")?;
        let _turn = self.sending.acquire().await;
        let put = aside::wait(move || depot.put(id, &sealed)).await;
        put.unwrap_or_else(|| Err("the thread that sends it has ended".into()))
    }

    /// Takes the parcel that a token is for, wherever it is. Whoever cannot use it puts it [back](Handover::keep).
    async fn take(&self, token: Token) -> Result<(Bytes, Parcel), HandoverError> {
        let sealed = match self.shelf.take(token.id) {
            Some(sealed) => sealed,
            None => {
                let depot = self.depot.clone().ok_or(HandoverError::Unknown)?;
                let most = MAX_PARCEL.min(self.options.bytes);
                let taken = aside::wait(move || depot.take(token.id, most)).await;
                taken.flatten().ok_or(HandoverError::Unknown)?.into()
            }
        };
        let opened = self.options.secret.open(token.id, &sealed);
        let parcel =
            opened.and_then(|(_, content)| Parcel::from_bytes(content)).ok_or(HandoverError::Unknown)?;
        Ok((sealed, parcel))
    }

    /// Keeps a parcel here; false where its seal is broken or there is no room.
    fn keep(&self, id: Id, sealed: Bytes) -> bool {
        match self.options.secret.open(id, &sealed) {
            Some((expires, _)) => self.shelf.put(id, expires, sealed),
            None => false,
        }
    }

    /// Passes on what waits here: a machine on its way out is not asked any more.
    pub(crate) async fn forward(&self) {
        for (id, sealed) in self.shelf.take_all() {
            if let Err(error) = self.pass(id, sealed).await {
                self.metrics.handover("lost");
                tracing::warn!(error, "a stream that waited here could not be passed on");
            }
        }
    }
}

/// The token of a query, where there is one.
pub(crate) fn token(query: Option<&str>) -> Option<String> {
    let query = crate::core::query::Query::parse(query.unwrap_or_default());
    query.get("resume").map(str::to_owned)
}

impl From<HandoverError> for ServerError {
    fn from(error: HandoverError) -> Self {
        ServerError::Handover(error)
    }
}
