//! The page at `/`: speech, voices and live transcription from a browser, embedded, without a framework.

use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::{IntoResponse as _, Response};

/// Only what comes from this server runs, and no other site may frame it.
const POLICY: &str = "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; connect-src 'self' ws: wss:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    ];
    (headers, text).into_response()
}

pub(crate) async fn html() -> Response {
    asset("text/html; charset=utf-8", include_str!("page.html"))
}

pub(crate) async fn css() -> Response {
    asset("text/css; charset=utf-8", include_str!("page.css"))
}

pub(crate) async fn js() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("page.js"))
}

pub(crate) async fn mic() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("mic.js"))
}

pub(crate) async fn icon() -> Response {
    asset("image/svg+xml", include_str!("icon.svg"))
}
