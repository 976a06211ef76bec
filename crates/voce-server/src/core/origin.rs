//! Who may call from a browser: names that are not this machine's, pages of other sites, and CORS, which is off by default.

use std::net::IpAddr;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::error::ServerError;
use super::state::AppState;

/// Names by which a loopback server may be called; others mean that a page made a name of its own point here.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Checks host and origin, and adds CORS headers where they were asked for.
pub(crate) async fn check(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ServerError> {
    let headers = request.headers();
    let host = text(headers, &HOST);
    if state.loopback {
        let name = host.as_deref().and_then(|h| h.parse::<Authority>().ok()).map(|a| a.host().to_owned());
        let is_ours = |name: &str| is_local(&state, name);
        if !name.as_deref().is_some_and(is_ours) {
            return Err(ServerError::Forbidden(
                "this server answers to localhost only: name other hosts in its `allow-host` setting".into(),
            ));
        }
    }
    let Some(origin) = text(headers, &ORIGIN) else { return Ok(next.run(request).await) };
    let same = host.as_deref().is_some_and(|host| {
        origin.split_once("://").is_some_and(|(_, site)| site.eq_ignore_ascii_case(host))
            && (!state.keys.is_empty() || is_known(&state, host))
    });
    let listed = state.options.cors.iter().any(|o| o == "*" || o.eq_ignore_ascii_case(&origin));
    if !same && !listed && (state.loopback || state.keys.is_empty()) {
        return Err(ServerError::Forbidden(
            "pages of other sites may not use this server: name them in its `cors` setting".into(),
        ));
    }
    if !listed {
        return Ok(next.run(request).await);
    }
    if request.method() == Method::OPTIONS && headers.contains_key("access-control-request-method") {
        let asked = headers.get("access-control-request-headers").cloned();
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        allow(response.headers_mut(), &origin);
        let headers = response.headers_mut();
        headers.insert("access-control-allow-methods", HeaderValue::from_static("GET, POST, DELETE"));
        headers.insert("access-control-max-age", HeaderValue::from_static("600"));
        if let Some(asked) = asked {
            headers.insert("access-control-allow-headers", asked);
        }
        return Ok(response);
    }
    let mut response = next.run(request).await;
    allow(response.headers_mut(), &origin);
    Ok(response)
}

fn is_local(state: &AppState, name: &str) -> bool {
    LOOPBACK.iter().any(|l| l.eq_ignore_ascii_case(name))
        || state.options.hosts.iter().any(|h| h.eq_ignore_ascii_case(name))
}

/// Whether a page at this host may be this server's own. Any site can make a name of its own point here, and without keys
/// nothing else tells its pages apart; an address is nobody's to point.
fn is_known(state: &AppState, host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    is_address || is_local(state, name)
}

fn allow(headers: &mut HeaderMap, origin: &str) {
    if let Ok(origin) = HeaderValue::from_str(origin) {
        headers.insert("access-control-allow-origin", origin);
        headers.append("vary", HeaderValue::from_static("origin"));
    }
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name).and_then(|v| v.to_str().ok()).map(str::to_owned)
}
