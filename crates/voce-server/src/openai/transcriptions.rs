//! `POST /v1/audio/transcriptions`: a file in, its text out, whole or as it is heard.

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use voce_engine::listener::subtitles;

use super::speech::sse;
use crate::core::body::Form;
use crate::core::error::ServerError;
use crate::core::health::json_response;
use crate::core::limits;
use crate::core::query::{is_no, short};
use crate::core::state::AppState;
use crate::ears::{HOTWORD_WEIGHT, HearRequest, ListenEvent, Segment, Transcript, Transcription, Word};

/// What the answer looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Json,
    Text,
    Srt,
    Vtt,
    Verbose,
}

/// Answers a request.
pub(crate) async fn transcribe(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    let form = Form::read(&headers, body, state.options.limits.body, &state.budget).await?;
    let shape = match form.text("response_format")? {
        None | Some("json") => Shape::Json,
        Some("text") => Shape::Text,
        Some("srt") => Shape::Srt,
        Some("vtt") => Shape::Vtt,
        Some("verbose_json") => Shape::Verbose,
        Some(other) => {
            return Err(ServerError::bad(
                "response_format",
                format!(
                    "the format '{}' is not supported: use json, text, srt, vtt or verbose_json",
                    short(other)
                ),
            ));
        }
    };
    let mut granularities = (false, false);
    for name in form.texts("timestamp_granularities")? {
        match name {
            "word" => granularities.0 = true,
            "segment" => granularities.1 = true,
            other => {
                return Err(ServerError::bad(
                    "timestamp_granularities",
                    format!("'{}' is no granularity: use word or segment", short(other)),
                ));
            }
        }
    }
    if granularities != (false, false) && shape != Shape::Verbose {
        return Err(ServerError::bad(
            "timestamp_granularities",
            "timestamp_granularities are told with response_format=verbose_json: ask for that, or leave them out",
        ));
    }
    let is_streamed = form.is_on("stream")?;
    if is_streamed && !matches!(shape, Shape::Json | Shape::Text) {
        return Err(ServerError::bad(
            "stream",
            "a stream has text alone: use response_format=json, or no stream",
        ));
    }
    check_others(&form)?;
    let listed = one_language(&form.texts("languages")?)?;
    let language = form.text("language")?.or(listed).map(short);
    let request = HearRequest {
        hotwords: hotwords(form.texts("keywords")?)?,
        language,
        chunk_ms: form.number("chunk_ms")?,
        beam: form.number("beam")?,
        ..HearRequest::default()
    };
    let ear = state.ear(form.text("model")?)?;
    let file = form.file("file")?;
    let heard =
        Transcription::start(ear, &request, file.data.clone(), file.file_name.as_deref(), None).await?;
    if is_streamed {
        return Ok(stream(heard));
    }
    let heard = heard.whole().await?;
    let info = ear.info();
    Ok(answer(&heard, shape, granularities, info.language_heard(request.language.as_deref())))
}

/// Fields that are refused, since what they ask for is not done.
const REFUSED: [(&str, &str); 4] = [
    ("include", "nothing can be included: leave it out"),
    ("known_speaker_names", "speakers are not told apart: leave it out"),
    ("known_speaker_references", "speakers are not told apart: leave it out"),
    ("diarize", "speakers are not told apart: leave it out"),
];

/// Looks at the fields that have no effect: what they say must make sense, and what must not be dropped is refused.
fn check_others(form: &Form) -> Result<(), ServerError> {
    for (name, why) in REFUSED {
        if form.texts(name)?.iter().any(|value| !is_no(value)) {
            return Err(ServerError::bad(name, format!("{name}: {why}")));
        }
    }
    if let Some(task) = form.text("task")?.filter(|task| *task != "transcribe") {
        let message = format!("the task '{}' is not done: a recogniser writes what it hears", short(task));
        return Err(ServerError::bad("task", message));
    }
    let temperature = form.text("temperature")?;
    let is_one = |text: &str| text.parse::<f32>().is_ok_and(|t| (0.0..=1.0).contains(&t));
    if let Some(text) = temperature.filter(|text| !is_one(text)) {
        let message = format!("temperature is a number from 0 to 1, not '{}'", short(text));
        return Err(ServerError::bad("temperature", message));
    }
    let is_strategy = |text: &str| {
        let object = crate::core::json::parse::<Value>(text.as_bytes()).unwrap_or_default();
        text == "auto" || object["type"] == "server_vad"
    };
    if let Some(text) = form.text("chunking_strategy")?.filter(|text| !is_strategy(text)) {
        let message = format!("'{}' is no chunking_strategy: use auto, or leave it out", short(text));
        return Err(ServerError::bad("chunking_strategy", message));
    }
    Ok(())
}

/// Hot words with their weight; too many or too long ones are refused before the rest is looked at.
pub(crate) fn hotwords<'a>(
    fields: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<(String, f32)>, ServerError> {
    let refused = || {
        let (most, longest) = (limits::MAX_HOTWORDS, limits::MAX_HOTWORD);
        let message =
            format!("too many keywords, or too long ones: use at most {most} of at most {longest} bytes");
        ServerError::bad("keywords", message)
    };
    let mut kept = Vec::new();
    for field in fields {
        // Longer than any list of them: it is not read at all.
        if field.len() > limits::MAX_HOTWORDS * (limits::MAX_HOTWORD + 2) {
            return Err(refused());
        }
        // A client may send one field with a list in it.
        for word in field.split([',', '\n']).map(str::trim).filter(|w| !w.is_empty()) {
            if kept.len() >= limits::MAX_HOTWORDS || word.len() > limits::MAX_HOTWORD {
                return Err(refused());
            }
            kept.push((word.to_owned(), HOTWORD_WEIGHT));
        }
    }
    Ok(kept)
}

/// The language of a list of them, as newer clients send: one at most, since nothing chooses among several that are named.
pub(crate) fn one_language<'a>(list: &[&'a str]) -> Result<Option<&'a str>, ServerError> {
    match list {
        [] => Ok(None),
        [only] => Ok(Some(only)),
        _ => Err(ServerError::bad(
            "languages",
            "several languages: name one, or none and the model finds it out",
        )),
    }
}

fn usage(seconds: f64) -> Value {
    json!({"type": "duration", "seconds": seconds.ceil() as u64})
}

fn answer(heard: &Transcript, shape: Shape, granularities: (bool, bool), language: Option<&str>) -> Response {
    let words = || heard.segments.iter().flat_map(|s| &s.words).cloned().collect::<Vec<Word>>();
    let plain = |kind: &'static str, text: String| {
        ([(CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response()
    };
    match shape {
        Shape::Json => {
            json_response(StatusCode::OK, &json!({"text": heard.text(), "usage": usage(heard.duration)}))
        }
        Shape::Text => plain("text/plain; charset=utf-8", heard.text() + "\n"),
        Shape::Srt => {
            plain("application/x-subrip; charset=utf-8", subtitles::srt(&subtitles::cues(&words())))
        }
        Shape::Vtt => plain("text/vtt; charset=utf-8", subtitles::vtt(&subtitles::cues(&words()))),
        Shape::Verbose => {
            let mut value = json!({
                "task": "transcribe", "language": language, "duration": heard.duration,
                "text": heard.text(), "usage": usage(heard.duration),
            });
            let (by_word, by_segment) = granularities;
            if by_segment || !by_word {
                value["segments"] = heard.segments.iter().enumerate().map(|(i, s)| segment(i, s)).collect();
            }
            if by_word {
                let word = |w: &Word| json!({"word": w.text, "start": w.start, "end": w.end});
                value["words"] = words().iter().map(word).collect();
            }
            json_response(StatusCode::OK, &value)
        }
    }
}

/// A segment with every field that OpenAI's clients insist on.
fn segment(id: usize, s: &Segment) -> Value {
    let logs: f64 = s.words.iter().map(|w| f64::from(w.confidence).max(1e-6).ln()).sum();
    json!({
        "id": id, "seek": 0, "start": s.start, "end": s.end, "text": s.text, "tokens": s.tokens,
        "temperature": 0.0, "avg_logprob": logs / s.words.len().max(1) as f64, "compression_ratio": 1.0,
        "no_speech_prob": if s.words.is_empty() { 1.0 } else { 0.0 },
    })
}

/// The text as events, a word at a time.
fn stream(heard: Transcription) -> Response {
    enum State {
        Hearing(Box<Transcription>, String),
        Done,
    }
    let begin = State::Hearing(Box::new(heard), String::new());
    let events = futures_util::stream::unfold(begin, async |state| {
        let State::Hearing(mut heard, mut text) = state else { return None };
        loop {
            let (event, next) = match heard.next().await {
                Some(Ok(ListenEvent::Word(word))) => {
                    let delta = if text.is_empty() { word.text } else { format!(" {}", word.text) };
                    text.push_str(&delta);
                    (json!({"type": "transcript.text.delta", "delta": delta}), State::Hearing(heard, text))
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => (json!({"type": "error", "error": error.object()}), State::Done),
                None => {
                    let usage = usage(heard.seconds());
                    (json!({"type": "transcript.text.done", "text": text, "usage": usage}), State::Done)
                }
            };
            return Some((Ok::<Bytes, std::convert::Infallible>(sse(&event)), next));
        }
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, Body::from_stream(events)).into_response()
}
