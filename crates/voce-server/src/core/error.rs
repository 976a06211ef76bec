//! What a client can be told went wrong: a closed set, each with a status, a short code and a text that says what to do.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use voce_audio::AudioError;
use voce_engine::EngineError;

use super::limits;
use crate::handover::HandoverError;

/// Errors of the server; [`ServerError::code`] goes on the wire and into the metric's label.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A field of the request is no good.
    #[error("{message}")]
    BadRequest {
        /// The field, where one is to blame.
        param: Option<&'static str>,
        /// What is wrong and what to do.
        message: String,
    },
    /// No key, or a wrong one.
    #[error("a valid API key is needed: send it as `Authorization: Bearer KEY`")]
    Unauthorized,
    /// A page of another site, or a name that is not this machine's.
    #[error("{0}")]
    Forbidden(String),
    /// No such route.
    #[error("there is no {0} here: see the list of routes in the documentation")]
    NotFound(String),
    /// The route has other methods.
    #[error("this route does not take that method")]
    BadMethod,
    /// No such model.
    #[error("the model '{name}' is not loaded: use one of {known}")]
    UnknownModel {
        /// As asked for.
        name: String,
        /// Those that are loaded.
        known: String,
    },
    /// The server has no model of this kind.
    #[error("this server has no {0}: start it with one")]
    NoModel(&'static str),
    /// More bytes than allowed.
    #[error("the request is larger than {0} bytes: send less, or a more compressed file")]
    TooLarge(usize),
    /// The body came too slowly, or stopped.
    #[error("the request's body came too slowly")]
    SlowBody,
    /// The client went away while it was sending.
    #[error("the request's body was cut off")]
    CutOff,
    /// Every slot is taken.
    #[error("all {slots} {what} slots are taken: try again in a moment")]
    Busy {
        /// `speech`, `recognition` or `dialogue`.
        what: &'static str,
        /// How many there are.
        slots: usize,
    },
    /// Every slot is taken, told before an upgrade.
    #[error("all {slots} {what} slots of this machine are taken: try another one, or again in a moment")]
    Full {
        /// `speech`, `recognition` or `dialogue`.
        what: &'static str,
        /// How many there are.
        slots: usize,
    },
    /// The caller holds its share of the slots.
    #[error("this {by} holds its share of the {what} slots: end a stream, or try again in a moment")]
    Share {
        /// `key` or `address`.
        by: &'static str,
        /// `speech`, `recognition` or `dialogue`.
        what: &'static str,
    },
    /// What a caller may keep here is used up.
    #[error("{0}")]
    Quota(&'static str),
    /// There is no room for what a caller wants kept.
    #[error(
        "the server cannot keep this: its disk or its object store is full: try again later, or tell its operator"
    )]
    NoSpace,
    /// Somebody else's, or nobody's.
    #[error("there is no job '{0}' of yours here: it may have expired")]
    UnknownJob(String),
    /// The server keeps no jobs.
    #[error("this server keeps no jobs: start it with --jobs FOLDER, or with --jobs-nats URL")]
    NoJobs,
    /// The queue of jobs cannot be reached.
    #[error("the queue of jobs does not answer: try again in a moment")]
    QueueDown,
    /// A job that is not over has no result, and one that failed never has.
    #[error("{0}")]
    NoResult(String),
    /// The server has too much of something in flight.
    #[error("the server has no room for more {0} now: try again in a moment")]
    Overloaded(&'static str),
    /// A stream held its slot and brought nothing.
    #[error("no audio or text came for too long: the slot is given to others")]
    Idle,
    /// A client does not take its speech.
    #[error("the speech was taken too slowly: read it at least at half of its speed")]
    SlowReader,
    /// The server is on its way out.
    #[error("the server is shutting down: try another one")]
    Draining,
    /// The model is not there yet, or not any more.
    #[error("the model is not ready: try again in a moment")]
    NotReady,
    /// A stream of another machine cannot be gone on with.
    #[error(transparent)]
    Handover(HandoverError),
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The audio is no good.
    #[error(transparent)]
    Audio(#[from] AudioError),
    /// A fault of the server; the log has more.
    #[error("the server failed on this request: it has been logged")]
    Internal,
}

impl ServerError {
    /// A bad field.
    pub(crate) fn bad(param: &'static str, message: impl Into<String>) -> Self {
        Self::BadRequest { param: Some(param), message: message.into() }
    }

    /// A bad request as a whole.
    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::BadRequest { param: None, message: message.into() }
    }

    /// Why bytes could not be written down.
    pub(crate) fn spooling(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => {
                tracing::error!(%error, "a recording cannot be written down");
                Self::Internal
            }
        }
    }

    /// The short stable name of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadRequest { .. } => "bad_request",
            Self::Unauthorized => "invalid_api_key",
            Self::Forbidden(_) => "forbidden",
            Self::NotFound(_) => "not_found",
            Self::BadMethod => "bad_method",
            Self::UnknownModel { .. } => "model_not_found",
            Self::NoModel(_) => "no_model",
            Self::TooLarge(_) => "too_large",
            Self::SlowBody => "slow_body",
            Self::CutOff => "cut_off",
            Self::Busy { .. } | Self::Full { .. } => "busy",
            Self::Share { .. } => "over_share",
            Self::Quota(_) => "over_quota",
            Self::NoSpace => "no_space",
            Self::UnknownJob(_) => "job_not_found",
            Self::NoResult(_) => "no_result",
            Self::NoJobs => "no_jobs",
            Self::QueueDown => "queue_down",
            Self::Overloaded(_) => "overloaded",
            Self::Idle => "idle",
            Self::SlowReader => "slow_reader",
            Self::Draining => "draining",
            Self::NotReady => "not_ready",
            Self::Handover(e) => e.code(),
            Self::Engine(e) => e.code(),
            Self::Audio(e) => e.code(),
            Self::Internal => "internal",
        }
    }

    /// The HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } | Self::CutOff => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden(_) | Self::Quota(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) | Self::UnknownModel { .. } | Self::UnknownJob(_) => StatusCode::NOT_FOUND,
            Self::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
            Self::NoResult(_) => StatusCode::CONFLICT,
            Self::BadMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody | Self::Idle | Self::SlowReader => StatusCode::REQUEST_TIMEOUT,
            Self::Busy { .. } | Self::Share { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Overloaded(_)
            | Self::Draining
            | Self::Full { .. }
            | Self::NotReady
            | Self::NoModel(_)
            | Self::NoJobs
            | Self::QueueDown => StatusCode::SERVICE_UNAVAILABLE,
            Self::Handover(e) => match e {
                HandoverError::Off => StatusCode::BAD_REQUEST,
                HandoverError::Bad => StatusCode::FORBIDDEN,
                HandoverError::Expired => StatusCode::GONE,
                HandoverError::Unknown => StatusCode::NOT_FOUND,
                HandoverError::Other | HandoverError::Weights => StatusCode::CONFLICT,
            },
            Self::Engine(e) => match e {
                EngineError::Text(_)
                | EngineError::UnknownVoice { .. }
                | EngineError::NoCloning { .. }
                | EngineError::BadRequest { .. }
                | EngineError::Chunk { .. }
                | EngineError::Language { .. }
                | EngineError::Search(_)
                | EngineError::Speech(_)
                | EngineError::Dialogue(_)
                | EngineError::Codec(_)
                | EngineError::Voice { .. }
                | EngineError::Audio { .. } => StatusCode::BAD_REQUEST,
                EngineError::Busy(_) => StatusCode::TOO_MANY_REQUESTS,
                EngineError::Stopped(_) | EngineError::PassageTooLong => StatusCode::SERVICE_UNAVAILABLE,
                EngineError::Store(e) if matches!(e.code(), "bad_voice_name" | "unknown_voice") => {
                    StatusCode::BAD_REQUEST
                }
                _ => StatusCode::INTERNAL_SERVER_ERROR,
            },
            Self::Audio(e) => match e {
                AudioError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                AudioError::Io { .. } | AudioError::Encode { .. } => StatusCode::INTERNAL_SERVER_ERROR,
                _ => StatusCode::BAD_REQUEST,
            },
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The close code for a WebSocket that ends with this error.
    pub(crate) fn close_code(&self) -> u16 {
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => 1013,
            StatusCode::SERVICE_UNAVAILABLE => {
                if matches!(self, Self::Draining) {
                    1012
                } else {
                    1013
                }
            }
            s if s.is_server_error() => 1011,
            _ => 1008,
        }
    }

    /// What the client reads. Faults of the server tell no details: files and paths are not the client's business.
    pub(crate) fn message(&self) -> String {
        match self {
            _ if self.status() == StatusCode::INTERNAL_SERVER_ERROR => Self::Internal.to_string(),
            // The engine's text offers files, which a server takes from nobody.
            Self::Engine(EngineError::UnknownVoice { name, known }) if known.is_empty() => {
                format!("unknown voice '{name}': this model has no voices here")
            }
            Self::Engine(EngineError::UnknownVoice { name, known }) => {
                format!("unknown voice '{name}': known voices are {}", known.join(", "))
            }
            _ => self.to_string(),
        }
    }

    /// The kind of error in OpenAI's words.
    fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            s if s.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The inside of OpenAI's `{"error": ...}`.
    pub(crate) fn object(&self) -> Value {
        let param = match self {
            Self::BadRequest { param, .. } => *param,
            Self::UnknownModel { .. } => Some("model"),
            Self::Engine(EngineError::Language { .. }) => Some("language"),
            Self::Engine(EngineError::Chunk { .. }) => Some("chunk_ms"),
            _ => None,
        };
        json!({"message": self.message(), "type": self.kind(), "param": param, "code": self.code()})
    }
}

impl IntoResponse for ServerError {
    fn into_response(self) -> Response {
        let status = self.status();
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(code = self.code(), error = %self, "request failed");
        }
        let body = json!({"error": self.object()}).to_string();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(RETRY_AFTER, HeaderValue::from(limits::RETRY_AFTER.as_secs()));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert("www-authenticate", HeaderValue::from_static("Bearer"));
        }
        response.extensions_mut().insert(ErrorCode(self.code()));
        response
    }
}

/// The code of the error that a response carries, for the metrics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ErrorCode(pub(crate) &'static str);
