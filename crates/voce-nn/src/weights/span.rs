//! A stretch of an open file: what members of archives are read through, in place.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::WeightError;

/// A stretch of a file that others share; reads outside it are errors.
#[derive(Clone)]
pub struct FileSpan {
    path: Arc<PathBuf>,
    file: Arc<Mutex<File>>,
    start: u64,
    len: u64,
}

impl FileSpan {
    /// A whole file.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        let io = |source| WeightError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(io)?;
        Self::whole(path, file)
    }

    /// A whole open file that is known to the user as `path`.
    pub(super) fn whole(path: &Path, file: File) -> Result<Self, WeightError> {
        let len = file.metadata().map_err(|source| WeightError::Io { path: path.to_owned(), source })?.len();
        Ok(Self { path: Arc::new(path.to_owned()), file: Arc::new(Mutex::new(file)), start: 0, len })
    }

    /// The file that the user knows.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in the stretch.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of the stretch.
    pub fn part(&self, start: u64, len: u64) -> Result<Self, WeightError> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => Ok(Self { start: self.start + start, len, ..self.clone() }),
            _ => Err(self.bad(format!("it is cut short: {len} bytes at {start} of {}", self.len))),
        }
    }

    /// Bytes from `start` on.
    pub fn read(&self, start: u64, len: usize) -> Result<Vec<u8>, WeightError> {
        let part = self.part(start, len as u64)?;
        let mut bytes = vec![0u8; len];
        let mut file = self.file.lock().unwrap_or_else(|p| p.into_inner());
        file.seek(SeekFrom::Start(part.start))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|source| WeightError::Io { path: self.path.as_ref().clone(), source })?;
        Ok(bytes)
    }

    /// All bytes, if there are no more than `limit`.
    pub fn bytes(&self, limit: u64) -> Result<Vec<u8>, WeightError> {
        if self.len > limit {
            return Err(self.bad(format!("a part of {} bytes, at most {limit} are read", self.len)));
        }
        self.read(0, self.len as usize)
    }

    pub(super) fn bad(&self, reason: impl Into<String>) -> WeightError {
        WeightError::Archive { path: self.path.as_ref().clone(), reason: reason.into() }
    }
}
