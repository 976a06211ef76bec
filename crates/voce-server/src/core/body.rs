//! Request bodies: read up to a limit, at no less than a rolling rate, within a deadline and the server's budget; JSON and
//! multipart forms out of them. What a body takes of the budget it holds until its bytes are gone: a file that is being decoded
//! is in memory all the while.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout, timeout_at};

use super::budget::{Budget, Share, Turn};
use super::caller::Caller;
use super::error::ServerError;
use super::limits;
use super::pace::Pace;

/// A body on its way in.
struct Incoming {
    body: Body,
    limit: usize,
    declared: Option<usize>,
    taken: usize,
    pace: Pace,
    deadline: Instant,
    hold: Arc<Hold>,
    /// Whether its bytes stay in memory, and so count for as long as they are held.
    is_kept: bool,
}

/// How a body may come.
#[derive(Clone, Copy)]
struct Terms {
    /// Bytes of it.
    limit: usize,
    /// Bytes that are in memory at a time; all where absent.
    window: Option<usize>,
    /// How long it may take.
    time: Duration,
}

/// What a body has of the server's budget, for as long as any of its bytes are held.
struct Hold {
    share: Mutex<Share>,
    _turn: Turn,
}

/// Bytes of a body.
struct Held {
    data: Bytes,
    _hold: Arc<Hold>,
}

impl Held {
    /// The bytes, which give back what they hold when the last of them is dropped.
    fn bytes(data: Bytes, hold: &Arc<Hold>) -> Bytes {
        Bytes::from_owner(Self { data, _hold: hold.clone() })
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Incoming {
    /// Looks at what a body says of itself, and waits for its turn among those of the same caller.
    async fn new(
        headers: &HeaderMap,
        body: Body,
        terms: Terms,
        budget: &Budget,
    ) -> Result<Self, ServerError> {
        let Terms { limit, window, time } = terms;
        let declared = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok());
        if declared.is_some_and(|n| n > limit) {
            return Err(ServerError::TooLarge(limit));
        }
        // What is packed is not unpacked here, so that a small body stays one.
        if headers.get(CONTENT_ENCODING).is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(ServerError::malformed("the body has a Content-Encoding: send it without"));
        }
        let (limits, caller) = (&budget.limits, Caller::current());
        let deadline = Instant::now() + time;
        let turn = budget.body_line.enter(&caller, window.unwrap_or(declared.unwrap_or(limit)));
        let turn = timeout_at(deadline, turn).await.map_err(|_| ServerError::Overloaded("bodies"))??;
        let share = budget.bodies.take(&caller, window.unwrap_or(0));
        let share = share.map_err(|_| ServerError::Overloaded("bodies"))?;
        let pace = Pace::new(limits.body_grace, limits::BODY_RATE);
        let hold = Arc::new(Hold { share: Mutex::new(share), _turn: turn });
        Ok(Self { body, limit, declared, taken: 0, pace, deadline, hold, is_kept: window.is_none() })
    }

    /// What comes next; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ServerError> {
        loop {
            let asked = Instant::now();
            let patience = self.pace.left().min(self.deadline - asked);
            let frame = match timeout(patience, self.body.frame()).await {
                Err(_) => return Err(ServerError::SlowBody),
                Ok(None) => return Ok(None),
                Ok(Some(Err(_))) => return Err(ServerError::CutOff),
                Ok(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else { continue };
            self.pace.count(asked.elapsed(), data.len());
            self.taken += data.len();
            if self.taken > self.limit {
                return Err(ServerError::TooLarge(self.limit));
            }
            if self.is_kept {
                let mut share = self.hold.share.lock().unwrap_or_else(PoisonError::into_inner);
                share.grow(data.len()).map_err(|_| ServerError::Overloaded("bodies"))?;
            }
            return Ok(Some(data));
        }
    }
}

/// Reads a whole body of at most `limit` bytes.
pub(crate) async fn collect(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    budget: &Budget,
) -> Result<Bytes, ServerError> {
    let terms = Terms { limit, window: None, time: budget.limits.body_time };
    let mut incoming = Incoming::new(headers, body, terms, budget).await?;
    // Memory that is asked for is not used before something comes.
    let mut whole = BytesMut::with_capacity(incoming.declared.unwrap_or(0));
    while let Some(data) = incoming.next().await? {
        whole.extend_from_slice(&data);
    }
    Ok(Held::bytes(whole.freeze(), &incoming.hold))
}

/// Reads a JSON body.
pub(crate) async fn json<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Body,
    budget: &Budget,
) -> Result<T, ServerError> {
    let limit = budget.limits.body.min(limits::MAX_JSON);
    let bytes = collect(headers, body, limit, budget).await?;
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
        budget: &Budget,
    ) -> Result<Self, ServerError> {
        let boundary = boundary(headers)?;
        let terms =
            Terms { limit: limit + limits::MULTIPART_OVERHEAD, window: None, time: budget.limits.body_time };
        let incoming = Incoming::new(headers, body, terms, budget).await?;
        let hold = incoming.hold.clone();
        // Room for the file; what a form has beside it is small.
        let mut room = Some(incoming.declared.unwrap_or(0).min(limit));
        // Fields are read as they come, so that a file is held once.
        let stream = futures_util::stream::try_unfold(incoming, async |mut incoming| {
            Ok::<_, ServerError>(incoming.next().await?.map(|data| (data, incoming)))
        });
        let mut parts = multer::Multipart::new(stream, boundary);
        let mut fields = Vec::new();
        while let Some(mut part) = parts.next_field().await.map_err(bad_form)? {
            if fields.len() >= MAX_FIELDS {
                return Err(ServerError::malformed(format!("a form has at most {MAX_FIELDS} fields")));
            }
            let name = part.name().unwrap_or_default().to_owned();
            let file_name = part.file_name().map(str::to_owned);
            let room = room.take_if(|_| file_name.is_some()).unwrap_or(0);
            let mut data = BytesMut::with_capacity(room);
            while let Some(chunk) = part.chunk().await.map_err(bad_form)? {
                if data.len() + chunk.len() > limit {
                    return Err(ServerError::TooLarge(limit));
                }
                data.extend_from_slice(&chunk);
            }
            fields.push(Field { name, file_name, data: Held::bytes(data.freeze(), &hold) });
        }
        Ok(Self(fields))
    }

    /// Reads a form whose file goes to disk as it comes, up to `limit` bytes of it; the form then has the file's name and
    /// none of its bytes. Also the file's bytes.
    pub(crate) async fn spool(
        headers: &HeaderMap,
        body: Body,
        limit: usize,
        budget: &Budget,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(Self, u64), ServerError> {
        let boundary = boundary(headers)?;
        let terms = Terms {
            limit: limit.saturating_add(limits::MULTIPART_OVERHEAD),
            window: Some(limits::SPOOL_WINDOW),
            time: budget.limits.job_body_time,
        };
        let incoming = Incoming::new(headers, body, terms, budget).await?;
        let stream = futures_util::stream::try_unfold(incoming, async |mut incoming| {
            Ok::<_, ServerError>(incoming.next().await?.map(|data| (data, incoming)))
        });
        let mut parts = multer::Multipart::new(stream, boundary);
        let (mut fields, mut bytes, mut beside) = (Vec::new(), 0, 0);
        let mut is_file_here = false;
        while let Some(mut part) = parts.next_field().await.map_err(bad_form)? {
            if fields.len() >= MAX_FIELDS {
                return Err(ServerError::malformed(format!("a form has at most {MAX_FIELDS} fields")));
            }
            let name = part.name().unwrap_or_default().to_owned();
            let file_name = part.file_name().map(str::to_owned);
            let is_file = name == "file" && !is_file_here;
            is_file_here |= is_file;
            let mut data = BytesMut::new();
            while let Some(chunk) = part.chunk().await.map_err(bad_form)? {
                if is_file {
                    bytes += chunk.len() as u64;
                    if bytes > limit as u64 {
                        return Err(ServerError::TooLarge(limit));
                    }
                    into.write_all(&chunk).await.map_err(ServerError::spooling)?;
                } else {
                    beside += chunk.len();
                    if beside > limits::MULTIPART_OVERHEAD {
                        return Err(ServerError::TooLarge(limits::MULTIPART_OVERHEAD));
                    }
                    data.extend_from_slice(&chunk);
                }
            }
            fields.push(Field { name, file_name, data: data.freeze() });
        }
        into.flush().await.map_err(ServerError::spooling)?;
        Ok((Self(fields), bytes))
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

    /// A number, or an error that names the field.
    pub(crate) fn number<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, ServerError> {
        let bad = |text: &str| {
            ServerError::bad(name, format!("{name} must be a number, not '{}'", super::query::short(text)))
        };
        self.text(name)?.map(|text| text.parse().map_err(|_| bad(text))).transpose()
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

/// What separates the fields of a form.
fn boundary(headers: &HeaderMap) -> Result<String, ServerError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    multer::parse_boundary(kind)
        .map_err(|_| ServerError::malformed("send a multipart/form-data body with a boundary"))
}

/// Why a form could not be read: what is wrong with the body, where that is the reason.
fn bad_form(error: multer::Error) -> ServerError {
    match error {
        multer::Error::StreamReadFailed(inner) => match inner.downcast::<ServerError>() {
            Ok(error) => *error,
            Err(_) => ServerError::CutOff,
        },
        error => ServerError::malformed(format!("the form cannot be read: {error}")),
    }
}
