//! Checkpoints cut into several safetensors files, and the index that says which tensor is where.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use super::{SafetensorsFile, Tensor, WeightError, Weights};

/// Most files of one checkpoint.
pub const MAX_SHARDS: usize = 1000;
/// Largest index read.
const MAX_INDEX: u64 = 64 << 20;

/// Several safetensors files seen as one.
pub struct ShardedSafetensors {
    shards: Vec<SafetensorsFile>,
    place: HashMap<String, usize>,
}

impl ShardedSafetensors {
    /// Opens all files that an index (`model.safetensors.index.json`) names; they lie beside it.
    pub fn open(index: &Path) -> Result<Self, WeightError> {
        let bad = |reason: String| WeightError::Format { path: index.to_owned(), reason };
        let io = |source| WeightError::Io { path: index.to_owned(), source };
        if std::fs::metadata(index).map_err(io)?.len() > MAX_INDEX {
            return Err(bad(format!("an index of more than {MAX_INDEX} bytes")));
        }
        let text = std::fs::read(index).map_err(io)?;
        let json: serde_json::Value = serde_json::from_slice(&text).map_err(|e| bad(e.to_string()))?;
        let map = json.get("weight_map").and_then(|m| m.as_object());
        let map = map.filter(|m| !m.is_empty()).ok_or_else(|| bad("there is no weight_map".into()))?;
        let mut files: BTreeMap<&str, usize> = BTreeMap::new();
        for file in map.values() {
            let name = file.as_str().filter(|n| is_plain(n));
            let name = name.ok_or_else(|| bad(format!("{file} is not a file name")))?;
            let next = files.len();
            files.entry(name).or_insert(next);
        }
        if files.len() > MAX_SHARDS {
            return Err(bad(format!("{} files, at most {MAX_SHARDS} are read", files.len())));
        }
        let folder = index.parent().unwrap_or(Path::new(""));
        let mut in_order: Vec<(&str, usize)> = files.iter().map(|(name, at)| (*name, *at)).collect();
        in_order.sort_by_key(|(_, at)| *at);
        let paths: Vec<PathBuf> = in_order.iter().map(|(name, _)| folder.join(name)).collect();
        let shards = paths.iter().map(|p| SafetensorsFile::open(p)).collect::<Result<Vec<_>, _>>()?;
        let mut place = HashMap::with_capacity(map.len());
        for (tensor, file) in map {
            if let Some(&at) = file.as_str().and_then(|name| files.get(name)) {
                if shards[at].shape(tensor).is_none() {
                    return Err(bad(format!("tensor '{tensor}' is not in {}", paths[at].display())));
                }
                place.insert(tensor.clone(), at);
            }
        }
        Ok(Self { shards, place })
    }
}

fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\', ':', '\0'])
}

impl Weights for ShardedSafetensors {
    fn get(&self, name: &str, expected: &[usize]) -> Result<Option<Tensor>, WeightError> {
        self.place.get(name).map_or(Ok(None), |&at| self.shards[at].get(name, expected))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.place.get(name).and_then(|&at| self.shards[at].shape(name))
    }
}
