//! A folder for a module, as if its model had been published so: `config.json`, and links to the files that it names.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;
use voce_engine::store::Store;

use super::convert::{CODEC, GGUF_WEIGHTS, TOKENIZER, WEIGHTS};
use crate::failure::{Failure, Outcome};

/// The configuration that a codec may have beside it.
const CODEC_CONFIG: &str = "mimi_config.json";

/// What a module's model is made of.
pub(crate) struct Parts {
    pub(crate) config: Value,
    pub(crate) weights: PathBuf,
    pub(crate) codec: PathBuf,
    pub(crate) tokenizer: PathBuf,
}

/// Lays the folder out and gives its path; the same parts have the same folder at every start.
pub(crate) fn lay_out(store: &Store, name: &str, mut parts: Parts) -> Outcome<PathBuf> {
    let is_gguf = parts.weights.extension().is_some_and(|end| end == "gguf");
    let weights = if is_gguf { GGUF_WEIGHTS } else { WEIGHTS };
    parts.config["moshi_name"] = weights.into();
    parts.config["mimi_name"] = CODEC.into();
    parts.config["tokenizer_name"] = TOKENIZER.into();
    let config = format!("{:#}\n", parts.config);
    // A codec of another shape than the published one has its configuration beside it.
    let beside = Some(parts.codec.with_file_name(CODEC_CONFIG)).filter(|path| path.is_file());
    let mut files = vec![(weights, parts.weights), (CODEC, parts.codec), (TOKENIZER, parts.tokenizer)];
    files.extend(beside.map(|path| (CODEC_CONFIG, path)));
    for (_, path) in &mut files {
        *path = std::path::absolute(&*path).unwrap_or_else(|_| path.clone());
    }
    let digest = BuildHasherDefault::<DefaultHasher>::default().hash_one((&config, &files));
    let safe: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let folder = store.settings().voce_home.join("modules").join(format!("{safe}-{digest:016x}"));
    fill(&folder, &config, &files).map_err(|e| {
        Failure::failed(format!("{}: {e}: the module's model is laid out there", folder.display()))
    })?;
    Ok(folder)
}

fn fill(folder: &Path, config: &str, files: &[(&str, PathBuf)]) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    for (name, target) in files {
        let link = folder.join(name);
        if std::fs::read_link(&link).is_ok_and(|there| there == *target) {
            continue;
        }
        let _ = std::fs::remove_file(&link);
        make_link(target, &link)?;
    }
    let path = folder.join("config.json");
    if std::fs::read_to_string(&path).is_ok_and(|there| there == config) {
        return Ok(());
    }
    // Another server may read it at this moment.
    let fresh = folder.join(format!(".config-{}.json", std::process::id()));
    std::fs::write(&fresh, config)?;
    std::fs::rename(fresh, path)
}

#[cfg(unix)]
fn make_link(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn make_link(target: &Path, link: &Path) -> io::Result<()> {
    std::fs::hard_link(target, link).or_else(|_| std::fs::copy(target, link).map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use voce_engine::store::{Patience, Settings};

    #[test]
    fn the_same_parts_have_the_same_folder() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(Settings {
            hub_cache: dir.path().join("hub"),
            voce_home: dir.path().join("voce"),
            endpoint: "http://127.0.0.1:9".into(),
            token: None,
            offline: true,
            keep_packed: None,
            patience: Patience::default(),
        });
        let file = |name: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, name).unwrap();
            path
        };
        let parts = |dim: usize, weights: &str| Parts {
            config: json!({"dim": dim}),
            weights: file(weights),
            codec: file("c"),
            tokenizer: file("t"),
        };
        let first = lay_out(&store, "asr/../x", parts(1, "w.safetensors")).unwrap();
        assert_eq!(first, lay_out(&store, "asr/../x", parts(1, "w.safetensors")).unwrap());
        assert_eq!(first.parent(), Some(dir.path().join("voce/modules").as_path()), "names make no paths");
        assert_ne!(first, lay_out(&store, "asr/../x", parts(2, "w.safetensors")).unwrap());
        let read = |name: &str| std::fs::read_to_string(first.join(name)).unwrap();
        assert_eq!(
            (read("model.safetensors"), read("mimi.safetensors")),
            ("w.safetensors".into(), "c".into())
        );
        let config: Value = serde_json::from_str(&read("config.json")).unwrap();
        assert_eq!(
            config,
            json!({"dim": 1, "moshi_name": WEIGHTS, "mimi_name": CODEC, "tokenizer_name": TOKENIZER})
        );
        let gguf = lay_out(&store, "q", parts(1, "w.gguf")).unwrap();
        assert!(gguf.join(GGUF_WEIGHTS).is_file());
        // A link that somebody has bent is put right.
        std::fs::remove_file(first.join(CODEC)).unwrap();
        std::fs::write(first.join(CODEC), "other").unwrap();
        lay_out(&store, "asr/../x", parts(1, "w.safetensors")).unwrap();
        assert_eq!(read("mimi.safetensors"), "c");
    }
}
