//! Events on the wire: a line of JSON, then `data_length` bytes of JSON, then `payload_length` bytes.

use std::io;

use serde_json::{Map, Value, json};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};

use crate::core::json;
use crate::core::limits::{MAX_WYOMING_LINE, MAX_WYOMING_PAYLOAD};

/// An event.
#[derive(Debug, Default)]
pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) data: Value,
    pub(crate) payload: Vec<u8>,
}

impl Event {
    pub(crate) fn new(kind: &str, data: Value) -> Self {
        Self { kind: kind.into(), data, payload: Vec::new() }
    }
}

fn bad(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// The next event; `None` where the client has gone between two of them.
pub(crate) async fn read(stream: &mut BufReader<impl AsyncRead + Unpin>) -> io::Result<Option<Event>> {
    let mut line = Vec::new();
    let mut limited = (&mut *stream).take(MAX_WYOMING_LINE as u64);
    if limited.read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        return Err(bad(format!("an event's line has no end within {MAX_WYOMING_LINE} bytes")));
    }
    let mut head: Map<String, Value> =
        json::parse(&line).map_err(|e| bad(format!("an event is a JSON object: {e}")))?;
    let length = |name: &str, limit: usize| match head.get(name) {
        None | Some(Value::Null) => Ok(0),
        Some(n) => n
            .as_u64()
            .filter(|n| *n <= limit as u64)
            .map(|n| n as usize)
            .ok_or_else(|| bad(format!("{name} is {n}: use 0 to {limit}"))),
    };
    let (data_length, payload_length) =
        (length("data_length", MAX_WYOMING_LINE)?, length("payload_length", MAX_WYOMING_PAYLOAD)?);
    let mut data = head
        .remove("data")
        .and_then(|d| if let Value::Object(map) = d { Some(map) } else { None })
        .unwrap_or_default();
    if data_length > 0 {
        let mut bytes = vec![0; data_length];
        stream.read_exact(&mut bytes).await?;
        let more: Map<String, Value> =
            json::parse(&bytes).map_err(|e| bad(format!("an event's data is a JSON object: {e}")))?;
        data.extend(more);
    }
    let mut payload = vec![0; payload_length];
    stream.read_exact(&mut payload).await?;
    let kind =
        head.get("type").and_then(Value::as_str).ok_or_else(|| bad("an event has no type"))?.to_owned();
    Ok(Some(Event { kind, data: Value::Object(data), payload }))
}

/// Writes an event.
pub(crate) async fn write(stream: &mut (impl AsyncWrite + Unpin), event: &Event) -> io::Result<()> {
    let data = if event.data.is_null() { Vec::new() } else { event.data.to_string().into_bytes() };
    let mut head = json!({"type": event.kind, "version": "1.7.2"});
    if !data.is_empty() {
        head["data_length"] = json!(data.len());
    }
    if !event.payload.is_empty() {
        head["payload_length"] = json!(event.payload.len());
    }
    let mut bytes = head.to_string().into_bytes();
    bytes.push(b'\n');
    bytes.extend(data);
    bytes.extend_from_slice(&event.payload);
    stream.write_all(&bytes).await?;
    stream.flush().await
}
