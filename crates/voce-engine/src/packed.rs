//! Packed weights of large models, kept between runs so that the next start does not pack them again.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use voce_nn::{Formats, PackedCache};

use crate::store::Store;

/// Files kept; the ones written or read longest ago go first.
const KEPT: usize = 8;
/// Age at which a file that was never finished counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The cache for weights made from `files` in these formats, if it is worth having.
pub(crate) fn cache(store: &Store, files: &[PathBuf], formats: Formats) -> Option<Arc<PackedCache>> {
    let smallest = store.settings().keep_packed?;
    // A file that changes has another size or time; a newer version of Voce may pack otherwise.
    let mut source = format!("voce {} {formats:?}", env!("CARGO_PKG_VERSION"));
    let mut total = 0;
    for file in files {
        let path = file.canonicalize().ok()?;
        let meta = path.metadata().ok()?;
        let time = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        source += &format!(" {}:{}:{}", path.display(), meta.len(), time.as_nanos());
        total += meta.len();
    }
    if total < smallest {
        return None;
    }
    let folder = store.packed_dir();
    std::fs::create_dir_all(&folder).ok()?;
    let mut hash = DefaultHasher::new();
    source.hash(&mut hash);
    let path = folder.join(format!("{:016x}.packed", hash.finish()));
    // The time of the last use decides what goes first.
    if let Ok(file) = std::fs::File::options().append(true).open(&path) {
        let _ = file.set_modified(SystemTime::now());
    }
    Some(Arc::new(PackedCache::new(path, source)))
}

/// Writes what the cache lacks, beside the first requests; join the thread before the process ends.
pub(crate) fn keep(cache: Arc<PackedCache>, folder: PathBuf) -> Option<JoinHandle<()>> {
    let save = move || {
        if let Err(e) = cache.save() {
            tracing::warn!("packed weights were not kept: {e}");
        }
        prune(&folder);
    };
    std::thread::Builder::new().name("voce-packed".into()).spawn(save).ok()
}

/// Removes what is beyond the number kept, and what was abandoned.
fn prune(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let mut files: Vec<(SystemTime, PathBuf)> =
        entries.flatten().filter_map(|e| Some((e.metadata().ok()?.modified().ok()?, e.path()))).collect();
    files.sort();
    let (whole, partial): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|(_, path)| path.extension().is_some_and(|e| e == "packed"));
    let surplus = whole.len().saturating_sub(KEPT);
    let old = |time: &SystemTime| time.elapsed().is_ok_and(|age| age > ABANDONED);
    let stale = partial.into_iter().filter(|(time, _)| old(time));
    for (_, path) in whole.into_iter().take(surplus).chain(stale) {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_go_first() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..KEPT + 3 {
            let path = dir.path().join(format!("{i:02}.packed"));
            let file = std::fs::File::create(path).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000 + i as u64)).unwrap();
        }
        let abandoned = std::fs::File::create(dir.path().join("x.partial-1")).unwrap();
        abandoned.set_modified(UNIX_EPOCH).unwrap();
        std::fs::File::create(dir.path().join("y.partial-2")).unwrap();
        prune(dir.path());
        let mut left: Vec<String> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let expected: Vec<String> =
            (3..KEPT + 3).map(|i| format!("{i:02}.packed")).chain(["y.partial-2".to_owned()]).collect();
        assert_eq!(left, expected);
    }
}
