//! The way out of a session: when it is due, what goes along, and what the client is told.

use std::pin::Pin;
use std::sync::Arc;

use serde::Serialize;

use super::parcel::{Head, Parcel};
use super::seal::Id;
use super::{HEADER, Handover};
use crate::core::caller::Caller;
use crate::core::drain::Drain;
use crate::core::state::AppState;
use crate::core::ws::Wire;
use crate::ears::{Claim, InletState, Saved, SavedStream};

/// When a session moves, or is saved in case its machine dies.
pub(crate) struct Leave {
    handover: Option<Arc<Handover>>,
    dialect: &'static str,
    caller: Caller,
    drain: Drain,
    /// The client is told by the close frame alone, and of checkpoints.
    by_frame: bool,
    due: Pin<Box<dyn Future<Output = ()> + Send>>,
    saving: bool,
    /// The name of its checkpoints.
    id: Option<Id>,
}

/// What a session packs beside its stream.
pub(crate) struct Baggage<'a, S> {
    /// The way of its raw audio.
    pub(crate) inlet: Option<InletState>,
    /// The dialect's own.
    pub(crate) own: &'a S,
}

/// Where a session goes on: what its client is told.
#[derive(Clone, Debug)]
pub(crate) struct Moved {
    pub(crate) token: String,
    /// Messages that were taken since the stream began, and seconds of audio.
    pub(crate) messages: u64,
    pub(crate) seconds: f64,
    /// The close frame alone says so.
    pub(crate) by_frame: bool,
}

impl Moved {
    /// Ends a socket whose session goes on elsewhere.
    pub(crate) async fn close(self, wire: Wire) {
        wire.close(1012, &format!("moved {}", self.token)).await;
    }
}

impl Leave {
    /// The way out of a session that speaks `dialect`, whose request had these headers.
    pub(crate) fn new(state: &AppState, dialect: &'static str, headers: &axum::http::HeaderMap) -> Self {
        let by_frame = headers.get(HEADER).is_some_and(|v| v == "close");
        let mut this = Self {
            handover: state.handover.clone(),
            dialect,
            caller: Caller::current(),
            drain: state.drain.clone(),
            by_frame,
            due: Box::pin(std::future::pending()),
            saving: false,
            id: None,
        };
        this.wait();
        this
    }

    /// Waits for the end of the server, or for the next checkpoint of a client that knows what to do with it.
    fn wait(&mut self) {
        let Some(handover) = self.handover.as_ref().filter(|h| h.depot.is_some()) else { return };
        let (drain, every) = (self.drain.clone(), handover.options.checkpoint.filter(|_| self.by_frame));
        self.due = Box::pin(async move {
            let next = async {
                match every {
                    Some(every) => tokio::time::sleep(every).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = drain.begun() => {}
                () = next => {}
            }
        });
    }

    /// Waits until the session is to be saved, once. Callers ask only between two messages.
    pub(crate) async fn due(&mut self) {
        self.due.as_mut().await;
        self.due = Box::pin(std::future::pending());
        self.saving = true;
    }

    /// Whether the session is being saved: nothing is read meanwhile.
    pub(crate) fn is_saving(&self) -> bool {
        self.saving
    }

    /// Leaves a saved session where others find it. Returns where it goes on; a session that stays has none.
    pub(crate) async fn go<S: Serialize>(
        &mut self,
        saved: Saved,
        claim: &mut Claim,
        wire: &mut Wire,
        baggage: Baggage<'_, S>,
    ) -> Option<Moved> {
        self.saving = false;
        let handover = self.handover.clone()?;
        let is_leaving = self.drain.is_draining();
        let (snapshot, stream) = match saved {
            Saved::Stream(SavedStream { request, samples, snapshot }) => (snapshot, Some((request, samples))),
            Saved::NoStream => (Vec::new(), None),
            Saved::Cannot => return None,
        };
        let own = rmp_serde::to_vec_named(baggage.own).ok()?;
        let (taken, told) = wire.counts();
        let head = Head {
            dialect: self.dialect.into(),
            model: claim.ear().id().into(),
            taken,
            told,
            stream,
            inlet: baggage.inlet,
            own,
        };
        let id = match self.id {
            Some(id) => id,
            None => *self.id.insert(Id::new().ok()?),
        };
        let parcel = Parcel { head, snapshot };
        match handover.send(id, &parcel, &self.caller).await {
            Ok(token) if is_leaving => {
                handover.metrics.handover("sent");
                let seconds = claim.seconds();
                claim.moved();
                Some(Moved { token, messages: taken, seconds, by_frame: self.by_frame })
            }
            Ok(token) => {
                handover.metrics.handover("saved");
                wire.ping(format!("saved {token} {taken}")).await;
                self.wait();
                None
            }
            Err(error) => {
                handover.metrics.handover("failed");
                tracing::warn!(error, "a stream cannot be moved: it stays while this server does");
                if !is_leaving {
                    // The next checkpoint may find a machine.
                    self.wait();
                }
                None
            }
        }
    }
}
