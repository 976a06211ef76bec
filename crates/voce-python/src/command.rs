//! The command line, as the program `voce` has it.

use std::ffi::OsString;
use std::panic::catch_unwind;

use pyo3::prelude::*;

/// What a program that panics exits with.
const PANICKED: u8 = 101;

/// Runs the command line, the program's name first, and returns the exit code. Signals are the program's from here on.
#[pyfunction]
pub(crate) fn main(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| catch_unwind(|| voce_cli::main(args)).unwrap_or(PANICKED))
}
