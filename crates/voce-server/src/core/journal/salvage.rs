//! What a server that was killed has left behind: files that nobody writes any more are made whole and get their names.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use voce_audio::wav::{WavSample, wav_header};

/// Bytes at the end of a file of lines in which its last whole line ends.
const TAIL: u64 = 1 << 20;

/// Makes an unfinished file whole, unless somebody still writes it: its name and its bytes. One that holds nothing is removed.
pub(super) fn salvage(path: &Path) -> Option<(PathBuf, u64)> {
    let whole = path.with_extension("");
    let is_audio = whole.extension().is_some_and(|e| e == "wav");
    match make_whole(path, is_audio) {
        Ok(Some(bytes)) => fs::rename(path, &whole).ok().map(|()| (whole, bytes)),
        Ok(None) => {
            let _ = fs::remove_file(path);
            None
        }
        // It is being written, or cannot be: it stays as it is.
        Err(_) => None,
    }
}

/// Cuts off what is torn, and writes what is known only at the end. None where nothing is left.
fn make_whole(path: &Path, is_audio: bool) -> io::Result<Option<u64>> {
    let mut file = File::options().read(true).write(true).open(path)?;
    // Who writes a file holds its lock.
    file.try_lock().map_err(io::Error::from)?;
    let bytes = file.metadata()?.len();
    let whole = if is_audio { audio(&mut file, bytes)? } else { lines(&mut file, bytes)? };
    if let Some(whole) = whole {
        file.set_len(whole)?;
        file.sync_all()?;
    }
    Ok(whole)
}

fn audio(file: &mut File, bytes: u64) -> io::Result<Option<u64>> {
    let mut head = wav_header(0, WavSample::S16, Some(0));
    let samples = bytes.saturating_sub(head.len() as u64) / 2;
    if samples == 0 {
        return Ok(None);
    }
    file.read_exact(&mut head)?;
    let rate = head.get(24..28).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&wav_header(rate, WavSample::S16, Some(u32::try_from(samples).unwrap_or(u32::MAX))))?;
    Ok(Some(head.len() as u64 + 2 * samples))
}

fn lines(file: &mut File, bytes: u64) -> io::Result<Option<u64>> {
    let from = bytes.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    Ok(memchr::memrchr(b'\n', &tail).map(|at| from + at as u64 + 1))
}
