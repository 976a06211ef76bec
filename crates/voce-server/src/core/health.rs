//! Probes and metrics.

use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::state::AppState;

const PROBES: [&str; 6] = ["/livez", "/readyz", "/health", "/v1/health/live", "/v1/health/ready", "/metrics"];

/// Whether a route is answered even on the way out.
pub(crate) fn is_probe(path: &str) -> bool {
    PROBES.contains(&path)
}

/// The process runs.
pub(crate) async fn live() -> Response {
    json_response(StatusCode::OK, &json!({"status": "ok"}))
}

/// New work is welcome: 503 while models load, after one has died, and on the way out. Routers read how many slots are free
/// where they are scarcest.
pub(crate) async fn ready(State(state): State<AppState>) -> Response {
    let status = state.readiness();
    let code = if status == "ok" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let loads = state.served().map(|model| model.gate().load());
    let room = loads.map(|load| (load.total.saturating_sub(load.used + load.waiting), load.total));
    let scarcest = room.min_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1)));
    match scarcest {
        Some((free, slots)) => json_response(code, &json!({"status": status, "free": free, "slots": slots})),
        None => json_response(code, &json!({"status": status})),
    }
}

/// All series.
pub(crate) async fn metrics(State(state): State<AppState>) -> Response {
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    super::vigil::show(&state);
    ([(CONTENT_TYPE, kind)], state.metrics.text()).into_response()
}

/// A JSON answer that nobody keeps.
pub(crate) fn json_response(status: StatusCode, value: &serde_json::Value) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (status, headers, value.to_string()).into_response()
}
