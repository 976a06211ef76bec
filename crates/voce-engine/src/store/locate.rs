//! From a reference to files on this machine, without the network.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::Store;
use super::catalogue::{self, Entry, Family, Files, HubFile, Source, Task};
use super::error::StoreError;
use super::folder::{self, Parts};
use super::identity;
use super::reference::{HubRef, Reference};

/// A model whose files are on this machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// The reference in its shortest form.
    pub id: String,
    /// The catalogue's entry, where the reference named one; it also has the configuration.
    pub entry: Option<&'static Entry>,
    /// The family that the files look like.
    pub family: Option<Family>,
    /// The task that they look like.
    pub task: Option<Task>,
    /// The folder, or the folder of the single file.
    pub root: PathBuf,
    /// Weight files, sorted; may be empty where the reference is a configuration file that names its weights.
    pub weights: Vec<PathBuf>,
    /// The tokeniser.
    pub tokenizer: Option<PathBuf>,
    /// A configuration file; where there is none, the entry may have it, see [`Entry::config_text`].
    pub config: Option<PathBuf>,
    /// Ready-made voices by name.
    pub voices: BTreeMap<String, PathBuf>,
    /// Whether a catalogue model's weights can clone voices.
    pub cloning: bool,
}

impl Located {
    /// The catalogue's entry that the files are of: the one that was named, else the one whose repository is called as the
    /// archive, or as the folder is.
    pub(crate) fn published(&self) -> Option<&'static Entry> {
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let archive = self.weights.iter().filter(|path| path.extension().is_some_and(|end| end == "nemo"));
        let archive = archive.filter_map(|path| name(&path.with_extension("")));
        // In the hub's cache a commit's files are two folders below the repository's.
        let folder = match self.root.parent() {
            Some(parent) if parent.ends_with("snapshots") => parent.parent().and_then(name),
            _ => name(&self.root),
        };
        let mut names = archive.chain(folder);
        self.entry.or_else(|| names.find_map(|name| catalogue::published(name.rsplit("--").next()?)))
    }
}

impl Store {
    /// Reads a reference and finds its files.
    pub fn find(&self, text: &str) -> Result<Located, StoreError> {
        self.locate(&Reference::parse(text)?)
    }

    /// The best model for a task that is here, of those to use when none is named.
    pub fn preferred(&self, task: Task) -> Option<&'static str> {
        catalogue::preferred(task).iter().copied().find(|name| self.find(name).is_ok())
    }

    /// Finds the files of a model on this machine; the error says what to pull.
    pub fn locate(&self, reference: &Reference) -> Result<Located, StoreError> {
        let id = reference.to_string();
        match reference {
            Reference::Path(path) => at(id, path),
            Reference::Local(name) => {
                let path = self.models_dir().join(name);
                if !path.is_dir() {
                    let near = catalogue::near(name);
                    return Err(StoreError::UnknownModel { name: name.clone(), near });
                }
                at(id, &path)
            }
            Reference::Catalogue { entry, cloning } => match &entry.source {
                Source::Files(files) => self.locate_files(id, entry, files, *cloning),
                Source::Repo(repo) => {
                    let (family, task) = (Some(entry.family), Some(entry.task));
                    let mut located = self.locate_hub(id, &repo.place())?;
                    located.voices.extend(self.voices_here(entry));
                    Ok(Located { entry: Some(entry), family, task, ..located })
                }
            },
            Reference::Hub(place) => self.locate_hub(id, place),
        }
    }

    fn locate_hub(&self, id: String, place: &HubRef) -> Result<Located, StoreError> {
        let cache = self.repo(&place.repo);
        let missing = || StoreError::NotPulled { what: id.clone(), id: id.clone() };
        let commit = cache.resolve(&place.revision).ok_or_else(missing)?;
        let path = match &place.path {
            Some(path) => cache.pointer(&commit, path)?,
            None => cache.snapshot(&commit),
        };
        if !path.exists() {
            return Err(missing());
        }
        at(id, &path)
    }

    /// The entry's voices whose files are here.
    fn voices_here(&self, entry: &'static Entry) -> impl Iterator<Item = (String, PathBuf)> {
        let here = |file: HubFile| self.repo(&file.repo).find(&file.revision, &file.path);
        entry.voice_files().filter_map(move |(name, file)| Some((name.to_owned(), here(file)?)))
    }

    fn locate_files(
        &self,
        id: String,
        entry: &'static Entry,
        files: &Files,
        cloning: bool,
    ) -> Result<Located, StoreError> {
        let on_disk = |file: &HubFile| self.repo(&file.repo).find(&file.revision, &file.path);
        let gated = on_disk(&files.weights(true));
        let weights =
            if cloning { gated.clone() } else { gated.clone().or_else(|| on_disk(&files.weights(false))) };
        let not_pulled = |what: String| StoreError::NotPulled { what, id: id.clone() };
        let weights = weights.ok_or_else(|| not_pulled(id.clone()))?;
        let tokenizer = on_disk(&files.tokenizer.hub_file())
            .ok_or_else(|| not_pulled(format!("the tokeniser of {}", entry.alias)))?;
        let voices = self.voices_here(entry).collect();
        Ok(Located {
            entry: Some(entry),
            family: Some(entry.family),
            task: Some(entry.task),
            root: weights.parent().unwrap_or(Path::new("")).to_owned(),
            weights: vec![weights],
            tokenizer: Some(tokenizer),
            config: None,
            voices,
            cloning: gated.is_some(),
            id,
        })
    }
}

/// A model at a place on disk.
fn at(id: String, path: &Path) -> Result<Located, StoreError> {
    let metadata = std::fs::metadata(path).map_err(StoreError::io("open", path))?;
    let is_config = path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    let root = if metadata.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let parts = if metadata.is_dir() {
        folder::parts(&folder::files(path))
    } else if is_config {
        Parts { config: Some(path.to_owned()), ..folder::parts(&folder::files(root)) }
    } else {
        Parts { weights: vec![path.to_owned()], ..Parts::default() }
    };
    let kind = identity::of_parts(&parts);
    let Parts { weights, tokenizer, config, voices } = parts;
    if weights.is_empty() && !is_config {
        let text = path.display().to_string();
        return Err(StoreError::BadReference {
            text,
            reason: "there are no .safetensors or .nemo weights in it",
        });
    }
    Ok(Located {
        id,
        entry: None,
        family: kind.map(|kind| kind.family),
        task: kind.and_then(|kind| kind.task),
        root: root.to_owned(),
        weights,
        tokenizer,
        config,
        voices,
        cloning: false,
    })
}
