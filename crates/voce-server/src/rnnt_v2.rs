//! The older RNN-T server's routes: `WS /v2/decode/stream/{model}` takes 16 kHz PCM16 and control bytes,
//! `POST /v2/decode/batch/{model}` a JSON array of bytes.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use voce_audio::{RawEncoding, RawFormat};

use crate::core::aside;
use crate::core::body;
use crate::core::error::ServerError;
use crate::core::health::json_response;
use crate::core::limits;
use crate::core::state::AppState;
use crate::core::ws::{self, Frame, Upgrade, Wire};
use crate::ears::{
    Claim, Ear, HearRequest, Inlet, Intake, ListenEvent, Payload, SAMPLE_RATE, Step, Transcription,
};
use crate::handover::{self, Baggage, Entry, Leave, Moved};

/// A frame of one byte is a control: the end of the audio, or a sign of life.
const END: u8 = 0;
const KEEP_ALIVE: u8 = 1;
/// Seconds that a batch may have.
const MAX_BATCH: usize = 30;
/// The same in bytes.
const MAX_BATCH_BYTES: usize = MAX_BATCH * SAMPLE_RATE as usize * 2;
/// A byte as JSON takes up to four characters.
const JSON_BYTE: usize = 4;

/// The recogniser of a path; the old server's own names stand for the default.
fn ear<'a>(state: &'a AppState, name: &str) -> Result<&'a Arc<Ear>, ServerError> {
    state.ear(Some(name)).or_else(|_| state.ear(None))
}

/// An answer. `opaque` is the client's own and comes back.
fn reply(text: &str, status: &str, message: Option<&str>, opaque: &Value) -> Value {
    json!({"transcription": text, "status": status, "message": message, "metadata": {}, "opaque": opaque})
}

/// A live connection.
pub(crate) async fn connect(
    State(state): State<AppState>,
    Path(model): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    upgrade: Upgrade,
) -> Result<Response, ServerError> {
    let ear = ear(&state, &model)?.clone();
    let entry = Entry::new(&state, handover::RNNT, ear, query.as_deref()).await?;
    let (for_run, heads) = (state.clone(), entry.heads());
    let leave = Leave::new(&state, handover::RNNT, &headers);
    let response = ws::upgrade(&state, upgrade, limits::MAX_FRAME_MESSAGE, move |wire| async move {
        run(for_run, wire, entry, leave).await
    });
    Ok(Entry::tell(heads, response))
}

/// How a connection ended.
enum End {
    /// All was told.
    Done,
    Frame(Frame),
    /// It goes on elsewhere; answers have no field for a token, so that the close frame alone says so.
    Moved(Moved),
}

async fn run(state: AppState, mut wire: Wire, entry: Entry, leave: Leave) {
    let begun = match entry {
        Entry::New(ear) => Claim::new(ear).map(|claim| (claim, None, String::new())),
        Entry::Again(mut arrival) => {
            arrival.unpack(&mut wire).map(|said| (arrival.claim, arrival.inlet, said))
        }
    };
    let error = match begun {
        Ok((claim, inlet, said)) => match talk(&mut wire, leave, claim, inlet.map(Intake::new), said).await {
            Ok(End::Frame(frame)) => return wire.end(frame).await,
            Ok(End::Moved(moved)) => return moved.close(wire).await,
            Ok(End::Done) => return wire.close(1000, "").await,
            Err(None) => return,
            Err(Some(error)) => error,
        },
        Err(error) => error,
    };
    state.metrics.error(error.code());
    let _ = wire.json(&reply("", "Error", Some(&error.message()), &Value::Null)).await;
    wire.fail(&error).await;
}

/// Runs to the end; `None` where the client has gone.
async fn talk(
    wire: &mut Wire,
    mut leave: Leave,
    mut claim: Claim,
    mut intake: Option<Intake>,
    mut said: String,
) -> Result<End, Option<ServerError>> {
    let request = HearRequest { partials: true, silence_ms: Some(800), ..HearRequest::default() };
    let mut is_closing = false;
    loop {
        let (has_room, is_idle) = (claim.has_room(), intake.as_ref().is_none_or(Intake::is_idle));
        let may_read = has_room && is_idle && !leave.is_saving();
        tokio::select! {
            biased;
            step = claim.step() => match step {
                Step::Event(ListenEvent::Partial(segment)) => {
                    let text = join(&said, &segment.text);
                    let message = reply(&text, "Active", None, &Value::Null).to_string();
                    wire.passing(message.into()).await.map_err(|_| None)?;
                }
                Step::Event(ListenEvent::Final(segment)) => {
                    said = join(&said, &segment.text);
                    let status = if is_closing { "Active" } else { "Paused" };
                    // Every answer has the whole text so far: the next one replaces it.
                    let message = reply(&said, status, None, &Value::Null).to_string();
                    wire.passing(message.into()).await.map_err(|_| None)?;
                }
                Step::Event(_) | Step::Room => {}
                Step::Saved(saved) => {
                    let inlet = intake.as_ref().and_then(Intake::state);
                    let moved = leave.go(saved, &mut claim, wire, Baggage { inlet, own: &said }).await;
                    if let Some(moved) = moved {
                        return Ok(End::Moved(moved));
                    }
                }
                Step::Failed(error) => return Err(Some(error)),
                Step::Ended => {
                    wire.json(&reply(&said, "Complete", None, &Value::Null)).await.map_err(|_| None)?;
                    return Ok(End::Done);
                }
            },
            samples = Intake::next_of(&mut intake), if has_room => claim.open(&request).await?.push(&samples?),
            () = leave.due(), if may_read && !is_closing => claim.save(),
            frame = wire.recv_if(may_read) => match frame {
                Frame::Binary(data) => match data[..] {
                    [KEEP_ALIVE] => {}
                    [END] if !is_closing => {
                        is_closing = true;
                        let hearing = claim.open(&request).await?;
                        if let Some(intake) = &mut intake {
                            intake.finish(hearing);
                        }
                        hearing.finish();
                    }
                    [_] | [] => {}
                    _ => {
                        let hearing = claim.open(&request).await?;
                        let intake = match &mut intake {
                            Some(intake) => intake,
                            none => {
                                let inlet = Inlet::new(RawEncoding::S16le, SAMPLE_RATE, 1, hearing.rate())?;
                                none.insert(Intake::new(inlet))
                            }
                        };
                        intake.push(Payload::Raw(data), hearing);
                    }
                },
                Frame::Text(_) => {}
                other => return Ok(End::Frame(other)),
            },
        }
    }
}

fn join(said: &str, more: &str) -> String {
    match (said.is_empty(), more.is_empty()) {
        (true, _) => more.to_owned(),
        (_, true) => said.to_owned(),
        _ => format!("{said} {more}"),
    }
}

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(alias = "audio", alias = "audio_data", alias = "data")]
    audio_buffer: Vec<u8>,
    #[serde(borrow, default)]
    opaque: Option<&'a RawValue>,
}

/// The audio of a batch, and what the client wants back with its text.
fn read_batch(body: &[u8]) -> Result<(Vec<u8>, Value), ServerError> {
    let batch: Batch<'_> = crate::core::json::parse(body).map_err(|e| {
        ServerError::malformed(format!("the body is not JSON with an array 'audio_buffer': {e}"))
    })?;
    if batch.audio_buffer.len() > MAX_BATCH_BYTES {
        return Err(ServerError::bad(
            "audio_buffer",
            format!("a batch has at most {MAX_BATCH} s of 16 kHz PCM16"),
        ));
    }
    let opaque = batch.opaque.map_or("null", RawValue::get);
    if opaque.len() > limits::MAX_CONTROL_MESSAGE {
        let most = limits::MAX_CONTROL_MESSAGE;
        return Err(ServerError::bad("opaque", format!("opaque has more than {most} bytes")));
    }
    let opaque = serde_json::from_str(opaque).unwrap_or_default();
    Ok((batch.audio_buffer, opaque))
}

/// A whole utterance of up to 30 s.
pub(crate) async fn batch(
    State(state): State<AppState>,
    Path(model): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    let ear = ear(&state, &model)?;
    let limits = &state.options.limits;
    let most = limits.body.min(MAX_BATCH_BYTES * JSON_BYTE + 4096);
    let bytes = body::collect(&headers, body, most, &state.budget).await?;
    // A million numbers take a while to read.
    let read = aside::wait(move || read_batch(&bytes)).await;
    let (audio, opaque) = read.unwrap_or(Err(ServerError::Internal))?;
    let format = RawFormat { encoding: RawEncoding::S16le, sample_rate: SAMPLE_RATE, channels: 1 };
    let heard = Transcription::start(ear, &HearRequest::default(), audio.into(), None, Some(format)).await?;
    let heard = heard.whole().await?;
    Ok(json_response(StatusCode::OK, &reply(&heard.text(), "Complete", None, &opaque)))
}
