//! Paths that a configuration gives to models: each has its own, and some need no key.

use std::collections::HashMap;

use super::routes;

/// What is spoken at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// moshi-server's recognition.
    Hearing,
    /// moshi-server's speech.
    Speech,
    /// A dialogue.
    Dialogue,
    /// The producer's side of rooms.
    RoomSend,
    /// The listeners' side of rooms.
    RoomListen,
}

/// A path of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The path.
    pub path: String,
    /// What is spoken there.
    pub serves: Serves,
    /// The model that answers; the default where absent.
    pub model: Option<String>,
    /// Whether it needs no key.
    pub open: bool,
    /// What `/api/modules_info` says of it beside its path and slots; not listed where there is nothing.
    pub listed: Vec<(&'static str, String)>,
}

impl Mount {
    /// A path whose model is the default.
    pub fn new(path: impl Into<String>, serves: Serves) -> Self {
        Self { path: path.into(), serves, model: None, open: false, listed: Vec::new() }
    }
}

/// Why a path cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// It is no path of its own.
    #[error("the path '{0}' is no good: use one such as /api/asr, without braces or stars")]
    Bad(String),
    /// The server has something else there.
    #[error("the path '{0}' is taken by the server itself: choose another one")]
    Taken(String),
    /// Two want it.
    #[error("two modules have the path '{0}': give each its own")]
    Twice(String),
}

/// The mounts of a server, by path.
#[derive(Debug, Default)]
pub(crate) struct Mounts(HashMap<String, Mount>);

impl Mounts {
    /// Checks that every mount can have its path.
    pub(crate) fn new(mounts: &[Mount]) -> Result<Self, MountError> {
        let mut by_path = HashMap::new();
        for mount in mounts {
            let path = &mount.path;
            let is_plain =
                path.starts_with('/') && path.len() > 1 && !path.contains(['{', '}', '*', '?', '#']);
            if !is_plain {
                return Err(MountError::Bad(path.clone()));
            }
            if routes::is_taken(path, mount.serves) {
                return Err(MountError::Taken(path.clone()));
            }
            if by_path.insert(path.clone(), mount.clone()).is_some() {
                return Err(MountError::Twice(path.clone()));
            }
        }
        Ok(Self(by_path))
    }

    pub(crate) fn get(&self, path: &str) -> Option<&Mount> {
        self.0.get(path)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_had_once_and_only_where_nothing_else_is() {
        let of = |mounts: &[(&str, Serves)]| {
            let mounts: Vec<Mount> = mounts.iter().map(|(path, serves)| Mount::new(*path, *serves)).collect();
            Mounts::new(&mounts).map(|m| m.0.len())
        };
        assert_eq!(of(&[("/a", Serves::Hearing), ("/b", Serves::Speech)]), Ok(2));
        // The server's own path of the same kind may be given to a model.
        assert_eq!(of(&[("/api/asr-streaming", Serves::Hearing), ("/api/chat", Serves::Dialogue)]), Ok(2));
        for (path, serves) in
            [("/api/chat", Serves::Hearing), ("/metrics", Serves::Dialogue), ("/v1/models/x", Serves::Speech)]
        {
            assert_eq!(of(&[(path, serves)]), Err(MountError::Taken(path.into())));
        }
        for path in ["", "/", "a", "/{x}", "/*", "/a?b"] {
            assert_eq!(of(&[(path, Serves::Hearing)]), Err(MountError::Bad(path.into())));
        }
        assert_eq!(
            of(&[("/a", Serves::Hearing), ("/a", Serves::Speech)]),
            Err(MountError::Twice("/a".into()))
        );
    }
}
