//! Doors for fuzzers: the parsers of what clients send, each fed bytes. Whatever comes, they return.

use std::io::Cursor;
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use tokio::io::BufReader;
use voce_audio::RawEncoding;

use crate::core::body::Form;
use crate::core::budget::Budget;
use crate::core::limits::Limits;
use crate::core::query::Query;
use crate::ears::Inlet;

fn wait<T>(future: impl Future<Output = T>) -> Option<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().ok()?;
    Some(runtime.block_on(future))
}

/// moshi's messages, both ways in.
pub fn msgpack(data: &[u8]) {
    crate::moshi::fuzz(data);
}

/// Lines of Realtime events: their settings, and the base64 of their audio.
pub fn realtime(data: &[u8]) {
    crate::openai::realtime::fuzz(data);
}

/// Deepgram's query, and its controls after the first line.
pub fn deepgram(data: &[u8]) {
    crate::deepgram::fuzz(data);
}

/// Wyoming's events, one after the other.
pub fn wyoming(data: &[u8]) {
    let mut stream = BufReader::new(Cursor::new(data));
    wait(async { while let Ok(Some(_)) = crate::wyoming::event::read(&mut stream).await {} });
}

/// A form; the first byte says where its boundary is torn.
pub fn form(data: &[u8]) {
    let mut headers = HeaderMap::new();
    if let Ok(kind) = "multipart/form-data; boundary=b".parse() {
        headers.insert(CONTENT_TYPE, kind);
    }
    let budget = Budget::new(Limits { body_grace: Duration::from_secs(60), ..Limits::default() }, 0);
    let body = Body::from(data.to_vec());
    let form = wait(async { Form::read(&headers, body, 1 << 20, &budget).await });
    if let Some(Ok(form)) = form {
        let _ = (form.file("file"), form.text("model"), form.texts("keywords"), form.is_on("stream"));
    }
}

/// A query.
pub fn query(data: &[u8]) {
    let query = Query::parse(&String::from_utf8_lossy(data));
    let _ = (query.get("a"), query.number::<u32>("b"), query.is_on("c"), query.all("d").count());
}

/// Raw audio in pieces: the first bytes choose encoding, rate, channels and the size of pieces.
pub fn inlet(data: &[u8]) {
    let Some((&[encoding, a, b, channels, piece], audio)) = data.split_first_chunk::<5>() else { return };
    let encoding = match encoding % 4 {
        0 => RawEncoding::S16le,
        1 => RawEncoding::F32le,
        2 => RawEncoding::Mulaw,
        _ => RawEncoding::Alaw,
    };
    let rate = u32::from(u16::from_le_bytes([a, b])) * 4;
    let Ok(mut inlet) = Inlet::new(encoding, rate, usize::from(channels), 16_000) else { return };
    for part in audio.chunks(usize::from(piece).max(1)) {
        assert!(inlet.bytes(part).iter().all(|s| s.is_finite()));
    }
    assert!(inlet.finish().iter().all(|s| s.is_finite()));
}

/// JSON of a client.
pub fn json(data: &[u8]) {
    let _ = crate::core::json::parse::<serde_json::Value>(data);
}
