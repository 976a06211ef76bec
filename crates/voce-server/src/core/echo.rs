//! A socket that says back what it hears: for suites that test the WebSocket layer. No configuration opens it.

use axum::extract::State;
use axum::response::Response;

use super::limits;
use super::state::AppState;
use super::ws::{self, Frame, Upgrade};

/// Where it is.
pub(crate) const PATH: &str = "/echo";

/// A connection.
pub(crate) async fn connect(State(state): State<AppState>, upgrade: Upgrade) -> Response {
    ws::upgrade(&state, upgrade, limits::MAX_WS_MESSAGE, |mut wire| async move {
        loop {
            let said = match wire.recv().await {
                Frame::Text(text) => wire.text(text).await,
                Frame::Binary(data) => wire.binary(data).await,
                other => return wire.end(other).await,
            };
            if said.is_err() {
                return;
            }
        }
    })
}
