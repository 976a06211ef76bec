//! moshi-server's routes: MessagePack over WebSockets, files by POST, and what its dashboards read.

pub(crate) mod asr;
pub(crate) mod chat;
pub(crate) mod info;
mod pauses;
pub(crate) mod rooms;
mod tags;
pub(crate) mod tts;
mod wire;

/// Reads a message as one of recognition, of speech, and of a dialogue or room.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(data: &[u8]) {
    let _ = wire::unpack::<wire::AsrIn>(data);
    let _ = wire::unpack::<wire::TtsIn>(data);
    if let Some((_, rest)) = tags::Tag::read(data) {
        let _ = rooms::codes(rest);
    }
}
