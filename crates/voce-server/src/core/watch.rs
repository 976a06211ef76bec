//! Around every request: a number, a log line, the counters, and a net for panics.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use tracing::Instrument as _;

use super::error::{ErrorCode, ServerError};
use super::metrics::RequestLabels;
use super::state::AppState;

/// Requests so far, which is what numbers them.
static COUNT: AtomicU64 = AtomicU64::new(1);

/// Runs a request, counts it and logs it; a panic becomes an error.
pub(crate) async fn request(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let method = method(request.method());
    let id = COUNT.fetch_add(1, Ordering::Relaxed);
    let tracing = &state.telemetry.tracing;
    let trace = if tracing.is_on() && !super::health::is_probe(&route) {
        tracing.request(method, &route, request.headers())
    } else {
        None
    };
    let run = async {
        match tracing.is_on() {
            true => super::trace::within(trace.clone(), next.run(request)).await,
            false => next.run(request).await,
        }
    };
    let mut response =
        match AssertUnwindSafe(run.instrument(tracing::info_span!("request", id))).catch_unwind().await {
            Ok(response) => response,
            Err(_) => ServerError::Internal.into_response(),
        };
    let status = response.status();
    let code = response.extensions().get::<ErrorCode>().map(|c| c.0);
    if let Some(code) = code {
        state.metrics.error(code);
    }
    let trace_id = trace.as_ref().map(|t| t.hex());
    if let Some(trace) = trace {
        trace.answered(status.as_u16(), code);
        response = response.map(|body| trace.follow(body));
    }
    let seconds = begun.elapsed().as_secs_f64();
    state.metrics.request_seconds.observe(seconds);
    let labels = RequestLabels { route: route.clone(), method, code: status.as_u16() };
    state.metrics.requests.get_or_create(&labels).inc();
    if let Ok(value) = HeaderValue::from_str(&format!("voce-{id}")) {
        response.headers_mut().insert("x-request-id", value);
    }
    tracing::info!(
        id,
        method,
        route,
        status = status.as_u16(),
        error = code,
        trace = trace_id,
        ms = (seconds * 1e5).round() / 1e2,
        "request"
    );
    response
}

/// Methods as labels: a closed set, because clients may send any word.
fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::HEAD => "HEAD",
        _ => "other",
    }
}

/// Refuses new work while the server is on its way out; probes are still answered.
pub(crate) async fn not_draining(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let is_probe = path.is_some_and(super::health::is_probe);
    if state.drain.is_draining() && !is_probe {
        let mut response = ServerError::Draining.into_response();
        response.headers_mut().insert("connection", HeaderValue::from_static("close"));
        return response;
    }
    next.run(request).await
}

/// What is not in the table.
pub(crate) async fn not_found(request: Request) -> ServerError {
    let path = super::query::short(request.uri().path());
    ServerError::NotFound(path)
}

/// A route with another method.
pub(crate) async fn bad_method() -> Response {
    let mut response = ServerError::BadMethod.into_response();
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}
