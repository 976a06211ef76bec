//! `/api/asr-streaming`: audio in 24 kHz floats or Ogg Opus, words out, markers in their place.

use std::collections::VecDeque;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use voce_audio::RawEncoding;

use super::pauses::{FRAME, Pauses};
use super::wire::{AsrIn, AsrOut, pack, unpack};
use crate::core::body;
use crate::core::error::ServerError;
use crate::core::health::json_response;
use crate::core::limits;
use crate::core::query::Query;
use crate::core::state::AppState;
use crate::core::ws::{self, Frame, Gone, Upgrade, Wire};
use crate::ears::{
    Claim, Decoded, EndReason, HearRequest, Hearing, Inlet, Intake, ListenEvent, OpusInlet, Payload, Report,
    Saved, Step, Transcription,
};
use crate::handover::{self, Baggage, Entry, Leave, Moved};

/// Rate of the clients' samples.
const RATE: u32 = 24_000;
/// Most markers on their way; a client at this limit is heard again when one has come back.
const MAX_MARKERS: usize = 32;

/// A connection. One that finds no slot is told so in the protocol's own words.
pub(crate) async fn connect(
    State(state): State<AppState>,
    uri: Uri,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, ServerError> {
    let ear = state.ear(state.mounted(uri.path()))?.clone();
    let request = request(uri.query())?;
    ear.accept(&request).await?;
    let entry = Entry::new(&state, handover::MOSHI, ear, uri.query()).await?;
    let (for_run, heads) = (state.clone(), entry.heads());
    let leave = Leave::new(&state, handover::MOSHI, &headers);
    let response = ws::upgrade(&state, upgrade, limits::MAX_FRAME_MESSAGE, move |wire| async move {
        run(for_run, wire, entry, leave, request).await
    });
    Ok(Entry::tell(heads, response))
}

/// A whole file: the same messages as JSON.
pub(crate) async fn file(
    State(state): State<AppState>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    let ear = state.ear(state.mounted(uri.path()))?;
    let HearRequest { chunk_ms, beam, .. } = request(uri.query())?;
    let request = HearRequest { chunk_ms, beam, ..HearRequest::default() };
    ear.accept(&request).await?;
    let bytes = body::collect(&headers, body, state.options.limits.body, &state.budget).await?;
    let heard = Transcription::start(ear, &request, bytes, None, None).await?.whole().await?;
    let words = heard.segments.iter().flat_map(|s| &s.words);
    let messages: Vec<Value> = words
        .flat_map(|w| {
            let word = json!({"type": "Word", "text": w.text, "start_time": w.start});
            [word, json!({"type": "EndWord", "stop_time": w.end})]
        })
        .collect();
    Ok(json_response(StatusCode::OK, &messages.into()))
}

async fn run(state: AppState, mut wire: Wire, entry: Entry, leave: Leave, request: HearRequest) {
    let is_new = matches!(entry, Entry::New(_));
    let begun = match entry {
        Entry::New(ear) => Claim::new(ear).map(|claim| (claim, None, Own::default())),
        Entry::Again(mut arrival) => arrival.unpack(&mut wire).map(|own| (arrival.claim, arrival.inlet, own)),
    };
    let (claim, inlet, Own { steps, foreseen }) = match begun {
        Ok(begun) => begun,
        Err(error) => return refuse(&state, wire, &error).await,
    };
    let mut talk = Talk {
        wire,
        leave,
        claim,
        request,
        intake: inlet.map(Intake::new),
        opus: None,
        markers: VecDeque::new(),
        marks_in_opus: 0,
        pauses: Pauses::after(steps),
        foreseen,
    };
    // Who goes on was greeted before.
    let greeted = if is_new { talk.send(&AsrOut::Ready).await } else { Ok(()) };
    let end = match greeted {
        Ok(()) => talk.run().await,
        Err(gone) => Err(gone),
    };
    match end {
        Ok(End::Frame(frame)) => talk.wire.end(frame).await,
        Ok(End::Moved(moved)) => {
            if !moved.by_frame {
                let Moved { token, messages, seconds, .. } = &moved;
                let told = AsrOut::Moved { token, messages: *messages, seconds: *seconds };
                let _ = talk.wire.binary(pack(&told)).await;
            }
            moved.close(talk.wire).await;
        }
        Err(Some(error)) => refuse(&state, talk.wire, &error).await,
        Err(None) => {}
    }
}

/// Ends a connection with an error in the protocol's own words.
async fn refuse(state: &AppState, mut wire: Wire, error: &ServerError) {
    state.metrics.error(error.code());
    let is_busy = matches!(error, ServerError::Busy { .. } | ServerError::Share { .. });
    let message = if is_busy { "no free channels".into() } else { error.message() };
    let _ = wire.binary(pack(&AsrOut::Error { message: &message })).await;
    wire.fail(error).await;
}

/// What a stream asks, with the chunk and the beam of its query.
fn request(query: Option<&str>) -> Result<HearRequest, ServerError> {
    let query = Query::parse(query.unwrap_or_default());
    Ok(HearRequest {
        chunk_ms: query.number("chunk_ms")?,
        beam: query.number("beam")?,
        // The last word before a pause is told before the shortest pause that clients ask about.
        silence_ms: Some(480),
        progress: true,
        pauses: true,
        word_ends: true,
        ..HearRequest::default()
    })
}

/// How a connection ended.
enum End {
    Frame(Frame),
    /// It goes on elsewhere.
    Moved(Moved),
}

/// What of a session moves with it. Markers come back before a stream is saved.
#[derive(Default, Serialize, Deserialize)]
struct Own {
    steps: u64,
    foreseen: u64,
}

struct Talk {
    wire: Wire,
    leave: Leave,
    /// A slot is taken with the first audio or marker.
    claim: Claim,
    request: HearRequest,
    intake: Option<Intake>,
    opus: Option<OpusInlet>,
    /// Markers whose turn comes with the next forced endpoints.
    markers: VecDeque<i64>,
    /// Markers that the Opus decoder has not reached.
    marks_in_opus: usize,
    pauses: Pauses,
    /// Frames of which the model has told what pauses it foresees; others are told by [`Talk::pauses`].
    foreseen: u64,
}

impl Talk {
    /// Runs to the end: a frame that ended it, or an error; `None` when the client has gone.
    async fn run(&mut self) -> Result<End, Option<ServerError>> {
        loop {
            let has_room = self.claim.has_room();
            let is_clear = self.intake.as_ref().is_none_or(Intake::is_idle)
                && self.opus.as_ref().is_none_or(OpusInlet::has_room);
            let may_save = has_room && is_clear && self.opus.is_none() && !self.leave.is_saving();
            let may_read =
                has_room && is_clear && self.markers.len() < MAX_MARKERS && !self.leave.is_saving();
            let decoded = async {
                match &mut self.opus {
                    Some(opus) => opus.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                step = self.claim.step() => {
                    if let Step::Saved(saved) = step {
                        match self.leave(saved).await {
                            Some(moved) => return Ok(End::Moved(moved)),
                            None => continue,
                        }
                    }
                    if let Some(event) = self.event(step)? {
                        self.tell(event).await?;
                    }
                }
                samples = Intake::next_of(&mut self.intake), if has_room => self.hearing().await?.push(&samples?),
                block = decoded, if has_room => match block {
                    Some(Ok(Decoded::Samples(samples))) => self.hearing().await?.push(&samples),
                    Some(Ok(Decoded::Mark)) => {
                        self.marks_in_opus -= 1;
                        self.mark().await?;
                    }
                    Some(Ok(Decoded::Room | Decoded::End)) => {}
                    Some(Err(error)) => return Err(Some(error.into())),
                    None => {
                        self.opus = None;
                        // A decoder that has come to its end does not see what was marked after it.
                        for _ in 0..std::mem::take(&mut self.marks_in_opus) {
                            self.mark().await?;
                        }
                    }
                },
                () = self.leave.due(), if may_save => self.claim.save(),
                frame = self.wire.recv_if(may_read) => match frame {
                    Frame::Binary(data) => self.message(&data).await?,
                    // Text is no message here, and does no harm.
                    Frame::Text(_) => {}
                    other => return Ok(End::Frame(other)),
                }
            }
        }
    }

    /// Leaves for another machine, if one takes the session.
    async fn leave(&mut self, saved: Saved) -> Option<Moved> {
        let own = Own { steps: self.pauses.told(), foreseen: self.foreseen };
        let inlet = self.intake.as_ref().and_then(Intake::state);
        self.leave.go(saved, &mut self.claim, &mut self.wire, Baggage { inlet, own: &own }).await
    }

    /// The stream, opened with the first that there is to be heard.
    async fn hearing(&mut self) -> Result<&mut Hearing, ServerError> {
        self.claim.open(&self.request).await
    }

    /// Asks for the words so far, of which the next marker tells the end. Models that hear late come to it when they have
    /// passed it, as moshi-server does; if many wait for that, the newest is told at once.
    async fn mark(&mut self) -> Result<(), ServerError> {
        let is_late = self.claim.ear().info().word_ends && self.markers.len() < MAX_MARKERS;
        let report = if is_late { Report::Passed } else { Report::Words };
        self.hearing().await?.report(report);
        Ok(())
    }

    async fn send(&mut self, message: &AsrOut<'_>) -> Result<(), Option<ServerError>> {
        self.wire.binary(pack(message)).await.map_err(|Gone| None)
    }

    /// Sends what the next one of its kind replaces.
    async fn passing(&mut self, message: &AsrOut<'_>) -> Result<(), Option<ServerError>> {
        self.wire.passing(pack(message).into()).await.map_err(|Gone| None)
    }

    async fn message(&mut self, data: &[u8]) -> Result<(), Option<ServerError>> {
        let message = unpack(data).map_err(|e| {
            Some(ServerError::malformed(format!(
                "the message is not one of Init, Audio, OggOpus, Marker: {e}"
            )))
        })?;
        match message {
            AsrIn::Init => {
                self.claim.close().await;
                self.opus = None;
                self.markers.clear();
                self.marks_in_opus = 0;
                self.pauses = Pauses::default();
                self.foreseen = 0;
                self.intake = None;
                self.send(&AsrOut::Ready).await?;
            }
            AsrIn::Audio { pcm } => {
                let hearing = self.claim.open(&self.request).await?;
                let intake = match &mut self.intake {
                    Some(intake) => intake,
                    none => {
                        let inlet = Inlet::new(RawEncoding::F32le, RATE, 1, hearing.rate())?;
                        none.insert(Intake::new(inlet))
                    }
                };
                intake.push(Payload::Floats(pcm), hearing);
            }
            AsrIn::OggOpus { data } => {
                let rate = self.hearing().await?.rate();
                let opus = match &mut self.opus {
                    Some(opus) => opus,
                    none => none.insert(OpusInlet::ogg(self.claim.ear().decoder()?, rate)),
                };
                opus.push(Bytes::from(data))?;
            }
            AsrIn::Marker { id } => {
                self.markers.push_back(id);
                match &mut self.opus {
                    Some(opus) => {
                        opus.mark()?;
                        self.marks_in_opus += 1;
                    }
                    None => self.mark().await?,
                }
            }
        }
        Ok(())
    }

    fn event(&mut self, step: Step) -> Result<Option<ListenEvent>, Option<ServerError>> {
        match step {
            Step::Event(event) => Ok(Some(event)),
            Step::Failed(error) => Err(Some(error)),
            Step::Ended => Err(Some(ServerError::NotReady)),
            Step::Room | Step::Saved(_) => Ok(None),
        }
    }

    async fn tell(&mut self, event: ListenEvent) -> Result<(), Option<ServerError>> {
        match event {
            ListenEvent::Word(word) => {
                self.send(&AsrOut::Word { text: &word.text, start_time: word.start }).await?;
                // Models that find the ends of words later tell them then.
                if self.claim.ear().info().word_ends {
                    return Ok(());
                }
                self.send(&AsrOut::EndWord { stop_time: word.end }).await
            }
            ListenEvent::WordEnd { at } => self.send(&AsrOut::EndWord { stop_time: at }).await,
            ListenEvent::Pause { probabilities, .. } => {
                let heard = (self.foreseen + 1) as f64 * FRAME;
                let buffered_pcm = ((self.claim.seconds() - heard).max(0.0) * f64::from(RATE)) as u64;
                let step = AsrOut::Step { step_idx: self.foreseen, prs: &probabilities, buffered_pcm };
                self.passing(&step).await?;
                self.foreseen += 1;
                Ok(())
            }
            // One message for each frame.
            ListenEvent::Progress { .. } if self.foreseen > 0 => Ok(()),
            // All words before it have been told.
            ListenEvent::Endpoint { reason: EndReason::Forced, .. } => match self.markers.pop_front() {
                Some(id) => self.send(&AsrOut::Marker { id }).await,
                None => Ok(()),
            },
            ListenEvent::Progress { at, spoken } => {
                let buffered_pcm = ((self.claim.seconds() - at).max(0.0) * f64::from(RATE)) as u64;
                for frame in self.pauses.advance(at, spoken) {
                    let step = AsrOut::Step { step_idx: frame.index, prs: &frame.pauses, buffered_pcm };
                    self.passing(&step).await?;
                }
                Ok(())
            }
            // Partial and final utterances have no message here.
            _ => Ok(()),
        }
    }
}
