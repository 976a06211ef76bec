//! The list of what failed: a line of JSON each, appended as it happens and read again by the next run.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::error::JobError;

/// A failure as the list has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The unit's id, or where the bad line is.
    pub id: String,
    /// The name its result would have; empty for a bad line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Short name of the reason.
    pub code: String,
    /// The reason.
    pub error: String,
}

/// A list of failures in a file.
pub struct Failures {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

impl Failures {
    /// Reads what failed before, by the names of the results; a line that a kill cut off counts for nothing.
    pub fn before(path: &Path) -> Result<HashSet<String>, JobError> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(HashSet::new()),
            Err(source) => return Err(JobError::Keep { path: path.to_owned(), source }),
        };
        let lines = BufReader::new(file).lines().map_while(Result::ok);
        let failed = lines.filter_map(|line| serde_json::from_str::<Failed>(&line).ok());
        Ok(failed.map(|f| f.output).filter(|name| !name.is_empty()).collect())
    }

    /// Starts a new list, which holds those of an older one that `keep` says; the file appears with its first line.
    pub fn renew(path: &Path, keep: impl Fn(&Failed) -> bool) -> Result<Self, JobError> {
        let wrap = |source| JobError::Keep { path: path.to_owned(), source };
        let mut kept = Vec::new();
        if let Ok(file) = File::open(path) {
            for line in BufReader::new(file).lines().map_while(Result::ok) {
                if let Ok(failed) = serde_json::from_str::<Failed>(&line)
                    && keep(&failed)
                {
                    kept.extend(line.bytes().chain(*b"\n"));
                }
            }
        }
        if kept.is_empty() {
            match std::fs::remove_file(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(wrap(e)),
                _ => {}
            }
        } else {
            let temp = path.with_extension("jsonl.part");
            let mut file = File::create(&temp).map_err(wrap)?;
            file.write_all(&kept).and_then(|()| file.sync_all()).map_err(wrap)?;
            std::fs::rename(&temp, path).map_err(wrap)?;
        }
        Ok(Self { path: path.to_owned(), file: Mutex::new(None) })
    }

    /// Adds a failure, as one write.
    pub fn add(&self, failed: &Failed) -> Result<(), JobError> {
        let wrap = |source| JobError::Keep { path: self.path.clone(), source };
        let mut file = self.file.lock().unwrap_or_else(|e| e.into_inner());
        if file.is_none() {
            *file = Some(File::options().append(true).create(true).open(&self.path).map_err(wrap)?);
        }
        let line = serde_json::to_string(failed).unwrap_or_default() + "\n";
        file.as_mut().map_or(Ok(()), |f| f.write_all(line.as_bytes())).map_err(wrap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_was_cut_off_is_read_as_far_as_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("failed.jsonl");
        let failed = |n: &str| Failed { id: n.into(), output: n.into(), code: "c".into(), error: "e".into() };
        assert!(Failures::before(&path).unwrap().is_empty());
        let list = Failures::renew(&path, |_| true).unwrap();
        assert!(!path.exists());
        ["a", "b", "c"].iter().for_each(|n| list.add(&failed(n)).unwrap());
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let before = Failures::before(&path).unwrap();
        assert_eq!((before.len(), before.contains("b")), (2, true));
        let list = Failures::renew(&path, |f| f.output == "b").unwrap();
        list.add(&failed("d")).unwrap();
        let before = Failures::before(&path).unwrap();
        assert_eq!((before.len(), before.contains("b"), before.contains("d")), (2, true, true));
        Failures::renew(&path, |_| false).unwrap();
        assert!(!path.exists());
    }
}
