//! `POST /v1/audio/speech`: text in, audio out as it is made.

use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use voce_audio::AudioFormat;
use voce_audio::encode::HAS_MP3;
use voce_audio::stretch::{SPEEDS, Stretch};

use crate::core::audio_out::{Breath, Encoder, media_type};
use crate::core::body;
use crate::core::error::ServerError;
use crate::core::query::short;
use crate::core::state::AppState;
use crate::mouth::{Ask, Utterance};

/// The request. Unknown fields are ignored, as OpenAI's clients may send newer ones.
#[derive(Debug, Deserialize)]
struct Request {
    input: String,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    voice: Option<VoiceField>,
    #[serde(default)]
    response_format: Option<String>,
    #[serde(default)]
    speed: Option<f32>,
    #[serde(default)]
    stream_format: Option<String>,
    /// Beyond OpenAI: the same seed gives the same audio.
    #[serde(default)]
    seed: Option<u64>,
    /// Beyond OpenAI: sampling temperature.
    #[serde(default)]
    temperature: Option<f32>,
    /// How to speak, in words; models that take no instructions leave it out, as OpenAI's older ones do.
    #[serde(default)]
    instructions: Option<String>,
    /// Beyond OpenAI: the language of the text, for models that speak several.
    #[serde(default)]
    language: Option<String>,
    /// Beyond OpenAI: `false` speaks the text as it is, with its markup, numbers and addresses.
    #[serde(default)]
    normalize: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum VoiceField {
    Name(String),
    Id { id: String },
}

/// The format of a name. MP3 is OpenAI's default; where a build lacks it, WAV is, with its true type.
fn format(name: Option<&str>) -> Result<AudioFormat, ServerError> {
    match name {
        None if HAS_MP3 => Ok(AudioFormat::Mp3),
        None => Ok(AudioFormat::Wav(voce_audio::wav::WavSample::S16)),
        Some("mp3") if HAS_MP3 => Ok(AudioFormat::Mp3),
        Some(name @ ("wav" | "pcm" | "flac" | "opus" | "mulaw" | "alaw")) => {
            AudioFormat::from_name(name).ok_or(ServerError::Internal)
        }
        Some(other) => {
            let mp3 = if HAS_MP3 { "mp3, " } else { "" };
            Err(ServerError::bad(
                "response_format",
                format!(
                    "the format '{}' is not supported: use {mp3}wav, pcm, flac, opus, mulaw or alaw",
                    short(other)
                ),
            ))
        }
    }
}

/// Answers a request with a stream.
pub(crate) async fn speak(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    let limits = &state.options.limits;
    let request: Request = body::json(&headers, body, &state.budget).await?;
    if request.input.len() > limits.text {
        return Err(ServerError::bad(
            "input",
            format!("the text has {} bytes, more than {}: split it", request.input.len(), limits.text),
        ));
    }
    let format = format(request.response_format.as_deref())?;
    let speed = request.speed.unwrap_or(1.0);
    if !SPEEDS.contains(&speed) {
        return Err(ServerError::bad("speed", format!("speed is {speed}: use 0.25 to 4")));
    }
    let is_sse = match request.stream_format.as_deref() {
        None | Some("audio") => false,
        Some("sse") => true,
        Some(other) => {
            return Err(ServerError::bad(
                "stream_format",
                format!("the stream format '{}' is not known: use audio or sse", short(other)),
            ));
        }
    };
    let voice = request.voice.map(|v| match v {
        VoiceField::Name(name) | VoiceField::Id { id: name } => name,
    });
    let mouth = state.mouth(request.model.as_deref())?;
    let ask = Ask {
        voice,
        any_voice: false,
        seed: request.seed,
        temperature: request.temperature,
        language: request.language.filter(|language| !language.is_empty()),
        instructions: request.instructions,
        normalize: request.normalize,
        ..Ask::default()
    };
    let mut utterance = mouth.speak(request.input, ask).await?;
    // An answer begins with its first audio, so that what fails before has a status of its own.
    let samples = utterance.next().await.transpose()?.unwrap_or_default();
    let rate = utterance.rate();
    let mut speech = Speech {
        encoder: Encoder::new(format, rate)?,
        stretch: Stretch::new(rate, speed),
        utterance,
        samples,
        taken: 0,
        breath: Breath::default(),
        is_sse,
        done: false,
    };
    let first = speech.piece()?;
    let first_audio = speech.utterance.stats().first_audio.unwrap_or_default();
    let mut first = Some(first).filter(|b| !b.is_empty());
    let stream = futures_util::stream::poll_fn(move |cx| match first.take() {
        Some(bytes) => Poll::Ready(Some(Ok(bytes))),
        None => speech.poll(cx),
    });
    let mut response = Response::new(Body::from_stream(stream));
    let kind = if is_sse { "text/event-stream".to_owned() } else { media_type(format) };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_str(&kind).map_err(|_| ServerError::Internal)?);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(value) = HeaderValue::from_str(&format!("{:.1}", first_audio.as_secs_f64() * 1e3)) {
        headers.insert("x-voce-first-audio-ms", value);
    }
    Ok(response)
}

/// Speech as the bytes of a body.
struct Speech {
    utterance: Utterance,
    stretch: Stretch,
    encoder: Encoder,
    /// What came last, and how much of it is encoded.
    samples: Vec<f32>,
    taken: usize,
    breath: Breath,
    is_sse: bool,
    done: bool,
}

impl Speech {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, ServerError>>> {
        loop {
            if self.done {
                return Poll::Ready(None);
            }
            ready!(self.breath.poll(cx));
            if self.taken < self.samples.len() {
                match self.piece() {
                    Ok(bytes) if bytes.is_empty() => continue,
                    other => return Poll::Ready(Some(other)),
                }
            }
            let bytes = match self.utterance.poll_next(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(samples))) => {
                    (self.samples, self.taken) = (samples, 0);
                    continue;
                }
                Poll::Ready(Some(Err(error))) => {
                    self.done = true;
                    tracing::warn!(code = error.code(), "speech ended early");
                    // A body that breaks off tells the client that this is not the end; events can say so.
                    let event = sse(&json!({"type": "error", "error": error.object()}));
                    return Poll::Ready(Some(if self.is_sse { Ok(event) } else { Err(error) }));
                }
                Poll::Ready(None) => {
                    self.done = true;
                    self.end()
                }
            };
            match bytes {
                Ok(bytes) if bytes.is_empty() => {}
                other => return Poll::Ready(Some(other)),
            }
        }
    }

    /// Encodes what came last, or the next part of it where it is long.
    fn piece(&mut self) -> Result<Bytes, ServerError> {
        let rest = &self.samples[self.taken..];
        let piece = &rest[..rest.len().min(Breath::MOST)];
        self.taken += piece.len();
        let mut paced = Vec::with_capacity(piece.len());
        self.stretch.process(piece, &mut paced);
        self.breath.spend(paced.len());
        let bytes = self.encoder.write(&paced)?;
        Ok(self.wrap(bytes))
    }

    fn end(&mut self) -> Result<Bytes, ServerError> {
        let mut paced = Vec::new();
        self.stretch.finish(&mut paced);
        let mut bytes = self.encoder.write(&paced)?.to_vec();
        bytes.extend_from_slice(&self.encoder.finish()?);
        if !self.is_sse {
            return Ok(bytes.into());
        }
        let stats = self.utterance.stats();
        let mut events = self.wrap(bytes.into()).to_vec();
        let usage = json!({
            "input_tokens": stats.tokens, "output_tokens": stats.frames, "total_tokens": stats.tokens + stats.frames,
        });
        let mut done = json!({"type": "speech.audio.done", "usage": usage});
        if stats.unended > 0 {
            done["unended_passages"] = stats.unended.into();
        }
        events.extend_from_slice(&sse(&done));
        Ok(events.into())
    }

    fn wrap(&self, bytes: Bytes) -> Bytes {
        if !self.is_sse || bytes.is_empty() {
            return bytes;
        }
        sse(&json!({"type": "speech.audio.delta", "audio": BASE64.encode(&bytes)}))
    }
}

/// A value as one server-sent event.
pub(crate) fn sse(value: &serde_json::Value) -> Bytes {
    format!("data: {value}\n\n").into()
}
