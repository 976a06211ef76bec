//! The handshake of a WebSocket: what a request must have, and the answer that ends its HTTP.

use axum::extract::FromRequestParts;
use axum::http::header::{
    CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use hyper::upgrade::OnUpgrade;
use tungstenite::handshake::derive_accept_key;

use super::error::ServerError;

/// Subprotocols that a client may ask for, the first it names in this order being taken.
const PROTOCOLS: [&str; 3] = ["realtime", "token", "bearer"];

/// A request that asks for a WebSocket.
pub(crate) struct Upgrade {
    on_upgrade: OnUpgrade,
    accept: HeaderValue,
    protocol: Option<&'static str>,
}

impl Upgrade {
    /// The connection to come, and the answer that makes it so.
    pub(crate) fn accept(self) -> (OnUpgrade, Response) {
        let mut response = Response::default();
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(protocol) = self.protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        }
        (self.on_upgrade, response)
    }
}

/// The words of a header that is a list.
fn words(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|v| v.to_str().ok());
    values.flat_map(|v| v.split(',')).map(str::trim)
}

impl<S: Sync> FromRequestParts<S> for Upgrade {
    type Rejection = ServerError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ServerError> {
        let headers = &parts.headers;
        let has = |name, word: &str| words(headers, name).any(|w| w.eq_ignore_ascii_case(word));
        if parts.method != Method::GET || !has(CONNECTION, "upgrade") || !has(UPGRADE, "websocket") {
            return Err(ServerError::malformed("this route is a WebSocket: connect to it with one"));
        }
        if !has(SEC_WEBSOCKET_VERSION, "13") {
            return Err(ServerError::malformed("the WebSocket's version is not 13"));
        }
        let key = headers.get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
        let accept = key.and_then(|key| HeaderValue::from_str(&key).ok());
        let accept = accept.ok_or_else(|| ServerError::malformed("the request has no Sec-WebSocket-Key"))?;
        let protocol =
            PROTOCOLS.into_iter().find(|p| words(headers, SEC_WEBSOCKET_PROTOCOL).any(|w| w == *p));
        let on_upgrade = parts.extensions.remove::<OnUpgrade>();
        let on_upgrade =
            on_upgrade.ok_or_else(|| ServerError::malformed("the connection cannot be upgraded"))?;
        Ok(Self { on_upgrade, accept, protocol })
    }
}
