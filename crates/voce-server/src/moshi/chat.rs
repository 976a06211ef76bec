//! `/api/chat` and the paths of `Lm` modules: a dialogue, Ogg Opus both ways and the model's text.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::Uri;
use axum::response::Response;
use bytes::Bytes;
use voce_audio::{AudioFormat, RawEncoding};
use voce_engine::talker::{TalkEvent, TalkRequest};

use super::tags::{Tag, handshake};
use crate::core::audio_out::{Breath, Encoder};
use crate::core::error::ServerError;
use crate::core::limits;
use crate::core::query::{Query, short};
use crate::core::state::AppState;
use crate::core::ws::{self, Frame, Gone, Upgrade, Wire};
use crate::ears::{Decoded, Inlet, OpusInlet};
use crate::partner::{Conversation, Partner, Turn};

/// Rate of the clients' audio.
const RATE: u32 = 24_000;

/// How audio goes over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Ogg Opus.
    Ogg,
    /// 16-bit samples at 24 kHz, for clients without a codec.
    Pcm,
}

/// How a client wants its dialogue.
struct Wish {
    shape: Shape,
    request: TalkRequest,
    /// Frames of audio after which it is over.
    most: Option<usize>,
}

impl Wish {
    /// Reads moshi-backend's fields; what it does not know is ignored, as there.
    fn parse(query: &Query) -> Result<Self, ServerError> {
        let seed = query.number("audio_seed")?.or(query.number("text_seed")?).or(query.number("seed")?);
        let request = TalkRequest::default()
            .with_temperature(query.number("audio_temperature")?)
            .with_text_temperature(query.number("text_temperature")?)
            .with_top_k(query.number("audio_topk")?)
            .with_text_top_k(query.number("text_topk")?)
            .with_seed(seed.unwrap_or_else(crate::mouth::random_seed));
        let shape = match query.get("format") {
            None | Some("" | "OggOpus") => Shape::Ogg,
            Some("Pcm") => Shape::Pcm,
            Some(other) => {
                let text = format!("the format '{}' is not known: use OggOpus or Pcm", short(other));
                return Err(ServerError::bad("format", text));
            }
        };
        Ok(Self { shape, request, most: query.number("max_steps")?.filter(|n| *n > 0) })
    }
}

/// A connection. A slot is taken with the first audio.
pub(crate) async fn connect(
    State(state): State<AppState>,
    uri: Uri,
    RawQuery(query): RawQuery,
    upgrade: Upgrade,
) -> Result<Response, ServerError> {
    let query = Query::parse(query.as_deref().unwrap_or_default());
    let wish = Wish::parse(&query)?;
    let partner = state.partner(state.mounted(uri.path()).or_else(|| query.get("model")))?.clone();
    state.before_upgrade(partner.check())?;
    let for_run = state.clone();
    Ok(ws::upgrade(&state, upgrade, limits::MAX_FRAME_MESSAGE, move |wire| async move {
        run(for_run, wire, partner, wish).await
    }))
}

async fn run(state: AppState, mut wire: Wire, partner: Arc<Partner>, wish: Wish) {
    // A future of this size is made once for a connection, and not part of every other.
    let outcome = Box::pin(talk(&mut wire, partner, wish)).await;
    match outcome {
        Ok(Some(frame)) => wire.end(frame).await,
        Ok(None) => wire.close(1000, "").await,
        Err(Some(error)) => {
            state.metrics.error(error.code());
            let _ = wire.binary(Tag::Error.message(error.message().as_bytes())).await;
            wire.fail(&error).await;
        }
        Err(None) => {}
    }
}

/// Runs to the end: a frame that ended it, `None` when the model has ended it, or an error.
async fn talk(
    wire: &mut Wire,
    partner: Arc<Partner>,
    wish: Wish,
) -> Result<Option<Frame>, Option<ServerError>> {
    partner.check()?;
    wire.binary(handshake()).await.map_err(|Gone| None)?;
    let format = match wish.shape {
        Shape::Ogg => AudioFormat::OggOpus,
        Shape::Pcm => AudioFormat::Raw(RawEncoding::S16le),
    };
    let voice = Encoder::new(format, RATE).map_err(ServerError::from)?;
    let mut talk = Talk {
        partner,
        wish,
        conversation: None,
        opus: None,
        raw: None,
        voice,
        resampler: None,
        frames: 0,
        breath: Breath::default(),
    };
    talk.say(wire, &[]).await?;
    talk.run(wire).await
}

struct Talk {
    partner: Arc<Partner>,
    wish: Wish,
    conversation: Option<Conversation>,
    opus: Option<OpusInlet>,
    raw: Option<Inlet>,
    voice: Encoder,
    /// From the model's rate to the clients', where they differ.
    resampler: Option<(voce_audio::Resampler, Vec<f32>)>,
    /// Frames that the model has said.
    frames: usize,
    breath: Breath,
}

impl Talk {
    async fn run(&mut self, wire: &mut Wire) -> Result<Option<Frame>, Option<ServerError>> {
        loop {
            let has_room = self.conversation.as_ref().is_none_or(Conversation::has_room);
            let may_read = has_room && self.opus.as_ref().is_none_or(OpusInlet::has_room);
            let turn = async {
                match &mut self.conversation {
                    Some(conversation) => conversation.step().await,
                    None => std::future::pending().await,
                }
            };
            let decoded = async {
                match &mut self.opus {
                    Some(opus) => opus.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                turn = turn => match turn {
                    Turn::Event(event) => {
                        if self.tell(wire, event).await? {
                            return Ok(None);
                        }
                    }
                    Turn::Failed(error) => return Err(Some(error)),
                    Turn::Ended => return Ok(None),
                    Turn::Room => {}
                },
                block = decoded, if has_room => match block {
                    Some(Ok(Decoded::Samples(samples))) => {
                        if let Some(conversation) = &mut self.conversation {
                            conversation.push(&samples);
                        }
                    }
                    Some(Ok(Decoded::Mark | Decoded::Room | Decoded::End)) => {}
                    Some(Err(error)) => return Err(Some(error.into())),
                    // The next audio begins a new Ogg stream.
                    None => self.opus = None,
                },
                frame = wire.recv_if(may_read) => match frame {
                    Frame::Binary(data) => self.message(data).await?,
                    // Text is no message here, and does no harm.
                    Frame::Text(_) => {}
                    other => return Ok(Some(other)),
                }
            }
        }
    }

    async fn message(&mut self, data: Bytes) -> Result<(), ServerError> {
        match Tag::read(&data) {
            Some((Tag::Audio, _)) => self.audio(data.slice(1..)).await,
            // Clients greet, ping and press buttons that mean nothing here.
            Some(_) => Ok(()),
            None => Err(ServerError::malformed(
                "the message has no or an unknown first byte: 1 and Ogg Opus is audio",
            )),
        }
    }

    async fn audio(&mut self, data: Bytes) -> Result<(), ServerError> {
        let rate = match &self.conversation {
            Some(conversation) => conversation.rate(),
            None => {
                let conversation = self.partner.converse(&self.wish.request).await?;
                self.conversation.insert(conversation).rate()
            }
        };
        if self.wish.shape == Shape::Pcm {
            let raw = match &mut self.raw {
                Some(raw) => raw,
                none => none.insert(Inlet::new(RawEncoding::S16le, RATE, 1, rate)?),
            };
            if let Some(conversation) = &mut self.conversation {
                conversation.push(raw.bytes(&data));
            }
            return Ok(());
        }
        let opus = match &mut self.opus {
            Some(opus) => opus,
            none => none.insert(OpusInlet::ogg(self.partner.decoder()?, rate)),
        };
        opus.push(data)
    }

    /// Passes on what the model says. Whether that was all.
    async fn tell(&mut self, wire: &mut Wire, event: TalkEvent) -> Result<bool, Option<ServerError>> {
        match event {
            TalkEvent::Text(text) => {
                wire.binary(Tag::Text.message(text.as_bytes())).await.map_err(|Gone| None)?;
                Ok(false)
            }
            TalkEvent::Audio(samples) => {
                self.say(wire, &samples).await?;
                self.frames += 1;
                Ok(self.wish.most.is_some_and(|most| self.frames >= most))
            }
            _ => Ok(false),
        }
    }

    async fn say(&mut self, wire: &mut Wire, samples: &[f32]) -> Result<(), Option<ServerError>> {
        self.breath.spend(samples.len());
        self.breath.rest().await;
        let rate = self.conversation.as_ref().map_or(RATE, Conversation::rate);
        if rate != RATE && self.resampler.is_none() {
            self.resampler = Some((voce_audio::Resampler::new(rate, RATE), Vec::new()));
        }
        let bytes = match &mut self.resampler {
            Some((resampler, resampled)) => {
                resampled.clear();
                resampler.process(samples, resampled);
                self.voice.write(resampled)
            }
            None => self.voice.write(samples),
        };
        let bytes = bytes.map_err(ServerError::from)?;
        if bytes.is_empty() {
            return Ok(());
        }
        wire.binary(Tag::Audio.message(&bytes)).await.map_err(|Gone| None)
    }
}
