//! Reading a model folder: its files, and which of them play which part.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::identity::peek_text;

/// How deep a model folder is searched.
const MAX_DEPTH: usize = 4;
/// How many files of a model folder are looked at.
const MAX_ENTRIES: usize = 10_000;

/// The file of a model's folder that says what its published configuration cannot.
pub(crate) const OWN_CONFIG: &str = "voce.yaml";

/// One file of a model folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FoundFile {
    /// The path below the folder, with `/` between its parts.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// `None` where a link leads nowhere.
    pub(super) bytes: Option<u64>,
}

/// Every file below `root`, sorted by name; links to folders are not followed.
pub(super) fn files(root: &Path) -> Vec<FoundFile> {
    let mut found = Vec::new();
    let mut folders = vec![(root.to_owned(), String::new(), 0)];
    while let Some((folder, prefix, depth)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else { continue };
            let name = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
            if kind.is_dir() {
                if depth + 1 < MAX_DEPTH {
                    folders.push((entry.path(), name, depth + 1));
                }
                continue;
            }
            let target = fs::metadata(entry.path());
            if target.as_ref().is_ok_and(fs::Metadata::is_dir) || found.len() >= MAX_ENTRIES {
                continue;
            }
            found.push(FoundFile { name, path: entry.path(), bytes: target.ok().map(|target| target.len()) });
        }
    }
    found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The parts that the files of a model play.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) weights: Vec<PathBuf>,
    pub(super) tokenizer: Option<PathBuf>,
    pub(super) config: Option<PathBuf>,
    pub(super) voices: BTreeMap<String, PathBuf>,
}

fn is_voice(name: &str) -> bool {
    let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
    name.ends_with(".safetensors")
        && (folder.split('/').any(|part| matches!(part, "embeddings" | "voices"))
            || (folder.is_empty() && (name.starts_with("voice.") || name.starts_with("voice_"))))
}

/// Sorts files by the part they play.
pub(super) fn parts(found: &[FoundFile]) -> Parts {
    let there = || found.iter().filter(|file| file.bytes.is_some());
    let first = |names: &[&str]| {
        let last = |file: &FoundFile| file.name.rsplit('/').next().unwrap_or("").to_owned();
        let mut named = names.iter().flat_map(|name| there().filter(move |file| last(file) == *name));
        named.next().map(|file| file.path.clone())
    };
    // What Voce reads beside a configuration is none.
    let own = |file: &FoundFile| file.path.file_name().is_some_and(|name| name == OWN_CONFIG);
    let ending = |ends: &[&str]| {
        let mut others = there().filter(|file| !own(file));
        others.find(|file| ends.iter().any(|end| file.name.ends_with(end))).map(|file| file.path.clone())
    };
    let of_kind = |end: &str| -> Vec<PathBuf> {
        there()
            .filter(|file| file.name.ends_with(end) && !is_voice(&file.name))
            .map(|file| file.path.clone())
            .collect()
    };
    let mut weights = of_kind(".safetensors");
    if weights.is_empty() {
        weights = of_kind(".nemo");
    }
    Parts {
        weights,
        tokenizer: first(&["tokenizer.json", "tokenizer.model"]).or_else(|| ending(&[".model"])),
        config: first(&["config.yaml", "config.json"]).or_else(|| ending(&[".yaml", ".yml"])),
        voices: there()
            .filter(|file| is_voice(&file.name))
            .filter_map(|file| Some((file.path.file_stem()?.to_str()?.to_owned(), file.path.clone())))
            .collect(),
    }
}

/// Weight files that an index names but that are not there.
pub(super) fn missing_shards(found: &[FoundFile]) -> Vec<String> {
    let mut missing = Vec::new();
    for index in found.iter().filter(|file| file.name.ends_with(".safetensors.index.json")) {
        let folder = index.name.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let Some(text) = peek_text(&index.path) else { continue };
        let Ok(json) = serde_json::from_str::<serde_json::Value>(&text) else { continue };
        let map = json.get("weight_map").and_then(serde_json::Value::as_object);
        for shard in map.into_iter().flat_map(|map| map.values()).filter_map(serde_json::Value::as_str) {
            let name = format!("{folder}{shard}");
            if !missing.contains(&name) && !found.iter().any(|file| file.name == name && file.bytes.is_some())
            {
                missing.push(name);
            }
        }
    }
    missing
}
