//! Machine code of kernels that is kept, one file for each GPU generation: shipped beside the program, or in the user's
//! cache. A file names the sources it was made of, and is read only if every byte is as it was written.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::fingerprint::Fingerprint;
use super::program::{Parts, unit_source};

/// A folder that is looked into before the others.
const FOLDER_ENV: &str = "VOCE_KERNELS";
const MAGIC: &[u8; 8] = b"voceknl1";
/// Bytes before the first part: magic, sources, parts.
const HEAD: usize = 8 + 16 + 8;
/// Bytes that are told of a part: its length and its fingerprint.
const ENTRY: usize = 8 + 16;

/// The machine code for a compute capability, where a file with it is found.
pub(super) fn find(parts: Parts, capability: (u32, u32)) -> Option<Vec<Vec<u8>>> {
    folders().iter().find_map(|folder| read(folder, parts, capability))
}

/// Writes the machine code for a compute capability into a folder, under its name once it is whole.
pub(super) fn keep(
    folder: &Path,
    parts: Parts,
    capability: (u32, u32),
    images: &[Vec<u8>],
) -> io::Result<PathBuf> {
    let path = folder.join(name(parts, capability));
    let part = path.with_extension(format!("part{}", std::process::id()));
    let write = || {
        std::fs::create_dir_all(folder)?;
        let mut file = std::fs::File::create(&part)?;
        file.write_all(&encode(parts, images))?;
        file.sync_all()?;
        std::fs::rename(&part, &path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&part)))?;
    Ok(path)
}

fn read(folder: &Path, parts: Parts, capability: (u32, u32)) -> Option<Vec<Vec<u8>>> {
    decode(parts, &std::fs::read(folder.join(name(parts, capability))).ok()?)
}

/// Where files are looked for: a named folder, beside the program, the user's cache.
fn folders() -> Vec<PathBuf> {
    let named = std::env::var_os(FOLDER_ENV).map(PathBuf::from);
    let program = std::env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent).map(|folder| {
        let installed = folder.parent().map(|prefix| prefix.join("share").join("voce").join("kernels"));
        [Some(folder.join("share").join("voce").join("kernels")), installed]
    });
    let beside = beside.into_iter().flatten().flatten();
    named.into_iter().chain(beside).chain(cache()).collect()
}

/// The user's cache of kernels.
pub(super) fn cache() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|h| Path::new(&h).join(".cache")))?;
    Some(under(&base))
}

/// The same under a folder of caches.
pub(super) fn under(base: &Path) -> PathBuf {
    base.join("voce").join("kernels")
}

fn name(parts: Parts, (major, minor): (u32, u32)) -> String {
    let (a, _) = sources(parts);
    format!("{a:016x}-sm{major}{minor}.kernels")
}

/// What these very sources are known by.
fn sources(parts: Parts) -> (u64, u64) {
    // Megabytes of text, which do not change while the program runs.
    static KNOWN: [OnceLock<(u64, u64)>; 2] = [const { OnceLock::new() }; 2];
    *KNOWN[parts as usize].get_or_init(|| {
        let mut all: String = parts.units().map(unit_source).collect();
        all.push_str(env!("CARGO_PKG_VERSION"));
        Fingerprint::of(all.as_bytes())
    })
}

fn encode(parts: Parts, images: &[Vec<u8>]) -> Vec<u8> {
    let (a, b) = sources(parts);
    let mut file = MAGIC.to_vec();
    for word in [a, b, images.len() as u64] {
        file.extend(word.to_le_bytes());
    }
    for image in images {
        let (a, b) = Fingerprint::of(image);
        for word in [image.len() as u64, a, b] {
            file.extend(word.to_le_bytes());
        }
    }
    images.iter().for_each(|image| file.extend(image));
    file
}

/// The parts of a file that was made of these sources and is whole.
fn decode(parts: Parts, file: &[u8]) -> Option<Vec<Vec<u8>>> {
    let units = parts.units().len();
    let (head, rest) = file.split_at_checked(HEAD)?;
    let word = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(*bytes.get(8 * at..)?.first_chunk()?));
    let (magic, words) = head.split_at(MAGIC.len());
    let made_of = (word(words, 0)?, word(words, 1)?);
    if magic != MAGIC || made_of != sources(parts) || word(words, 2)? != units as u64 {
        return None;
    }
    let (entries, mut rest) = rest.split_at_checked(ENTRY * units)?;
    let mut images = Vec::with_capacity(units);
    for entry in entries.chunks_exact(ENTRY) {
        let (image, after) = rest.split_at_checked(usize::try_from(word(entry, 0)?).ok()?)?;
        if Fingerprint::of(image) != (word(entry, 1)?, word(entry, 2)?) || !image.starts_with(b"\x7fELF") {
            return None;
        }
        images.push(image.to_vec());
        rest = after;
    }
    rest.is_empty().then_some(images)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images() -> Vec<Vec<u8>> {
        Parts::Usual.units().map(|unit| [b"\x7fELF".to_vec(), vec![unit as u8; unit]].concat()).collect()
    }

    #[test]
    fn a_file_is_read_only_if_it_is_whole_and_of_these_sources() {
        let decode = |file: &[u8]| super::decode(Parts::Usual, file);
        let whole = encode(Parts::Usual, &images());
        assert_eq!(decode(&whole), Some(images()));
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            assert_eq!(decode(&bad), None, "byte {at}");
            assert_eq!(decode(&whole[..at]), None, "{at} bytes");
        }
        assert_eq!(decode(&[&whole[..], b"x"].concat()), None);
        assert_eq!(decode(&encode(Parts::Usual, &images()[1..])), None, "a part is missing");
        assert_eq!(super::decode(Parts::Frame, &whole), None, "other parts");
    }

    #[test]
    fn what_is_kept_is_found_and_nothing_half_written_is_left() {
        let dir = std::env::temp_dir().join(format!("voce-kept-{}", std::process::id()));
        let folder = under(&dir);
        let read = |capability| read(&folder, Parts::Usual, capability);
        assert_eq!(read((9, 0)), None);
        let path = keep(&folder, Parts::Usual, (9, 0), &images()).unwrap();
        assert_eq!(read((9, 0)), Some(images()));
        assert_eq!(read((8, 0)), None, "another generation");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        // A folder that cannot be one.
        assert!(keep(&path, Parts::Usual, (9, 0), &images()).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
