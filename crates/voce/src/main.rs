//! The `voce` binary: parses arguments, wires the engine, prints.
#![forbid(unsafe_code)]

fn main() {}
