//! The binary from outside: exit codes, files, pipes and JSON, on small models with random weights.
#![allow(missing_docs)]

mod bad_input;
mod bench;
mod hear;
mod models;
mod sandbox;
mod say;
mod serve;
mod streams;
mod voices;
