//! The models on this machine: catalogue models, other snapshots of the hub cache, and the user's own folders.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::Store;
use super::catalogue::{self, Entry, Family, Files, HubFile, Repo, Source, Task};
use super::folder::{self, FoundFile};
use super::identity;
use super::layout::RepoCache;
use super::reference::{RepoId, is_local_name};

/// Where an installed model is from.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    /// An entry of the catalogue.
    Catalogue(&'static Entry),
    /// A snapshot in the hub cache.
    Hub {
        /// The repository.
        repo: RepoId,
        /// The commit.
        commit: String,
        /// Branches and tags that stand for the commit.
        refs: Vec<String>,
    },
    /// Downloads into a repository's folder that were not finished; a new pull resumes them.
    Partial {
        /// The repository.
        repo: RepoId,
    },
    /// A folder among the user's own models.
    Local,
}

/// One file of an installed model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledFile {
    /// The path in the repository or folder.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Installed {
    /// The reference to use for it.
    pub id: String,
    /// Where it is from.
    pub origin: Origin,
    /// The family it looks like.
    pub family: Option<Family>,
    /// The task it looks like.
    pub task: Option<Task>,
    /// Its files.
    pub files: Vec<InstalledFile>,
    /// Size of all files.
    pub bytes: u64,
    /// Files known to be missing; empty when the model is complete.
    pub missing: Vec<String>,
}

impl Installed {
    /// Whether nothing is known to be missing.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    fn new(id: String, origin: Origin, found: Vec<FoundFile>, mut missing: Vec<String>) -> Self {
        missing.extend(folder::missing_shards(&found));
        missing.extend(found.iter().filter(|file| file.bytes.is_none()).map(|file| file.name.clone()));
        let (family, task) = match &origin {
            Origin::Catalogue(entry) => (Some(entry.family), Some(entry.task)),
            _ => {
                let kind = identity::of_parts(&folder::parts(&found));
                (kind.map(|kind| kind.family), kind.and_then(|kind| kind.task))
            }
        };
        let files: Vec<InstalledFile> = found
            .into_iter()
            .filter_map(|file| Some(InstalledFile { name: file.name, path: file.path, bytes: file.bytes? }))
            .collect();
        let bytes = files.iter().map(|file| file.bytes).sum();
        Self { id, origin, family, task, files, bytes, missing }
    }
}

/// What of the cache belongs to catalogue models.
#[derive(Default)]
struct Claimed {
    files: BTreeSet<PathBuf>,
    /// Repositories whose partial downloads are told with their model.
    repos: BTreeSet<RepoId>,
}

impl Store {
    /// The models on this machine: catalogue models first, then snapshots and unfinished downloads, then the
    /// user's own.
    ///
    /// A snapshot counts as incomplete when a link leads nowhere, when a shard that its index names is not there,
    /// or when its repository has a partial download.
    pub fn list(&self) -> Vec<Installed> {
        let mut listed = Vec::new();
        let mut claimed = Claimed::default();
        for entry in catalogue::entries() {
            listed.extend(match &entry.source {
                Source::Files(files) => self.installed_files(entry, files, &mut claimed),
                Source::Repo(repo) => self.installed_repo(entry, repo, &mut claimed),
            });
        }
        for repo in self.repos() {
            self.snapshots(&repo, &claimed, &mut listed);
        }
        let models = self.models_dir();
        let mut names = subfolders(&models);
        names.retain(|name| is_local_name(name));
        names.sort_unstable();
        for name in names {
            let found = folder::files(&models.join(&name));
            listed.push(Installed::new(name, Origin::Local, found, Vec::new()));
        }
        listed
    }

    /// The repositories in the cache, sorted.
    pub(super) fn repos(&self) -> Vec<RepoId> {
        let folders = subfolders(&self.settings.hub_cache);
        let mut repos: Vec<RepoId> = folders.iter().filter_map(|folder| RepoCache::repo_of(folder)).collect();
        repos.sort_unstable();
        repos
    }

    /// A catalogue model of single files, if any of its weights are here.
    fn installed_files(
        &self,
        entry: &'static Entry,
        files: &Files,
        claimed: &mut Claimed,
    ) -> Option<Installed> {
        let (gated, plain) = (files.weights(true), files.weights(false));
        let here = |file: &HubFile| self.repo(&file.repo).find(&file.revision, &file.path);
        let cloning = here(&gated).is_some();
        let present = cloning || here(&plain).is_some();
        let mut found = Vec::new();
        let mut missing = Vec::new();
        let voices = entry.voice_files().map(|(_, file)| (file, false));
        let tokenizer = files.tokenizer.hub_file();
        for (file, needed) in [(gated, false), (plain, false), (tokenizer, present)].into_iter().chain(voices)
        {
            match here(&file) {
                Some(path) => {
                    claimed.files.insert(path.clone());
                    let bytes = fs::metadata(&path).ok().map(|metadata| metadata.len());
                    found.push(FoundFile { name: file.path, path, bytes });
                }
                None if needed => missing.push(file.path),
                None => {}
            }
        }
        let id = if cloning { format!("{}:cloning", entry.alias) } else { entry.alias.to_owned() };
        present.then(|| Installed::new(id, Origin::Catalogue(entry), found, missing))
    }

    /// A catalogue model that is a repository, if the revision is here that its name stands for.
    fn installed_repo(&self, entry: &'static Entry, repo: &Repo, claimed: &mut Claimed) -> Option<Installed> {
        let place = repo.place();
        let cache = self.repo(&place.repo);
        let commit = cache.resolve(&place.revision)?;
        let found = folder::files(&cache.snapshot(&commit));
        if found.is_empty() {
            return None;
        }
        claimed.files.extend(found.iter().map(|file| file.path.clone()));
        claimed.repos.insert(place.repo);
        let missing = partial_files(&cache).into_iter().map(|file| file.name).collect();
        Some(Installed::new(entry.alias.to_owned(), Origin::Catalogue(entry), found, missing))
    }

    fn snapshots(&self, repo: &RepoId, claimed: &Claimed, listed: &mut Vec<Installed>) {
        let cache = self.repo(repo);
        let refs = refs(&cache);
        let partial = partial_files(&cache);
        let mut told = partial.is_empty() || claimed.repos.contains(repo);
        for commit in cache.commits() {
            let mut found = folder::files(&cache.snapshot(&commit));
            let all = found.len();
            found.retain(|file| !claimed.files.contains(&file.path));
            if found.is_empty() {
                continue;
            }
            // Partial downloads of a repository that the catalogue shares are most likely the catalogue's.
            let whole = found.len() == all;
            told |= whole;
            let missing =
                if whole { partial.iter().map(|file| file.name.clone()).collect() } else { Vec::new() };
            let names: Vec<String> =
                refs.iter().filter(|(_, target)| *target == commit).map(|(name, _)| name.clone()).collect();
            let id = match names.first() {
                Some(name) if name == super::DEFAULT_REVISION => repo.to_string(),
                Some(name) => format!("{repo}@{name}"),
                None => format!("{repo}@{commit}"),
            };
            let origin = Origin::Hub { repo: repo.clone(), commit, refs: names };
            listed.push(Installed::new(id, origin, found, missing));
        }
        if !told {
            let missing = partial.iter().map(|file| file.name.clone()).collect();
            let origin = Origin::Partial { repo: repo.clone() };
            listed.push(Installed::new(repo.to_string(), origin, partial, missing));
        }
    }
}

/// What unfinished downloads have left in a repository's folder.
pub(super) fn partial_files(cache: &RepoCache) -> Vec<FoundFile> {
    let mut found = folder::files(&cache.blobs());
    found.retain(|file| file.name.ends_with(".incomplete"));
    found
}

fn subfolders(of: &std::path::Path) -> Vec<String> {
    fs::read_dir(of)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Branches and tags with the commits they stand for; `main` comes first.
pub(super) fn refs(cache: &RepoCache) -> Vec<(String, String)> {
    let mut refs: Vec<(String, String)> = folder::files(&cache.refs())
        .into_iter()
        .filter_map(|file| Some((file.name, fs::read_to_string(&file.path).ok()?.trim().to_owned())))
        .collect();
    refs.sort_by_key(|(name, _)| (name != super::DEFAULT_REVISION, name.clone()));
    refs
}
