//! Work beside a route: tasks, threads that may wait, and the time that records carry.
//!
//! What runs there is boxed, so that tokio's side of a task is compiled once and not for every piece of work.

use std::pin::Pin;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::error::ServerError;

/// A future whose code stays in this crate: that of a plain `async fn` is compiled wherever it is waited for.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A task's work.
pub(crate) type Work = Boxed<'static, ()>;

/// Does something on a task of its own.
pub(crate) fn spawn(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let work: Work = Box::pin(work);
    tokio::spawn(work)
}

/// Does something on a thread that may wait, which nobody waits for.
pub(crate) fn detach(work: impl FnOnce() + Send + 'static) {
    let work: Box<dyn FnOnce() + Send> = Box::new(work);
    tokio::task::spawn_blocking(work);
}

/// Does something on a thread that may wait; `None` where it panicked.
pub(crate) async fn wait<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (tell, told) = oneshot::channel();
    detach(move || {
        let _ = tell.send(work());
    });
    told.await.ok()
}

/// Does something with files on a thread that may wait.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ServerError> + Send + 'static,
) -> Result<T, ServerError> {
    wait(work).await.unwrap_or(Err(ServerError::Internal))
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
