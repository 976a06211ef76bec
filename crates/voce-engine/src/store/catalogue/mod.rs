//! The built-in catalogue: short names for published models of every family, with the files they stand for.
//!
//! An entry says what a model is for, which family runs it, how large it is, and where its files are: single files
//! pinned to commits, so that a name means the same bytes tomorrow, or a repository. Each family has a table in a
//! file of its own.

mod fastconformer;
mod kyutai;
pub mod pocket;
mod qwen;

use std::fmt;

use super::reference::{HubRef, RepoId};
use pocket::Pocket;

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// Text goes in, speech comes out.
    Speech,
    /// Speech goes in, text comes out.
    Hearing,
    /// Speech goes in and comes out at once.
    Dialogue,
}

impl Task {
    /// The name in tables and reports.
    pub fn name(self) -> &'static str {
        match self {
            Task::Speech => "speech",
            Task::Hearing => "hearing",
            Task::Dialogue => "dialogue",
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A family of models: those of one architecture and one layout of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Pocket TTS.
    Pocket,
    /// Mimi, Kyutai STT and TTS, Moshi.
    Kyutai,
    /// Qwen3-TTS.
    Qwen,
    /// NVIDIA Parakeet and Nemotron.
    FastConformer,
}

impl Family {
    /// The family's short name.
    pub fn name(self) -> &'static str {
        match self {
            Family::Pocket => "pocket",
            Family::Kyutai => "kyutai",
            Family::Qwen => "qwen",
            Family::FastConformer => "fastconformer",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One file of a hub repository at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// The repository.
    pub repo: RepoId,
    /// A branch, a tag or a full commit id.
    pub revision: String,
    /// The file's path inside the repository, with `/` between its parts.
    pub path: String,
}

impl HubFile {
    /// The file as an `hf://` reference.
    pub fn url(&self) -> String {
        format!("hf://{}/{}@{}", self.repo, self.path, self.revision)
    }
}

/// A file that the catalogue pins to a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinned {
    /// The repository's owner.
    pub owner: &'static str,
    /// The repository's name.
    pub repo: &'static str,
    /// The commit.
    pub revision: &'static str,
    /// The path in the repository.
    pub path: &'static str,
}

impl Pinned {
    /// The file on the hub.
    pub fn hub_file(&self) -> HubFile {
        HubFile {
            repo: RepoId::fixed(self.owner, self.repo),
            revision: self.revision.to_owned(),
            path: self.path.to_owned(),
        }
    }
}

/// A model of single files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Files {
    /// The weights that everybody may have.
    pub weights: Pinned,
    /// Weights that can clone voices, where they are other ones.
    pub cloning: Option<Pinned>,
    /// The tokeniser.
    pub tokenizer: Pinned,
}

impl Files {
    /// The weights that can clone voices, or those that everybody may have.
    pub fn weights(&self, cloning: bool) -> HubFile {
        self.cloning.as_ref().filter(|_| cloning).unwrap_or(&self.weights).hub_file()
    }
}

/// A model that is a whole repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repo {
    /// The repository's owner.
    pub owner: &'static str,
    /// The repository's name.
    pub name: &'static str,
    /// A commit, or a branch where the newest is wanted.
    pub revision: &'static str,
}

impl Repo {
    /// The place on the hub.
    pub fn place(&self) -> HubRef {
        let repo = RepoId::fixed(self.owner, self.name);
        HubRef { repo, path: None, revision: self.revision.to_owned() }
    }
}

/// Where a model's files are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A repository; a pull takes what a model needs of it.
    Repo(Repo),
    /// Single files, each at a commit.
    Files(Files),
}

/// Where a model's ready-made voices are, in files of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VoiceFiles {
    /// The repository's owner.
    pub owner: &'static str,
    /// The repository's name.
    pub repo: &'static str,
    /// The commit.
    pub revision: &'static str,
    /// The folder in the repository; empty where names are whole paths.
    pub folder: &'static str,
    /// What follows a voice's name in its file's.
    pub suffix: &'static str,
}

impl VoiceFiles {
    /// The file of a voice.
    pub fn file(&self, name: &str) -> HubFile {
        HubFile {
            repo: RepoId::fixed(self.owner, self.repo),
            revision: self.revision.to_owned(),
            path: match self.folder {
                "" => format!("{name}{}", self.suffix),
                folder => format!("{folder}/{name}{}", self.suffix),
            },
        }
    }
}

/// The ready-made voices of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Voices {
    /// The voice used when none is named.
    pub default: &'static str,
    /// Every voice.
    pub names: &'static [&'static str],
    /// Where they are; none where they are part of the weights.
    pub files: Option<VoiceFiles>,
}

/// What only models of one family or task have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Extra {
    /// Of Pocket TTS: the repositories hold no configuration, so the entry has what it takes to write one.
    Pocket(&'static Pocket),
    /// Of a recogniser.
    Hearing {
        /// What turns frames into labels.
        head: &'static str,
        /// Whether it hears chunk by chunk.
        streaming: bool,
        /// Codes of its languages, where it is not told which of them it hears.
        codes: &'static [&'static str],
    },
    /// Nothing.
    None,
}

/// One model of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// The entry's name, as in `voce pull NAME`.
    pub alias: &'static str,
    /// Shorter names for the same entry.
    pub also: &'static [&'static str],
    /// What it is for.
    pub task: Task,
    /// The family that runs it.
    pub family: Family,
    /// Languages spoken or heard, in lower-case English; or a phrase where there are many.
    pub languages: &'static [&'static str],
    /// Parameters in its weights.
    pub parameters: u64,
    /// About how many bytes its weights have.
    pub bytes: u64,
    /// Where its files are.
    pub source: Source,
    /// Its ready-made voices; none for a model without any.
    pub voices: Option<Voices>,
    /// What only its family or task has.
    pub extra: Extra,
}

impl Entry {
    /// The files of a model that is not a whole repository.
    pub fn files(&self) -> Option<&Files> {
        match &self.source {
            Source::Files(files) => Some(files),
            Source::Repo(_) => None,
        }
    }

    /// The files of its ready-made voices, by name.
    pub fn voice_files(&self) -> impl Iterator<Item = (&'static str, HubFile)> {
        let voices = self.voices.and_then(|voices| Some((voices.names, voices.files?)));
        voices.into_iter().flat_map(|(names, files)| names.iter().map(move |name| (*name, files.file(name))))
    }

    /// The configuration of a model whose files have none.
    pub fn config_text(&self) -> Option<String> {
        match (&self.extra, self.files()) {
            (Extra::Pocket(pocket), Some(files)) => Some(pocket.config_yaml(files)),
            _ => None,
        }
    }

    /// The first of its languages.
    pub fn language(&self) -> &'static str {
        self.languages.first().copied().unwrap_or("unknown")
    }

    /// Its name and the shorter ones.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.alias).chain(self.also.iter().copied())
    }
}

/// An architecture that can be had with random weights, to measure without a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// Shorter names.
    pub also: &'static [&'static str],
    /// What it is for.
    pub task: Task,
    /// The family that runs it.
    pub family: Family,
    /// The catalogue's entry with this architecture, where the family describes it there.
    pub like: Option<&'static str>,
}

/// The families' tables.
const ENTRIES: [&[Entry]; 4] = [pocket::ENTRIES, qwen::ENTRIES, fastconformer::ENTRIES, kyutai::ENTRIES];
const SHAPES: [&[Shape]; 4] = [pocket::SHAPES, qwen::SHAPES, &fastconformer::SHAPES, kyutai::SHAPES];

/// Models to use when none is named, best first.
const PREFERRED: [(Task, &[&str]); 2] =
    [(Task::Speech, &["pocket"]), (Task::Hearing, &["nemotron", "parakeet", "fastconformer-multi"])];

/// Every entry of the catalogue.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    ENTRIES.into_iter().flatten()
}

/// The entry with this alias or short name.
pub fn find(name: &str) -> Option<&'static Entry> {
    entries().find(|entry| entry.alias == name || entry.also.contains(&name))
}

/// The entry whose repository has this name, as its folders and archives are called.
pub fn published(name: &str) -> Option<&'static Entry> {
    // The same weights, as moshi-server reads them.
    let name = name.strip_suffix("-candle").unwrap_or(name);
    entries().find(|entry| matches!(&entry.source, Source::Repo(repo) if repo.name == name))
}

/// Names of the models for a task that are used when none is named, best first.
pub fn preferred(task: Task) -> &'static [&'static str] {
    PREFERRED.iter().find(|(of, _)| *of == task).map_or(&[], |(_, names)| names)
}

/// Every shape for a task; the first is the one to compare machines with.
pub fn shapes(task: Task) -> impl Iterator<Item = &'static Shape> {
    SHAPES.into_iter().flatten().filter(move |shape| shape.task == task)
}

/// The shape for a task with this name or short name.
pub fn shape(task: Task, name: &str) -> Option<&'static Shape> {
    shapes(task).find(|shape| shape.name == name || shape.also.contains(&name))
}

/// Up to three catalogue names near to `name`, for an error message.
pub fn near(name: &str) -> Vec<&'static str> {
    let mut scored: Vec<(usize, &'static str)> = entries()
        .flat_map(Entry::names)
        .map(|alias| (distance(name, alias), alias))
        .filter(|(d, alias)| *d <= 3 || alias.contains(name))
        .collect();
    scored.sort_unstable();
    scored.into_iter().take(3).map(|(_, alias)| alias).collect()
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let best = (diagonal + usize::from(ca != *cb)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_repositories_have_hub_names() {
        let mut names: Vec<&str> = entries().flat_map(Entry::names).collect();
        for name in &names {
            let found = find(name).unwrap();
            assert!(found.names().any(|known| known == *name));
            if let Source::Repo(repo) = found.source {
                assert!(RepoId::new(repo.owner, repo.name).is_some(), "{name}");
            }
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(near("parakeet-tdt-0.6b-v4")[0], "parakeet-tdt-0.6b-v2");
    }

    #[test]
    fn preferred_models_and_shapes_are_of_their_task() {
        for task in [Task::Speech, Task::Hearing] {
            assert!(!preferred(task).is_empty());
            assert!(preferred(task).iter().all(|name| find(name).is_some_and(|entry| entry.task == task)));
            let mut names: Vec<&str> =
                shapes(task).flat_map(|s| std::iter::once(s.name).chain(s.also.iter().copied())).collect();
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all);
            assert!(shapes(task).all(|s| s.like.is_none_or(|like| find(like).is_some())));
            assert_eq!(shape(task, "nothing"), None);
        }
        assert_eq!(shape(Task::Speech, "2m").unwrap().name, "pocket-2m");
        assert_eq!(shape(Task::Hearing, "2m"), None);
    }
}
