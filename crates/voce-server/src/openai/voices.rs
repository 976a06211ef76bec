//! `/v1/audio/voices`: the voices there are, and new ones cloned from a clip.

use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;
use voce_engine::EngineError;
use voce_engine::store::voices::is_name;

use crate::core::aside::{blocking, now};
use crate::core::body::Form;
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::health::json_response;
use crate::core::limits;
use crate::core::owners::Owners;
use crate::core::query::{Query, short};
use crate::core::state::AppState;
use crate::mouth::Clip;

/// All voices of the default model, or of `?model=`, and whether it can clone more.
pub(crate) async fn list(
    State(state): State<AppState>,
    RawQuery(query): RawQuery,
) -> Result<Response, ServerError> {
    let query = Query::parse(query.as_deref().unwrap_or_default());
    let mouth = state.mouth(query.get("model"))?;
    let names = mouth.voice_names().await?;
    let default = mouth.default_voice().await?;
    let cloning = state.options.voice_changes && mouth.clones().await?;
    let own: Vec<String> = state.store.voices().list().into_iter().map(|v| v.name).collect();
    let data: Vec<_> = names
        .iter()
        .map(|name| {
            json!({
                "id": name, "name": name, "object": "voice", "model": mouth.id(),
                "custom": own.contains(name), "default": default.as_ref() == Some(name),
            })
        })
        .collect();
    Ok(json_response(
        StatusCode::OK,
        &json!({"object": "list", "data": data, "voices": names, "default": default, "cloning": cloning}),
    ))
}

/// Clones a voice from a clip and keeps it.
pub(crate) async fn add(
    State(state): State<AppState>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServerError> {
    if !state.options.voice_changes {
        return Err(ServerError::Forbidden("this server's voices are fixed".into()));
    }
    let limits = &state.options.limits;
    let form = Form::read(&headers, body, limits.body.min(limits::MAX_VOICE_SAMPLE), &state.budget).await?;
    let name = form
        .text("name")?
        .ok_or_else(|| ServerError::bad("name", "the form has no field 'name'"))?
        .to_owned();
    if !is_name(&name) {
        return Err(ServerError::bad(
            "name",
            format!("'{}' is no name for a voice: use up to 64 letters, digits, _ and -", short(&name)),
        ));
    }
    let mouth = state.mouth(form.text("model")?)?.clone();
    // A name of the model's own voices stays what it is, and so does one that another key has.
    if mouth.voice_names().await?.contains(&name) || state.store.voices().find(&name).is_ok() {
        return Err(taken(&name));
    }
    let text = form.text("text")?.or(form.text("reference_text")?).map(str::to_owned);
    let (caller, owners) = (Caller::current(), Owners::new(state.store.clone()));
    let sample = form.file("audio_sample").or_else(|_| form.file("file"))?;
    let extension = sample.file_name.as_deref().and_then(|n| n.rsplit_once('.')).map(|(_, e)| e.to_owned());
    let extension = extension.filter(|e| e.len() <= 5 && e.bytes().all(|b| b.is_ascii_alphanumeric()));
    let (data, voices) = (sample.data.clone(), state.store.voices());
    let (quota, budget) = (owners.clone(), state.budget.clone());
    let clip = blocking(move || {
        quota.check(&caller, 0, &budget.limits)?;
        voices.create().map_err(EngineError::from)?;
        let written = Clip::write(voices.dir(), extension.as_deref().unwrap_or("wav"), &data);
        let path = voices.dir().to_owned();
        Ok(Arc::new(written.map_err(|source| EngineError::Io { path, source })?))
    });
    let bytes = mouth.clone_voice(clip.await?, text).await.map_err(|e| match e {
        // The clip's path is the server's own business.
        ServerError::Engine(EngineError::Audio { source, .. }) => ServerError::Audio(source),
        ServerError::Engine(EngineError::BadRequest { what: "recording", value, rule }) => {
            ServerError::bad("audio_sample", format!("the clip is {value}: {rule}"))
        }
        ServerError::Engine(EngineError::Voice { source, .. }) => {
            ServerError::bad("audio_sample", format!("no voice can be made of this clip: {source}"))
        }
        other => other,
    })?;
    let (kept, voices, budget) = (name.clone(), state.store.voices(), state.budget.clone());
    blocking(move || {
        // One at a time: what was free and within the quota is so until it is written.
        let _one_at_a_time = KEEPING.lock().unwrap_or_else(PoisonError::into_inner);
        if voices.find(&kept).is_ok() {
            return Err(taken(&kept));
        }
        owners.check(&caller, bytes.len() as u64, &budget.limits)?;
        owners.keep(&kept, &bytes, &caller)
    })
    .await?;
    mouth.forget_voice(&name);
    tracing::info!(voice = name, "voice added");
    let voice = json!({"id": name, "name": name, "object": "audio.voice", "created_at": now()});
    Ok(json_response(StatusCode::OK, &voice))
}

/// Deletes a voice that was added.
pub(crate) async fn remove(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> Result<Response, ServerError> {
    if !state.options.voice_changes {
        return Err(ServerError::Forbidden("this server's voices are fixed".into()));
    }
    let (owners, caller) = (Owners::new(state.store.clone()), Caller::current());
    if state.store.voices().find(&name).is_ok() && !owners.may_remove(&name, &caller) {
        if owners.may_use(&name, &caller) {
            return Err(ServerError::Forbidden("this voice is the operator's: only he removes it".into()));
        }
        // Others' voices are as if they were not there.
        let known = state.mouth(None)?.voice_names().await?;
        return Err(EngineError::UnknownVoice { name: short(&name), known }.into());
    }
    owners.remove(&name)?;
    for mouth in &state.mouths {
        mouth.forget_voice(&name);
    }
    Ok(json_response(StatusCode::OK, &json!({"id": name, "object": "audio.voice", "deleted": true})))
}

/// Held while a voice is written.
static KEEPING: Mutex<()> = Mutex::new(());

fn taken(name: &str) -> ServerError {
    ServerError::bad("name", format!("there is a voice '{name}': delete it first, or choose another name"))
}
