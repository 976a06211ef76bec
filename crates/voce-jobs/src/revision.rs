//! Which weights a model has, in a word that is the same wherever the same files lie.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use sha2::{Digest as _, Sha256};
use voce_engine::EngineError;
use voce_engine::store::{Located, Store};

/// Files of at most this many bytes are read whole; of larger ones pieces are.
const WHOLE: u64 = 1 << 20;
/// Pieces of a larger file, from its first to its last byte.
const PIECES: u64 = 64;
/// Bytes of a piece.
const PIECE: u64 = 4 << 10;
/// Letters of a revision.
const LETTERS: usize = 16;

/// The revision of a model whose files are here: a hash over names, sizes and content of its configuration, tokeniser and
/// weights, of large files over pieces of them. It does not depend on where the files lie.
pub fn revision(store: &Store, reference: &str) -> Result<String, EngineError> {
    of(&store.find(reference)?)
}

fn of(model: &Located) -> Result<String, EngineError> {
    let mut hash = Sha256::new();
    if let (None, Some(entry)) = (&model.config, model.entry) {
        hash.update(entry.config_text().unwrap_or_default());
    }
    for path in model.config.iter().chain(&model.tokenizer).chain(&model.weights) {
        add(&mut hash, path).map_err(|source| EngineError::Io { path: path.clone(), source })?;
    }
    let hex: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    Ok(hex[..LETTERS].to_owned())
}

fn add(hash: &mut Sha256, path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
    hash.update(size.to_le_bytes());
    let mut bytes = Vec::new();
    if size <= WHOLE {
        file.take(WHOLE).read_to_end(&mut bytes)?;
        hash.update(&bytes);
        return Ok(());
    }
    for piece in 0..PIECES {
        bytes.clear();
        file.seek(SeekFrom::Start((size - PIECE) * piece / (PIECES - 1)))?;
        (&file).take(PIECE).read_to_end(&mut bytes)?;
        hash.update(&bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_counts_by_its_name_and_content_and_not_by_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let hash = |name: &str, bytes: &[u8], sub: &str| {
            let folder = dir.path().join(sub);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), bytes).unwrap();
            let mut hash = Sha256::new();
            add(&mut hash, &folder.join(name)).unwrap();
            hash.finalize()
        };
        let large = vec![1; WHOLE as usize + 10];
        let mut other = large.clone();
        *other.last_mut().unwrap() = 2;
        assert_eq!(hash("a", &large, "x"), hash("a", &large, "y"));
        assert_ne!(hash("a", &large, "x"), hash("a", &other, "x"));
        assert_ne!(hash("a", &large, "x"), hash("b", &large, "x"));
        assert_ne!(hash("a", &large[1..], "x"), hash("a", &large, "x"));
        assert_ne!(hash("a", b"one", "x"), hash("a", b"two", "x"));
    }
}
