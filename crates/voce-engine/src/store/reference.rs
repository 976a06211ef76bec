//! The grammar of model references: what a user may write where a model is wanted.

use std::fmt;
use std::path::PathBuf;

use super::catalogue::{self, Entry};
use super::error::StoreError;

/// The longest reference that is looked at.
pub const MAX_REFERENCE: usize = 1024;
/// The revision meant when none is written.
pub const DEFAULT_REVISION: &str = "main";

/// A repository of the hub: owner and name, both safe as a folder's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId {
    owner: String,
    name: String,
}

impl RepoId {
    /// A repository from its two parts; `None` where a part is not a hub name.
    pub fn new(owner: &str, name: &str) -> Option<Self> {
        let good = |part: &str| {
            (1..=96).contains(&part.len())
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && !part.starts_with(['-', '.'])
                && !part.ends_with(['-', '.'])
                && !part.contains("--")
                && !part.contains("..")
        };
        (good(owner) && good(name)).then(|| Self::fixed(owner, name))
    }

    pub(super) fn fixed(owner: &str, name: &str) -> Self {
        Self { owner: owner.to_owned(), name: name.to_owned() }
    }

    /// The owner: a user or an organisation.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The repository's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

/// A place in a repository of the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubRef {
    /// The repository.
    pub repo: RepoId,
    /// A file or a folder in it; the whole repository when `None`.
    pub path: Option<String>,
    /// A branch, a tag or a commit id.
    pub revision: String,
}

impl fmt::Display for HubRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if let Some(path) = &self.path {
            write!(f, "/{path}")?;
        }
        // Some published files have an @ in their names, which would be taken for the revision's.
        let ambiguous = self.path.as_ref().is_some_and(|path| path.contains('@'));
        if self.revision != DEFAULT_REVISION || ambiguous {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

/// What a user's text for a model stands for.
#[derive(Debug, Clone, PartialEq)]
pub enum Reference {
    /// A directory or file on this machine.
    Path(PathBuf),
    /// A bare name that the catalogue does not have: a folder among the local models.
    Local(String),
    /// An entry of the catalogue.
    Catalogue {
        /// The entry.
        entry: &'static Entry,
        /// Whether the weights that can clone voices are meant (`NAME:cloning`).
        cloning: bool,
    },
    /// A repository of the hub, or a part of one.
    Hub(HubRef),
}

impl Reference {
    /// Reads a reference.
    ///
    /// Text that starts with `.`, `/` or `~/`, or that names something that exists, is a path; a catalogue name
    /// wins over a file of the same name, which can be written `./NAME`.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let bad = |reason| StoreError::BadReference { text: shorten(text), reason };
        if text.is_empty() || text.len() > MAX_REFERENCE {
            return Err(bad("it is empty or far too long"));
        }
        if text.chars().any(char::is_control) {
            return Err(bad("it has control characters"));
        }
        if let Some(rest) = text.strip_prefix("hf://") {
            if ["datasets/", "spaces/", "buckets/"].iter().any(|kind| rest.starts_with(kind)) {
                return Err(bad("only model repositories can be used"));
            }
            let rest = rest.strip_prefix("models/").unwrap_or(rest);
            return hub(rest).map(Self::Hub).map_err(bad);
        }
        if text.contains("://") {
            return Err(bad("only hf:// addresses are known"));
        }
        if let Some(rest) = text.strip_prefix("~/") {
            let home = std::env::home_dir().ok_or_else(|| bad("there is no home directory"))?;
            return Ok(Self::Path(home.join(rest)));
        }
        if text.starts_with(['.', '/']) || std::path::Path::new(text).is_absolute() {
            return Ok(Self::Path(PathBuf::from(text)));
        }
        let (name, cloning) = match text.strip_suffix(":cloning") {
            Some(name) => (name, true),
            None => (text, false),
        };
        if let Some(entry) = catalogue::find(name) {
            if cloning && !has_cloning(entry) {
                return Err(bad("this model has no other weights for cloning"));
            }
            return Ok(Self::Catalogue { entry, cloning });
        }
        if std::path::Path::new(text).exists() {
            return Ok(Self::Path(PathBuf::from(text)));
        }
        if text.contains('/') {
            return hub(text).map(Self::Hub).map_err(bad);
        }
        if is_local_name(text) {
            Ok(Self::Local(text.to_owned()))
        } else {
            Err(bad("it has unknown characters"))
        }
    }

    /// The same reference with the weights that can clone voices, where there are such.
    pub fn with_cloning(self) -> Self {
        match self {
            Self::Catalogue { entry, .. } if has_cloning(entry) => Self::Catalogue { entry, cloning: true },
            other => other,
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Local(name) => f.write_str(name),
            Self::Catalogue { entry, cloning: false } => f.write_str(entry.alias),
            Self::Catalogue { entry, cloning: true } => write!(f, "{}:cloning", entry.alias),
            Self::Hub(hub) => write!(f, "{hub}"),
        }
    }
}

fn has_cloning(entry: &Entry) -> bool {
    entry.files().is_some_and(|files| files.cloning.is_some())
}

fn hub(text: &str) -> Result<HubRef, &'static str> {
    let (place, revision) = match text.rsplit_once('@') {
        Some((place, revision)) => (place, revision),
        None => (text, DEFAULT_REVISION),
    };
    if !is_revision(revision) {
        return Err("the revision after @ is not a branch, tag or commit");
    }
    let mut parts = place.trim_end_matches('/').splitn(3, '/');
    let (owner, name) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    let repo = RepoId::new(owner, name).ok_or("there is no owner/repo in it")?;
    let path = match parts.next() {
        Some(path) if is_safe_path(path) => Some(path.to_owned()),
        Some(_) => return Err("the path in the repository is unsafe"),
        None => None,
    };
    Ok(HubRef { repo, path, revision: revision.to_owned() })
}

/// Whether `name` may name a folder among the local models.
pub(super) fn is_local_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !name.starts_with('.')
}

/// Whether `path` stays inside the folder it is joined to, on any system.
pub(super) fn is_safe_path(path: &str) -> bool {
    (1..=1024).contains(&path.len())
        && !path.chars().any(|c| c.is_control() || "\\:*?\"<>|".contains(c))
        && path.split('/').all(|part| {
            !part.is_empty()
                && part != "."
                && part != ".."
                && part.len() <= 255
                && !part.ends_with(['.', ' '])
        })
}

/// Whether `revision` is usable as a branch, a tag or a commit, in an address and as a file name under `refs`.
pub(super) fn is_revision(revision: &str) -> bool {
    (1..=200).contains(&revision.len())
        && revision.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./+".contains(&b))
        && !revision.starts_with('-')
        && is_safe_path(revision)
}

/// Whether `revision` is a full commit id.
pub fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

fn shorten(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub_of(text: &str) -> (String, Option<String>, String) {
        match Reference::parse(text) {
            Ok(Reference::Hub(hub)) => (hub.repo.to_string(), hub.path, hub.revision),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn hub_forms() {
        let some = |s: &str| Some(s.to_owned());
        assert_eq!(hub_of("a/b"), ("a/b".into(), None, "main".into()));
        assert_eq!(hub_of("a/b@v1.0"), ("a/b".into(), None, "v1.0".into()));
        assert_eq!(hub_of("a/b@refs/pr/3"), ("a/b".into(), None, "refs/pr/3".into()));
        assert_eq!(hub_of("a/b/c/d@x"), ("a/b".into(), some("c/d"), "x".into()));
        assert_eq!(
            hub_of("hf://a/b/c/m.safetensors@0f"),
            ("a/b".into(), some("c/m.safetensors"), "0f".into())
        );
        assert_eq!(hub_of("hf://models/a/b"), ("a/b".into(), None, "main".into()));
    }

    #[test]
    fn catalogue_and_paths() {
        let Ok(Reference::Catalogue { entry, cloning }) = Reference::parse("pocket:cloning") else {
            panic!()
        };
        assert_eq!((entry.alias, cloning), ("pocket-english", true));
        assert_eq!(Reference::parse("./pocket").unwrap(), Reference::Path("./pocket".into()));
        assert_eq!(Reference::parse("/nowhere/x").unwrap(), Reference::Path("/nowhere/x".into()));
        assert_eq!(Reference::parse("my-model").unwrap(), Reference::Local("my-model".into()));
        assert_eq!(Reference::parse("src").unwrap(), Reference::Path("src".into()));
    }

    #[test]
    fn display_parses_back() {
        for text in [
            "a/b",
            "a/b@v1",
            "a/b/c/mimi@125.safetensors@main",
            "a/b/c/d.bin@v1",
            "pocket-german-24l",
            "pocket-french:cloning",
            "nemotron",
            "./x",
            "mine",
        ] {
            let once = Reference::parse(text).unwrap();
            assert_eq!(Reference::parse(&once.to_string()).unwrap(), once, "{text}");
        }
    }

    #[test]
    fn refused() {
        for text in [
            "",
            "a/b/../c",
            "a/b/./c",
            "a//b",
            "hf://a",
            "hf://datasets/a/b",
            "https://x/y",
            "a/b@",
            "a/b@../../x",
            "a/b@-x",
            "a/..",
            "-a/b",
            "a--x/b",
            "a/b/c\\..\\d",
            "a\nb",
            "we ird",
            "nemotron:cloning",
        ] {
            assert!(Reference::parse(text).is_err(), "{text}");
        }
        assert!(Reference::parse(&"a".repeat(MAX_REFERENCE + 1)).is_err());
    }
}
