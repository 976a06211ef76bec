//! Waiting without the interpreter's lock, so that other threads of Python go on, and with an ear for Ctrl-C.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use pyo3::prelude::*;
use voce_engine::wait_for;

use crate::failure;

/// How often somebody who waits looks for Ctrl-C.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Why a wait ended without a result.
pub(crate) enum Stop {
    /// Somebody called `cancel`.
    Cancelled,
    /// A handler of a signal raised this.
    Raised(PyErr),
}

/// What a signal's handler raised, where one has come; only Python's main thread runs handlers.
fn signals() -> PyResult<()> {
    Python::attach(|py| py.check_signals())
}

/// Waits until `poll` has something, a signal comes, or the switch is thrown. To be called without the interpreter's lock.
pub(crate) fn wait<T>(
    every: Duration,
    cancelled: &AtomicBool,
    poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<T, Stop> {
    wait_for(every, poll, || {
        if cancelled.load(Ordering::Relaxed) {
            return Err(Stop::Cancelled);
        }
        signals().map_err(Stop::Raised)
    })
}

/// Does what cannot be asked to stop on a thread of its own. After Ctrl-C nobody waits for it any more: it ends by itself.
pub(crate) fn apart<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> PyResult<T> + Send + 'static,
) -> PyResult<T> {
    py.detach(|| {
        let (done, result) = sync_channel(1);
        std::thread::Builder::new()
            .name("voce-call".into())
            .spawn(move || {
                let _ = done.send(work());
            })
            .map_err(|e| failure::error("stopped", format!("cannot start a thread: {e}")))?;
        loop {
            match result.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) => signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(failure::error(
                        "internal",
                        "a fault of the program: standard error has more",
                    ));
                }
            }
        }
    })
}

/// The lock's value, whoever panicked while holding it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
