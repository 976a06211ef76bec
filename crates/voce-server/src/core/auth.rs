//! The one place where keys are checked: every route needs one unless the route table says otherwise.

use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

use super::caller::{Caller, KeyId};
use super::error::ServerError;
use super::query::Query;
use super::socket_io::Peer;
use super::state::AppState;

/// Names of the query's fields that may hold a key, for browsers and for moshi's clients.
const QUERY: [&str; 3] = ["auth_id", "api_key", "token"];
/// Headers that hold a key and nothing else.
const HEADERS: [&str; 3] = ["kyutai-api-key", "x-api-key", "api-key"];
/// What stands before a key in the list of WebSocket protocols, where browsers cannot set headers.
const PROTOCOL: &str = "openai-insecure-api-key.";

/// The keys that are accepted, as digests: compared in constant time, whatever their length.
#[derive(Clone, Default)]
pub(crate) struct Keys(Vec<[u8; 32]>);

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self(keys.iter().map(|k| digest(k)).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them.
    pub(crate) fn ids(&self) -> impl Iterator<Item = KeyId> + '_ {
        self.0.iter().map(|digest| KeyId(*digest))
    }

    /// The key, where it is one of them; all are looked at, so that time tells nothing.
    pub(crate) fn accept(&self, key: &str) -> Option<KeyId> {
        let given = digest(key);
        let found = self.0.iter().fold(Choice::from(0), |found, k| found | k.ct_eq(&given));
        bool::from(found).then_some(KeyId(given))
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// The key that a request brings. A header wins over the query, even a wrong one.
fn key(headers: &HeaderMap, query: Option<&str>) -> Option<String> {
    let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap_or_default().trim().to_owned());
    if let Some(value) = text(AUTHORIZATION.as_str()) {
        let (scheme, rest) = value.split_once(' ').unwrap_or(("", &value));
        let known = ["", "bearer", "token"].iter().any(|s| scheme.eq_ignore_ascii_case(s));
        return Some(if known { rest.trim().to_owned() } else { String::new() });
    }
    if let Some(value) = HEADERS.iter().find_map(|name| text(name)) {
        return Some(value);
    }
    let protocols = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|v| v.to_str().ok());
    let protocols: Vec<&str> = protocols.flat_map(|v| v.split(',')).map(str::trim).collect();
    if let Some(key) = protocols.iter().find_map(|p| p.strip_prefix(PROTOCOL)) {
        return Some(key.to_owned());
    }
    // Deepgram's way: `token, KEY`.
    if let [first, key, ..] = protocols[..]
        && ["token", "bearer"].contains(&first)
    {
        return Some(key.to_owned());
    }
    let query = Query::parse(query.unwrap_or_default());
    QUERY.iter().find_map(|name| query.get(name).map(str::to_owned))
}

/// Lets a request through that has a key or needs none.
pub(crate) async fn check(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ServerError> {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    // What no route has is a file of the configuration's own pages, or nothing.
    let is_page = path.is_none() && state.options.static_dir.is_some();
    let is_open = is_page || path.is_some_and(|p| state.is_open(p));
    let address = Peer::current().map_or_else(|| Caller::default().address, |p| p.address());
    let mut caller = Caller { key: None, address };
    if !state.keys.is_empty() && !is_open {
        let given = key(request.headers(), request.uri().query());
        caller.key = given.and_then(|k| state.keys.accept(&k));
        if caller.key.is_none() {
            return Err(ServerError::Unauthorized);
        }
    }
    Ok(caller.scope(next.run(request)).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: &[(&'static str, &'static str)], query: &str) -> Option<String> {
        let map = headers.iter().map(|(k, v)| (k.parse().unwrap(), v.parse().unwrap())).collect();
        key(&map, Some(query))
    }

    #[test]
    fn every_place_for_a_key() {
        for headers in [
            [("authorization", "Bearer k1")],
            [("authorization", "Token k1")],
            [("kyutai-api-key", "k1")],
            [("x-api-key", "k1")],
            [("sec-websocket-protocol", "realtime, openai-insecure-api-key.k1")],
            [("sec-websocket-protocol", "token, k1")],
        ] {
            assert_eq!(of(&headers, "").as_deref(), Some("k1"), "{headers:?}");
        }
        for query in ["auth_id=k1", "x=1&api_key=k1", "token=k%31"] {
            assert_eq!(of(&[], query).as_deref(), Some("k1"), "{query}");
        }
        assert_eq!(of(&[], "model=x"), None);
        // A wrong header beats a right query, as moshi-server has it.
        assert_eq!(of(&[("kyutai-api-key", "bad")], "auth_id=k1").as_deref(), Some("bad"));
        assert_eq!(of(&[("authorization", "Basic k1")], "auth_id=k1").as_deref(), Some(""));
    }

    #[test]
    fn keys_of_any_length() {
        let keys = Keys::new(&["short".into(), "x".repeat(500)]);
        let is_one = |key: &str| keys.accept(key).is_some();
        assert!(is_one("short") && is_one(&"x".repeat(500)));
        assert!(!is_one("shor") && !is_one("") && !is_one("short "));
        assert_eq!(keys.accept("short"), keys.accept("short"));
        assert_ne!(keys.accept("short"), keys.accept(&"x".repeat(500)));
    }
}
