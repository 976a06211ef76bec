//! Kyutai's models from files: the folder of a Hugging Face snapshot as it is published, or Mimi's file alone.

pub(super) mod codec;
pub(super) mod describe;
pub(super) mod dialogue;
mod files;
pub(super) mod hearing;
pub(super) mod speech;

pub(super) use files::{Files, MimiFile};
