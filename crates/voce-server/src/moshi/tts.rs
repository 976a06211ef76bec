//! `/api/tts_streaming`: text in as it is written, audio out as it is made, in one of four formats.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use tokio::sync::mpsc;
use voce_audio::wav::WavSample;
use voce_audio::{AudioFormat, RawEncoding, Resampler};
use voce_engine::speaker::TextSender;

use super::wire::{TtsIn, TtsOut, pack, unpack};
use crate::core::aside;
use crate::core::audio_out::{Breath, Encoder};
use crate::core::body;
use crate::core::error::ServerError;
use crate::core::limits;
use crate::core::query::{Query, short};
use crate::core::state::AppState;
use crate::core::ws::{self, Frame, Upgrade, Wire};
use crate::mouth::{Ask, Embedding, Mouth, Utterance};

/// Rate of the protocol's audio.
const RATE: u32 = 24_000;
/// Samples of a message.
const FRAME: usize = 1920;
/// Pieces of text that wait to be spoken.
const PIECES: usize = 64;
/// Letters a second of an average speaker, by which words get their times.
const LETTERS_PER_SECOND: f64 = 15.0;
/// How far words are told ahead of their audio, in seconds, as moshi-server does.
const AHEAD: f64 = 1.44;
/// Words on their way.
const MAX_WORDS: usize = 16 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Pcm,
    PcmMessages,
    Ogg,
    OggMessages,
}

impl Shape {
    fn parse(name: Option<&str>) -> Result<Self, ServerError> {
        Ok(match name {
            Some("Pcm") => Shape::Pcm,
            Some("PcmMessagePack") => Shape::PcmMessages,
            None | Some("OggOpus") => Shape::Ogg,
            Some("OggOpusMessagePack") => Shape::OggMessages,
            Some(other) => {
                return Err(ServerError::bad(
                    "format",
                    format!(
                        "the format '{}' is not known: use Pcm, PcmMessagePack, OggOpus or OggOpusMessagePack",
                        short(other)
                    ),
                ));
            }
        })
    }

    fn has_messages(self) -> bool {
        matches!(self, Shape::PcmMessages | Shape::OggMessages)
    }
}

/// A connection.
pub(crate) async fn connect(
    State(state): State<AppState>,
    uri: Uri,
    RawQuery(query): RawQuery,
    upgrade: Upgrade,
) -> Result<Response, ServerError> {
    let query = Query::parse(query.as_deref().unwrap_or_default());
    let shape = Shape::parse(query.get("format"))?;
    let mouth = state.mouth(state.mounted(uri.path()))?.clone();
    let ask = Ask {
        voice: query.get("voice").map(str::to_owned),
        // Clients name voices of Kyutai's collection, which other models do not have.
        any_voice: true,
        seed: query.number("seed")?,
        temperature: query.number("temperature")?,
        normalize: query.get("normalize").map(|_| query.is_on("normalize")).transpose()?,
        ..Ask::default()
    };
    state.before_upgrade(mouth.check())?;
    let for_run = state.clone();
    Ok(ws::upgrade(&state, upgrade, limits::MAX_FRAME_MESSAGE, move |wire| async move {
        run(for_run, wire, mouth, ask, shape).await
    }))
}

#[derive(Deserialize)]
struct Request {
    text: Texts,
    #[serde(default)]
    voice: Option<String>,
    #[serde(default)]
    seed: Option<u64>,
    #[serde(default)]
    temperature: Option<f32>,
    /// Beyond moshi-server: `false` speaks the text as it is.
    #[serde(default)]
    normalize: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// A whole text: a WAV stream.
pub(crate) async fn post(
    State(state): State<AppState>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    let limits = &state.options.limits;
    let request: Request = body::json(&headers, body, &state.budget).await?;
    let text = match request.text {
        Texts::One(text) => text,
        Texts::Many(texts) => texts.join(" "),
    };
    if text.len() > limits.text {
        return Err(ServerError::bad(
            "text",
            format!("the text has more than {} bytes: split it", limits.text),
        ));
    }
    let ask = Ask {
        voice: request.voice,
        any_voice: true,
        seed: request.seed,
        temperature: request.temperature,
        normalize: request.normalize,
        ..Ask::default()
    };
    let mut utterance = state.mouth(state.mounted(uri.path()))?.speak(text, ask).await?;
    let first = utterance.next().await.transpose()?.unwrap_or_default();
    let encoder = Encoder::new(AudioFormat::Wav(WavSample::S16), utterance.rate())?;
    let begin = Some((utterance, encoder, Breath::default(), Some(first)));
    let stream = futures_util::stream::unfold(begin, async |now| {
        let (mut utterance, mut encoder, mut breath, first) = now?;
        breath.rest().await;
        let samples = match first {
            Some(samples) => Some(Ok(samples)),
            None => utterance.next().await,
        };
        match samples {
            Some(Ok(samples)) => {
                breath.spend(samples.len());
                let bytes = encoder.write(&samples).map_err(ServerError::from);
                Some((bytes, Some((utterance, encoder, breath, None))))
            }
            Some(Err(error)) => Some((Err(error), None)),
            None => Some((encoder.finish().map_err(ServerError::from), None)),
        }
    });
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("audio/wav"))], Body::from_stream(stream)).into_response())
}

async fn run(state: AppState, mut wire: Wire, mouth: Arc<Mouth>, ask: Ask, shape: Shape) {
    let result = talk(&state, &mut wire, &mouth, ask, shape).await;
    match result {
        Ok(Some(frame)) => wire.end(frame).await,
        Ok(None) => wire.close(1000, "").await,
        Err(Some(error)) => {
            state.metrics.error(error.code());
            let is_busy = matches!(error, ServerError::Busy { .. } | ServerError::Share { .. });
            let message = if is_busy { "no free channels".into() } else { error.message() };
            if shape.has_messages() {
                let _ = wire.binary(pack(&TtsOut::Error { message: &message })).await;
            }
            wire.fail(&error).await;
        }
        Err(None) => {}
    }
}

/// Waits for the first text, takes a slot with it, and speaks.
async fn talk(
    state: &AppState,
    wire: &mut Wire,
    mouth: &Arc<Mouth>,
    ask: Ask,
    shape: Shape,
) -> Result<Option<Frame>, Option<ServerError>> {
    mouth.check()?;
    if shape.has_messages() {
        wire.binary(pack(&TtsOut::Ready)).await.map_err(|_| None)?;
    }
    let mut ask = ask;
    let first = loop {
        match wire.recv().await {
            Frame::Text(text) => break text.to_string(),
            // Nothing to say is no error, as moshi-server has it.
            Frame::Binary(data) if data[..] == [0] => return Ok(None),
            Frame::Binary(data) => match message(&data)? {
                Said::Text(text) => break text,
                Said::End => return Ok(None),
                Said::Voice(voice) => ask.embedding = Some(Arc::new(voice)),
            },
            other => return Ok(Some(other)),
        }
    };
    let (text, utterance) = mouth.speak_live(ask).await?;
    let mut talk = Talk::new(state.clone(), text, utterance, shape)?;
    talk.take_text(&first)?;
    talk.run(wire).await
}

/// What a client's message means.
enum Said {
    Text(String),
    End,
    /// A voice, which counts before the first text.
    Voice(Embedding),
}

fn message(data: &[u8]) -> Result<Said, ServerError> {
    match unpack(data) {
        Ok(TtsIn::Text { text }) => Ok(Said::Text(text)),
        Ok(TtsIn::Eos) => Ok(Said::End),
        Ok(TtsIn::Voice { embeddings, shape }) => Ok(Said::Voice(Embedding { values: embeddings, shape })),
        Err(e) => Err(ServerError::malformed(format!("the message is not one of Text, Voice, Eos: {e}"))),
    }
}

/// Feeds the speaker, which may make its feeder wait, on a thread that may wait.
fn feed(mut speaker: TextSender, mut pieces: mpsc::Receiver<String>) {
    while let Some(piece) = pieces.blocking_recv() {
        if speaker.push(&piece).is_err() {
            return;
        }
    }
    let _ = speaker.finish();
}

struct Talk {
    state: AppState,
    /// Where text goes; gone after the end of the text.
    text: Option<mpsc::Sender<String>>,
    /// A piece that waits for room.
    waiting: Option<String>,
    received: usize,
    utterance: Utterance,
    resampler: Resampler,
    samples: Vec<f32>,
    sent: usize,
    shape: Shape,
    ogg: Option<Encoder>,
    breath: Breath,
    words: VecDeque<(String, f64, f64)>,
    /// Where the last word ends, by the estimate.
    spoken: f64,
}

impl Talk {
    fn new(
        state: AppState,
        speaker: TextSender,
        utterance: Utterance,
        shape: Shape,
    ) -> Result<Self, ServerError> {
        let (text, pieces) = mpsc::channel(PIECES);
        aside::detach(move || feed(speaker, pieces));
        let ogg = match shape {
            Shape::Ogg | Shape::OggMessages => Some(Encoder::new(AudioFormat::OggOpus, RATE)?),
            Shape::Pcm | Shape::PcmMessages => None,
        };
        Ok(Self {
            state,
            text: Some(text),
            waiting: None,
            received: 0,
            resampler: Resampler::new(utterance.rate(), RATE),
            utterance,
            samples: Vec::new(),
            sent: 0,
            shape,
            ogg,
            breath: Breath::default(),
            words: VecDeque::new(),
            spoken: 0.0,
        })
    }

    /// Runs to the end: `None` when all was said, a frame that ended it, or an error.
    async fn run(&mut self, wire: &mut Wire) -> Result<Option<Frame>, Option<ServerError>> {
        if let Some(ogg) = &mut self.ogg {
            let head = ogg.write(&[]).map_err(ServerError::from)?;
            Self::put(self.shape, wire, &head).await?;
        }
        loop {
            let may_read = self.waiting.is_none();
            let sender = self.text.clone().filter(|_| !may_read);
            let room = async move {
                match sender {
                    Some(text) => text.reserve_owned().await.ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                permit = room => {
                    let piece = self.waiting.take();
                    if let (Some(permit), Some(piece)) = (permit, piece) {
                        permit.send(piece);
                    }
                }
                samples = self.utterance.next() => match samples {
                    Some(Ok(samples)) => {
                        let words = self.utterance.take_words().into_iter();
                        self.words.extend(words.map(|w| (w.text, w.start, w.end)));
                        self.resampler.process(&samples, &mut self.samples);
                        self.audio(wire, false).await?;
                    }
                    // What came had nothing to say in it: an emoji, markup.
                    Some(Err(ServerError::Engine(error))) if self.sent == 0 && error.is_empty_text() => {
                        self.words.clear();
                        self.audio(wire, true).await?;
                        return Ok(None);
                    }
                    Some(Err(error)) => return Err(Some(error)),
                    None => {
                        self.resampler.finish(&mut self.samples);
                        self.audio(wire, true).await?;
                        return Ok(None);
                    }
                },
                frame = wire.recv_if(may_read) => match frame {
                    Frame::Text(text) => self.take_text(&text)?,
                    Frame::Binary(data) if data[..] == [0] => self.text = None,
                    Frame::Binary(data) => match message(&data)? {
                        Said::Text(text) => self.take_text(&text)?,
                        Said::End => self.text = None,
                        // The voice speaks already.
                        Said::Voice(_) => {}
                    },
                    other => return Ok(Some(other)),
                }
            }
        }
    }

    fn take_text(&mut self, text: &str) -> Result<(), Option<ServerError>> {
        self.received += text.len() + 1;
        let limit = self.state.options.limits.text;
        if self.received > limit {
            return Err(Some(ServerError::bad(
                "text",
                format!("more than {limit} bytes of text on one connection"),
            )));
        }
        // What comes after the end is not spoken.
        if self.text.is_none() {
            return Ok(());
        }
        // Times are guessed for models that do not tell them.
        let guessed = text.split_whitespace().filter(|_| !self.utterance.tells_words());
        for word in guessed {
            let length = (word.chars().count() + 1) as f64 / LETTERS_PER_SECOND;
            if self.words.len() < MAX_WORDS {
                self.words.push_back((word.to_owned(), self.spoken, self.spoken + length));
            }
            self.spoken += length;
        }
        // Messages are words: there is a space between them.
        self.waiting = Some(format!("{text} "));
        Ok(())
    }

    /// Sends what is ready, and at the end what is left, with the words that go with it.
    async fn audio(&mut self, wire: &mut Wire, is_end: bool) -> Result<(), Option<ServerError>> {
        let mut samples = std::mem::take(&mut self.samples);
        if is_end && self.ogg.is_none() {
            // Players take whole frames only.
            samples.resize(samples.len().next_multiple_of(FRAME), 0.0);
        }
        let whole = if is_end { samples.len() } else { samples.len() / FRAME * FRAME };
        for frame in samples[..whole].chunks(FRAME) {
            self.sent += frame.len();
            self.breath.spend(frame.len());
            self.breath.rest().await;
            match &mut self.ogg {
                Some(ogg) => {
                    let bytes = ogg.write(frame).map_err(ServerError::from)?;
                    Self::put(self.shape, wire, &bytes).await?;
                }
                None if self.shape == Shape::Pcm => {
                    let mut bytes = Vec::with_capacity(frame.len() * 4);
                    voce_audio::encode::encode_raw(frame, RawEncoding::F32le, &mut bytes);
                    wire.binary(bytes).await.map_err(|_| None)?;
                }
                None => wire.binary(pack(&TtsOut::Audio { pcm: frame })).await.map_err(|_| None)?,
            }
            self.tell_words(wire, self.sent as f64 / f64::from(RATE) + AHEAD).await?;
        }
        self.samples = samples[whole..].to_vec();
        if is_end {
            if let Some(ogg) = &mut self.ogg {
                let bytes = ogg.finish().map_err(ServerError::from)?;
                Self::put(self.shape, wire, &bytes).await?;
            }
            self.tell_words(wire, f64::INFINITY).await?;
        }
        Ok(())
    }

    async fn put(shape: Shape, wire: &mut Wire, bytes: &[u8]) -> Result<(), Option<ServerError>> {
        if bytes.is_empty() {
            return Ok(());
        }
        let sent = match shape {
            Shape::OggMessages => wire.binary(pack(&TtsOut::OggOpus { data: bytes })).await,
            _ => wire.binary(bytes.to_vec()).await,
        };
        sent.map_err(|_| None)
    }

    async fn tell_words(&mut self, wire: &mut Wire, until: f64) -> Result<(), Option<ServerError>> {
        while self.words.front().is_some_and(|(_, start, _)| *start <= until) {
            let Some((text, start_s, stop_s)) = self.words.pop_front() else { break };
            if self.shape.has_messages() {
                wire.binary(pack(&TtsOut::Text { text: &text, start_s, stop_s })).await.map_err(|_| None)?;
            }
        }
        Ok(())
    }
}
