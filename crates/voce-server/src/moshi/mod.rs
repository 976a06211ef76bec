//! moshi-server's routes: MessagePack over WebSockets, files by POST, and what its dashboards read.

pub(crate) mod asr;
pub(crate) mod info;
pub(crate) mod tts;
mod wire;
