//! HTTP and WebSocket protocols in front of the Voce engine.
//!
//! One port speaks OpenAI, Realtime, moshi, Deepgram and the older RNN-T routes, another one Wyoming. Each protocol is a thin
//! translation over [`ears::ListenEvent`] (what a recogniser says) and samples (what a voice gives).
#![forbid(unsafe_code)]

pub mod ears;
pub mod mouth;
pub mod partner;
pub mod route;

#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;

mod core;
mod deepgram;
mod handover;
mod jobs;
mod moshi;
mod openai;
mod page;
mod rnnt_v2;
mod wyoming;

pub use crate::core::error::ServerError;
pub use crate::core::journal::{JOURNAL_LIMIT, JournalOptions};
pub use crate::core::limits::{self, Limits};
pub use crate::core::lobby::Lobby;
pub use crate::core::models::Open;
pub use crate::core::mounts::{Mount, MountError, Serves};
pub use crate::core::otlp::OtlpOptions;
pub use crate::core::routes::{RouteInfo, route_table};
pub use crate::core::server::{Ended, ServeError, Server, ServerOptions};
pub use crate::core::state::Models;
pub use crate::handover::{
    HANDOVER_BYTES, HANDOVER_TIME, HandoverError, HandoverOptions, MAX_PARCEL, MAX_PARCELS, MIN_SECRET,
    Secret,
};
pub use crate::jobs::{CHECKPOINT as JOB_CHECKPOINT, JobsOptions, JobsPlace, KEEP as JOB_KEEP};
pub use crate::moshi::rooms::RoomsOptions;
