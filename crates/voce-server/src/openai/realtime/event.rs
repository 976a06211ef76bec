//! What a client of a Realtime session says: audio is left in the text that brought it, everything else is small.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tungstenite::Utf8Bytes;

use crate::core::aside;
use crate::core::error::ServerError;
use crate::core::json;
use crate::core::limits::{MAX_APPEND, MAX_CONTROL_MESSAGE, MAX_NAME};
use crate::ears::Base64Text;

/// Texts longer than this are read on a blocking worker.
const LONG: usize = 64 * 1024;
const APPEND: &str = "\"input_audio_buffer.append\"";

/// One event of a client.
pub(super) enum Event {
    /// Audio.
    Append(Base64Text),
    /// Anything else.
    Other(Value),
}

/// An event, or what is wrong with it; the client's name for it where it has one.
pub(super) struct Read {
    pub(super) id: Option<String>,
    pub(super) event: Result<Event, ServerError>,
}

/// What every event has, unread.
#[derive(Deserialize)]
struct Shape<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<&'a RawValue>,
    #[serde(borrow, default)]
    event_id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    audio: Option<&'a RawValue>,
}

/// Reads an event.
pub(super) async fn read(text: Utf8Bytes) -> Read {
    if text.len() <= LONG {
        return read_now(text);
    }
    let read = aside::wait(move || read_now(text)).await;
    read.unwrap_or(Read { id: None, event: Err(ServerError::Internal) })
}

/// Reads an event where it is.
pub(super) fn read_now(text: Utf8Bytes) -> Read {
    let bad = |e: json::JsonError| ServerError::malformed(format!("the event is not JSON: {e}"));
    let shape: Shape<'_> = match json::parse(text.as_bytes()) {
        Ok(shape) => shape,
        Err(e) => return Read { id: None, event: Err(bad(e)) },
    };
    let id = shape.event_id.map(RawValue::get).filter(|id| id.len() <= MAX_NAME);
    let id = id.and_then(|id| serde_json::from_str(id).ok());
    if shape.kind.map(RawValue::get) == Some(APPEND) {
        // Where the string's inside lies in the text.
        let inside = shape.audio.map(RawValue::get).filter(|a| a.len() >= 2 && a.starts_with('"')).map(|a| {
            let start = a.as_ptr() as usize - text.as_ptr() as usize + 1;
            start..start + a.len() - 2
        });
        let event = match inside {
            Some(range) => append(text, range),
            None => Err(ServerError::bad("audio", "audio must be base64 text")),
        };
        return Read { id, event };
    }
    if text.len() > MAX_CONTROL_MESSAGE {
        return Read { id, event: Err(ServerError::TooLarge(MAX_CONTROL_MESSAGE)) };
    }
    Read { id, event: json::parse(text.as_bytes()).map(Event::Other).map_err(bad) }
}

fn append(text: Utf8Bytes, range: std::ops::Range<usize>) -> Result<Event, ServerError> {
    let audio = Base64Text::new(text, range)?;
    if audio.decoded() > MAX_APPEND {
        Err(ServerError::TooLarge(MAX_APPEND))
    } else {
        Ok(Event::Append(audio))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(text: &str) -> String {
        let read = read_now(text.into());
        let id = read.id.unwrap_or_default();
        match read.event {
            Ok(Event::Append(audio)) => format!("{id}:{}", audio.decoded()),
            Ok(Event::Other(value)) => format!("{id}:{}", value["type"]),
            Err(error) => format!("{id}:{}", error.code()),
        }
    }

    #[test]
    fn events_are_told_apart_by_their_type() {
        for (text, expected) in [
            (r#"{"type":"input_audio_buffer.append","audio":"AAAA"}"#, ":3"),
            (r#"{"audio":"AA==","event_id":"e1", "type" : "input_audio_buffer.append"}"#, "e1:1"),
            (r#"{"type":"input_audio_buffer.append","audio":""}"#, ":0"),
            (r#"{"type":"input_audio_buffer.append","audio":7,"event_id":"x"}"#, "x:bad_request"),
            (r#"{"type":"input_audio_buffer.append","audio":"A"}"#, ":bad_request"),
            (r#"{"type":"input_audio_buffer.append"}"#, ":bad_request"),
            (r#"{"type":"input_audio_buffer.commit","event_id":7}"#, r#":"input_audio_buffer.commit""#),
            (r#"{"type":7}"#, ":7"),
            (r#"{}"#, ":null"),
            (r#"["type"]"#, ":null"),
            ("", ":bad_request"),
        ] {
            assert_eq!(outcome(text), expected, "{text}");
        }
    }

    #[test]
    fn what_brings_no_audio_is_small() {
        let with = |n: usize| format!(r#"{{"type":"session.update","x":"{}"}}"#, "a".repeat(n));
        let at = MAX_CONTROL_MESSAGE - with(0).len();
        assert_eq!(outcome(&with(at)), r#":"session.update""#);
        assert_eq!(outcome(&with(at + 1)), ":too_large");
    }
}
