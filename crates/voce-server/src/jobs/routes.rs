//! `/v1/audio/jobs`: recordings of any length in, an id at once, the text later; by asking, by events, or not at all.

use std::path::PathBuf;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::json;
use voce_jobs::{HearSettings, TextFormat};

use super::{Jobs, Order, View, record};
use crate::core::body::Form;
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::health::json_response;
use crate::core::metrics::OutcomeLabel;
use crate::core::owners::digest_of;
use crate::core::query::short;
use crate::core::state::AppState;
use crate::openai::speech::sse;
use crate::openai::transcriptions::hotwords;

/// What the owners of jobs are told apart for.
pub(super) const PURPOSE: &[u8] = b"voce job owner";
/// Silence after which those who follow a job are told that the server is there.
const ALIVE: Duration = Duration::from_secs(15);
/// Letters of a recording's name that are kept.
const MAX_FILE_NAME: usize = 128;

fn jobs(state: &AppState) -> Result<&Jobs, ServerError> {
    state.jobs.as_ref().ok_or(ServerError::NoJobs)
}

fn owner() -> String {
    digest_of(&Caller::current(), PURPOSE)
}

/// Takes a recording, keeps it, and answers before it is heard.
pub(crate) async fn submit(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    let (jobs, owner) = (jobs(&state)?, owner());
    let (id, limit) = (new_id(), state.options.limits.job);
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    // Its share of the disk is its own from here on.
    let _coming = jobs.reserve(&id, &owner, length.unwrap_or(limit as u64).min(limit as u64))?;
    let spooled = Spooled(jobs.spool(&id));
    let mut file = tokio::fs::File::create(&spooled.0).await.map_err(ServerError::spooling)?;
    let (form, bytes) = Form::spool(&headers, body, limit, &state.budget, &mut file).await?;
    file.sync_all().await.map_err(ServerError::spooling)?;
    drop(file);
    let name = form.file("file")?.file_name.clone().unwrap_or_default();
    if bytes == 0 {
        return Err(ServerError::bad("file", "the file is empty: send a recording"));
    }
    let extension = name.rsplit_once('.').map(|(_, e)| e.to_owned());
    let (mut settings, model) = (settings(&form)?, model(&state, jobs, form.text("model")?)?);
    // Workers on a queue may have models that are not here.
    if let Ok(ear) = state.ear(Some(&model)) {
        ear.accept_job(&mut settings).await?;
    }
    let order = Order {
        settings,
        model,
        extension: extension.filter(|e| e.len() <= 5 && e.bytes().all(|b| b.is_ascii_alphanumeric())),
        name: if name.is_empty() { id.clone() } else { plain(&name) },
        id,
        owner,
        spooled: spooled.0.clone(),
        bytes,
    };
    let view = jobs.submit(order).await?;
    state.metrics.job_events.get_or_create(&OutcomeLabel { outcome: "submitted" }).inc();
    tracing::info!(job = view.id, bytes, "job submitted");
    Ok(json_response(StatusCode::ACCEPTED, &view.json()))
}

/// A recording on its way in; removed unless it became a job.
struct Spooled(PathBuf);

impl Drop for Spooled {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The last part of a name that a client gives, without what could be mistaken on the way back.
fn plain(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    last.chars().filter(|c| !c.is_control()).take(MAX_FILE_NAME).collect()
}

fn settings(form: &Form) -> Result<HearSettings, ServerError> {
    let format = match form.text("response_format")? {
        None => TextFormat::Json,
        Some(name) => record::format(name).ok_or_else(|| {
            let name = short(name);
            let message =
                format!("the format '{name}' is not supported: use json, text, srt, vtt, words or ctm");
            ServerError::bad("response_format", message)
        })?,
    };
    Ok(HearSettings {
        format,
        chunk: form.number("chunk_ms")?,
        beam: beam(form)?,
        hotwords: hotwords(form.texts("keywords")?)?,
        language: form.text("language")?.map(str::to_owned),
        endpoint_ms: form.number("endpoint_ms")?,
        ..HearSettings::default()
    })
}

/// The beam; 0 where none is named, which is not what a client may ask for.
fn beam(form: &Form) -> Result<usize, ServerError> {
    let beam = form.number("beam")?;
    if beam == Some(0) {
        return Err(ServerError::bad("beam", "beam is 0: use 1 to 32"));
    }
    Ok(beam.unwrap_or(0))
}

/// The model that does a job: of this server, or of the workers.
fn model(state: &AppState, jobs: &Jobs, asked: Option<&str>) -> Result<String, ServerError> {
    match jobs {
        Jobs::Folder(_) => Ok(state.ear(asked)?.id().to_owned()),
        #[cfg(feature = "nats")]
        Jobs::Nats(queue) => match (state.ear(asked), asked) {
            (Ok(ear), _) => Ok(ear.id().to_owned()),
            (Err(_), Some(name)) if name.len() <= crate::core::limits::MAX_NAME => Ok(name.to_owned()),
            (Err(error), Some(_)) => Err(error),
            (Err(_), None) => Ok(queue.model.clone()),
        },
    }
}

/// All jobs of the caller.
pub(crate) async fn list(State(state): State<AppState>) -> Result<Response, ServerError> {
    let views = jobs(&state)?.list(&owner()).await?;
    let data: Vec<_> = views.iter().map(View::json).collect();
    Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": data})))
}

/// One of them.
pub(crate) async fn get(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Response, ServerError> {
    let view = jobs(&state)?.get(&owner(), &id).await?;
    Ok(json_response(StatusCode::OK, &view.json()))
}

/// Cancels one, or forgets it once it is over.
pub(crate) async fn remove(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Response, ServerError> {
    let answer = match jobs(&state)?.remove(&owner(), &id).await? {
        Some(view) => view.json(),
        None => json!({"id": id, "object": "audio.job", "deleted": true}),
    };
    Ok(json_response(StatusCode::OK, &answer))
}

/// What came of one.
pub(crate) async fn result(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Response, ServerError> {
    let (view, bytes) = jobs(&state)?.result(&owner(), &id).await?;
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(view.content_type())),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    Ok((headers, bytes).into_response())
}

/// What happens to one, as server-sent events, until it is over.
pub(crate) async fn events(
    State(state): State<AppState>,
    Path(id): Path<String>,
) -> Result<Response, ServerError> {
    let owner = owner();
    let first = jobs(&state)?.get(&owner, &id).await?;
    // What to tell next, and what was told; none at the end.
    let begin = Some((Some(first.clone()), first));
    let events = futures_util::stream::unfold(begin, move |at| {
        let (state, owner) = (state.clone(), owner.clone());
        async move {
            let (news, seen) = at?;
            let jobs = state.jobs.as_ref()?;
            let view = match news {
                Some(view) => view,
                None => tokio::select! {
                    changed = jobs.changed(&owner, &seen) => match changed {
                        Ok(view) => view,
                        Err(error) => {
                            let event = json!({"type": "error", "error": error.object()});
                            return Some((Ok::<Bytes, std::convert::Infallible>(sse(&event)), None));
                        }
                    },
                    // A proxy in between must not take silence for the end.
                    () = tokio::time::sleep(ALIVE) => {
                        return Some((Ok(Bytes::from_static(b": alive\n\n")), Some((None, seen))));
                    }
                    // Whoever follows asks the next process.
                    () = state.drain.begun() => return None,
                },
            };
            let kind =
                if view.phase.is_over() { format!("job.{}", view.status()) } else { "job.updated".into() };
            let event = sse(&json!({"type": kind, "job": view.json()}));
            let next = (!view.phase.is_over()).then_some((None, view));
            Some((Ok(event), next))
        }
    });
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((headers, Body::from_stream(events)).into_response())
}

/// A name that no other job has.
fn new_id() -> String {
    format!("{:016x}{:016x}", crate::core::trace::random(), crate::core::trace::random())
}
