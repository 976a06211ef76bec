//! `/api/build_info` and `/api/modules_info`.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;

use crate::core::health::json_response;
use crate::core::state::AppState;

/// The route of recognition.
pub(crate) const ASR_PATH: &str = "/api/asr-streaming";
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
    let ears = state.ears.iter().map(|ear| {
        let (used, total) = ear.slots();
        json!({
            "type": "batched_asr", "path": ASR_PATH, "lm": ear.id(), "audio_tokenizer": "",
            "used_slots": used.to_string(), "total_slots": total.to_string(),
        })
    });
    let mouths = state.mouths.iter().map(|mouth| {
        let (used, total) = mouth.slots();
        json!({
            "type": "py", "path": TTS_PATH, "script": mouth.id(),
            "used_slots": used.to_string(), "total_slots": total.to_string(),
        })
    });
    json_response(StatusCode::OK, &ears.chain(mouths).collect())
}
