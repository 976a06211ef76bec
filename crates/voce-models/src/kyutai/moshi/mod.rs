//! Moshi: a dialogue in both directions at once. Every frame is heard, and answered in the same step.

mod family;
mod partner;

pub use family::{Moshi, MoshiParts};
