//! Fetching a model: which files it needs, which are missing, and bringing them in.

use std::path::PathBuf;

use super::Store;
use super::catalogue::{Entry, Files, HubFile, Source};
use super::download::Transfer;
use super::error::StoreError;
use super::hub::{FileMeta, Hub};
use super::layout::{RepoCache, free_bytes};
use super::progress::{Cancel, Event};
use super::reference::{HubRef, Reference, is_commit, is_safe_path};
use super::select::select;

/// Room that a pull leaves free on the disk.
pub const DISK_RESERVE: u64 = 64 << 20;

/// Which ready-made voices come with a catalogue model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PullVoices {
    /// The default voice of the model's language.
    #[default]
    Default,
    /// These, by name.
    Named(Vec<String>),
    /// Every voice there is.
    All,
}

/// What to fetch besides what the reference says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// Ready-made voices of a catalogue model.
    pub voices: PullVoices,
    /// Take only files that match one of these (`*` and `?`); empty takes what a model needs.
    pub patterns: Vec<String>,
}

/// One file of a pulled model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledFile {
    /// Where it came from; the revision is a commit.
    pub source: HubFile,
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Whether it was there already.
    pub cached: bool,
}

/// A pulled model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// The reference to use for it.
    pub id: String,
    /// Its files.
    pub files: Vec<PulledFile>,
    /// Bytes in files that were not there before.
    pub fetched_bytes: u64,
}

struct Wanted {
    file: HubFile,
    /// A file that may be absent from the hub without harm.
    optional: bool,
}

impl Store {
    /// Fetches what is missing of a model, and reports while it does.
    ///
    /// Safe to run from several processes at once; a stopped or broken pull is resumed by the next one.
    pub fn pull(
        &self,
        reference: &Reference,
        options: &PullOptions,
        cancel: &Cancel,
        report: &mut dyn FnMut(&Event<'_>),
    ) -> Result<Pulled, StoreError> {
        let settings = &self.settings;
        if settings.offline {
            return self.pulled_offline(reference, options);
        }
        let hub = Hub::new(settings);
        let _attached = cancel.attach(hub.agent());
        let breaker = &*self.breaker;
        let mut transfer = Transfer { hub: &hub, patience: settings.patience, breaker, cancel, report };
        let wanted = match reference {
            Reference::Catalogue { entry, cloning } => match &entry.source {
                Source::Files(files) => pinned_files(entry, files, *cloning, &options.voices)?,
                Source::Repo(repo) => {
                    let mut wanted = self.hub_files(&repo.place(), &options.patterns, &mut transfer)?;
                    wanted.extend(voice_files(entry, &options.voices)?);
                    wanted
                }
            },
            Reference::Hub(place) => self.hub_files(place, &options.patterns, &mut transfer)?,
            Reference::Path(_) | Reference::Local(_) => {
                let located = self.locate(reference)?;
                return Ok(Pulled { id: located.id, files: Vec::new(), fetched_bytes: 0 });
            }
        };
        let files = self.bring(wanted, &mut transfer)?;
        if let (Some(place), Some(first)) = (whole_place(reference), files.first()) {
            self.repo(&place.repo).write_ref(&place.revision, &first.source.revision)?;
        }
        let fetched_bytes = files.iter().filter(|file| !file.cached).map(|file| file.bytes).sum();
        Ok(Pulled { id: reference.to_string(), files, fetched_bytes })
    }

    fn hub_files(
        &self,
        place: &HubRef,
        patterns: &[String],
        transfer: &mut Transfer<'_>,
    ) -> Result<Vec<Wanted>, StoreError> {
        let cache = self.repo(&place.repo);
        let pinned = place.path.as_ref().filter(|_| is_commit(&place.revision));
        if let Some(path) = pinned.filter(|path| cache.find(&place.revision, path).is_some()) {
            let (repo, revision) = (place.repo.clone(), place.revision.clone());
            let file = HubFile { repo, revision, path: path.clone() };
            return Ok(vec![Wanted { file, optional: false }]);
        }
        let what = format!("{}@{}", place.repo, place.revision);
        let info = transfer.patiently(&what, |hub| hub.revision(&place.repo, &place.revision))?;
        if is_commit(&place.revision) && info.commit != place.revision {
            let reason = "another commit than the one asked for".to_owned();
            return Err(StoreError::BadReply { what, reason });
        }
        let chosen = select(&info.files, place.path.as_deref(), patterns);
        if chosen.is_empty() {
            let wanted = match (&place.path, patterns) {
                (_, [_, ..]) => patterns.join(", "),
                (Some(path), []) => path.clone(),
                (None, []) => "what a model needs".to_owned(),
            };
            return Err(StoreError::NothingMatches { repo: place.repo.clone(), wanted });
        }
        let file = |path| HubFile { repo: place.repo.clone(), revision: info.commit.clone(), path };
        Ok(chosen.into_iter().map(|path| Wanted { file: file(path), optional: false }).collect())
    }

    fn bring(&self, wanted: Vec<Wanted>, transfer: &mut Transfer<'_>) -> Result<Vec<PulledFile>, StoreError> {
        if let Some(unsafe_one) = wanted.iter().find(|wanted| !is_safe_path(&wanted.file.path)) {
            return Err(StoreError::UnsafeName { name: unsafe_one.file.path.clone() });
        }
        let mut plan: Vec<(HubFile, Option<PathBuf>, FileMeta)> = Vec::with_capacity(wanted.len());
        for Wanted { file, optional } in wanted {
            let cache = self.repo(&file.repo);
            if let Some(path) = cache.find(&file.revision, &file.path) {
                let size = path.metadata().map_err(StoreError::io("read", &path))?.len();
                plan.push((file, Some(path), FileMeta { etag: String::new(), size }));
                continue;
            }
            let what = format!("{}/{}", file.repo, file.path);
            match transfer.patiently(&what, |hub| hub.head(&file)) {
                Ok(meta) => plan.push((file, None, meta)),
                Err(StoreError::NotFound { .. }) if optional => {}
                Err(error) => return Err(error),
            }
        }
        let missing = |(file, there, meta): &(HubFile, Option<PathBuf>, FileMeta)| match there {
            Some(_) => 0,
            None => self.missing_bytes(&self.repo(&file.repo), meta),
        };
        let bytes: u64 = plan.iter().map(missing).sum();
        let absent = plan.iter().filter(|(_, there, _)| there.is_none()).count();
        (transfer.report)(&Event::Planned { files: plan.len(), missing: absent, bytes });
        self.check_disk(bytes)?;

        let mut files = Vec::with_capacity(plan.len());
        for (file, there, meta) in plan {
            let cached = there.is_some();
            let path = match there {
                Some(path) => path,
                None => transfer.fetch(&self.repo(&file.repo), &file, &meta)?,
            };
            (transfer.report)(&Event::Finished { file: &file.path, bytes: meta.size, cached });
            files.push(PulledFile { source: file, path, bytes: meta.size, cached });
        }
        Ok(files)
    }

    fn missing_bytes(&self, cache: &RepoCache, meta: &FileMeta) -> u64 {
        let on_disk = |path: PathBuf| path.metadata().map_or(0, |found| found.len());
        let there = on_disk(cache.blob(&meta.etag)).max(on_disk(cache.partial(&meta.etag)));
        meta.size.saturating_sub(there)
    }

    fn check_disk(&self, needed: u64) -> Result<(), StoreError> {
        match free_bytes(&self.settings.hub_cache) {
            Some(free) if needed > 0 && free < needed.saturating_add(DISK_RESERVE) => {
                Err(StoreError::DiskFull { path: self.settings.hub_cache.clone(), needed, free })
            }
            _ => Ok(()),
        }
    }

    /// A pull without a network: fine when nothing is missing.
    fn pulled_offline(&self, reference: &Reference, options: &PullOptions) -> Result<Pulled, StoreError> {
        let offline = |what| StoreError::Offline { what };
        let mut files = Vec::new();
        if let Reference::Catalogue { entry, cloning } = reference
            && let Source::Files(pinned) = &entry.source
        {
            for Wanted { file, optional } in pinned_files(entry, pinned, *cloning, &options.voices)? {
                match self.repo(&file.repo).find(&file.revision, &file.path) {
                    Some(path) => {
                        let bytes = path.metadata().map_err(StoreError::io("read", &path))?.len();
                        files.push(PulledFile { source: file, path, bytes, cached: true });
                    }
                    None if optional => {}
                    None => return Err(offline(file.url())),
                }
            }
        } else {
            self.locate(reference).map_err(|error| match error {
                StoreError::NotPulled { what, .. } => offline(what),
                other => other,
            })?;
        }
        Ok(Pulled { id: reference.to_string(), files, fetched_bytes: 0 })
    }
}

/// The place that is pulled as a whole, and whose revision is then known by name.
fn whole_place(reference: &Reference) -> Option<HubRef> {
    match reference {
        Reference::Hub(place) => Some(place.clone()),
        Reference::Catalogue { entry, .. } => match &entry.source {
            Source::Repo(repo) => Some(repo.place()),
            Source::Files(_) => None,
        },
        Reference::Path(_) | Reference::Local(_) => None,
    }
}

fn pinned_files(
    entry: &Entry,
    files: &Files,
    cloning: bool,
    voices: &PullVoices,
) -> Result<Vec<Wanted>, StoreError> {
    let must = |file| Wanted { file, optional: false };
    let mut wanted = vec![must(files.weights(cloning)), must(files.tokenizer.hub_file())];
    wanted.extend(voice_files(entry, voices)?);
    Ok(wanted)
}

/// The files of the voices that were chosen; none where a model has no voices in files.
fn voice_files(entry: &Entry, choice: &PullVoices) -> Result<Vec<Wanted>, StoreError> {
    let names = entry.voices.map_or(&[][..], |voices| voices.names);
    if let PullVoices::Named(asked) = choice
        && let Some(unknown) = asked.iter().find(|name| !names.contains(&name.as_str()))
    {
        let known = names.iter().map(|name| (*name).to_owned()).collect();
        return Err(StoreError::UnknownVoice { name: unknown.clone(), known });
    }
    let Some((voices, files)) = entry.voices.and_then(|voices| Some((voices, voices.files?))) else {
        return Ok(Vec::new());
    };
    let must = |name: &str| Wanted { file: files.file(name), optional: false };
    Ok(match choice {
        PullVoices::Default => vec![must(voices.default)],
        PullVoices::Named(asked) => asked.iter().map(|name| must(name)).collect(),
        PullVoices::All => {
            voices.names.iter().map(|name| Wanted { file: files.file(name), optional: true }).collect()
        }
    })
}
