//! The messages, with the fields that Deepgram's clients check.

use serde_json::{Value, json};

use crate::ears::Word;

const REQUEST_ID: &str = "00000000-0000-4000-8000-000000000000";

/// One reading of a stretch of audio.
pub(super) fn alternative(text: &str, words: &[Word]) -> Value {
    let sum: f32 = words.iter().map(|w| w.confidence).sum();
    let confidence = if words.is_empty() { 0.0 } else { sum / words.len() as f32 };
    let words: Vec<Value> = words
        .iter()
        .map(|w| {
            let plain: String =
                w.text.chars().filter(|c| c.is_alphanumeric() || matches!(c, '\'' | '-')).collect();
            json!({
                "word": plain.to_lowercase(), "start": w.start, "end": w.end, "confidence": w.confidence,
                "punctuated_word": w.text,
            })
        })
        .collect();
    json!({"transcript": text, "confidence": confidence, "words": words})
}

/// What a stretch of audio says, for now or for good.
pub(super) struct Stretch<'a> {
    pub(super) model: &'a str,
    pub(super) text: &'a str,
    pub(super) words: &'a [Word],
    pub(super) start: f64,
    pub(super) end: f64,
    pub(super) is_final: bool,
    pub(super) speech_final: bool,
    pub(super) from_finalize: bool,
}

impl Stretch<'_> {
    pub(super) fn message(&self) -> Value {
        json!({
            "type": "Results", "channel_index": [0, 1], "start": self.start, "duration": (self.end - self.start).max(0.0),
            "is_final": self.is_final, "speech_final": self.speech_final, "from_finalize": self.from_finalize,
            "channel": {"alternatives": [alternative(self.text, self.words)]},
            "metadata": {
                "request_id": REQUEST_ID, "model_uuid": REQUEST_ID,
                "model_info": {"name": self.model, "version": env!("CARGO_PKG_VERSION"), "arch": "voce"},
            },
        })
    }
}

/// What the connection was.
pub(super) fn metadata(model: &str, seconds: f64) -> Value {
    json!({
        "type": "Metadata", "transaction_key": "deprecated", "request_id": REQUEST_ID, "sha256": "",
        "created": "1970-01-01T00:00:00.000Z", "duration": seconds, "channels": 1, "models": [REQUEST_ID],
        "model_info": {REQUEST_ID: {"name": model, "version": env!("CARGO_PKG_VERSION"), "arch": "voce"}},
    })
}
