//! Speech models of Voce: plain Rust over voce-nn.
#![forbid(unsafe_code)]
