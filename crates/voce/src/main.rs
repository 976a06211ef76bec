//! The `voce` binary.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(voce_cli::main(std::env::args_os()))
}
