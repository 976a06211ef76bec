//! What can go wrong between here and NATS.

use std::path::PathBuf;

/// Words of the server where a stream, an account or a disk has no room left.
const FULL: [&str; 5] = [
    "maximum bytes exceeded",
    "insufficient resources",
    "resource limits exceeded",
    "insufficient storage",
    "no space left",
];

/// Why NATS cannot be used for jobs; the text says what to do.
#[derive(Debug, thiserror::Error)]
pub enum NatsError {
    /// Nobody answers.
    #[error("cannot reach NATS at {url}: {reason}: check the address and that the server runs")]
    Unreachable {
        /// The address.
        url: String,
        /// What the client says.
        reason: String,
    },
    /// The server does not let us in.
    #[error(
        "NATS at {url} refuses these credentials: check --nats-creds, --nats-nkey, --nats-user and --nats-password, or \
         --nats-token"
    )]
    Credentials {
        /// The address.
        url: String,
    },
    /// A file of credentials or certificates is no good.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why it cannot be used.
        reason: String,
    },
    /// The server or the account has no JetStream.
    #[error(
        "NATS at {url} has no JetStream for this account: start the server with -js, or enable it for the account ({reason})"
    )]
    NoJetStream {
        /// The address.
        url: String,
        /// What the client says.
        reason: String,
    },
    /// A stream of this name is something else.
    #[error(
        "the stream {name} has other settings: {what}: remove it (nats stream rm {name}), or give another --nats-prefix"
    )]
    OtherStream {
        /// The stream.
        name: String,
        /// What differs.
        what: String,
    },
    /// A prefix that cannot be part of a subject.
    #[error("'{0}' is no prefix: use letters, digits, - and _")]
    Prefix(String),
    /// No such job.
    #[error("no job '{0}': `voce jobs list` has their ids")]
    UnknownJob(String),
    /// There is no room.
    #[error("{what}: it is full ({reason}): raise its limit, or fetch and remove what is there")]
    Full {
        /// The step that failed.
        what: &'static str,
        /// What the client says.
        reason: String,
    },
    /// A step failed.
    #[error("{what}: {reason}")]
    Step {
        /// The step that failed.
        what: &'static str,
        /// What the client says.
        reason: String,
    },
}

impl NatsError {
    /// Makes errors of one step.
    pub(super) fn step<E: std::fmt::Display>(what: &'static str) -> impl FnOnce(E) -> NatsError {
        move |e| NatsError::Step { what, reason: e.to_string() }
    }

    /// Makes errors of putting something into the object store.
    pub(super) fn put<E: std::error::Error>(what: &'static str) -> impl FnOnce(E) -> NatsError {
        move |e| {
            let mut reason = e.to_string();
            let mut source = e.source();
            while let Some(inner) = source {
                reason = format!("{reason}: {inner}");
                source = inner.source();
            }
            let is_full = FULL.iter().any(|words| reason.contains(words));
            if is_full { NatsError::Full { what, reason } } else { NatsError::Step { what, reason } }
        }
    }
}
