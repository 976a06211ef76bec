//! The speech models of Voce: plain Rust over `voce-nn`.
//!
//! Models know neither files nor sockets nor threads: they take weights by name and tensors in, and give
//! tensors out.
#![forbid(unsafe_code)]

pub mod codec;
pub mod decoder;
pub mod dialogue;
mod digest;
pub mod fastconformer;
pub mod hearing;
pub mod kyutai;
pub mod mimi;
pub mod pocket;
pub mod qwen;
pub mod saved;
mod setters;
pub mod speech;
pub mod stage;
pub mod transducer;

pub use digest::Digest;
