//! Removing models from disk: links first, then the content nobody links to any more.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Store;
use super::catalogue::{self, Entry, Files, HubFile, Source};
use super::error::StoreError;
use super::folder;
use super::installed::{partial_files, refs};
use super::layout::RepoCache;
use super::reference::{DEFAULT_REVISION, HubRef, Reference, RepoId};

/// What a removal freed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removed {
    /// Files of models that are gone.
    pub files: usize,
    /// Bytes freed.
    pub bytes: u64,
}

impl std::ops::AddAssign for Removed {
    fn add_assign(&mut self, other: Self) {
        self.files += other.files;
        self.bytes += other.bytes;
    }
}

impl Store {
    /// Removes a model: a catalogue entry's files, a repository (`owner/repo`), one of its revisions
    /// (`owner/repo@rev`), a file or folder of one, or one of the user's own models.
    ///
    /// Content that another snapshot still links to stays. Paths outside of the store are refused.
    pub fn remove(&self, reference: &Reference) -> Result<Removed, StoreError> {
        let id = reference.to_string();
        let removed = match reference {
            Reference::Path(path) => return self.remove_own(path),
            Reference::Local(name) => {
                let path = self.models_dir().join(name);
                if fs::symlink_metadata(&path).is_err() {
                    let near = catalogue::near(name);
                    return Err(StoreError::UnknownModel { name: name.clone(), near });
                }
                return self.remove_own(&path);
            }
            Reference::Catalogue { entry, cloning } => match &entry.source {
                Source::Files(files) => self.remove_files(entry, files, *cloning)?,
                Source::Repo(repo) => self.remove_hub(&repo.place())?,
            },
            Reference::Hub(place) => self.remove_hub(place)?,
        };
        if removed.files == 0 { Err(StoreError::NotPulled { what: id.clone(), id }) } else { Ok(removed) }
    }

    /// Removes what unfinished downloads have left, except for those that are running.
    pub fn remove_partials(&self) -> Result<Removed, StoreError> {
        let mut removed = Removed::default();
        for repo in self.repos() {
            let Some(cache) = self.own_repo(&repo)? else { continue };
            for file in partial_files(&cache) {
                let etag = file.name.split('.').next().unwrap_or("");
                let lock = fs::File::options().write(true).open(cache.lock(etag));
                if lock.as_ref().is_ok_and(|lock| lock.try_lock().is_err()) {
                    continue;
                }
                fs::remove_file(&file.path).map_err(StoreError::io("remove", &file.path))?;
                removed += Removed { files: 1, bytes: file.bytes.unwrap_or(0) };
            }
        }
        Ok(removed)
    }

    fn remove_own(&self, path: &Path) -> Result<Removed, StoreError> {
        let root = self.models_dir();
        let outside = || StoreError::OutsideStore { path: path.to_owned(), root: root.clone() };
        let real = fs::canonicalize(path).map_err(StoreError::io("find", path))?;
        let real_root = fs::canonicalize(&root).map_err(|_| outside())?;
        if real.parent() != Some(&real_root) || !real.is_dir() {
            return Err(outside());
        }
        let found = folder::files(&real);
        let bytes = found.iter().filter_map(|file| file.bytes).sum();
        fs::remove_dir_all(&real).map_err(StoreError::io("remove", &real))?;
        Ok(Removed { files: found.len(), bytes })
    }

    /// The repository's folder, where it is a real folder of the cache.
    fn own_repo(&self, repo: &RepoId) -> Result<Option<RepoCache>, StoreError> {
        let cache = self.repo(repo);
        match fs::symlink_metadata(cache.dir()) {
            Ok(metadata) if metadata.is_dir() => Ok(Some(cache)),
            Ok(_) => {
                Err(StoreError::OutsideStore { path: cache.dir(), root: self.settings.hub_cache.clone() })
            }
            Err(_) => Ok(None),
        }
    }

    fn remove_hub(&self, place: &HubRef) -> Result<Removed, StoreError> {
        if place.path.is_none() && place.revision == DEFAULT_REVISION {
            self.remove_repo(&place.repo)
        } else {
            self.remove_place(place)
        }
    }

    fn remove_repo(&self, repo: &RepoId) -> Result<Removed, StoreError> {
        let Some(cache) = self.own_repo(repo)? else { return Ok(Removed::default()) };
        let files =
            cache.commits().iter().map(|commit| folder::files(&cache.snapshot(commit)).len()).sum::<usize>();
        let bytes = folder::files(&cache.blobs()).iter().filter_map(|file| file.bytes).sum();
        fs::remove_dir_all(cache.dir()).map_err(StoreError::io("remove", &cache.dir()))?;
        let _ = fs::remove_dir_all(cache.locks());
        // A repository with only a partial download has no files, but removing it did something.
        Ok(Removed { files: files.max(1), bytes })
    }

    fn remove_place(&self, place: &HubRef) -> Result<Removed, StoreError> {
        let Some(cache) = self.own_repo(&place.repo)? else { return Ok(Removed::default()) };
        let Some(commit) = cache.resolve(&place.revision) else { return Ok(Removed::default()) };
        let root = match &place.path {
            Some(path) => cache.pointer(&commit, path)?,
            None => cache.snapshot(&commit),
        };
        let pointers = match fs::symlink_metadata(&root) {
            Ok(metadata) if metadata.is_dir() => {
                folder::files(&root).into_iter().map(|file| file.path).collect()
            }
            Ok(_) => vec![root],
            Err(_) => Vec::new(),
        };
        remove_pointers(&cache, &pointers)
    }

    fn remove_files(&self, entry: &Entry, own: &Files, cloning: bool) -> Result<Removed, StoreError> {
        let here = |file: &HubFile| self.repo(&file.repo).find(&file.revision, &file.path).is_some();
        let mut files = vec![own.weights(true)];
        if !cloning {
            files.push(own.weights(false));
        }
        let rest = cloning && here(&own.weights(false));
        let shared = catalogue::entries().filter(|other| other.alias != entry.alias).any(|other| {
            other.files().is_some_and(|theirs| {
                theirs.tokenizer == own.tokenizer
                    && (here(&theirs.weights(true)) || here(&theirs.weights(false)))
            })
        });
        if !rest {
            files.extend(entry.voice_files().map(|(_, file)| file));
        }
        if !rest && !shared {
            files.push(own.tokenizer.hub_file());
        }
        let mut removed = Removed::default();
        for repo in files.iter().map(|file| file.repo.clone()).collect::<BTreeSet<_>>() {
            let Some(cache) = self.own_repo(&repo)? else { continue };
            let own = files.iter().filter(|file| file.repo == repo);
            let pointers: Vec<PathBuf> =
                own.filter_map(|file| cache.find(&file.revision, &file.path)).collect();
            removed += remove_pointers(&cache, &pointers)?;
        }
        Ok(removed)
    }
}

/// The blob that a snapshot's link leads to.
fn blob_of(cache: &RepoCache, pointer: &Path) -> Option<PathBuf> {
    let target = fs::read_link(pointer).ok()?;
    let blob = cache.blobs().join(target.file_name()?);
    fs::symlink_metadata(&blob).is_ok().then_some(blob)
}

fn remove_pointers(cache: &RepoCache, pointers: &[PathBuf]) -> Result<Removed, StoreError> {
    let mut removed = Removed::default();
    let mut orphans = BTreeSet::new();
    for pointer in pointers {
        match blob_of(cache, pointer) {
            Some(blob) => {
                orphans.insert(blob);
            }
            None => removed.bytes += fs::metadata(pointer).map_or(0, |metadata| metadata.len()),
        }
        fs::remove_file(pointer).map_err(StoreError::io("remove", pointer))?;
        removed.files += 1;
    }
    for commit in cache.commits() {
        let root = cache.snapshot(&commit);
        for file in folder::files(&root) {
            if let Some(blob) = blob_of(cache, &file.path) {
                orphans.remove(&blob);
            }
        }
    }
    for blob in orphans {
        removed.bytes += fs::metadata(&blob).map_or(0, |metadata| metadata.len());
        fs::remove_file(&blob).map_err(StoreError::io("remove", &blob))?;
    }
    for pointer in pointers {
        remove_empty_parents(pointer, &cache.snapshots());
    }
    let commits = cache.commits();
    for (name, commit) in refs(cache) {
        if !commits.contains(&commit) {
            let path = cache.refs().join(name);
            fs::remove_file(&path).map_err(StoreError::io("remove", &path))?;
        }
    }
    if commits.is_empty() && removed.files > 0 {
        fs::remove_dir_all(cache.dir()).map_err(StoreError::io("remove", &cache.dir()))?;
        let _ = fs::remove_dir_all(cache.locks());
    }
    Ok(removed)
}

/// Removes the folders above `path` that are empty now, up to `root`.
fn remove_empty_parents(path: &Path, root: &Path) {
    for parent in path.ancestors().skip(1).take_while(|parent| *parent != root && parent.starts_with(root)) {
        if fs::remove_dir(parent).is_err() {
            break;
        }
    }
}
