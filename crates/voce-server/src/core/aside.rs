//! What routes need beside their own work: threads that may wait, and the time that records carry.

use std::time::{SystemTime, UNIX_EPOCH};

use super::error::ServerError;

/// Does something with files on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ServerError::Internal)?
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
