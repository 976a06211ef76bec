//! Deepgram's `/v1/listen`: a WebSocket for live audio, a POST for files.

mod live;
mod parameters;
mod results;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;
use voce_audio::{RawEncoding, RawFormat};
use voce_engine::EngineError;

use crate::core::body;
use crate::core::error::ServerError;
use crate::core::health::json_response;
use crate::core::limits;
use crate::core::query::{Query, short};
use crate::core::state::AppState;
use crate::core::ws::{self, Upgrade};
use crate::ears::{Ear, HearRequest, Transcription};
use crate::handover::{self, Entry, Leave};
use crate::openai::transcriptions::hotwords;

/// Silence that ends an utterance where the client does not say; Deepgram's own is 10 ms, which cuts words off.
const SILENCE_MS: u32 = 300;

/// What the query asks for.
struct Options {
    raw: Option<RawFormat>,
    interim: bool,
    vad_events: bool,
    utterance_end: bool,
    request: HearRequest,
}

impl Options {
    fn parse(query: &Query) -> Result<Self, ServerError> {
        parameters::check(query)?;
        let channels = query.number("channels")?.unwrap_or(1);
        let rate = query.number("sample_rate")?;
        let raw = |encoding, default| RawFormat { encoding, sample_rate: rate.unwrap_or(default), channels };
        let raw = match query.get("encoding") {
            None | Some("ogg-opus" | "opus") => None,
            Some("linear16") => Some(raw(RawEncoding::S16le, 16_000)),
            Some("linear32") => Some(raw(RawEncoding::F32le, 16_000)),
            Some("mulaw") => Some(raw(RawEncoding::Mulaw, 8_000)),
            Some("alaw") => Some(raw(RawEncoding::Alaw, 8_000)),
            Some(other) => {
                return Err(ServerError::bad(
                    "encoding",
                    format!(
                        "the encoding '{}' is not supported: use linear16, linear32, mulaw, alaw or ogg-opus",
                        short(other)
                    ),
                ));
            }
        };
        let silence_ms = match query.get("endpointing") {
            None | Some("true") => Some(SILENCE_MS),
            Some("false") => None,
            Some(_) => query.number::<u32>("endpointing")?.map(|ms| ms.clamp(80, 60_000)),
        };
        let interim = query.is_on("interim_results")?;
        let words = query.all("keyterm");
        // Older keywords may carry a boost after a colon.
        let older = query.all("keywords").map(|k| k.split(':').next().unwrap_or(k));
        let request = HearRequest {
            language: language(query)?,
            hotwords: hotwords(words.chain(older))?,
            chunk_ms: query.number("chunk_ms")?,
            beam: query.number("beam")?,
            silence_ms,
            partials: interim,
            ..HearRequest::default()
        };
        Ok(Self {
            raw,
            interim,
            vad_events: query.is_on("vad_events")?,
            utterance_end: query.get("utterance_end_ms").is_some(),
            request,
        })
    }
}

/// The language with which a model finds out itself what is spoken.
const AUTO: &str = "auto";

/// The language.
fn language(query: &Query) -> Result<Option<String>, ServerError> {
    let asked = query.get("language").filter(|l| !l.is_empty());
    if query.is_on("detect_language")? || asked == Some("multi") {
        return Ok(Some(AUTO.into()));
    }
    Ok(asked.map(short))
}

/// Refuses by name what the recogniser cannot do.
async fn accept(ear: &Ear, request: &HearRequest) -> Result<(), ServerError> {
    ear.accept(request).await.map_err(|error| match error {
        ServerError::Engine(EngineError::Language { asked, .. }) if asked == AUTO => ServerError::bad(
            "language",
            "detect_language and language=multi: this model does not find out which language is spoken: leave them \
             out, or name a language",
        ),
        other => other,
    })
}

/// A live connection. Names of Deepgram's models stand for the default recogniser.
pub(crate) async fn connect(
    State(state): State<AppState>,
    RawQuery(text): RawQuery,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, ServerError> {
    let query = Query::parse(text.as_deref().unwrap_or_default());
    let options = Options::parse(&query)?;
    let ear = state.ear(query.get("model")).or_else(|_| state.ear(None))?.clone();
    // What the model cannot do is told before there is a socket.
    accept(&ear, &options.request).await?;
    let entry = Entry::new(&state, handover::DEEPGRAM, ear, text.as_deref()).await?;
    let (for_run, heads) = (state.clone(), entry.heads());
    let leave = Leave::new(&state, handover::DEEPGRAM, &headers);
    let response = ws::upgrade(&state, upgrade, limits::MAX_AUDIO_MESSAGE, move |wire| async move {
        live::run(for_run, wire, entry, leave, options).await
    });
    Ok(Entry::tell(heads, response))
}

/// A file.
pub(crate) async fn file(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    let query = Query::parse(query.as_deref().unwrap_or_default());
    let Options { raw, request, .. } = Options::parse(&query)?;
    let request = HearRequest { partials: false, silence_ms: None, ..request };
    let ear = state.ear(query.get("model")).or_else(|_| state.ear(None))?;
    let is_json = headers.get("content-type").is_some_and(|v| v.as_bytes().starts_with(b"application/json"));
    if is_json {
        return Err(ServerError::malformed("audio by URL is not fetched: send the file itself as the body"));
    }
    accept(ear, &request).await?;
    let bytes = body::collect(&headers, body, state.options.limits.body, &state.budget).await?;
    let heard = Transcription::start(ear, &request, bytes, None, raw).await?.whole().await?;
    let words: Vec<_> = heard.segments.iter().flat_map(|s| s.words.clone()).collect();
    let alternative = results::alternative(&heard.text(), &words);
    let value = json!({
        "metadata": results::metadata(ear.id(), heard.duration),
        "results": {"channels": [{"alternatives": [alternative]}]},
    });
    Ok(json_response(StatusCode::OK, &value))
}

/// Reads a query, and after its line controls.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.lines();
    let _ = Options::parse(&Query::parse(lines.next().unwrap_or_default()));
    for line in lines {
        let _ = crate::core::json::parse::<serde_json::Value>(line.as_bytes());
    }
}
