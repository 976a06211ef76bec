//! `/v1/audio/voices`: the voices there are, and new ones cloned from a clip.

use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::json;
use voce_audio::output::{AtomicFile, Output as _};
use voce_engine::EngineError;
use voce_engine::store::voices::is_name;

use crate::core::body::Form;
use crate::core::error::ServerError;
use crate::core::health::json_response;
use crate::core::limits;
use crate::core::query::short;
use crate::core::state::AppState;

/// All voices of the default model, and OpenAI's names, which stand for the default voice.
pub(crate) async fn list(State(state): State<AppState>) -> Result<Response, ServerError> {
    let mouth = state.mouth(None)?;
    let names = mouth.voice_names().await?;
    let default = mouth.default_voice().await?;
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
        &json!({"object": "list", "data": data, "voices": names, "default": default}),
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
    let form = Form::read(&headers, body, limits.body.min(limits::MAX_VOICE_SAMPLE), limits).await?;
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
    let voices = state.store.voices();
    if voices.find(&name).is_ok() {
        return Err(ServerError::bad(
            "name",
            format!("there is a voice '{name}': delete it first, or choose another name"),
        ));
    }
    let mouth = state.mouth(form.text("model")?)?.clone();
    let sample = form.file("audio_sample").or_else(|_| form.file("file"))?;
    let extension = sample.file_name.as_deref().and_then(|n| n.rsplit_once('.')).map(|(_, e)| e);
    let extension = extension.filter(|e| e.len() <= 5 && e.bytes().all(|b| b.is_ascii_alphanumeric()));
    let clip = Clip::new(voices.dir(), extension.unwrap_or("wav"));
    let data = sample.data.clone();
    let make_folder = voices.clone();
    let written = clip.0.clone();
    let write = move || {
        make_folder.create()?;
        std::fs::write(&written, &data).map_err(|source| EngineError::Io { path: written, source })
    };
    blocking(write).await?;
    let bytes = mouth.clone_voice(clip.0.clone()).await.map_err(|e| match e {
        // The clip's path is the server's own business.
        ServerError::Engine(EngineError::Audio { source, .. }) => ServerError::Audio(source),
        ServerError::Engine(EngineError::Voice { source, .. }) => {
            ServerError::bad("audio_sample", format!("no voice can be made of this clip: {source}"))
        }
        other => other,
    })?;
    let path = voices.path(&name).map_err(EngineError::from)?;
    let keep = move || -> Result<(), ServerError> {
        let mut file = AtomicFile::create(&path)?;
        file.put(&bytes)?;
        Ok(file.commit()?)
    };
    blocking(keep).await?;
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
    state.store.voices().remove(&name).map_err(EngineError::from)?;
    for mouth in &state.mouths {
        mouth.forget_voice(&name);
    }
    Ok(json_response(StatusCode::OK, &json!({"id": name, "object": "audio.voice", "deleted": true})))
}

/// Does something with files on a thread that may wait.
async fn blocking<E: Into<ServerError> + Send + 'static>(
    work: impl FnOnce() -> Result<(), E> + Send + 'static,
) -> Result<(), ServerError> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ServerError::Internal)?.map_err(Into::into)
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A clip on disk while it is being listened to.
struct Clip(PathBuf);

static CLIPS: AtomicU64 = AtomicU64::new(0);

impl Clip {
    fn new(dir: &FilePath, extension: &str) -> Self {
        let count = CLIPS.fetch_add(1, Ordering::Relaxed);
        Self(dir.join(format!(".clip-{}-{count}.{extension}", std::process::id())))
    }
}

impl Drop for Clip {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
