//! The extension module `voce._native`: models that stay open, streams both ways, and the command line. The package around
//! it, in `python/voce`, turns what comes from here into arrays and small classes.
//!
//! Whatever may take long runs without the interpreter's lock and looks for Ctrl-C meanwhile (`interrupt.rs`).
#![forbid(unsafe_code)]

mod command;
mod failure;
mod interrupt;
mod listener;
mod options;
mod samples;
mod speaker;
mod store;
mod talker;

/// What `voce/__init__.py` imports.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use crate::command::main;
    #[pymodule_export]
    use crate::listener::{Hearing, Listener};
    #[pymodule_export]
    use crate::speaker::{Speaker, Speech, Voice};
    #[pymodule_export]
    use crate::store::{installed, pull};
    #[pymodule_export]
    use crate::talker::{Talker, Talking};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
