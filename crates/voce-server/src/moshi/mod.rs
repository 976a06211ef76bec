//! moshi-server's routes: MessagePack over WebSockets, files by POST, and what its dashboards read.

pub(crate) mod asr;
pub(crate) mod chat;
pub(crate) mod info;
mod pauses;
pub(crate) mod rooms;
mod tags;
pub(crate) mod tts;
mod wire;

/// Reads a message both as one of recognition and as one of speech.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(data: &[u8]) {
    let _ = wire::unpack::<wire::AsrIn>(data);
    let _ = wire::unpack::<wire::TtsIn>(data);
}
