//! `GET /v1/models`: what is loaded, and what it can do.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::core::error::ServerError;
use crate::core::health::json_response;
use crate::core::models::Served as _;
use crate::core::query::short;
use crate::core::state::AppState;

fn entries(state: &AppState) -> Vec<Value> {
    let entry = |id: &str, task: &str, slots: (usize, usize)| {
        json!({
            "id": id, "object": "model", "created": 0, "owned_by": "voce", "task": task,
            "used_slots": slots.0, "total_slots": slots.1,
        })
    };
    let mouths = state.mouths.iter().map(|m| entry(m.id(), "text-to-speech", m.slots()));
    let ears = state.ears.iter().map(|e| {
        let mut entry = entry(e.id(), "automatic-speech-recognition", e.slots());
        if let Some(info) = e.known() {
            entry["languages"] = json!(info.languages);
            entry["chunks_ms"] = json!(info.chunks_ms);
            entry["streaming"] = json!(info.streaming);
        }
        entry
    });
    let partners =
        state.partners.iter().map(|p| entry(p.id(), "speech-to-speech", (p.gate().used(), p.gate().total())));
    mouths.chain(ears).chain(partners).collect()
}

/// All models.
pub(crate) async fn list(State(state): State<AppState>) -> Response {
    json_response(StatusCode::OK, &json!({"object": "list", "data": entries(&state)}))
}

/// One model, by name or alias.
pub(crate) async fn one(
    State(state): State<AppState>,
    Path(name): Path<String>,
) -> Result<Response, ServerError> {
    let id = match (state.mouth(Some(&name)), state.ear(Some(&name))) {
        (Ok(mouth), _) => mouth.id().to_owned(),
        (_, Ok(ear)) => ear.id().to_owned(),
        _ if state.partners.iter().any(|p| p.id() == name) => name,
        _ => {
            let known: Vec<&str> = state.served().map(|m| m.id()).collect();
            return Err(ServerError::UnknownModel { name: short(&name), known: known.join(", ") });
        }
    };
    let found = entries(&state).into_iter().find(|e| e["id"] == id.as_str());
    Ok(json_response(StatusCode::OK, &found.unwrap_or(Value::Null)))
}
