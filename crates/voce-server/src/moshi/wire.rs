//! The messages, byte for byte as moshi-server writes them: maps with `type` first.

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// What a client of recognition sends. Unknown fields are ignored.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type")]
pub(super) enum AsrIn {
    Init,
    Marker {
        id: i64,
    },
    Audio {
        pcm: Vec<f32>,
    },
    OggOpus {
        #[serde(deserialize_with = "bytes_from_array")]
        data: Vec<u8>,
    },
}

/// What a client of recognition gets.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum AsrOut<'a> {
    Word { text: &'a str, start_time: f64 },
    EndWord { stop_time: f64 },
    Marker { id: i64 },
    Step { step_idx: u64, prs: &'a [f32], buffered_pcm: u64 },
    Error { message: &'a str },
    Ready,
}

/// What a client of speech sends.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "type")]
pub(super) enum TtsIn {
    Text { text: String },
    Voice { embeddings: Vec<f32>, shape: Vec<usize> },
    Eos,
}

/// What a client of speech gets.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum TtsOut<'a> {
    Text { text: &'a str, start_s: f64, stop_s: f64 },
    Audio { pcm: &'a [f32] },
    OggOpus { data: &'a [u8] },
    Error { message: &'a str },
    Ready,
}

/// A message as bytes.
pub(super) fn pack(message: &impl Serialize) -> Vec<u8> {
    // Numbers, strings and arrays of them always have a form.
    rmp_serde::to_vec_named(message).unwrap_or_default()
}

/// A message from bytes.
pub(super) fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut reader = rmp_serde::Deserializer::new(bytes);
    // A message is a map of flat fields.
    reader.set_max_depth(8);
    T::deserialize(&mut reader)
}

/// Bytes as an array of numbers: the only form that moshi-server takes.
fn bytes_from_array<'de, D: Deserializer<'de>>(reader: D) -> Result<Vec<u8>, D::Error> {
    struct Bytes;
    impl<'de> Visitor<'de> for Bytes {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("an array of bytes")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<u8>, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = items.next_element()? {
                bytes.push(byte);
            }
            Ok(bytes)
        }
    }
    reader.deserialize_seq(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    /// Bytes that moshi-server 0.6.4 wrote.
    #[test]
    fn messages_out_are_byte_exact() {
        let step = AsrOut::Step { step_idx: 408, prs: &[0.25, 0.5], buffered_pcm: 1920 };
        for (got, expected) in [
            (
                pack(&AsrOut::Word { text: "hello", start_time: 1.28 }),
                "83a474797065a4576f7264a474657874a568656c6c6faa73746172745f74696d65cb3ff47ae147ae147b",
            ),
            (
                pack(&AsrOut::EndWord { stop_time: 1.52 }),
                "82a474797065a7456e64576f7264a973746f705f74696d65cb3ff851eb851eb852",
            ),
            (pack(&AsrOut::Marker { id: 7 }), "82a474797065a64d61726b6572a2696407"),
            (
                pack(&step),
                "84a474797065a453746570a8737465705f696478cd0198a370727392ca3e800000ca3f000000ac62756666657265645f70636dcd0780",
            ),
            (
                pack(&AsrOut::Error { message: "no free channels" }),
                "82a474797065a54572726f72a76d657373616765b06e6f2066726565206368616e6e656c73",
            ),
            (pack(&AsrOut::Ready), "81a474797065a55265616479"),
            (
                pack(&TtsOut::Text { text: "hi", start_s: 0.08, stop_s: 0.4 }),
                "84a474797065a454657874a474657874a26869a773746172745f73cb3fb47ae147ae147ba673746f705f73cb3fd999999999999a",
            ),
            (
                pack(&TtsOut::Audio { pcm: &[0.0, 0.5] }),
                "82a474797065a5417564696fa370636d92ca00000000ca3f000000",
            ),
            (pack(&TtsOut::OggOpus { data: &[1, 200] }), "82a474797065a74f67674f707573a4646174619201ccc8"),
            (
                pack(&TtsOut::Error { message: "no free channels" }),
                "82a474797065a54572726f72a76d657373616765b06e6f2066726565206368616e6e656c73",
            ),
            (pack(&TtsOut::Ready), "81a474797065a55265616479"),
        ] {
            assert_eq!(hex(&got), expected);
        }
    }

    #[test]
    fn messages_in_are_taken_as_moshi_server_takes_them() {
        let asr = |hex: &str| unpack::<AsrIn>(&bytes(hex)).ok();
        let tts = |hex: &str| unpack::<TtsIn>(&bytes(hex)).ok();
        let audio = |pcm: &[f32]| Some(AsrIn::Audio { pcm: pcm.to_vec() });
        let text = || Some(TtsIn::Text { text: "hi".into() });
        assert_eq!(asr("82a474797065a5417564696fa370636d92ca00000000ca3f000000"), audio(&[0.0, 0.5]));
        assert_eq!(
            asr("82a474797065a5417564696fa370636d92cb0000000000000000cb3fe0000000000000"),
            audio(&[0.0, 0.5])
        );
        assert_eq!(asr("82a474797065a5417564696fa370636d930001ff"), audio(&[0.0, 1.0, -1.0]));
        assert_eq!(asr("82a474797065a5417564696fa370636dc40400000000"), None, "pcm as bin");
        assert_eq!(asr("82a474797065a64d61726b6572a2696400"), Some(AsrIn::Marker { id: 0 }));
        assert_eq!(asr("81a474797065a4496e6974"), Some(AsrIn::Init));
        assert_eq!(asr("82a474797065a74f67674f707573a464617461c40201c8"), None, "data as bin");
        assert_eq!(
            asr("82a474797065a74f67674f707573a4646174619201ccc8"),
            Some(AsrIn::OggOpus { data: vec![1, 200] })
        );
        assert_eq!(asr("82a474797065a454657874a474657874a26869"), None);
        assert_eq!(tts("82a474797065a454657874a474657874a26869"), text());
        assert_eq!(tts("81a474797065a3456f73"), Some(TtsIn::Eos));
        let voice = TtsIn::Voice { embeddings: vec![0.5], shape: vec![1, 1, 1] };
        assert_eq!(
            tts("83a474797065a5566f696365aa656d62656464696e677391cb3fe0000000000000a5736861706593010101"),
            Some(voice)
        );
        assert_eq!(tts("83a474797065a454657874a474657874a26869a3666f6f01"), text(), "an unknown field");
        assert_eq!(tts("82a474657874a26869a474797065a454657874"), text(), "type last");
        assert_eq!(tts("81a474797065a3466f6f"), None, "an unknown type");
        assert_eq!(asr(""), None);
        assert_eq!(asr("dd7fffffff"), None, "an array that claims two thousand million items");
    }
}
