//! Listeners from outside: what they hear agrees with the published packages, and does not depend on how audio
//! arrives or on what is heard beside it.
#![allow(missing_docs)]

mod device;
mod endpoints;
mod lanes;
mod loudness;
mod memory;
mod recordings;
mod reference;
mod reports;
mod robustness;
mod snapshots;
mod streams;
mod support;
mod transcripts;
mod windows;
