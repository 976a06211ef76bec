//! How a stream is opened: the request that it began with, made again wherever it goes on.

use std::sync::Arc;

use axum::http::{HeaderMap, StatusCode};
use bytes::Bytes;
use http_body_util::Empty;
use hyper::Request;
use hyper::body::Incoming;

use super::node::{Holds, Nodes};
use crate::handover::{HEADER, TAKEN, TOLD};

/// The request that a stream began with, to be made again elsewhere.
pub(super) struct Opening {
    pub(super) path: String,
    query: Option<String>,
    headers: HeaderMap,
}

impl Opening {
    /// A request, and the token that it has.
    pub(super) fn new(uri: &hyper::Uri, headers: HeaderMap) -> (Self, Option<String>) {
        let parts = || uri.query().unwrap_or_default().split('&').filter(|part| !part.is_empty());
        let token = parts().find_map(|part| part.strip_prefix("resume=")).map(str::to_owned);
        let rest: Vec<&str> = parts().filter(|part| !part.starts_with("resume=")).collect();
        let query = Some(rest.join("&")).filter(|query| !query.is_empty());
        (Self { path: uri.path().to_owned(), query, headers }, token)
    }

    /// The request, with a token where the stream goes on.
    pub(super) fn request(&self, token: Option<&str>) -> Request<Empty<Bytes>> {
        let resume = token.map(|t| format!("resume={t}"));
        let query: Vec<&str> = self.query.as_deref().into_iter().chain(resume.as_deref()).collect();
        let uri =
            if query.is_empty() { self.path.clone() } else { format!("{}?{}", self.path, query.join("&")) };
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = uri.parse().unwrap_or_default();
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(HEADER, axum::http::HeaderValue::from_static("close"));
        request
    }
}

/// Messages of a stream that a machine has, and lasting ones that it has sent, by the head of its answer.
pub(super) fn counts(headers: &HeaderMap) -> (u64, u64) {
    let count = |name: &str| {
        headers.get(name).and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok()).unwrap_or(0)
    };
    (count(TAKEN), count(TOLD))
}

/// What came of opening a stream.
pub(super) enum Opened {
    /// A machine has agreed to a WebSocket.
    Stream(Holds, hyper::Response<Incoming>),
    /// The last one that was asked has answered otherwise.
    Answer(hyper::Response<Incoming>),
    /// Nobody could be asked.
    Nobody,
}

/// Whether another machine may say yes.
pub(super) fn is_full(status: StatusCode) -> bool {
    matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS)
}

/// Opens a stream at the best machine that takes it.
pub(super) async fn open(nodes: &Arc<Nodes>, opening: &Opening, token: Option<&str>) -> Opened {
    let (mut tried, mut last) = (Vec::new(), Opened::Nobody);
    loop {
        let Some(node) = nodes.fleet(|fleet| fleet.choose(&tried)) else { return last };
        tried.push(node);
        match nodes.send(node, opening.request(token)).await {
            Ok(response) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                return Opened::Stream(nodes.hold(node), response);
            }
            Ok(response) if is_full(response.status()) => {
                nodes.fleet(|fleet| fleet.refused(node));
                last = Opened::Answer(response);
            }
            Ok(response) => return Opened::Answer(response),
            Err(error) => {
                tracing::debug!(%error, node, "a machine cannot be reached");
                nodes.fleet(|fleet| fleet.failed(node));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_behind_what_was_asked() {
        let new = |uri: &'static str| Opening::new(&hyper::Uri::from_static(uri), HeaderMap::new());
        let (mut opening, token) = new("/v1/listen");
        assert_eq!(token, None);
        assert_eq!(opening.request(None).uri(), "/v1/listen");
        assert_eq!(opening.request(Some("t")).uri(), "/v1/listen?resume=t");
        opening.query = Some("encoding=linear16".into());
        let request = opening.request(Some("t"));
        assert_eq!(request.uri(), "/v1/listen?encoding=linear16&resume=t");
        assert_eq!(request.headers()[HEADER], "close");
        // One that came along is for the first time alone.
        let (opening, token) = new("/v1/listen?a=1&resume=x&b=2");
        assert_eq!((opening.query.as_deref(), token.as_deref()), (Some("a=1&b=2"), Some("x")));
    }
}
