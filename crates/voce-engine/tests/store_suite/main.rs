//! The model store against a hub on loopback: pulls, faults, the cache's layout, and what is done with it later.
#![cfg(unix)]

mod breaker;
mod faults;
mod hub;
mod identity;
mod interplay;
mod on_disk;
mod pulls;
mod server;
