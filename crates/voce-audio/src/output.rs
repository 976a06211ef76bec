//! Where encoded audio goes: a file that appears whole or not at all, or a pipe. Sinks write through
//! [`Output`], which lets a finished header be patched where the place allows it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::AudioError;

/// A place for encoded bytes.
pub trait Output: Send {
    /// Writes all of `bytes`.
    fn put(&mut self, bytes: &[u8]) -> Result<(), AudioError>;

    /// Pushes buffered bytes out, so that a listener hears them.
    fn flush(&mut self) -> Result<(), AudioError>;

    /// Overwrites earlier bytes; `false` where that is not possible.
    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<bool, AudioError>;

    /// Whether [`patch`](Self::patch) works here.
    fn patches(&self) -> bool {
        false
    }

    /// Completes the output; nothing may be written after it.
    fn commit(&mut self) -> Result<(), AudioError>;
}

impl<T: Output + ?Sized> Output for Box<T> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), AudioError> {
        (**self).put(bytes)
    }
    fn flush(&mut self) -> Result<(), AudioError> {
        (**self).flush()
    }
    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<bool, AudioError> {
        (**self).patch(offset, bytes)
    }
    fn patches(&self) -> bool {
        (**self).patches()
    }
    fn commit(&mut self) -> Result<(), AudioError> {
        (**self).commit()
    }
}

/// Opens a path for writing: atomically for files, directly for devices and named pipes.
pub fn open_output(path: &Path) -> Result<Box<dyn Output>, AudioError> {
    let special = fs::metadata(path).is_ok_and(|m| !m.is_file() && !m.is_dir());
    if special {
        let name = path.display().to_string();
        let file = OpenOptions::new().write(true).open(path).map_err(|e| AudioError::writing(&name, e))?;
        return Ok(Box::new(Pipe::named(file, &name)));
    }
    Ok(Box::new(AtomicFile::create(path)?))
}

/// A byte stream that can only be appended to.
pub struct Pipe<W: Write + Send> {
    writer: W,
    name: String,
}

impl<W: Write + Send> Pipe<W> {
    /// Writes to `writer`, called "the output" in errors.
    pub fn new(writer: W) -> Self {
        Self::named(writer, "the output")
    }

    /// Writes to `writer`, called `name` in errors.
    pub fn named(writer: W, name: &str) -> Self {
        Self { writer, name: name.into() }
    }

    /// Gives the writer back.
    pub fn into_inner(self) -> W {
        self.writer
    }
}

impl<W: Write + Send> Output for Pipe<W> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), AudioError> {
        self.writer.write_all(bytes).map_err(|e| AudioError::writing(&self.name, e))
    }
    fn flush(&mut self) -> Result<(), AudioError> {
        self.writer.flush().map_err(|e| AudioError::writing(&self.name, e))
    }
    fn patch(&mut self, _: u64, _: &[u8]) -> Result<bool, AudioError> {
        Ok(false)
    }
    fn commit(&mut self) -> Result<(), AudioError> {
        self.flush()
    }
}

/// A file written under a temporary name in the same folder and renamed by `commit`; dropped before that,
/// it leaves nothing behind and an older file of that name untouched.
pub struct AtomicFile {
    writer: Option<BufWriter<File>>,
    temp: PathBuf,
    target: PathBuf,
    name: String,
}

static TEMP_COUNT: AtomicU32 = AtomicU32::new(0);
const TEMP_TRIES: usize = 16;

impl AtomicFile {
    /// Starts writing what will become `path`.
    pub fn create(path: &Path) -> Result<Self, AudioError> {
        let name = path.display().to_string();
        let fail = |e| AudioError::writing(&name, e);
        // A link keeps pointing where it did: the file behind it is replaced.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if target.is_dir() {
            return Err(fail(ErrorKind::IsADirectory.into()));
        }
        let Some(file_name) = target.file_name() else { return Err(fail(ErrorKind::InvalidInput.into())) };
        for _ in 0..TEMP_TRIES {
            let mut temp_name = OsString::from(".");
            temp_name.push(file_name);
            let count = TEMP_COUNT.fetch_add(1, Ordering::Relaxed);
            temp_name.push(format!(".{}-{count}.part", std::process::id()));
            let temp = target.with_file_name(temp_name);
            match OpenOptions::new().write(true).create_new(true).open(&temp) {
                Ok(file) => return Ok(Self { writer: Some(BufWriter::new(file)), temp, target, name }),
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                Err(e) => return Err(fail(e)),
            }
        }
        Err(fail(ErrorKind::AlreadyExists.into()))
    }

    fn with<T>(
        &mut self,
        f: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<T>,
    ) -> Result<T, AudioError> {
        let result = match &mut self.writer {
            Some(writer) => f(writer),
            None => Err(std::io::Error::other("already finished")),
        };
        result.map_err(|e| AudioError::writing(&self.name, e))
    }
}

impl Output for AtomicFile {
    fn put(&mut self, bytes: &[u8]) -> Result<(), AudioError> {
        self.with(|w| w.write_all(bytes))
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        self.with(|w| w.flush())
    }

    fn patch(&mut self, offset: u64, bytes: &[u8]) -> Result<bool, AudioError> {
        self.with(|w| {
            w.seek(SeekFrom::Start(offset))?;
            w.write_all(bytes)?;
            w.seek(SeekFrom::End(0))
        })?;
        Ok(true)
    }

    fn patches(&self) -> bool {
        true
    }

    fn commit(&mut self) -> Result<(), AudioError> {
        self.with(|w| {
            w.flush()?;
            w.get_ref().sync_all()
        })?;
        if let Ok(old) = fs::metadata(&self.target) {
            // Best effort: a file system without permissions is no reason to lose the audio.
            let _ = fs::set_permissions(&self.temp, old.permissions());
        }
        fs::rename(&self.temp, &self.target).map_err(|e| AudioError::writing(&self.name, e))?;
        self.writer = None;
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.take() {
            // The buffered rest is not worth writing: the file goes away.
            drop(writer.into_parts());
            let _ = fs::remove_file(&self.temp);
        }
    }
}
