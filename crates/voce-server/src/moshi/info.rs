//! `/api/build_info` and `/api/modules_info`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::core::health::json_response;
use crate::core::mounts::{Mount, Serves};
use crate::core::state::AppState;

/// The route of recognition.
pub(crate) const ASR_PATH: &str = "/api/asr-streaming";
/// The route of dialogues.
pub(crate) const CHAT_PATH: &str = "/api/chat";
/// The route of speech.
pub(crate) const TTS_PATH: &str = "/api/tts_streaming";

/// What health checks ask for; the fields are moshi-server's.
pub(crate) async fn build() -> Response {
    let empty = "";
    json_response(
        StatusCode::OK,
        &json!({
            "build_timestamp": empty, "build_date": empty, "git_branch": empty, "git_timestamp": empty, "git_date": empty,
            "git_hash": option_env!("VOCE_GIT_HASH").unwrap_or_default(),
            "git_describe": concat!("voce-", env!("CARGO_PKG_VERSION")),
            "rustc_host_triple": empty, "rustc_version": env!("CARGO_PKG_RUST_VERSION"),
            "cargo_target_triple": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        }),
    )
}

/// What is loaded and how much of it is in use; numbers are strings there.
pub(crate) async fn modules(State(state): State<AppState>) -> Response {
    let named =
        |id: &str| state.mounts.iter().any(|m| !m.listed.is_empty() && m.model.as_deref() == Some(id));
    let ears = state.ears.iter().filter(|ear| !named(ear.id())).map(|ear| {
        let mut entry = json!({
            "type": "batched_asr", "path": ASR_PATH, "lm": ear.id(), "audio_tokenizer": "",
        });
        put_slots(&mut entry, ear.slots());
        entry
    });
    let mouths = state.mouths.iter().filter(|mouth| !named(mouth.id())).map(|mouth| {
        let mut entry = json!({"type": "py", "path": TTS_PATH, "script": mouth.id()});
        put_slots(&mut entry, mouth.slots());
        entry
    });
    json_response(StatusCode::OK, &modules_of(&state).into_iter().chain(ears).chain(mouths).collect())
}

/// The modules of a configuration, by path.
fn modules_of(state: &AppState) -> Vec<Value> {
    let mut mounts: Vec<_> = state.mounts.iter().filter(|m| !m.listed.is_empty()).collect();
    mounts.sort_by(|a, b| a.path.cmp(&b.path));
    let entry = |mount: &Mount| {
        let slots = match mount.serves {
            Serves::Hearing => state.ear(mount.model.as_deref()).ok()?.slots(),
            Serves::Speech => state.mouth(mount.model.as_deref()).ok()?.slots(),
            _ => return None,
        };
        let mut entry = json!({"path": mount.path});
        for (name, value) in &mount.listed {
            entry[*name] = value.as_str().into();
        }
        put_slots(&mut entry, slots);
        Some(entry)
    };
    mounts.into_iter().filter_map(entry).collect()
}

/// Slots in use and in all; numbers are strings there.
fn put_slots(entry: &mut Value, (used, total): (usize, usize)) {
    entry["used_slots"] = used.to_string().into();
    entry["total_slots"] = total.to_string().into();
}
