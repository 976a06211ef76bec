//! The hub cache on disk, as `huggingface_hub` lays it out.
//!
//! `models--OWNER--NAME/blobs/ETAG` holds content, `snapshots/COMMIT/PATH` are relative links to it, and
//! `refs/REVISION` says which commit a branch or tag last stood for. Files fetched by either program serve both.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::reference::{RepoId, is_commit, is_revision, is_safe_path};

/// One repository's folder in the hub cache.
#[derive(Debug, Clone)]
pub(super) struct RepoCache {
    cache: PathBuf,
    folder: String,
}

impl RepoCache {
    pub(super) fn new(cache: &Path, repo: &RepoId) -> Self {
        Self { cache: cache.to_owned(), folder: format!("models--{}--{}", repo.owner(), repo.name()) }
    }

    /// The repository that a folder of the cache is for.
    pub(super) fn repo_of(folder: &str) -> Option<RepoId> {
        let (owner, name) = folder.strip_prefix("models--")?.split_once("--")?;
        RepoId::new(owner, name)
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.cache.join(&self.folder)
    }

    pub(super) fn locks(&self) -> PathBuf {
        self.cache.join(".locks").join(&self.folder)
    }

    pub(super) fn lock(&self, etag: &str) -> PathBuf {
        self.locks().join(format!("{etag}.lock"))
    }

    pub(super) fn blobs(&self) -> PathBuf {
        self.dir().join("blobs")
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.blobs().join(etag)
    }

    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}.incomplete"))
    }

    pub(super) fn snapshots(&self) -> PathBuf {
        self.dir().join("snapshots")
    }

    pub(super) fn refs(&self) -> PathBuf {
        self.dir().join("refs")
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.snapshots().join(commit)
    }

    /// Where a file of a commit is, whether or not it is there.
    pub(super) fn pointer(&self, commit: &str, path: &str) -> Result<PathBuf, StoreError> {
        if is_commit(commit) && is_safe_path(path) {
            Ok(self.snapshot(commit).join(path.split('/').collect::<PathBuf>()))
        } else {
            Err(StoreError::UnsafeName { name: path.to_owned() })
        }
    }

    /// The file of a commit, if it is there.
    pub(super) fn find(&self, commit: &str, path: &str) -> Option<PathBuf> {
        self.pointer(commit, path).ok().filter(|pointer| pointer.is_file())
    }

    /// The commit that `revision` last stood for, from what is on disk alone.
    pub(super) fn resolve(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        if !is_revision(revision) {
            return None;
        }
        if let Ok(text) = fs::read_to_string(self.refs().join(revision)) {
            let commit = text.trim();
            return is_commit(commit).then(|| commit.to_owned());
        }
        if revision.len() >= 7 && revision.bytes().all(|b| b.is_ascii_hexdigit()) {
            let mut matching = self.commits().into_iter().filter(|commit| commit.starts_with(revision));
            return matching.next().filter(|_| matching.next().is_none());
        }
        None
    }

    /// The commits with a snapshot, sorted.
    pub(super) fn commits(&self) -> Vec<String> {
        let mut commits: Vec<String> = fs::read_dir(self.snapshots())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_commit(name))
            .collect();
        commits.sort_unstable();
        commits
    }

    /// Notes which commit `revision` stands for.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> Result<(), StoreError> {
        if revision == commit || !is_revision(revision) {
            return Ok(());
        }
        let path = self.refs().join(revision);
        if fs::read_to_string(&path).is_ok_and(|text| text == commit) {
            return Ok(());
        }
        make_parent(&path)?;
        let temporary = beside(&path);
        fs::File::create(&temporary)
            .and_then(|mut file| file.write_all(commit.as_bytes()))
            .and_then(|()| fs::rename(&temporary, &path))
            .map_err(StoreError::io("write", &path))
    }

    /// Makes `path` of `commit` stand for the blob `etag`.
    pub(super) fn link(&self, commit: &str, path: &str, etag: &str) -> Result<PathBuf, StoreError> {
        let pointer = self.pointer(commit, path)?;
        let blob = self.blob(etag);
        let wanted = fs::canonicalize(&blob).map_err(StoreError::io("find", &blob))?;
        if fs::canonicalize(&pointer).is_ok_and(|there| there == wanted) {
            return Ok(pointer);
        }
        make_parent(&pointer)?;
        let up = "../".repeat(path.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        let temporary = beside(&pointer);
        place(&target, &blob, &temporary)
            .and_then(|()| fs::rename(&temporary, &pointer))
            .map_err(StoreError::io("link", &pointer))?;
        Ok(pointer)
    }
}

#[cfg(unix)]
fn place(target: &Path, _blob: &Path, at: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, at)
}

#[cfg(not(unix))]
fn place(_target: &Path, blob: &Path, at: &Path) -> std::io::Result<()> {
    fs::hard_link(blob, at).or_else(|_| fs::copy(blob, at).map(|_| ()))
}

/// A name beside `path` that no other process uses.
fn beside(path: &Path) -> PathBuf {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let unique = COUNT.fetch_add(1, Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}-{unique}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Makes the folder that `path` is in.
pub(super) fn make_parent(path: &Path) -> Result<(), StoreError> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(StoreError::io("create", parent)),
        None => Ok(()),
    }
}

/// Bytes that may still be written where `path` is; `None` where the system does not say.
#[cfg(unix)]
pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|ancestor| ancestor.exists())?;
    let stat = rustix::fs::statvfs(there).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// Bytes that may still be written where `path` is; `None` where the system does not say.
#[cfg(not(unix))]
pub(super) fn free_bytes(_path: &Path) -> Option<u64> {
    None
}
