//! How the dialects of the Realtime protocol differ.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::core::error::ServerError;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Dialect {
    /// OpenAI's `session.update` with `type: transcription`, 24 kHz.
    Current,
    /// OpenAI's `transcription_session.update`.
    Older,
    /// vLLM's: 16 kHz, `transcription.delta` and `transcription.done`.
    Vllm,
}

impl Dialect {
    /// The first word of session events.
    pub(super) fn session(self) -> &'static str {
        match self {
            Dialect::Older => "transcription_session",
            Dialect::Current | Dialect::Vllm => "session",
        }
    }

    /// An error event, naming the client's event where it has a name.
    pub(super) fn error(self, error: &ServerError, event: Option<&str>) -> Value {
        match self {
            Dialect::Vllm => json!({"type": "error", "error": error.message(), "code": error.code()}),
            _ => {
                let mut object = error.object();
                if let ServerError::BadRequest { param: Some("input_audio_buffer_commit_empty"), .. } = error
                {
                    object["code"] = json!("input_audio_buffer_commit_empty");
                    object["param"] = Value::Null;
                }
                object["event_id"] = json!(event);
                json!({"type": "error", "event_id": "event_error", "error": object})
            }
        }
    }
}
