//! A folder of results: each is written beside, synced and renamed, so that what has its name is whole.

use std::fs::{self, File, TryLockError};
use std::io::{BufWriter, ErrorKind, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use voce_audio::AudioError;
use voce_audio::output::Output;

use crate::error::JobError;

/// What the names of files end in that are being written.
const PART: &str = ".part";
/// Age at which a file that was never finished counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A folder of results that one process at a time writes under a tag.
pub struct Folder {
    path: PathBuf,
    tag: String,
    /// Held as long as the process lives, whatever ends it.
    _lock: Option<File>,
}

impl Folder {
    /// Opens a folder, makes it if needed, and removes what a process with the same tag left half-written. None where
    /// another process works under this tag.
    pub fn open(path: &Path, tag: &str) -> Result<Option<Self>, JobError> {
        fs::create_dir_all(path).map_err(keeping(path))?;
        let name = path.join(format!(".voce-{tag}.lock"));
        let file =
            File::options().create(true).truncate(false).write(true).open(&name).map_err(keeping(&name))?;
        let lock = match file.try_lock() {
            Ok(()) => Some(file),
            Err(TryLockError::WouldBlock) => return Ok(None),
            // Some network file systems have no locks: two processes would only do the same work twice.
            Err(TryLockError::Error(error)) => {
                tracing::debug!(%error, "no lock on this file system");
                None
            }
        };
        let folder = Self { path: path.to_owned(), tag: tag.to_owned(), _lock: lock };
        folder.sweep()?;
        Ok(Some(folder))
    }

    /// A folder that several processes write at once, each under a tag of its own that no other has.
    pub fn shared(path: &Path, tag: &str) -> Result<Self, JobError> {
        fs::create_dir_all(path).map_err(keeping(path))?;
        Ok(Self { path: path.to_owned(), tag: tag.to_owned(), _lock: None })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a result.
    pub fn result(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether a result is there.
    pub fn has(&self, name: &str) -> bool {
        self.result(name).is_file()
    }

    /// Starts writing a result.
    pub fn write(&self, name: &str) -> Result<PartFile, JobError> {
        let target = self.result(name);
        let temp = self.path.join(format!(".{name}.{}{PART}", self.tag));
        let file = File::create(&temp).map_err(keeping(&temp))?;
        Ok(PartFile { writer: Some(BufWriter::new(file)), temp, target })
    }

    /// Keeps a small result.
    pub fn keep(&self, name: &str, bytes: &[u8]) -> Result<(), JobError> {
        let mut part = self.write(name)?;
        part.put_bytes(bytes).and_then(|()| part.finish()).map_err(keeping(&self.result(name)))
    }

    /// Removes what anybody left half-written and has not touched for an hour.
    pub fn sweep_old(&self) -> Result<(), JobError> {
        for entry in fs::read_dir(&self.path).map_err(keeping(&self.path))? {
            let entry = entry.map_err(keeping(&self.path))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let age = entry.metadata().and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
            if name.starts_with('.') && name.ends_with(PART) && age.is_some_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    /// Removes what this tag left half-written.
    fn sweep(&self) -> Result<(), JobError> {
        let ours = format!(".{}{PART}", self.tag);
        for entry in fs::read_dir(&self.path).map_err(keeping(&self.path))? {
            let entry = entry.map_err(keeping(&self.path))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with('.') && name.ends_with(&ours) {
                match fs::remove_file(entry.path()) {
                    Err(e) if e.kind() != ErrorKind::NotFound => return Err(keeping(&entry.path())(e)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn keeping(path: &Path) -> impl FnOnce(std::io::Error) -> JobError + use<> {
    let path = path.to_owned();
    move |source| JobError::Keep { path, source }
}

/// A result that is being written; dropped before it is committed, it leaves nothing behind.
pub struct PartFile {
    writer: Option<BufWriter<File>>,
    temp: PathBuf,
    target: PathBuf,
}

impl PartFile {
    fn put_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.writer {
            Some(writer) => writer.write_all(bytes),
            None => Err(std::io::Error::other("already finished")),
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        let Some(writer) = &mut self.writer else { return Err(std::io::Error::other("already finished")) };
        writer.flush()?;
        writer.get_ref().sync_all()?;
        fs::rename(&self.temp, &self.target)?;
        self.writer = None;
        sync_folder(&self.target);
        Ok(())
    }

    fn name(&self) -> String {
        self.target.display().to_string()
    }
}

/// The name lasts as long as the bytes, where the system can promise it.
fn sync_folder(file: &Path) {
    #[cfg(unix)]
    if let Some(Ok(folder)) = file.parent().map(File::open) {
        let _ = folder.sync_all();
    }
    #[cfg(not(unix))]
    let _ = file;
}

fn writing(name: &str, source: std::io::Error) -> AudioError {
    let name = name.to_owned();
    match source.kind() {
        ErrorKind::StorageFull => AudioError::DiskFull { name },
        _ => AudioError::Io { verb: "write", name, source },
    }
}

impl Output for PartFile {
    fn put(&mut self, bytes: &[u8]) -> Result<(), AudioError> {
        self.put_bytes(bytes).map_err(|e| writing(&self.name(), e))
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        let flushed = self.writer.as_mut().map_or(Ok(()), |w| w.flush());
        flushed.map_err(|e| writing(&self.name(), e))
    }

    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<bool, AudioError> {
        let name = self.name();
        let Some(w) = &mut self.writer else { return Ok(false) };
        let patched = w
            .seek(SeekFrom::Start(offset))
            .and_then(|_| w.write_all(bytes))
            .and_then(|()| w.seek(SeekFrom::End(0)));
        patched.map(|_| true).map_err(|e| writing(&name, e))
    }

    fn commit(&mut self) -> Result<(), AudioError> {
        self.finish().map_err(|e| writing(&self.name(), e))
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            drop(writer.into_parts());
            let _ = fs::remove_file(&self.temp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.filter(|n| !n.ends_with(".lock")).collect();
        names.sort();
        names
    }

    #[test]
    fn results_are_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path(), "a").unwrap().unwrap();
        folder.keep("x.txt", b"one").unwrap();
        let mut part = folder.write("y.txt").unwrap();
        part.put(b"half").unwrap();
        assert_eq!(names(dir.path()), [".y.txt.a.part", "x.txt"]);
        assert!(folder.has("x.txt") && !folder.has("y.txt"));
        drop(part);
        assert_eq!(names(dir.path()), ["x.txt"]);
        let mut part = folder.write("y.txt").unwrap();
        part.put(b"half").unwrap();
        // As a kill would leave it.
        std::mem::forget(part);
        drop(folder);
        fs::write(dir.path().join(".z.txt.b.part"), "of another").unwrap();
        let folder = Folder::open(dir.path(), "a").unwrap().unwrap();
        assert_eq!(names(dir.path()), [".z.txt.b.part", "x.txt"]);
        // One process a tag.
        assert!(Folder::open(dir.path(), "a").unwrap().is_none());
        assert!(Folder::open(dir.path(), "b").unwrap().is_some());
        drop(folder);
        assert!(Folder::open(dir.path(), "a").unwrap().is_some());
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        let Err(error) = Folder::open(&file, "a") else { panic!("a file is no folder") };
        assert!(error.is_about_the_place() && !error.is_lasting());
    }
}
