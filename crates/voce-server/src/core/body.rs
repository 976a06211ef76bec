//! Request bodies: collected up to a limit, at no less than a rate; JSON and multipart forms out of them.

use std::convert::Infallible;
use std::time::Instant;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;

use super::error::ServerError;
use super::limits::{self, Limits};

/// Reads a whole body of at most `limit` bytes.
pub(crate) async fn collect(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    limits: &Limits,
) -> Result<Bytes, ServerError> {
    let declared =
        headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    if declared.is_some_and(|n| n > limit as u64) {
        return Err(ServerError::TooLarge(limit));
    }
    // What is packed is not unpacked here, so that a small body stays one.
    if headers.get(CONTENT_ENCODING).is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity")) {
        return Err(ServerError::malformed("the body has a Content-Encoding: send it without"));
    }
    let begun = Instant::now();
    let mut whole = BytesMut::new();
    loop {
        // After the grace a body must have brought its rate so far; a silent one runs into the deadline of what it has.
        let earned = limits.body_grace.as_secs_f64() + whole.len() as f64 / limits::BODY_RATE as f64;
        let deadline = begun + std::time::Duration::from_secs_f64(earned);
        let frame = match tokio::time::timeout_at(deadline.into(), body.frame()).await {
            Err(_) => return Err(ServerError::SlowBody),
            Ok(None) => return Ok(whole.freeze()),
            Ok(Some(Err(_))) => return Err(ServerError::CutOff),
            Ok(Some(Ok(frame))) => frame,
        };
        if let Ok(data) = frame.into_data() {
            if whole.len() + data.len() > limit {
                return Err(ServerError::TooLarge(limit));
            }
            whole.extend_from_slice(&data);
        }
    }
}

/// Reads a JSON body.
pub(crate) async fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    limits: &Limits,
) -> Result<T, ServerError> {
    let bytes = collect(headers, body, limits.body.min(limits::MAX_JSON), limits).await?;
    super::json::parse(&bytes)
        .map_err(|e| ServerError::malformed(format!("the body is not the JSON that this route takes: {e}")))
}

/// A field of a form: a value, or a file with its name.
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) file_name: Option<String>,
    pub(crate) data: Bytes,
}

/// A multipart form, read whole.
pub(crate) struct Form(Vec<Field>);

/// Fields that a form may have.
const MAX_FIELDS: usize = 600;

impl Form {
    /// Reads a form; a file may have `limit` bytes.
    pub(crate) async fn read(
        headers: &HeaderMap,
        body: Body,
        limit: usize,
        limits: &Limits,
    ) -> Result<Self, ServerError> {
        let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let boundary = multer::parse_boundary(kind)
            .map_err(|_| ServerError::malformed("send a multipart/form-data body with a boundary"))?;
        let bytes = collect(headers, body, limit + limits::MULTIPART_OVERHEAD, limits).await?;
        let stream = futures_util::stream::once(async move { Ok::<_, Infallible>(bytes) });
        let mut parts = multer::Multipart::new(stream, boundary);
        let bad = |e: multer::Error| ServerError::malformed(format!("the form cannot be read: {e}"));
        let mut fields = Vec::new();
        while let Some(part) = parts.next_field().await.map_err(bad)? {
            if fields.len() >= MAX_FIELDS {
                return Err(ServerError::malformed(format!("a form has at most {MAX_FIELDS} fields")));
            }
            let name = part.name().unwrap_or_default().to_owned();
            let file_name = part.file_name().map(str::to_owned);
            let data = part.bytes().await.map_err(bad)?;
            if data.len() > limit {
                return Err(ServerError::TooLarge(limit));
            }
            fields.push(Field { name, file_name, data });
        }
        Ok(Self(fields))
    }

    /// The file of a name.
    pub(crate) fn file(&self, name: &'static str) -> Result<&Field, ServerError> {
        let found = self.0.iter().find(|f| f.name == name);
        found.ok_or_else(|| {
            ServerError::bad(name, format!("the form has no field '{name}': it is the file to send"))
        })
    }

    /// The text of a field; absent and empty are the same.
    pub(crate) fn text(&self, name: &'static str) -> Result<Option<&str>, ServerError> {
        match self.0.iter().find(|f| f.name == name) {
            Some(field) => {
                let text = std::str::from_utf8(&field.data)
                    .map_err(|_| ServerError::bad(name, format!("{name} must be text")))?;
                Ok(Some(text.trim()).filter(|t| !t.is_empty()))
            }
            None => Ok(None),
        }
    }

    /// The texts of a field that may come often, as `name`, `name[]`, or both.
    pub(crate) fn texts(&self, name: &'static str) -> Result<Vec<&str>, ServerError> {
        let bracketed = format!("{name}[]");
        let fields = self.0.iter().filter(|f| f.name == name || f.name == bracketed);
        fields
            .map(|f| {
                std::str::from_utf8(&f.data)
                    .map(str::trim)
                    .map_err(|_| ServerError::bad(name, format!("{name} must be text")))
            })
            .filter(|t| !matches!(t, Ok("")))
            .collect()
    }

    /// A yes or no.
    pub(crate) fn is_on(&self, name: &'static str) -> Result<bool, ServerError> {
        match self.text(name)? {
            None | Some("false" | "False" | "0") => Ok(false),
            Some("true" | "True" | "1") => Ok(true),
            Some(other) => Err(ServerError::bad(
                name,
                format!("{name} is true or false, not '{}'", super::query::short(other)),
            )),
        }
    }
}
