//! A clip on disk while a voice is made of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that goes when nobody needs it any more.
pub(crate) struct Clip(PathBuf);

static CLIPS: AtomicU64 = AtomicU64::new(0);

impl Clip {
    /// Writes a clip into a folder. Blocks.
    pub(crate) fn write(dir: &Path, extension: &str, data: &[u8]) -> io::Result<Self> {
        let count = CLIPS.fetch_add(1, Ordering::Relaxed);
        let clip = Self(dir.join(format!(".clip-{}-{count}.{extension}", std::process::id())));
        std::fs::write(&clip.0, data)?;
        Ok(clip)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Clip {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
