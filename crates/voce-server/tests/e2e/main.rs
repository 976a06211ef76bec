//! The server over real sockets: every route, every dialect, and what clients should not do.
#![allow(missing_docs)]

mod clients;
mod core;
mod counter;
mod deepgram;
mod engine;
mod faults;
mod listening;
mod moshi;
mod noise;
mod page;
mod realtime;
mod rnnt_v2;
mod server;
mod socket;
mod speech;
mod wyoming;
