//! The door for other machines: they leave parcels, sealed, and take them with a word that only they can say.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};

use super::depot::WORD;
use super::seal::Id;
use super::{Handover, HandoverError, MAX_PARCEL};
use crate::core::aside;
use crate::core::body;
use crate::core::error::ServerError;
use crate::core::state::AppState;

fn enter(state: &AppState, id: &str) -> Result<(std::sync::Arc<Handover>, Id), ServerError> {
    let handover = state.handover.clone().ok_or(HandoverError::Off)?;
    Ok((handover, Id::from_hex(id).ok_or(HandoverError::Bad)?))
}

/// Another machine leaves a parcel.
pub(crate) async fn put(
    State(state): State<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    let (handover, id) = enter(&state, &id)?;
    let most = MAX_PARCEL.min(handover.options.bytes);
    let sealed = body::collect(&headers, body, most, &state.budget).await?;
    // Seals of large parcels take a while, and the body's budget is given back.
    let kept = aside::wait(move || {
        let sealed = sealed.to_vec();
        let is_ours = handover.options.secret.open(id, &sealed).is_some();
        (is_ours, is_ours && handover.keep(id, sealed.into()))
    });
    match kept.await {
        Some((true, true)) => Ok(StatusCode::CREATED.into_response()),
        Some((true, false)) => Err(ServerError::Overloaded("streams of other machines")),
        Some((false, _)) => Err(HandoverError::Bad.into()),
        None => Err(ServerError::Internal),
    }
}

/// Another machine takes a parcel.
pub(crate) async fn take(
    State(state): State<AppState>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ServerError> {
    let (handover, id) = enter(&state, &id)?;
    let word = headers.get(WORD).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if !handover.options.secret.is_word(id, word) {
        return Err(HandoverError::Bad.into());
    }
    let parcel = handover.shelf.take(id).ok_or(HandoverError::Unknown)?;
    Ok((StatusCode::OK, parcel).into_response())
}
