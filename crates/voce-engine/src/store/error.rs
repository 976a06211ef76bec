//! What can go wrong in the model store, each with a short code and a text that says what to do.

use std::path::{Path, PathBuf};

use super::reference::RepoId;

/// An error of the model store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The text is not a model reference.
    #[error(
        "`{text}` is not a model: {reason}; give a directory, owner/repo[@revision], hf://owner/repo/path[@revision] or a name from the catalogue"
    )]
    BadReference {
        /// What was given.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A bare name that neither the catalogue nor the local models have.
    #[error("unknown model `{name}`{}", did_you_mean(.near))]
    UnknownModel {
        /// What was given.
        name: String,
        /// Catalogue names near to it.
        near: Vec<&'static str>,
    },
    /// A model of a family that is not known.
    #[error(
        "'{id}' is {}: `voce list --all` shows what can be pulled, docs/models.md which folders can be read",
        unknown_family(.said.as_deref())
    )]
    UnknownFamily {
        /// What was given.
        id: String,
        /// The type that its configuration names.
        said: Option<String>,
    },
    /// The model, or a file of it, is not on this machine.
    #[error("{what} is not on this machine; run `voce pull {id}`")]
    NotPulled {
        /// What is missing.
        what: String,
        /// The reference to pull.
        id: String,
    },
    /// The network was needed but is switched off.
    #[error(
        "{what} is not on this machine and offline mode is on; unset --offline and HF_HUB_OFFLINE to fetch it"
    )]
    Offline {
        /// What is missing.
        what: String,
    },
    /// The repository needs an accepted licence or a token.
    #[error(
        "access to {repo} was refused (HTTP {status}): accept its licence at {page}, then set HF_TOKEN to a token of that account"
    )]
    Gated {
        /// The repository.
        repo: RepoId,
        /// The HTTP status.
        status: u16,
        /// The model's page.
        page: String,
    },
    /// The hub has no such repository, revision or file.
    #[error("{what} was not found on {endpoint}; check the name and the revision")]
    NotFound {
        /// What was asked for.
        what: String,
        /// The hub's address.
        endpoint: String,
    },
    /// The hub asked to wait for longer than is sensible.
    #[error(
        "{host} asks to wait {seconds} s before the next request; try again later, or set HF_TOKEN for a higher limit"
    )]
    RateLimited {
        /// The host that refuses.
        host: String,
        /// The wait it asks for.
        seconds: u64,
    },
    /// The hub or the connection failed, and went on failing.
    #[error("{what}: {reason}; what has arrived is kept, run the same command to resume")]
    Network {
        /// What was being fetched.
        what: String,
        /// The last failure.
        reason: String,
    },
    /// The hub has failed so often that it is left alone for a while.
    #[error("{what}: the hub has failed too often, the next try is in {seconds} s; what has arrived is kept")]
    Resting {
        /// What was to be fetched.
        what: String,
        /// How long it is left alone.
        seconds: u64,
    },
    /// A reply of the hub that makes no sense.
    #[error("unexpected reply for {what}: {reason}; check HF_ENDPOINT")]
    BadReply {
        /// What was being fetched.
        what: String,
        /// What is wrong with the reply.
        reason: String,
    },
    /// The bytes that arrived are not the bytes that were promised.
    #[error("{file} is damaged: expected {expected}, got {got}; it was deleted, run `voce pull` again")]
    Damaged {
        /// The file.
        file: String,
        /// The promised hash.
        expected: String,
        /// The hash of what arrived.
        got: String,
    },
    /// The disk is too full.
    #[error("{path} has {free} bytes free but {needed} are needed; free some space or set HF_HOME to another disk", path = .path.display())]
    DiskFull {
        /// Where the files go.
        path: PathBuf,
        /// Bytes still to fetch.
        needed: u64,
        /// Bytes available.
        free: u64,
    },
    /// The caller cancelled the pull.
    #[error("cancelled; what has arrived is kept, run the same command to resume")]
    Cancelled,
    /// No file of the repository matches the request.
    #[error("no file of {repo} matches {wanted}")]
    NothingMatches {
        /// The repository.
        repo: RepoId,
        /// The path or patterns asked for.
        wanted: String,
    },
    /// A file name that would leave its folder.
    #[error("refused the unsafe file name `{name}`")]
    UnsafeName {
        /// The name.
        name: String,
    },
    /// A request to remove something the store does not own.
    #[error("{path} is not inside {root}; remove it yourself if you mean to", path = .path.display(), root = .root.display())]
    OutsideStore {
        /// What was to be removed.
        path: PathBuf,
        /// The folder that may be changed.
        root: PathBuf,
    },
    /// A voice name outside of the allowed characters.
    #[error("`{name}` is not a voice name: use 1 to 64 of the letters A-Z a-z, digits, `_` and `-`")]
    BadVoiceName {
        /// The name.
        name: String,
    },
    /// No user voice has this name.
    #[error("no voice named `{name}`; known: {}", list_or_none(.known))]
    UnknownVoice {
        /// The name.
        name: String,
        /// The names there are.
        known: Vec<String>,
    },
    /// A setting in the environment is unusable.
    #[error("{name} is unusable: {reason}")]
    BadSetting {
        /// The variable.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The file system refused.
    #[error("cannot {action} {path}: {source}", path = .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

fn unknown_family(said: Option<&str>) -> String {
    match said {
        Some(said) => format!("a '{said}' model, which is of no family that is known here"),
        None => "no model of a family that is known here".to_owned(),
    }
}

fn did_you_mean(near: &[&str]) -> String {
    if near.is_empty() {
        "; `voce list --all` shows the catalogue".to_owned()
    } else {
        format!("; did you mean {}?", near.join(", "))
    }
}

fn list_or_none(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

impl StoreError {
    /// A short stable code for logs and wire formats.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::BadReference { .. } => "bad_reference",
            StoreError::UnknownModel { .. } => "unknown_model",
            StoreError::UnknownFamily { .. } => "unknown_family",
            StoreError::NotPulled { .. } => "not_pulled",
            StoreError::Offline { .. } => "offline",
            StoreError::Gated { .. } => "gated",
            StoreError::NotFound { .. } => "not_found",
            StoreError::RateLimited { .. } => "rate_limited",
            StoreError::Network { .. } => "network",
            StoreError::Resting { .. } => "breaker_open",
            StoreError::BadReply { .. } => "bad_reply",
            StoreError::Damaged { .. } => "damaged",
            StoreError::DiskFull { .. } => "disk_full",
            StoreError::Cancelled => "cancelled",
            StoreError::NothingMatches { .. } => "nothing_matches",
            StoreError::UnsafeName { .. } => "unsafe_name",
            StoreError::OutsideStore { .. } => "outside_store",
            StoreError::BadVoiceName { .. } => "bad_voice_name",
            StoreError::UnknownVoice { .. } => "unknown_voice",
            StoreError::BadSetting { .. } => "bad_setting",
            StoreError::Io { .. } => "io",
        }
    }

    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError + use<> {
        let path = path.to_owned();
        move |source| StoreError::Io { action, path, source }
    }
}
