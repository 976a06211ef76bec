//! A job as it is written down, and as its owner sees it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use voce_jobs::{HearSettings, Phase, TextFormat};

use crate::core::aside::now;

/// The version of records that this build writes and reads.
pub(super) const VERSION: u32 = 1;

/// A job that comes in: its recording is in a file.
pub(crate) struct Order {
    pub(crate) id: String,
    pub(crate) owner: String,
    pub(crate) model: String,
    pub(crate) settings: HearSettings,
    /// What the client calls the recording.
    pub(crate) name: String,
    /// The ending of that name, where it is a plain one.
    pub(crate) extension: Option<String>,
    /// The recording.
    pub(crate) spooled: PathBuf,
    pub(crate) bytes: u64,
}

/// Why a job has no result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fault {
    pub(crate) code: String,
    pub(crate) message: String,
}

impl Fault {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into() }
    }
}

/// A job as it is written down.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(super) version: u32,
    pub(crate) id: String,
    /// Whose it is, by a digest of the key.
    pub(crate) owner: String,
    pub(crate) model: String,
    pub(crate) settings: HearSettings,
    pub(crate) name: String,
    pub(crate) extension: Option<String>,
    /// Bytes of the recording, and later of the result.
    pub(crate) bytes: u64,
    pub(crate) phase: Phase,
    pub(crate) created: u64,
    pub(crate) updated: u64,
    /// How often it was begun and not ended.
    pub(crate) tries: u32,
    /// Seconds of audio heard so far.
    #[serde(skip)]
    pub(crate) heard: f64,
    /// Seconds of audio in all, once that is known.
    pub(crate) seconds: Option<f64>,
    pub(crate) error: Option<Fault>,
}

impl Record {
    pub(crate) fn new(order: Order) -> Self {
        Self {
            version: VERSION,
            id: order.id,
            owner: order.owner,
            model: order.model,
            settings: order.settings,
            name: order.name,
            extension: order.extension,
            bytes: order.bytes,
            phase: Phase::Waiting,
            created: now(),
            updated: now(),
            tries: 0,
            heard: 0.0,
            seconds: None,
            error: None,
        }
    }

    /// The same job in another phase, as of now.
    pub(crate) fn turned(&self, phase: Phase) -> Self {
        Self { phase, updated: now(), ..self.clone() }
    }

    pub(crate) fn view(&self) -> View {
        View {
            id: self.id.clone(),
            model: self.model.clone(),
            name: self.name.clone(),
            format: self.settings.format,
            phase: self.phase,
            created: self.created,
            updated: self.updated,
            heard: self.heard,
            seconds: self.seconds,
            error: self.error.clone(),
        }
    }
}

/// A job as its owner sees it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) name: String,
    pub(crate) format: TextFormat,
    pub(crate) phase: Phase,
    pub(crate) created: u64,
    pub(crate) updated: u64,
    pub(crate) heard: f64,
    pub(crate) seconds: Option<f64>,
    pub(crate) error: Option<Fault>,
}

impl View {
    /// The phase in the words of OpenAI's long-running jobs.
    pub(crate) fn status(&self) -> &'static str {
        match self.phase {
            Phase::Waiting => "queued",
            Phase::Running => "in_progress",
            Phase::Done => "completed",
            Phase::Failed => "failed",
            Phase::Cancelled => "cancelled",
        }
    }

    pub(crate) fn json(&self) -> Value {
        let is_done = self.phase == Phase::Done;
        json!({
            "id": self.id,
            "object": "audio.job",
            "status": self.status(),
            "model": self.model,
            "file_name": self.name,
            "response_format": format_name(self.format),
            "created_at": self.created,
            "updated_at": self.updated,
            "heard_seconds": if is_done { self.seconds.unwrap_or(self.heard) } else { self.heard },
            "duration": self.seconds,
            "error": self.error,
            "result": is_done.then(|| format!("/v1/audio/jobs/{}/result", self.id)),
        })
    }

    /// The type of its result.
    pub(crate) fn content_type(&self) -> &'static str {
        match self.format {
            TextFormat::Json | TextFormat::Nemo => "application/json",
            TextFormat::Srt => "application/x-subrip; charset=utf-8",
            TextFormat::Vtt => "text/vtt; charset=utf-8",
            _ => "text/plain; charset=utf-8",
        }
    }
}

/// Formats of results by their names on the wire.
const FORMATS: [(&str, TextFormat); 7] = [
    ("json", TextFormat::Json),
    ("verbose_json", TextFormat::Json),
    ("text", TextFormat::Txt),
    ("srt", TextFormat::Srt),
    ("vtt", TextFormat::Vtt),
    ("words", TextFormat::Words),
    ("ctm", TextFormat::Ctm),
];

/// The format of a name.
pub(super) fn format(name: &str) -> Option<TextFormat> {
    FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
}

fn format_name(format: TextFormat) -> &'static str {
    FORMATS.iter().find(|(_, known)| *known == format).map_or("json", |(name, _)| name)
}
