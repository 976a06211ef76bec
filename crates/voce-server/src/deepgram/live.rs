//! A live connection: binary audio up, `KeepAlive`, `Finalize` and `CloseStream` as text, results down.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep};

use super::Options;
use super::results::{Stretch, metadata};
use crate::core::error::ServerError;
use crate::core::json;
use crate::core::limits::MAX_CONTROL_MESSAGE;
use crate::core::state::AppState;
use crate::core::ws::{Frame, Gone, Wire};
use crate::ears::{
    Claim, Decoded, Ear, EndReason, Hearing, Inlet, Intake, ListenEvent, OpusInlet, Payload, Segment, Step,
};

/// Silence of a client that sends neither audio nor `KeepAlive`, after which it is closed.
const IDLE: Duration = Duration::from_secs(10);
const IDLE_REASON: &str = "NET-0001: no audio or KeepAlive for 10 s";

enum Way {
    Raw(Box<Intake>),
    Opus(OpusInlet),
}

impl Way {
    /// Whether a further message may be read.
    fn has_room(&self) -> bool {
        match self {
            Self::Raw(intake) => intake.is_idle(),
            Self::Opus(opus) => opus.has_room(),
        }
    }

    /// What comes out of it next; `None` at the end.
    async fn next(&mut self) -> Option<Result<Decoded, ServerError>> {
        match self {
            Self::Raw(intake) => Some(intake.next().await.map(Decoded::Samples)),
            Self::Opus(opus) => opus.next().await.map(|next| next.map_err(ServerError::from)),
        }
    }
}

/// How a connection ended.
enum End {
    /// All was told.
    Done,
    /// A frame ended it.
    Frame(Frame),
    /// It was silent.
    Idle,
}

struct Talk {
    wire: Wire,
    model: String,
    /// A slot is taken with the first audio, and so is the way to it.
    claim: Claim,
    way: Option<Way>,
    options: Options,
    /// Finals that the client has asked for.
    finalizing: bool,
    ending: Option<EndReason>,
    speaking: bool,
    last_word: f64,
    /// Where the present utterance begins.
    from: f64,
    heard: Instant,
    /// Goes off where nothing may have been heard for too long.
    alarm: Pin<Box<Sleep>>,
    closing: bool,
}

pub(super) async fn run(state: AppState, mut wire: Wire, ear: Arc<Ear>, options: Options) {
    let model = ear.id().to_owned();
    let checked = options.raw.map_or(Ok(()), |raw| Inlet::check(raw.sample_rate, raw.channels));
    let claim = match checked.and_then(|()| Claim::new(ear)) {
        Ok(claim) => claim,
        Err(error) => {
            state.metrics.error(error.code());
            let _ = wire
                .json(&json!({"type": "Error", "err_code": error.code(), "err_msg": error.message()}))
                .await;
            return wire.fail(&error).await;
        }
    };
    let mut talk = Talk {
        wire,
        model,
        claim,
        way: None,
        options,
        finalizing: false,
        ending: None,
        speaking: false,
        last_word: 0.0,
        from: 0.0,
        heard: Instant::now(),
        alarm: Box::pin(tokio::time::sleep(IDLE)),
        closing: false,
    };
    match talk.run().await {
        Ok(End::Done) => {
            let last = metadata(&talk.model, talk.claim.seconds());
            let _ = talk.wire.json(&last).await;
            talk.wire.close(1000, "").await;
        }
        Ok(End::Frame(frame)) => talk.wire.end(frame).await,
        Ok(End::Idle) => {
            state.metrics.cancel("idle");
            talk.wire.close(1011, IDLE_REASON).await;
        }
        Err(Some(error)) => {
            state.metrics.error(error.code());
            let message = json!({"type": "Error", "err_code": error.code(), "err_msg": error.message()});
            let _ = talk.wire.json(&message).await;
            talk.wire.fail(&error).await;
        }
        Err(None) => {}
    }
}

impl Talk {
    async fn run(&mut self) -> Result<End, Option<ServerError>> {
        loop {
            let has_room = self.claim.has_room();
            let may_read = has_room && self.way.as_ref().is_none_or(Way::has_room);
            let decoded = async {
                match &mut self.way {
                    Some(way) => way.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                step = self.claim.step() => match step {
                    Step::Event(event) => self.event(event).await?,
                    Step::Failed(error) => return Err(Some(error)),
                    Step::Ended => return Ok(End::Done),
                    Step::Room => {}
                },
                block = decoded, if has_room && !self.closing => match block {
                    Some(Ok(Decoded::Samples(samples))) => {
                        // Nobody is idle whose audio is still being taken in.
                        self.heard = Instant::now();
                        self.hearing().await?.push(&samples);
                    }
                    Some(Ok(Decoded::Mark)) => self.hearing().await?.end_utterance(),
                    Some(Ok(Decoded::Room | Decoded::End)) => {}
                    Some(Err(error)) => return Err(Some(error)),
                    None => {
                        self.closing = true;
                        self.hearing().await?.finish();
                    }
                },
                frame = self.wire.recv_if(may_read) => match frame {
                    Frame::Binary(data) if !self.closing => {
                        self.heard = Instant::now();
                        // An empty message ends the audio.
                        if data.is_empty() {
                            self.close().await?;
                        } else {
                            self.audio(data).await?;
                        }
                    }
                    Frame::Binary(_) => {}
                    Frame::Text(text) => self.command(&text).await?,
                    other => return Ok(End::Frame(other)),
                },
                () = self.alarm.as_mut(), if !self.closing && may_read => {
                    // Reset only here: audio comes fifty times a second, this once in ten.
                    let end = self.heard + IDLE;
                    if Instant::now() >= end {
                        return Ok(End::Idle);
                    }
                    self.alarm.as_mut().reset(end);
                }
            }
        }
    }

    /// The stream, opened if there is none.
    async fn hearing(&mut self) -> Result<&mut Hearing, ServerError> {
        self.claim.open(&self.options.request).await
    }

    async fn audio(&mut self, data: Bytes) -> Result<(), ServerError> {
        if self.way.is_none() {
            // Filters of strange rates take a while to make, and decoders have threads: they are for those who have a slot.
            let rate = self.hearing().await?.rate();
            self.way = Some(match self.options.raw {
                Some(raw) => {
                    let inlet = Inlet::new(raw.encoding, raw.sample_rate, raw.channels, rate)?;
                    Way::Raw(Box::new(Intake::new(inlet)))
                }
                None => Way::Opus(OpusInlet::any(self.claim.ear().decoder()?, rate)),
            });
        }
        match &mut self.way {
            Some(Way::Raw(intake)) => {
                intake.push(Payload::Raw(data), self.claim.open(&self.options.request).await?)
            }
            Some(Way::Opus(opus)) => opus.push(data)?,
            None => {}
        }
        Ok(())
    }

    async fn close(&mut self) -> Result<(), ServerError> {
        // What is in the decoder comes out first.
        if let Some(Way::Opus(opus)) = &mut self.way {
            opus.finish();
            return Ok(());
        }
        self.closing = true;
        let hearing = self.claim.open(&self.options.request).await?;
        if let Some(Way::Raw(intake)) = &mut self.way {
            intake.finish(hearing);
        }
        hearing.finish();
        Ok(())
    }

    async fn command(&mut self, text: &str) -> Result<(), Option<ServerError>> {
        if text.len() > MAX_CONTROL_MESSAGE {
            return Err(Some(ServerError::TooLarge(MAX_CONTROL_MESSAGE)));
        }
        let message: Value = json::parse(text.as_bytes())
            .map_err(|e| ServerError::malformed(format!("the message is not JSON: {e}")))?;
        match message["type"].as_str().unwrap_or_default() {
            "KeepAlive" => self.heard = Instant::now(),
            "Finalize" if !self.closing => {
                self.finalizing = true;
                match &mut self.way {
                    Some(Way::Opus(opus)) => opus.mark()?,
                    Some(Way::Raw(_)) | None => self.hearing().await?.end_utterance(),
                }
            }
            "CloseStream" if !self.closing => self.close().await?,
            "Finalize" | "CloseStream" => {}
            other => {
                let other = crate::core::query::short(other);
                return Err(Some(ServerError::bad(
                    "type",
                    format!("the message '{other}' is not known: use KeepAlive, Finalize or CloseStream"),
                )));
            }
        }
        Ok(())
    }

    async fn event(&mut self, event: ListenEvent) -> Result<(), Option<ServerError>> {
        let message = match event {
            ListenEvent::Partial(segment) if self.options.interim => {
                Some(self.stretch(&segment, false, false))
            }
            ListenEvent::Word(word) => {
                self.last_word = word.end;
                let began = !std::mem::replace(&mut self.speaking, true);
                (began && self.options.vad_events)
                    .then(|| json!({"type": "SpeechStarted", "channel": [0, 1], "timestamp": word.start}))
            }
            ListenEvent::Endpoint { reason, .. } => {
                self.ending = Some(reason);
                None
            }
            ListenEvent::Final(segment) => {
                let reason = self.ending.take();
                let forced = reason == Some(EndReason::Forced) && std::mem::take(&mut self.finalizing);
                let message = self.stretch(&segment, true, forced);
                self.from = segment.end.max(self.from);
                self.speaking = false;
                self.send(&message).await?;
                let ended = self.options.utterance_end
                    && !segment.words.is_empty()
                    && reason.is_some_and(|r| r != EndReason::Forced);
                ended.then(
                    || json!({"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": self.last_word}),
                )
            }
            _ => None,
        };
        match message {
            Some(message) => self.send(&message).await,
            None => Ok(()),
        }
    }

    async fn send(&mut self, message: &Value) -> Result<(), Option<ServerError>> {
        self.wire.json(message).await.map_err(|Gone| None)
    }

    fn stretch(&self, segment: &Segment, is_final: bool, from_finalize: bool) -> Value {
        let stretch = Stretch {
            model: &self.model,
            text: &segment.text,
            words: &segment.words,
            start: self.from,
            end: segment.end.max(self.from),
            is_final,
            speech_final: is_final && !from_finalize,
            from_finalize,
        };
        stretch.message()
    }
}
