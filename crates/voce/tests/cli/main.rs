//! The binary from outside: exit codes, files, pipes and JSON, on small models with random weights and on those in the binary.
#![allow(missing_docs)]

mod bad_input;
mod bench;
#[cfg(feature = "nano")]
mod bulk;
mod codec;
mod codes;
mod hear;
mod hear_files;
#[cfg(all(feature = "nano", feature = "nats"))]
mod jobs;
mod kyutai;
mod kyutai_bad;
mod kyutai_say;
mod logs;
mod models;
mod modules;
#[cfg(feature = "nano")]
mod nano;
mod patience;
#[cfg(all(feature = "nano", unix))]
mod route;
mod sandbox;
mod say;
mod serve;
#[cfg(feature = "nano")]
mod serve_jobs;
#[cfg(all(feature = "nano", target_os = "linux"))]
mod slurm;
mod streams;
mod talk;
mod voices;
#[path = "../../../voce-server/tests/e2e/watchdog.rs"]
mod watchdog;
