//! Packed weights in a file: what a model's matrices became at its first load, read back at the next.
//!
//! The file is read into the huge-page memory that weights live in, not mapped: reading costs a few
//! milliseconds per hundred megabytes, and small pages would cost bandwidth at every step ever after.
//!
//! Every matrix has a digest, which is checked as it is read: a power cut or a flipped bit costs the time to pack it
//! again, and never gives a wrong weight.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::Hasher as _;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;
use voce_runtime::{Format, Matrix, WeightArena};

/// First bytes of a file; the number is the version of layout and packing.
const MAGIC: [u8; 16] = *b"voce packed 0002";
/// Bytes that an index has at most.
const MAX_INDEX: u64 = 16 << 20;
/// Bytes that are read before they are digested: they are still in a core's cache then.
const PIECE: usize = 256 << 10;

#[derive(Serialize, Deserialize)]
struct Index {
    /// What the weights were made from.
    source: String,
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct Entry {
    outputs: usize,
    inputs: usize,
    /// From the end of the index.
    at: u64,
    /// Of the name and the bytes.
    digest: u64,
}

struct Open {
    file: File,
    base: u64,
    entries: BTreeMap<String, Entry>,
}

/// Packed weights by name, from a file or on their way into one.
pub struct PackedCache {
    path: PathBuf,
    source: String,
    open: Mutex<Option<Open>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    matrices: BTreeMap<String, Matrix>,
    /// Whether any of them is not in the file.
    news: bool,
}

impl PackedCache {
    /// The cache at `path` of weights made from `source`; a file that is missing, damaged or of another
    /// source counts as empty.
    pub fn new(path: PathBuf, source: String) -> Self {
        let open = open(&path, &source);
        tracing::debug!(path = %path.display(), found = open.is_some(), "packed weights");
        Self { path, source, open: Mutex::new(open), known: Mutex::default() }
    }

    /// A matrix that the file has.
    pub(crate) fn get(
        &self,
        arena: &WeightArena,
        name: &str,
        format: Format,
        n: usize,
        k: usize,
    ) -> Option<Matrix> {
        let name = key(name, format);
        let mut guard = self.open.lock().unwrap_or_else(|e| e.into_inner());
        let open = guard.as_mut()?;
        let entry = open.entries.get(&name).filter(|e| (e.outputs, e.inputs) == (n, k)).copied()?;
        let mut digest = Digest::new(&name);
        let file = &mut open.file;
        let read = file.seek(SeekFrom::Start(open.base + entry.at)).and_then(|_| {
            Matrix::read_packed(arena, format, n, k, |out| {
                out.chunks_mut(PIECE).try_for_each(|piece| {
                    file.read_exact(piece)?;
                    digest.0.write(piece);
                    Ok(())
                })
            })
        });
        match read {
            Ok(matrix) if digest.0.finish() == entry.digest => {
                self.known().matrices.insert(name, matrix.clone());
                Some(matrix)
            }
            Ok(_) => {
                tracing::warn!(path = %self.path.display(), "packed weights '{name}' are damaged: packing them again");
                open.entries.remove(&name);
                None
            }
            Err(e) => {
                tracing::warn!(path = %self.path.display(), "packed weights cannot be read: {e}");
                *guard = None;
                None
            }
        }
    }

    /// Remembers a matrix for [`PackedCache::save`].
    pub(crate) fn put(&self, name: &str, matrix: &Matrix) {
        let mut known = self.known();
        known.matrices.insert(key(name, matrix.format()), matrix.clone());
        known.news = true;
    }

    /// Bytes of all matrices known.
    pub fn bytes(&self) -> usize {
        self.known().matrices.values().map(Matrix::bytes).sum()
    }

    /// Writes the file anew if there is something that it lacks; it appears under its name only when whole.
    pub fn save(&self) -> std::io::Result<()> {
        let known = std::mem::take(&mut *self.known());
        if !known.news {
            return Ok(());
        }
        let mut at = 0;
        let mut entries = BTreeMap::new();
        for (name, m) in &known.matrices {
            let mut digest = Digest::new(name);
            m.write_packed(&mut digest)?;
            let entry = Entry { outputs: m.outputs(), inputs: m.inputs(), at, digest: digest.0.finish() };
            at += Matrix::packed_bytes(m.format(), m.outputs(), m.inputs()) as u64;
            entries.insert(name.clone(), entry);
        }
        let index = serde_json::to_vec(&Index { entries, source: self.source.clone() })?;
        let partial = self.path.with_extension(format!("partial-{}", std::process::id()));
        let written = write(&partial, &index, &known.matrices)
            .and_then(|()| std::fs::rename(&partial, &self.path))
            .and_then(|()| sync_folder(&self.path));
        if written.is_err() {
            let _ = std::fs::remove_file(&partial);
        }
        written
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A digest on its way: 64 bits, made as fast as memory is read.
struct Digest(XxHash3_64);

impl Digest {
    /// The digest of a matrix's bytes and its name: the bytes of another matrix of the same shape do not match.
    fn new(name: &str) -> Self {
        let mut digest = XxHash3_64::new();
        digest.write(name.as_bytes());
        Self(digest)
    }
}

impl Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Makes a rename last: the name is on the disk when this returns.
fn sync_folder(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(folder) if cfg!(unix) => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

fn key(name: &str, format: Format) -> String {
    format!("{name}:{}", format.name())
}

fn open(path: &Path, source: &str) -> Option<Open> {
    let mut file = File::open(path).ok()?;
    let size = file.metadata().ok()?.len();
    let mut head = [0u8; 24];
    file.read_exact(&mut head).ok()?;
    let length = u64::from_le_bytes(head[16..].try_into().expect("eight bytes"));
    if head[..16] != MAGIC || length > MAX_INDEX.min(size) {
        return None;
    }
    let mut index = vec![0u8; length as usize];
    file.read_exact(&mut index).ok()?;
    let index: Index = serde_json::from_slice(&index).ok()?;
    let base = 24 + length;
    let fits = |(name, e): (&String, &Entry)| {
        let format = Format::ON_CPU.into_iter().find(|f| name.ends_with(&format!(":{}", f.name())))?;
        let room = usize::try_from(size.checked_sub(base)?.checked_sub(e.at)?).ok()?;
        let values = e.outputs.checked_mul(e.inputs)?;
        // Packing pads, but never past this; sizes beyond it would be damage.
        (values <= room.checked_mul(8)? && Matrix::packed_bytes(format, e.outputs, e.inputs) <= room)
            .then_some(())
    };
    let whole = index.source == source && index.entries.iter().all(|e| fits(e).is_some());
    whole.then_some(Open { file, base, entries: index.entries })
}

fn write(path: &Path, index: &[u8], matrices: &BTreeMap<String, Matrix>) -> std::io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(&MAGIC)?;
    out.write_all(&(index.len() as u64).to_le_bytes())?;
    out.write_all(index)?;
    for matrix in matrices.values() {
        matrix.write_packed(&mut out)?;
    }
    // On the disk before it has its name, or a power cut could leave the name with half of the bytes.
    out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::weights::RandomWeights;
    use crate::{Linear, Loader};

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("voce-packed-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Loads two layers and says how many were made anew, and what they are.
    fn load(path: &Path, source: &str, save: bool) -> (usize, Vec<f32>) {
        let made = AtomicUsize::new(0);
        let cache = Arc::new(PackedCache::new(path.to_owned(), source.to_owned()));
        let l = Loader::new(Arc::new(RandomWeights::new(3, |_| false))).with_cache(cache.clone());
        let mut values = Vec::new();
        for (name, format) in [("a", Format::Int8), ("b", Format::Bf16), ("b", Format::Int4)] {
            let l = l.sub(name);
            let layer = Linear::load_with(&l, "weight", 40, 70, format, || {
                made.fetch_add(1, Ordering::Relaxed);
                l.tensor("weight", &[40, 70])
            });
            values.extend(layer.unwrap().matrix().unpack());
        }
        if save {
            cache.save().unwrap();
        }
        (made.into_inner(), values)
    }

    #[test]
    fn a_second_load_reads_what_the_first_packed() {
        let dir = folder("second");
        let path = dir.join("model.packed");
        let (made, first) = load(&path, "v1", true);
        assert_eq!(made, 3);
        let (made, second) = load(&path, "v1", true);
        assert_eq!((made, second == first), (0, true));
        let (made, other) = load(&path, "v2", false);
        assert_eq!((made, other == first), (3, true), "another source is packed anew");
        let names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["model.packed"], "nothing half-written is left");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn damage_costs_time_only() {
        let dir = folder("damage");
        let path = dir.join("model.packed");
        let (_, first) = load(&path, "v1", true);
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 5, 20, 30, 200, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert!(load(&path, "v1", false) == (3, first.clone()), "cut at {cut}");
        }
        let mut bytes = whole.clone();
        bytes[20] = 0xff;
        std::fs::write(&path, &bytes).unwrap();
        assert!(load(&path, "v1", false) == (3, first), "an index of terabytes");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found_and_mended() {
        let dir = folder("bits");
        let path = dir.join("model.packed");
        let (_, first) = load(&path, "v1", true);
        let whole = std::fs::read(&path).unwrap();
        let index = u64::from_le_bytes(whole[16..24].try_into().unwrap()) as usize;
        for at in (0..whole.len()).step_by(97).chain(0..24 + index).chain([whole.len() - 1]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            std::fs::write(&path, &bytes).unwrap();
            let (made, values) = load(&path, "v1", false);
            assert!(values == first, "a bit of byte {at} was flipped");
            assert!(made > 0 || at < 24 + index, "byte {at} of a matrix");
            if at >= 24 + index {
                assert_eq!(made, 1, "only the matrix of byte {at} is packed again");
            }
        }
        // What was packed again is written, and the next load needs nothing.
        let mut bytes = whole.clone();
        bytes[24 + index + 5] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(load(&path, "v1", true).0, 1);
        assert!(std::fs::read(&path).unwrap() == whole);
        assert!(load(&path, "v1", true) == (0, first));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_matrix_under_another_name_is_not_taken() {
        let dir = folder("names");
        let path = dir.join("model.packed");
        let arena = WeightArena::new();
        let matrix = |seed: f32| {
            let values: Vec<f32> = (0..64 * 64).map(|i| seed + i as f32).collect();
            Matrix::pack(&arena, Format::F32, 64, 64, &values)
        };
        let cache = PackedCache::new(path.clone(), "v1".into());
        cache.put("a", &matrix(0.0).unwrap());
        cache.put("b", &matrix(1.0).unwrap());
        cache.save().unwrap();
        let text = std::fs::read(&path).unwrap();
        let at = text.windows(5).position(|w| w == b"a:f32").unwrap();
        let mut renamed = text.clone();
        renamed[at] = b'c';
        std::fs::write(&path, renamed).unwrap();
        let cache = PackedCache::new(path.clone(), "v1".into());
        assert!(cache.get(&arena, "b", Format::F32, 64, 64).is_some());
        assert!(cache.get(&arena, "c", Format::F32, 64, 64).is_none(), "the bytes are those of another");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
