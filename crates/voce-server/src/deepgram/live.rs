//! A live connection: binary audio up, `KeepAlive`, `Finalize` and `CloseStream` as text, results down.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
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
    Claim, Decoded, EndReason, Hearing, Inlet, Intake, ListenEvent, OpusInlet, Payload, Report, Saved,
    Segment, Step,
};
use crate::handover::{Baggage, Entry, Leave, Moved};

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
    /// It goes on elsewhere.
    Moved(Moved),
}

/// What of a session moves with it.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Own {
    /// Finals that the client has asked for.
    finalizing: bool,
    speaking: bool,
    last_word: f64,
    /// Where the present utterance begins.
    from: f64,
}

struct Talk {
    wire: Wire,
    leave: Leave,
    model: String,
    /// A slot is taken with the first audio, and so is the way to it.
    claim: Claim,
    way: Option<Way>,
    options: Options,
    own: Own,
    ending: Option<EndReason>,
    heard: Instant,
    /// Goes off where nothing may have been heard for too long.
    alarm: Pin<Box<Sleep>>,
    closing: bool,
}

pub(super) async fn run(state: AppState, mut wire: Wire, entry: Entry, leave: Leave, options: Options) {
    let checked = options.raw.map_or(Ok(()), |raw| Inlet::check(raw.sample_rate, raw.channels));
    let begun = checked.and_then(|()| match entry {
        Entry::New(ear) => Ok((Claim::new(ear)?, None, Own::default())),
        Entry::Again(mut arrival) => {
            let own = arrival.unpack(&mut wire)?;
            Ok((arrival.claim, arrival.inlet, own))
        }
    });
    let (claim, inlet, own) = match begun {
        Ok(begun) => begun,
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
        leave,
        model: claim.ear().id().to_owned(),
        claim,
        way: inlet.map(|inlet| Way::Raw(Box::new(Intake::new(inlet)))),
        options,
        own,
        ending: None,
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
        Ok(End::Moved(moved)) => {
            if !moved.by_frame {
                let Moved { token, messages, seconds, .. } = &moved;
                let told = json!({"type": "Moved", "token": token, "messages": messages, "seconds": seconds});
                let _ = talk.wire.json(&told).await;
            }
            moved.close(talk.wire).await;
        }
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
            let is_clear = self.way.as_ref().is_none_or(Way::has_room);
            let may_read = has_room && is_clear && !self.leave.is_saving();
            // A decoder's state does not travel, and whoever is at the end need not.
            let is_raw = !matches!(self.way, Some(Way::Opus(_)));
            let may_save = may_read && is_raw && !self.closing;
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
                    Step::Saved(saved) => if let Some(moved) = self.leave(saved).await {
                        return Ok(End::Moved(moved));
                    },
                },
                block = decoded, if has_room && !self.closing => match block {
                    Some(Ok(Decoded::Samples(samples))) => {
                        // Nobody is idle whose audio is still being taken in.
                        self.heard = Instant::now();
                        self.hearing().await?.push(&samples);
                    }
                    Some(Ok(Decoded::Mark)) => self.hearing().await?.report(Report::Words),
                    Some(Ok(Decoded::Room | Decoded::End)) => {}
                    Some(Err(error)) => return Err(Some(error)),
                    None => {
                        self.closing = true;
                        self.hearing().await?.finish();
                    }
                },
                () = self.leave.due(), if may_save => self.claim.save(),
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

    /// Leaves for another machine, if one takes the session.
    async fn leave(&mut self, saved: Saved) -> Option<Moved> {
        let inlet = match &self.way {
            Some(Way::Raw(intake)) => intake.state(),
            _ => None,
        };
        let moved =
            self.leave.go(saved, &mut self.claim, &mut self.wire, Baggage { inlet, own: &self.own }).await;
        self.heard = Instant::now();
        moved
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
                self.own.finalizing = true;
                match &mut self.way {
                    Some(Way::Opus(opus)) => opus.mark()?,
                    Some(Way::Raw(_)) | None => self.hearing().await?.report(Report::Words),
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
                let message = self.stretch(&segment, false, false).to_string();
                return self.wire.passing(message.into()).await.map_err(|Gone| None);
            }
            ListenEvent::Word(word) => {
                self.own.last_word = word.end;
                let began = !std::mem::replace(&mut self.own.speaking, true);
                (began && self.options.vad_events)
                    .then(|| json!({"type": "SpeechStarted", "channel": [0, 1], "timestamp": word.start}))
            }
            ListenEvent::Endpoint { reason, .. } => {
                self.ending = Some(reason);
                None
            }
            ListenEvent::Final(segment) => {
                let reason = self.ending.take();
                let forced = reason == Some(EndReason::Forced) && std::mem::take(&mut self.own.finalizing);
                let message = self.stretch(&segment, true, forced);
                self.own.from = segment.end.max(self.own.from);
                self.own.speaking = false;
                self.send(&message).await?;
                let ended = self.options.utterance_end
                    && !segment.words.is_empty()
                    && reason.is_some_and(|r| r != EndReason::Forced);
                ended.then(
                    || json!({"type": "UtteranceEnd", "channel": [0, 1], "last_word_end": self.own.last_word}),
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
            start: self.own.from,
            end: segment.end.max(self.own.from),
            is_final,
            speech_final: is_final && !from_finalize,
            from_finalize,
        };
        stretch.message()
    }
}
