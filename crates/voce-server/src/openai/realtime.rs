//! `WS /v1/realtime`: live transcription. Three dialects share the state: OpenAI's, its older one, and vLLM's.

mod dialect;
mod event;
mod session;

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::core::error::ServerError;
use crate::core::limits;
use crate::core::query::Query;
use crate::core::state::AppState;
use crate::core::ws::{self, Frame, Gone, Upgrade, Wire};
use crate::ears::{Base64Text, Claim, EndReason, Inlet, Intake, ListenEvent, Payload, Report, Saved, Step};
use crate::handover::{self, Baggage, Entry, Leave, Moved};
use dialect::Dialect;
use event::Event;
use session::Session;

/// Most commits that wait for their text; a client at this limit is heard again when one is complete.
const MAX_COMMITS: usize = 32;

/// Upgrades a connection, unless it wants another kind of session.
pub(crate) async fn connect(
    State(state): State<AppState>,
    RawQuery(text): RawQuery,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, ServerError> {
    let query = Query::parse(text.as_deref().unwrap_or_default());
    if let Some(intent) = query.get("intent").filter(|i| *i != "transcription") {
        let message =
            format!("the intent '{}' is not supported: use transcription", crate::core::query::short(intent));
        return Err(ServerError::bad("intent", message));
    }
    let ear = state.ear(query.get("model"))?.clone();
    let is_beta = headers.contains_key("openai-beta")
        || headers
            .get_all("sec-websocket-protocol")
            .iter()
            .any(|v| v.as_bytes().windows(4).any(|w| w == b"beta"));
    let dialect = if is_beta { Dialect::Older } else { Dialect::Current };
    let entry = Entry::new(&state, handover::REALTIME, ear, text.as_deref()).await?;
    let (for_run, heads) = (state.clone(), entry.heads());
    let leave = Leave::new(&state, handover::REALTIME, &headers);
    let response = ws::upgrade(&state, upgrade, limits::MAX_WS_MESSAGE, move |wire| async move {
        run(for_run, wire, entry, leave, dialect).await
    });
    Ok(Entry::tell(heads, response))
}

async fn run(state: AppState, mut wire: Wire, entry: Entry, leave: Leave, dialect: Dialect) {
    let is_new = matches!(entry, Entry::New(_));
    let begun = match entry {
        Entry::New(ear) => {
            Claim::new(ear).map(|claim| (claim, None, (Session::new(dialect), Items::default())))
        }
        Entry::Again(mut arrival) => arrival.unpack(&mut wire).map(|own| (arrival.claim, arrival.inlet, own)),
    };
    let (claim, inlet, (session, items)) = match begun {
        Ok(begun) => begun,
        Err(error) => {
            state.metrics.error(error.code());
            let _ = wire.json(&dialect.error(&error, None)).await;
            return wire.fail(&error).await;
        }
    };
    let mut talk = Talk { state, wire, leave, claim, session, intake: inlet.map(Intake::new), items };
    // Who goes on was greeted before.
    let greeted = if is_new { talk.greet().await } else { Ok(()) };
    let end = match greeted {
        Ok(()) => talk.run().await,
        Err(gone) => Err(gone.into()),
    };
    match end {
        Ok(frame) => talk.wire.end(frame).await,
        Err(End::Moved(moved)) => {
            if !moved.by_frame {
                let Moved { token, messages, seconds, .. } = &moved;
                let told = json!({
                    "type": "session.moved", "event_id": talk.session.event_id(), "token": token,
                    "messages": messages, "seconds": seconds,
                });
                let _ = talk.wire.json(&told).await;
            }
            moved.close(talk.wire).await;
        }
        Err(End::Gone) => {}
        Err(End::Failed(error)) => talk.wire.fail(&error).await,
    }
}

/// Why a conversation ended.
enum End {
    Gone,
    Failed(ServerError),
    /// It goes on elsewhere.
    Moved(Moved),
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        End::Gone
    }
}

/// The utterances so far.
#[derive(Default, Serialize, Deserialize)]
struct Items {
    number: u64,
    previous: Option<String>,
    /// Items that the client has committed and that are not complete.
    committed: std::collections::VecDeque<String>,
    /// The utterance under way has had a word.
    speaking: bool,
    /// Its text so far.
    text: String,
    /// Bytes since the last commit.
    appended: usize,
    /// Seconds of audio at the end of the last item.
    from: f64,
}

impl Items {
    /// The item that words belong to now.
    fn current(&self) -> String {
        self.committed.front().cloned().unwrap_or_else(|| format!("item_{}", self.number + 1))
    }
}

struct Talk {
    state: AppState,
    wire: Wire,
    leave: Leave,
    claim: Claim,
    session: Session,
    intake: Option<Intake>,
    items: Items,
}

impl Talk {
    async fn greet(&mut self) -> Result<(), Gone> {
        let created = self.session.event("created", self.claim.ear().id());
        self.wire.json(&created).await
    }

    async fn run(&mut self) -> Result<Frame, End> {
        loop {
            let has_room = self.claim.has_room();
            let is_idle = self.intake.as_ref().is_none_or(Intake::is_idle);
            let may_save = has_room && is_idle && !self.leave.is_saving() && !self.is_finishing();
            let may_read =
                has_room && is_idle && self.items.committed.len() < MAX_COMMITS && !self.leave.is_saving();
            let samples = async {
                match &mut self.intake {
                    Some(intake) => intake.next().await,
                    None => std::future::pending().await,
                }
            };
            let frame = tokio::select! {
                biased;
                step = self.claim.step() => {
                    match step {
                        Step::Saved(saved) => self.leave(saved).await?,
                        step => self.heard(step).await?,
                    }
                    continue;
                }
                samples = samples, if has_room => {
                    let samples = samples.map_err(End::Failed)?;
                    if let Some(hearing) = self.claim.hearing() {
                        hearing.push(&samples);
                    }
                    continue;
                }
                () = self.leave.due(), if may_save => {
                    self.claim.save();
                    continue;
                }
                frame = self.wire.recv_if(may_read) => frame,
            };
            match frame {
                Frame::Text(text) => {
                    let read = event::read(text).await;
                    let done = match read.event {
                        Ok(Event::Append(audio)) => self.append(audio).await,
                        Ok(Event::Other(message)) => self.message(&message).await,
                        Err(error) => Err(Said::Bad(error)),
                    };
                    match done {
                        Ok(()) => {}
                        Err(Said::Bad(error)) => self.complain(&error, read.id.as_deref()).await?,
                        Err(Said::End(end)) => return Err(end),
                    }
                }
                Frame::Binary(_) => {
                    let error = ServerError::malformed(
                        "events are text frames: send audio with input_audio_buffer.append",
                    );
                    self.complain(&error, None).await?;
                }
                other => return Ok(other),
            }
        }
    }

    /// Whether the stream's audio has ended and its last words are awaited.
    fn is_finishing(&mut self) -> bool {
        self.claim.hearing().is_some_and(|h| h.is_finished())
    }

    /// Leaves for another machine, if one takes the session.
    async fn leave(&mut self, saved: Saved) -> Result<(), End> {
        let own = (&self.session, &self.items);
        let inlet = self.intake.as_ref().and_then(Intake::state);
        let baggage = Baggage { inlet, own: &own };
        match self.leave.go(saved, &mut self.claim, &mut self.wire, baggage).await {
            Some(moved) => Err(End::Moved(moved)),
            None => Ok(()),
        }
    }

    async fn complain(&mut self, error: &ServerError, id: Option<&str>) -> Result<(), Gone> {
        self.state.metrics.error(error.code());
        let event = self.session.dialect.error(error, id);
        self.wire.json(&event).await
    }

    /// Handles one event of the client.
    async fn message(&mut self, message: &Value) -> Result<(), Said> {
        match message["type"].as_str().unwrap_or_default() {
            "session.update" | "transcription_session.update" => {
                let before = self.session.clone();
                if let Err(error) = self.session.update(message) {
                    self.session = before;
                    return Err(error.into());
                }
                let ear = match self.session.model.as_deref() {
                    Some(model) => {
                        self.state.ear(Some(model)).inspect_err(|_| self.session = before.clone())?
                    }
                    None => self.claim.ear(),
                };
                let ear = ear.clone();
                if let Err(error) = ear.accept(&self.session.request()).await {
                    self.session = before;
                    return Err(error.into());
                }
                if self.session.hears_otherwise(&before) {
                    // What was said under the old settings is over.
                    self.restart().await;
                }
                if !Arc::ptr_eq(&ear, self.claim.ear()) {
                    // Another model may take another rate.
                    self.intake = None;
                }
                self.claim.move_to(ear).await;
                let updated = self.session.event("updated", self.claim.ear().id());
                Ok(self.wire.json(&updated).await?)
            }
            "input_audio_buffer.commit" => self.commit(message).await,
            "input_audio_buffer.clear" => {
                self.restart().await;
                let event =
                    json!({"type": "input_audio_buffer.cleared", "event_id": self.session.event_id()});
                Ok(self.wire.json(&event).await?)
            }
            other => {
                let other = crate::core::query::short(other);
                Err(ServerError::bad(
                    "type",
                    format!("the event '{other}' is not known to a transcription session"),
                )
                .into())
            }
        }
    }

    /// Forgets what came so far. The stream has ended when this returns, and its slot is kept.
    async fn restart(&mut self) {
        self.claim.close().await;
        self.forget();
    }

    fn forget(&mut self) {
        self.intake = None;
        self.items.appended = 0;
        self.items.speaking = false;
        self.items.text.clear();
        self.items.committed.clear();
        self.items.from = 0.0;
    }

    async fn append(&mut self, audio: Base64Text) -> Result<(), Said> {
        let hearing = self.claim.open(&self.session.request()).await?;
        self.items.appended += audio.decoded();
        let intake = match &mut self.intake {
            Some(intake) => intake,
            none => {
                let (encoding, rate) = (self.session.encoding, self.session.rate);
                none.insert(Intake::new(Inlet::new(encoding, rate, 1, hearing.rate())?))
            }
        };
        intake.push(Payload::Base64(audio), hearing);
        Ok(())
    }

    async fn commit(&mut self, message: &Value) -> Result<(), Said> {
        if self.session.dialect == Dialect::Vllm || message.get("final").is_some() {
            self.session.become_vllm();
            self.items.committed.clear();
            // The first commit says that audio will come, the last that it has.
            if message["final"].as_bool().unwrap_or(false) {
                match (self.claim.hearing(), &mut self.intake) {
                    (Some(hearing), intake) => {
                        if let Some(intake) = intake {
                            intake.finish(hearing);
                        }
                        hearing.finish();
                    }
                    (None, _) => self.done().await?,
                }
            }
            return Ok(());
        }
        if std::mem::take(&mut self.items.appended) == 0 {
            return Err(ServerError::bad(
                "input_audio_buffer_commit_empty",
                "the buffer is empty: append audio first",
            )
            .into());
        }
        if let (Some(hearing), Some(intake)) = (self.claim.hearing(), &mut self.intake) {
            intake.finish(hearing);
            hearing.report(Report::All);
        }
        // Words that were heard before belong to what is committed now.
        Ok(self.commit_item().await?)
    }

    /// Commits the next item, and says so.
    async fn commit_item(&mut self) -> Result<(), Gone> {
        self.items.number += 1;
        let item = format!("item_{}", self.items.number);
        self.items.committed.push_back(item.clone());
        let event = json!({
            "type": "input_audio_buffer.committed", "event_id": self.session.event_id(), "item_id": item,
            "previous_item_id": self.items.previous,
        });
        self.items.previous = Some(item);
        self.wire.json(&event).await
    }

    /// Passes on what the recogniser says.
    async fn heard(&mut self, step: Step) -> Result<(), End> {
        match step {
            Step::Room | Step::Saved(_) => Ok(()),
            // A session may be silent for as long as it likes, but not hold a slot meanwhile.
            Step::Failed(ServerError::Idle) => {
                self.claim.release().await;
                self.forget();
                Ok(())
            }
            Step::Failed(error) => {
                self.complain(&error, None).await?;
                Err(End::Failed(error))
            }
            Step::Ended => {
                self.claim.release().await;
                self.intake = None;
                if self.session.dialect == Dialect::Vllm { Ok(self.done().await?) } else { Ok(()) }
            }
            Step::Event(ListenEvent::Word(word)) => {
                if !std::mem::replace(&mut self.items.speaking, true) && self.session.has_vad() {
                    let event = json!({
                        "type": "input_audio_buffer.speech_started", "event_id": self.session.event_id(),
                        "audio_start_ms": (word.start * 1e3) as u64, "item_id": self.items.current(),
                    });
                    self.wire.json(&event).await?;
                }
                let delta =
                    if self.items.text.is_empty() { word.text.clone() } else { format!(" {}", word.text) };
                self.items.text.push_str(&delta);
                let event = match self.session.dialect {
                    Dialect::Vllm => json!({"type": "transcription.delta", "delta": delta}),
                    _ => json!({
                        "type": "conversation.item.input_audio_transcription.delta", "event_id": self.session.event_id(),
                        "item_id": self.items.current(), "content_index": 0, "delta": delta,
                        // Beyond OpenAI: where the word ends, for those who measure delays.
                        "audio_end_ms": (word.end * 1e3) as u64,
                    }),
                };
                Ok(self.wire.json(&event).await?)
            }
            Step::Event(ListenEvent::Endpoint { at, reason }) => {
                if reason != EndReason::Forced && self.items.speaking && self.session.dialect != Dialect::Vllm
                {
                    let event = json!({
                        "type": "input_audio_buffer.speech_stopped", "event_id": self.session.event_id(),
                        "audio_end_ms": (at * 1e3) as u64, "item_id": self.items.current(),
                    });
                    self.wire.json(&event).await?;
                    if self.items.committed.is_empty() {
                        // What came after the end is still to be committed, however late the end was found.
                        let is_idle = self.intake.as_ref().is_none_or(Intake::is_idle);
                        if is_idle && self.claim.seconds() <= at {
                            self.items.appended = 0;
                        }
                        self.commit_item().await?;
                    }
                }
                Ok(())
            }
            Step::Event(ListenEvent::Final(segment)) if self.session.dialect != Dialect::Vllm => {
                self.items.speaking = false;
                self.items.text.clear();
                // The item of a commit went to a turn that ended before its place.
                if self.items.committed.is_empty() {
                    self.commit_item().await?;
                }
                let item = self.items.current();
                self.items.committed.pop_front();
                let seconds = (segment.end - self.items.from).max(0.0);
                self.items.from = segment.end.max(self.items.from);
                let event = json!({
                    "type": "conversation.item.input_audio_transcription.completed",
                    "event_id": self.session.event_id(), "item_id": item, "content_index": 0,
                    "transcript": segment.text, "usage": {"type": "duration", "seconds": seconds},
                });
                Ok(self.wire.json(&event).await?)
            }
            Step::Event(_) => Ok(()),
        }
    }

    /// vLLM's last word.
    async fn done(&mut self) -> Result<(), Gone> {
        let text = std::mem::take(&mut self.items.text);
        let words = text.split_whitespace().count();
        let usage = json!({"prompt_tokens": 0, "completion_tokens": words, "total_tokens": words});
        self.wire.json(&json!({"type": "transcription.done", "text": text, "usage": usage})).await
    }
}

/// What came of an event: a complaint that the session survives, or its end.
enum Said {
    Bad(ServerError),
    End(End),
}

impl From<ServerError> for Said {
    fn from(error: ServerError) -> Self {
        Said::Bad(error)
    }
}

impl From<Gone> for Said {
    fn from(gone: Gone) -> Self {
        Said::End(gone.into())
    }
}

/// Reads lines of events as a session would.
#[cfg(feature = "fuzz")]
pub(crate) fn fuzz(data: &[u8]) {
    let mut session = Session::new(Dialect::Current);
    for line in String::from_utf8_lossy(data).split('\n') {
        let Ok(Event::Other(message)) = event::read_now(line.into()).event else { continue };
        let _ = session.update(&message);
        let _ = (session.request(), session.event("updated", "model"));
    }
}
