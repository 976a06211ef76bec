//! What every protocol stands on: sockets, limits, keys, admission, metrics, health.

pub(crate) mod accept;
pub(crate) mod admission;
pub(crate) mod audio_out;
pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod drain;
pub(crate) mod echo;
pub(crate) mod error;
pub(crate) mod health;
pub(crate) mod journal;
pub(crate) mod json;
pub mod limits;
pub(crate) mod metrics;
pub(crate) mod mp3;
pub(crate) mod origin;
pub(crate) mod otlp;
pub(crate) mod query;
pub(crate) mod routes;
pub(crate) mod server;
pub(crate) mod socket_io;
pub(crate) mod state;
pub(crate) mod telemetry;
pub(crate) mod trace;
pub(crate) mod vigil;
pub(crate) mod watch;
pub(crate) mod ws;
