//! The voices of a configuration: files below a folder, by the names that clients call them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use voce_engine::store::{PullOptions, Reference};

use super::files::{Fetcher, with_variables};
use crate::failure::Outcome;

/// How deep a folder of voices is searched, and how many files are taken.
const MAX_DEPTH: usize = 6;
const MAX_VOICES: usize = 20_000;

/// The voices of a folder, or of a snapshot of the hub (`hf-snapshot://owner/repo`, or with a pattern of paths behind it)
/// that are fetched if they are missing. Only those that were made for this model count.
pub(crate) fn named(
    fetcher: &Fetcher<'_>,
    folder: &str,
    config: &Value,
) -> Outcome<BTreeMap<String, PathBuf>> {
    let made_for = model_of(config);
    let Some(snapshot) = folder.strip_prefix("hf-snapshot://") else {
        let folder = with_variables(folder, |name| std::env::var(name).ok());
        let home = std::env::var("HOME").unwrap_or_default();
        let folder = folder.strip_prefix("~/").map_or(folder.clone(), |rest| format!("{home}/{rest}"));
        return Ok(in_folder(Path::new(&folder), made_for.as_deref()));
    };
    let mut parts = snapshot.splitn(3, '/');
    let repo = [parts.next(), parts.next()].into_iter().flatten().collect::<Vec<_>>().join("/");
    // Stars of patterns here also stand for folders.
    let pattern = parts.next().unwrap_or("*.safetensors").replace("**/", "");
    let reference = Reference::parse(&repo)?;
    if fetcher.store.locate(&reference).is_err() {
        let options = PullOptions { patterns: vec![pattern], ..PullOptions::default() };
        fetcher.console.note(&format!("fetching the voices of {repo}"));
        crate::pull::fetch(fetcher.console, fetcher.store, &reference, &options)?;
    }
    let root = fetcher.store.locate(&reference)?.root;
    Ok(in_folder(&root, made_for.as_deref()))
}

/// What voices for a model have before their ending: which training run it is of, and how far that had come.
fn model_of(config: &Value) -> Option<String> {
    let id = config.get("model_id")?;
    Some(format!("{}@{}", id.get("sig")?.as_str()?, id.get("epoch")?.as_u64()?))
}

/// The voices below a folder. Links to files are followed, links to folders are not.
pub(crate) fn in_folder(root: &Path, made_for: Option<&str>) -> BTreeMap<String, PathBuf> {
    let mut voices = BTreeMap::new();
    let mut folders = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            if kind.is_dir() && depth + 1 < MAX_DEPTH {
                folders.push((path, depth + 1));
            } else if path.is_file()
                && voices.len() < MAX_VOICES
                && let Some(name) = path.strip_prefix(root).ok().and_then(|p| voice_name(p, made_for))
            {
                voices.insert(name, path);
            }
        }
    }
    voices
}

/// The name that clients have for a file: its path without what says which model it is for.
fn voice_name(path: &Path, made_for: Option<&str>) -> Option<String> {
    let parts: Option<Vec<&str>> = path.iter().map(|part| part.to_str()).collect();
    let name = parts?.join("/");
    let stem = name.strip_suffix(".safetensors")?;
    match (stem.rsplit_once('.'), made_for) {
        (Some((voice, model)), Some(wanted)) if model.contains('@') => {
            (model == wanted).then(|| voice.to_owned())
        }
        (Some((voice, model)), None) if model.contains('@') => Some(voice.to_owned()),
        _ => Some(stem.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn voices_have_the_names_that_clients_call() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        for name in [
            "expresso/a.wav.1e68beda@240.safetensors",
            "expresso/a.wav.0000@1.safetensors",
            "plain.safetensors",
            "b.wav",
            "deep/er/c.mp3.1e68beda@240.safetensors",
        ] {
            file(name);
        }
        let config = json!({"model_id": {"sig": "1e68beda", "epoch": 240}});
        let model = model_of(&config);
        assert_eq!(model.as_deref(), Some("1e68beda@240"));
        let voices = in_folder(dir.path(), model.as_deref());
        assert_eq!(voices.keys().collect::<Vec<_>>(), ["deep/er/c.mp3", "expresso/a.wav", "plain"]);
        assert!(voices["expresso/a.wav"].ends_with("a.wav.1e68beda@240.safetensors"));
        assert!(in_folder(&dir.path().join("none"), None).is_empty());
    }
}
