//! OpenAI's HTTP routes, as its clients use them.

pub(crate) mod models;
pub(crate) mod realtime;
pub(crate) mod speech;
pub(crate) mod transcriptions;
pub(crate) mod voices;

use crate::core::error::ServerError;

/// Voce recognises and does not translate.
pub(crate) async fn translations() -> ServerError {
    ServerError::malformed(
        "translation is not supported: use /v1/audio/transcriptions, and translate its text",
    )
}
