//! What a router does with a request: a live stream is opened where there is room and kept going, the rest passes through.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::http::header::{CONNECTION, HeaderName, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;

use super::held::Held;
use super::opening::{Opened, Opening, counts, is_full, open};
use super::stream::Stream;
use super::{Guest, Shared};
use crate::core::aside;
use crate::core::health::json_response;

/// Routes of live recognition, whose streams can go on elsewhere.
const LIVE: [&str; 4] = ["/api/asr-streaming", "/v1/listen", "/v1/realtime", "/v2/decode/stream/"];
/// What the router says of itself, to this machine alone.
const STATUS: &str = "/route/status";
/// Headers that are of one connection.
const OF_CONNECTION: [HeaderName; 3] = [CONNECTION, TRANSFER_ENCODING, UPGRADE];

/// Answers a request.
pub(super) async fn handle(
    shared: Arc<Shared>,
    from: SocketAddr,
    guest: Arc<Guest>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    if request.uri().path() == STATUS && from.ip().to_canonical().is_loopback() {
        return Ok(status(&shared));
    }
    forward(request.headers_mut(), from);
    Ok(if request.headers().get(UPGRADE).is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket")) {
        socket(shared, guest, request).await
    } else {
        plain(&shared, request).await
    })
}

/// Tells servers who is behind the router.
fn forward(headers: &mut HeaderMap, from: SocketAddr) {
    let name = HeaderName::from_static("x-forwarded-for");
    let before =
        headers.get(&name).and_then(|v| v.to_str().ok()).map(|v| format!("{v}, ")).unwrap_or_default();
    if let Ok(value) = HeaderValue::from_str(&format!("{before}{}", from.ip())) {
        headers.insert(name, value);
    }
}

/// No machine can be asked.
fn nobody() -> Response<Body> {
    let body = json!({"error": {
        "message": "no server can be reached: try again in a moment", "type": "server_error", "param": null,
        "code": "no_server",
    }});
    let mut response = json_response(StatusCode::SERVICE_UNAVAILABLE, &body);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// A request whose answer is passed on. One without a body is tried elsewhere where a machine says that it is full.
async fn plain(shared: &Shared, request: Request<Incoming>) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    for name in OF_CONNECTION {
        parts.headers.remove(name);
    }
    let is_empty = body.is_end_stream();
    let mut body = Some(Body::new(body.map_err(axum::Error::new)));
    let (mut tried, mut last) = (Vec::new(), None);
    loop {
        let Some(node) = shared.nodes.fleet(|fleet| fleet.choose(&tried)) else {
            return last.unwrap_or_else(nobody);
        };
        tried.push(node);
        // A body is sent once: to the first machine that can be reached.
        let Ok(mut connection) = shared.nodes.connect::<Body>(node).await else {
            shared.nodes.fleet(|fleet| fleet.failed(node));
            continue;
        };
        let Some(content) = (if is_empty { Some(Body::empty()) } else { body.take() }) else {
            return last.unwrap_or_else(nobody);
        };
        let again = Request::from_parts(parts.clone(), content);
        match connection.send_request(again).await {
            Ok(response) => {
                let is_refused = is_full(response.status()) && is_empty && parts.method != Method::POST;
                let mut response = response.map(|body| Body::new(body.map_err(axum::Error::new)));
                for name in OF_CONNECTION {
                    response.headers_mut().remove(name);
                }
                if !is_refused {
                    return response;
                }
                last = Some(response);
            }
            Err(error) => {
                tracing::debug!(%error, "a machine did not answer");
                if !is_empty {
                    return nobody();
                }
            }
        }
    }
}

/// A WebSocket: agreed on with a machine first, so that whatever it answers is what the client gets.
async fn socket(shared: Arc<Shared>, guest: Arc<Guest>, mut request: Request<Incoming>) -> Response<Body> {
    let (opening, token) = Opening::new(request.uri(), request.headers().clone());
    let client = hyper::upgrade::on(&mut request);
    let (holds, mut agreed) = match open(&shared.nodes, &opening, token.as_deref()).await {
        Opened::Stream(holds, response) => (holds, response),
        Opened::Answer(response) => return response.map(|body| Body::new(body.map_err(axum::Error::new))),
        Opened::Nobody => return nobody(),
    };
    let machine = hyper::upgrade::on(&mut agreed);
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *response.headers_mut() = agreed.headers().clone();
    let counts = counts(agreed.headers());
    aside::spawn(async move {
        let _guest = guest;
        let (Ok(client), Ok(machine)) = (client.await, machine.await) else { return };
        if LIVE.iter().any(|path| opening.path.starts_with(path)) {
            let held = Held::new(shared.options.hold, shared.options.hold_bytes);
            let both = (client, machine);
            match Stream::new(shared.nodes.clone(), opening, both, holds, held, counts) {
                Ok(stream) => stream.run().await,
                Err(error) => tracing::error!(%error, "a stream is no TCP"),
            }
        } else {
            let _holds = holds;
            let (mut client, mut machine) = (TokioIo::new(client), TokioIo::new(machine));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut machine).await;
        }
    });
    response
}

/// The machines and what became of streams.
fn status(shared: &Shared) -> Response<Body> {
    let nodes = &shared.nodes;
    let list: Vec<_> = nodes.status().iter().map(|node| {
        let health = format!("{:?}", node.health).to_lowercase();
        json!({"server": node.address.to_string(), "health": health, "room": node.room, "streams": node.streams})
    }).collect();
    let count = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed);
    let counts = &nodes.counts;
    let value = json!({
        "servers": list, "moved": count(&counts.moved), "revived": count(&counts.revived), "lost": count(&counts.lost),
    });
    json_response(StatusCode::OK, &value)
}
