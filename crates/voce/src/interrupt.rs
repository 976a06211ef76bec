//! Ctrl-C and termination signals: the first asks every loop to stop cleanly, the second ends the process.

use std::sync::LazyLock;

use voce_engine::store::Cancel;

use crate::failure::{Failure, Outcome};

static SWITCH: LazyLock<Cancel> = LazyLock::new(Cancel::new);

/// Listens for signals from now on.
pub(crate) fn listen() {
    let handler = || {
        if SWITCH.is_cancelled() {
            std::process::exit(i32::from(Failure::Interrupted.code()));
        }
        SWITCH.cancel();
    };
    // Without a handler the system's own way of ending a process still works.
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::debug!(%error, "no signal handler");
    }
}

/// The switch that a signal throws.
pub(crate) fn switch() -> &'static Cancel {
    &SWITCH
}

/// Whether a signal has come.
pub(crate) fn raised() -> bool {
    SWITCH.is_cancelled()
}

/// An error once a signal has come.
pub(crate) fn check() -> Outcome {
    if raised() { Err(Failure::Interrupted) } else { Ok(()) }
}
