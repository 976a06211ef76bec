//! A file that is still arriving: `blobs/ETAG.incomplete`, kept across runs until its hash is right.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::digest::Digest;
use super::error::StoreError;
use super::hub::FileMeta;

const CHUNK: usize = 256 << 10;

/// The bytes of one blob that have arrived, with their hash so far.
pub(super) struct Partial {
    path: PathBuf,
    file: File,
    meta: FileMeta,
    len: u64,
    digest: Digest,
}

impl Partial {
    /// Opens what an earlier run left, or starts anew.
    pub(super) fn open(path: &Path, meta: &FileMeta) -> Result<Self, StoreError> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(StoreError::io("open", path))?;
        let digest = Digest::for_etag(&meta.etag, meta.size);
        let mut partial = Self { path: path.to_owned(), file, meta: meta.clone(), len: 0, digest };
        partial.take_in()?;
        Ok(partial)
    }

    fn take_in(&mut self) -> Result<(), StoreError> {
        let failed = StoreError::io("read", &self.path);
        let there = match self.file.metadata() {
            Ok(metadata) => metadata.len(),
            Err(error) => return Err(failed(error)),
        };
        if there > self.meta.size {
            return self.restart();
        }
        let mut buffer = vec![0; CHUNK];
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(n) => {
                    self.digest.update(&buffer[..n]);
                    self.len += n as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Forgets what has arrived.
    pub(super) fn restart(&mut self) -> Result<(), StoreError> {
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .map_err(StoreError::io("truncate", &self.path))?;
        self.len = 0;
        self.digest = Digest::for_etag(&self.meta.etag, self.meta.size);
        Ok(())
    }

    /// Adds bytes; more of them than the file should have are an error.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if bytes.len() as u64 > self.meta.size - self.len {
            let _ = self.restart();
            return Err(StoreError::Damaged {
                file: self.path.display().to_string(),
                expected: format!("{} bytes", self.meta.size),
                got: "more".to_owned(),
            });
        }
        self.file.write_all(bytes).map_err(StoreError::io("write", &self.path))?;
        self.digest.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Bytes that have arrived.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether all bytes have arrived.
    pub(super) fn is_whole(&self) -> bool {
        self.len == self.meta.size
    }

    /// Checks the hash and renames the file to `blob`; deletes it when the hash is wrong.
    pub(super) fn finish(self, name: &str, blob: &Path) -> Result<(), StoreError> {
        let got = self.digest.finish();
        let expected = self.meta.etag.to_ascii_lowercase();
        match got {
            Some(got) if got != expected => {
                drop(self.file);
                fs::remove_file(&self.path).map_err(StoreError::io("delete", &self.path))?;
                return Err(StoreError::Damaged { file: name.to_owned(), expected, got });
            }
            Some(_) => {}
            None => {
                tracing::warn!(file = name, "the hub gave no hash for this file; only its size was checked")
            }
        }
        self.file.sync_all().map_err(StoreError::io("write", &self.path))?;
        drop(self.file);
        fs::rename(&self.path, blob).map_err(StoreError::io("rename", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(size: u64) -> FileMeta {
        // Hash of "hello\n".
        FileMeta { etag: "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03".to_owned(), size }
    }

    #[test]
    fn hash_covers_what_an_earlier_run_left() {
        let dir = tempfile::tempdir().unwrap();
        let (path, blob) = (dir.path().join("x.incomplete"), dir.path().join("x"));
        fs::write(&path, "hel").unwrap();
        let mut partial = Partial::open(&path, &meta(6)).unwrap();
        assert_eq!((partial.len(), partial.is_whole()), (3, false));
        partial.push(b"lo\n").unwrap();
        partial.finish("x", &blob).unwrap();
        assert_eq!(fs::read(&blob).unwrap(), b"hello\n");
        assert!(!path.exists());
    }

    #[test]
    fn too_much_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.incomplete");
        fs::write(&path, "far too long").unwrap();
        let mut partial = Partial::open(&path, &meta(6)).unwrap();
        assert_eq!(partial.len(), 0);
        assert!(matches!(partial.push(b"1234567"), Err(StoreError::Damaged { .. })));
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
    }

    #[test]
    fn wrong_hash_is_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let (path, blob) = (dir.path().join("x.incomplete"), dir.path().join("x"));
        let mut partial = Partial::open(&path, &meta(6)).unwrap();
        partial.push(b"HELLO\n").unwrap();
        let error = partial.finish("x", &blob).unwrap_err();
        assert_eq!(error.code(), "damaged");
        assert!(!path.exists() && !blob.exists());
    }
}
