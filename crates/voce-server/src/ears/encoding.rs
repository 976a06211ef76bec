//! Encodings of raw audio as a session that moves writes them down: by a number.

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};
use voce_audio::RawEncoding;

const ALL: [RawEncoding; 7] = [
    RawEncoding::S16le,
    RawEncoding::F32le,
    RawEncoding::Mulaw,
    RawEncoding::Alaw,
    RawEncoding::S8,
    RawEncoding::S24le,
    RawEncoding::S32le,
];

pub(crate) fn serialize<S: Serializer>(encoding: &RawEncoding, writer: S) -> Result<S::Ok, S::Error> {
    writer.serialize_u8(ALL.iter().position(|e| e == encoding).unwrap_or_default() as u8)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<RawEncoding, D::Error> {
    let number = u8::deserialize(reader)?;
    ALL.get(usize::from(number)).copied().ok_or_else(|| D::Error::custom("an unknown encoding"))
}
