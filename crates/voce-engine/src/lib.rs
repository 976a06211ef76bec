//! Sessions, slots, batching and the model store of Voce.
#![forbid(unsafe_code)]

pub mod store;
