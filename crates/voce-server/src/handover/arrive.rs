//! The way in of a session that comes from another machine: its token is checked and its stream is open before there is a
//! WebSocket, so that whatever is wrong has a status of its own.

use std::sync::Arc;

use axum::http::HeaderValue;
use axum::response::Response;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use voce_engine::EngineError;

use super::parcel::Parcel;
use super::seal::{Id, Token};
use super::{Handover, HandoverError, REALTIME, TAKEN, TOLD};
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::state::AppState;
use crate::core::ws::Wire;
use crate::ears::{Claim, Ear, Inlet, SavedStream};

/// A session that goes on here.
pub(crate) struct Arrival {
    pub(crate) claim: Claim,
    /// The way of raw audio.
    pub(crate) inlet: Option<Inlet>,
    own: Vec<u8>,
    taken: u64,
    told: u64,
}

/// How a session begins.
pub(crate) enum Entry {
    /// Anew.
    New(Arc<Ear>),
    /// Where it was.
    Again(Box<Arrival>),
}

/// Puts a parcel back that was not used.
struct Return<'a> {
    handover: &'a Handover,
    id: Id,
    sealed: Option<Bytes>,
}

impl Drop for Return<'_> {
    fn drop(&mut self) {
        if let Some(sealed) = self.sealed.take() {
            self.handover.keep(self.id, sealed);
        }
    }
}

impl Entry {
    /// The beginning of a session of a dialect with this recogniser: where it was, if the query has a token. Where there is
    /// no slot, one that goes on is refused before the upgrade, and can be tried again.
    pub(crate) async fn new(
        state: &AppState,
        dialect: &'static str,
        ear: Arc<Ear>,
        query: Option<&str>,
    ) -> Result<Self, ServerError> {
        let Some(text) = super::token(query) else {
            state.before_upgrade(ear.check())?;
            return Ok(Self::New(ear));
        };
        let handover = state.handover.clone().ok_or(HandoverError::Off)?;
        let token = Token::read(&text, &handover.options.secret, &Caller::current())?;
        ear.check()?;
        let (sealed, parcel) = handover.take(token).await?;
        let mut back = Return { handover: &handover, id: token.id, sealed: Some(sealed) };
        let arrival = Arrival::open(state, dialect, ear, parcel).await?;
        back.sealed = None;
        state.metrics.handover("resumed");
        Ok(Self::Again(Box::new(arrival)))
    }

    /// Tells in the head of the answer how much of the stream is there.
    pub(crate) fn tell(heads: Option<(u64, u64)>, mut response: Response) -> Response {
        if let Some((taken, told)) = heads {
            response.headers_mut().insert(TAKEN, HeaderValue::from(taken));
            response.headers_mut().insert(TOLD, HeaderValue::from(told));
        }
        response
    }

    /// What [`Entry::tell`] tells.
    pub(crate) fn heads(&self) -> Option<(u64, u64)> {
        match self {
            Self::New(_) => None,
            Self::Again(arrival) => Some((arrival.taken, arrival.told)),
        }
    }
}

impl Arrival {
    async fn open(
        state: &AppState,
        dialect: &str,
        ear: Arc<Ear>,
        parcel: Parcel,
    ) -> Result<Self, ServerError> {
        let Parcel { head, snapshot } = parcel;
        // A Realtime session may have changed its model since its request named one.
        let other = || state.ears.iter().find(|e| dialect == REALTIME && e.id() == head.model).cloned();
        let ear = if head.model == ear.id() { Some(ear) } else { other() };
        let ear = ear.filter(|_| head.dialect == dialect).ok_or(HandoverError::Other)?;
        let stream = head.stream.map(|(request, samples)| SavedStream { request, samples, snapshot });
        let opened = Claim::resume(ear, stream).await;
        let mut claim = opened.map_err(|error| match error {
            ServerError::Engine(EngineError::Snapshot(_)) => HandoverError::Weights.into(),
            other => other,
        })?;
        let rate = claim.hearing().map(|h| h.rate());
        let inlet = match (head.inlet, rate) {
            (Some(state), Some(rate)) => Some(Inlet::resume(state, rate).ok_or(HandoverError::Unknown)?),
            _ => None,
        };
        Ok(Self { claim, inlet, own: head.own, taken: head.taken, told: head.told })
    }

    /// The dialect's own, read once the socket is there; counts go on on it.
    pub(crate) fn unpack<S: DeserializeOwned>(&mut self, wire: &mut Wire) -> Result<S, ServerError> {
        wire.count_from(self.taken, self.told);
        rmp_serde::from_slice(&self.own).map_err(|_| HandoverError::Other.into())
    }
}
