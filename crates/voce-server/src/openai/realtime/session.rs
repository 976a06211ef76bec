//! The settings of a Realtime session, as each dialect writes them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use voce_audio::RawEncoding;

use super::dialect::Dialect;
use crate::core::error::ServerError;
use crate::core::limits;
use crate::core::query::short;
use crate::ears::HearRequest;
use crate::openai::transcriptions::{hotwords, one_language};

/// Silence that ends an utterance where the client does not say.
const SILENCE_MS: u32 = 500;
/// Pauses that end an utterance by how eager the client is, in milliseconds.
const EAGERNESS: [(&str, u32); 4] = [("low", 3_000), ("medium", 2_000), ("auto", 2_000), ("high", 500)];
/// Shortest and longest silence that a client may ask for.
const SILENCES: std::ops::RangeInclusive<u64> = 80..=60_000;

/// The texts of a list, of which each has to be one.
fn strings<'a>(field: &'static str, list: &'a Value) -> Result<Vec<&'a str>, ServerError> {
    let texts = list.as_array().and_then(|list| list.iter().map(Value::as_str).collect());
    texts.ok_or_else(|| ServerError::bad(field, format!("{field} is a list of texts")))
}

/// Settings of one session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) dialect: Dialect,
    #[serde(with = "crate::ears::encoding")]
    pub(super) encoding: RawEncoding,
    pub(super) rate: u32,
    pub(super) model: Option<String>,
    language: Option<String>,
    prompt: Option<String>,
    hotwords: Vec<(String, f32)>,
    /// Silence that ends an utterance; none where the client commits by hand.
    silence_ms: Option<u32>,
    /// Whether the model's own guess at a pause ends an utterance, and how eagerly.
    eagerness: Option<usize>,
    events: u64,
}

impl Session {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            encoding: RawEncoding::S16le,
            rate: 24_000,
            model: None,
            language: None,
            prompt: None,
            hotwords: Vec::new(),
            silence_ms: Some(SILENCE_MS),
            eagerness: None,
            events: 0,
        }
    }

    /// A name for the next event.
    pub(super) fn event_id(&mut self) -> String {
        self.events += 1;
        format!("event_{}", self.events)
    }

    pub(super) fn has_vad(&self) -> bool {
        (self.silence_ms.is_some() || self.eagerness.is_some()) && self.dialect != Dialect::Vllm
    }

    /// What the recogniser is asked.
    pub(super) fn request(&self) -> HearRequest {
        let finds_turns = self.dialect != Dialect::Vllm;
        let silence_ms = self.silence_ms.filter(|_| finds_turns);
        let pause_ms = self.eagerness.filter(|_| finds_turns).map(|i| EAGERNESS[i].1);
        HearRequest {
            language: self.language.clone(),
            hotwords: self.hotwords.clone(),
            silence_ms,
            pause_ms,
            ..HearRequest::default()
        }
    }

    /// Whether a stream that is open must be opened anew.
    pub(super) fn hears_otherwise(&self, before: &Self) -> bool {
        self.request() != before.request()
            || self.model != before.model
            || self.encoding != before.encoding
            || self.rate != before.rate
    }

    /// Switches to vLLM's ways, which a client shows by what it sends.
    pub(super) fn become_vllm(&mut self) {
        if self.dialect != Dialect::Vllm {
            self.dialect = Dialect::Vllm;
            self.rate = 16_000;
        }
    }

    /// Takes an update.
    pub(super) fn update(&mut self, message: &Value) -> Result<(), ServerError> {
        let Some(session) = message.get("session") else {
            // vLLM's update names the model and has no session.
            let model = message["model"].as_str();
            let model = model.ok_or_else(|| ServerError::bad("session", "the update has no session"))?;
            self.become_vllm();
            return self.set_model(model);
        };
        if message["type"] == "transcription_session.update" {
            self.dialect = Dialect::Older;
        }
        if let Some(kind) = session["type"].as_str().filter(|k| *k != "transcription") {
            return Err(ServerError::bad(
                "session.type",
                format!("a session of type '{}': only transcription is served", short(kind)),
            ));
        }
        let input = if session.get("audio").is_some() { &session["audio"]["input"] } else { session };
        if let Some(format) =
            input.get("format").or_else(|| input.get("input_audio_format")).filter(|f| !f.is_null())
        {
            self.set_format(format)?;
        }
        let transcription = input.get("transcription").or_else(|| input.get("input_audio_transcription"));
        if let Some(t) = transcription.filter(|t| !t.is_null()) {
            if let Some(model) = t["model"].as_str() {
                self.set_model(model)?;
            }
            if let Some(language) = t["language"].as_str() {
                self.language = Some(short(language)).filter(|l| !l.is_empty());
            }
            if let Some(list) = t.get("languages").filter(|list| !list.is_null()) {
                self.language = one_language(&strings("languages", list)?)?.map(short);
            }
            if let Some(prompt) = t["prompt"].as_str() {
                self.prompt = Some(prompt.chars().take(limits::MAX_NAME).collect());
            }
            if let Some(words) = t.get("keywords").filter(|words| !words.is_null()) {
                self.hotwords = hotwords(strings("keywords", words)?)?;
            }
        }
        match input.get("turn_detection") {
            None => {}
            Some(Value::Null) => (self.silence_ms, self.eagerness) = (None, None),
            Some(detection) if detection["type"] == "semantic_vad" => {
                let eagerness = detection["eagerness"].as_str().unwrap_or("auto");
                let known = EAGERNESS.iter().position(|(name, _)| *name == eagerness);
                let unknown = || {
                    let text =
                        format!("an eagerness of '{}': use low, medium, high or auto", short(eagerness));
                    ServerError::bad("turn_detection", text)
                };
                (self.silence_ms, self.eagerness) = (None, Some(known.ok_or_else(unknown)?));
            }
            Some(detection) => {
                let silence = detection["silence_duration_ms"].as_u64().unwrap_or(u64::from(SILENCE_MS));
                if !SILENCES.contains(&silence) {
                    return Err(ServerError::bad(
                        "turn_detection",
                        format!("a silence of {silence} ms: use 80 to 60000"),
                    ));
                }
                (self.silence_ms, self.eagerness) = (Some(silence as u32), None);
            }
        }
        Ok(())
    }

    fn set_model(&mut self, model: &str) -> Result<(), ServerError> {
        if model.len() > limits::MAX_NAME {
            return Err(ServerError::bad("model", "the model's name is too long"));
        }
        self.model = Some(model.to_owned());
        Ok(())
    }

    fn set_format(&mut self, format: &Value) -> Result<(), ServerError> {
        let name = format.as_str().or_else(|| format["type"].as_str()).unwrap_or_default();
        (self.encoding, self.rate) = match name {
            "audio/pcm" | "pcm16" => (RawEncoding::S16le, 24_000),
            "audio/pcmu" | "g711_ulaw" => (RawEncoding::Mulaw, 8_000),
            "audio/pcma" | "g711_alaw" => (RawEncoding::Alaw, 8_000),
            other => {
                return Err(ServerError::bad(
                    "format",
                    format!(
                        "the format '{}' is not known: use audio/pcm, audio/pcmu or audio/pcma",
                        short(other)
                    ),
                ));
            }
        };
        if let Some(rate) = format["rate"].as_u64() {
            if !(4_000..=192_000).contains(&rate) {
                return Err(ServerError::bad("rate", format!("a rate of {rate} Hz: use 4000 to 192000")));
            }
            self.rate = rate as u32;
        }
        Ok(())
    }

    /// `session.created` and `session.updated` in the session's dialect.
    pub(super) fn event(&mut self, what: &str, model: &str) -> Value {
        let name = format!("{}.{what}", self.dialect.session());
        let event_id = self.event_id();
        let semantic = self.eagerness.map(|i| json!({"type": "semantic_vad", "eagerness": EAGERNESS[i].0}));
        let by_silence = self.silence_ms.map(|ms| {
            json!({"type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": ms})
        });
        let detection = semantic.or(by_silence);
        let transcription = json!({
            "model": self.model.as_deref().unwrap_or(model), "language": self.language, "prompt": self.prompt.as_deref().unwrap_or_default(),
        });
        let session = match self.dialect {
            Dialect::Older => json!({
                "id": "sess_voce", "object": "realtime.transcription_session", "modalities": ["audio", "text"],
                "input_audio_format": self.older_format(), "input_audio_transcription": transcription,
                "turn_detection": detection,
            }),
            Dialect::Current | Dialect::Vllm => json!({
                "type": "transcription", "id": "sess_voce", "object": "realtime.transcription_session",
                "audio": {"input": {
                    "format": {"type": self.format(), "rate": self.rate},
                    "transcription": transcription, "noise_reduction": null, "turn_detection": detection,
                }},
            }),
        };
        // vLLM's clients look for the name of the session beside it.
        json!({"type": name, "event_id": event_id, "id": "sess_voce", "session": session})
    }

    fn format(&self) -> &'static str {
        match self.encoding {
            RawEncoding::Mulaw => "audio/pcmu",
            RawEncoding::Alaw => "audio/pcma",
            _ => "audio/pcm",
        }
    }

    fn older_format(&self) -> &'static str {
        match self.encoding {
            RawEncoding::Mulaw => "g711_ulaw",
            RawEncoding::Alaw => "g711_alaw",
            _ => "pcm16",
        }
    }
}
