//! The messages, byte for byte as moshi-server writes them: maps with `type` first.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Most numbers in an array of a message: ten seconds of audio, and a voice of any of Kyutai's models.
pub(super) const MAX_NUMBERS: usize = 256 * 1024;

/// What a client of recognition sends. Unknown fields are ignored.
#[derive(Debug, PartialEq)]
pub(super) enum AsrIn {
    Init,
    Marker { id: i64 },
    Audio { pcm: Vec<f32> },
    OggOpus { data: Vec<u8> },
}

/// What a client of recognition gets.
#[derive(Debug, Serialize)]
#[serde(tag = "type")]
pub(super) enum AsrOut<'a> {
    Word {
        text: &'a str,
        start_time: f64,
    },
    EndWord {
        stop_time: f64,
    },
    Marker {
        id: i64,
    },
    Step {
        step_idx: u64,
        prs: &'a [f32],
        buffered_pcm: u64,
    },
    Error {
        message: &'a str,
    },
    Ready,
    /// Beyond moshi-server: the stream goes on at another machine with this token.
    Moved {
        token: &'a str,
        messages: u64,
        seconds: f64,
    },
}

/// What a client of speech sends.
#[derive(Debug, PartialEq)]
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
    let mut reader = rmp_serde::Deserializer::from_read_ref(bytes);
    // A message is a map of flat fields.
    reader.set_max_depth(8);
    T::deserialize(&mut reader)
}

/// The fields of all messages. Nothing is kept but they, whatever order they come in.
#[derive(Default)]
struct Fields {
    kind: Option<String>,
    id: Option<i64>,
    pcm: Option<Vec<f32>>,
    data: Option<Vec<u8>>,
    text: Option<String>,
    embeddings: Option<Vec<f32>>,
    shape: Option<Vec<usize>>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        reader.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
        let mut fields = Fields::default();
        while let Some(name) = map.next_key::<&str>()? {
            match name {
                "type" => fields.kind = Some(map.next_value()?),
                "id" => fields.id = Some(map.next_value()?),
                "pcm" => fields.pcm = Some(map.next_value_seed(Numbers::new())?),
                // An array of numbers is the only form that moshi-server takes for bytes.
                "data" => fields.data = Some(map.next_value_seed(Numbers::new())?),
                "text" => fields.text = Some(map.next_value()?),
                "embeddings" => fields.embeddings = Some(map.next_value_seed(Numbers::new())?),
                "shape" => fields.shape = Some(map.next_value_seed(Numbers::new())?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields)
    }
}

/// An array of numbers, counted while it is read.
struct Numbers<T>(std::marker::PhantomData<T>);

impl<T> Numbers<T> {
    fn new() -> Self {
        Self(std::marker::PhantomData)
    }
}

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Numbers<T> {
    type Value = Vec<T>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Vec<T>, D::Error> {
        // Whatever comes is looked at, so that bytes are not taken for an array of them.
        reader.deserialize_any(self)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for Numbers<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of numbers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = items.next_element()? {
            if numbers.len() >= MAX_NUMBERS {
                return Err(A::Error::custom(format!("an array of more than {MAX_NUMBERS} numbers")));
            }
            numbers.push(number);
        }
        Ok(numbers)
    }
}

fn need<T, E: serde::de::Error>(field: Option<T>, name: &'static str) -> Result<T, E> {
    field.ok_or_else(|| E::missing_field(name))
}

impl<'de> Deserialize<'de> for AsrIn {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(reader)?;
        Ok(match fields.kind.as_deref() {
            Some("Init") => Self::Init,
            Some("Marker") => Self::Marker { id: need(fields.id, "id")? },
            Some("Audio") => Self::Audio { pcm: need(fields.pcm, "pcm")? },
            Some("OggOpus") => Self::OggOpus { data: need(fields.data, "data")? },
            Some(_) => return Err(D::Error::custom("an unknown type")),
            None => return Err(D::Error::missing_field("type")),
        })
    }
}

impl<'de> Deserialize<'de> for TtsIn {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        let fields = Fields::deserialize(reader)?;
        Ok(match fields.kind.as_deref() {
            Some("Text") => Self::Text { text: need(fields.text, "text")? },
            Some("Eos") => Self::Eos,
            Some("Voice") => Self::Voice {
                embeddings: need(fields.embeddings, "embeddings")?,
                shape: need(fields.shape, "shape")?,
            },
            Some(_) => return Err(D::Error::custom("an unknown type")),
            None => return Err(D::Error::missing_field("type")),
        })
    }
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

    #[test]
    fn arrays_at_the_limit_and_one_past_it() {
        let message = |kind: &str, name: &str, n: usize| {
            let mut bytes = vec![0x82, 0xa4];
            bytes.extend(b"type");
            bytes.push(0xa0 | kind.len() as u8);
            bytes.extend(kind.as_bytes());
            bytes.push(0xa0 | name.len() as u8);
            bytes.extend(name.as_bytes());
            bytes.push(0xdd);
            bytes.extend((n as u32).to_be_bytes());
            bytes.resize(bytes.len() + n, 1);
            bytes
        };
        for (kind, name) in [("Audio", "pcm"), ("OggOpus", "data")] {
            assert!(unpack::<AsrIn>(&message(kind, name, MAX_NUMBERS)).is_ok());
            let error = unpack::<AsrIn>(&message(kind, name, MAX_NUMBERS + 1)).unwrap_err();
            assert!(error.to_string().contains("more than"), "{error}");
        }
        // What no field asks for is passed over, and what is claimed and does not come is an error.
        assert!(unpack::<AsrIn>(&message("Init", "other", MAX_NUMBERS + 1)).is_ok());
        let mut claims = message("Audio", "pcm", 10);
        claims.truncate(claims.len() - 1);
        assert!(unpack::<AsrIn>(&claims).is_err());
    }
}
