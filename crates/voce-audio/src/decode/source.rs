//! Where encoded bytes come from: memory, a file or a pipe, with the byte limit and the leading ID3 tags
//! handled once for every format.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use symphonia::core::io::MediaSource;

use crate::AudioError;

/// Bytes looked at to tell formats apart.
pub(super) const SNIFF_BYTES: usize = 64;
/// Leading ID3v2 tags skipped before giving up.
const MAX_LEADING_TAGS: usize = 4;

/// Encoded audio to decode.
pub struct Source {
    kind: Kind,
    name: String,
}

enum Kind {
    Bytes(Cursor<Arc<[u8]>>),
    File(File),
    Stream(Mutex<Box<dyn Read + Send>>),
}

impl Source {
    /// Encoded audio in memory.
    pub fn bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self { kind: Kind::Bytes(Cursor::new(bytes.into())), name: "the audio".into() }
    }

    /// Encoded audio in a file; named pipes work as streams.
    pub fn file(path: &Path) -> Result<Self, AudioError> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| AudioError::reading(&name, e))?;
        let meta = file.metadata().map_err(|e| AudioError::reading(&name, e))?;
        if meta.is_dir() {
            return Err(AudioError::reading(&name, io::ErrorKind::IsADirectory.into()));
        }
        let kind = if meta.is_file() { Kind::File(file) } else { Kind::Stream(Mutex::new(Box::new(file))) };
        Ok(Self { kind, name })
    }

    /// Encoded audio from a pipe or socket; m4a files whose index is at the end cannot be read this way.
    pub fn reader(reader: impl Read + Send + 'static) -> Self {
        Self { kind: Kind::Stream(Mutex::new(Box::new(reader))), name: "the audio stream".into() }
    }

    /// Checks the length, skips ID3 tags and looks at the first bytes.
    pub(super) fn open(self, limit: u64) -> Result<Opened, AudioError> {
        let health = Arc::new(Health { name: self.name, limit, ..Health::default() });
        let mut input = Input {
            kind: self.kind,
            head: Vec::new(),
            base: 0,
            pos: 0,
            pulled: 0,
            len: None,
            health: health.clone(),
        };
        input
            .prepare()
            .map_err(|e| health.verdict().unwrap_or_else(|| AudioError::reading(&health.name, e)))?;
        let head = input.head.clone();
        if head.is_empty() {
            return Err(AudioError::Empty);
        }
        Ok(Opened { input, head, health })
    }
}

/// A source ready to be handed to a decoder.
pub(super) struct Opened {
    pub(super) input: Input,
    pub(super) head: Vec<u8>,
    pub(super) health: Arc<Health>,
}

/// How the source itself fares: decoders hide or rename its errors, so they are kept here.
#[derive(Default)]
pub(super) struct Health {
    name: String,
    limit: u64,
    over: AtomicBool,
    failed: Mutex<Option<io::Error>>,
}

impl Health {
    /// The source's own error, if it has had one.
    pub(super) fn verdict(&self) -> Option<AudioError> {
        if self.over.load(Ordering::Relaxed) {
            return Some(AudioError::TooLarge { limit: self.limit });
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map(|e| AudioError::reading(&self.name, e))
    }
}

/// The bytes after any ID3 tags, counted against the limit.
pub(super) struct Input {
    kind: Kind,
    /// First bytes of a stream, given out again before the rest.
    head: Vec<u8>,
    /// Offset of position 0 in a seekable source.
    base: u64,
    pos: u64,
    /// Bytes taken from a stream so far.
    pulled: u64,
    len: Option<u64>,
    health: Arc<Health>,
}

impl Input {
    fn refuse(&self) -> io::Error {
        self.health.over.store(true, Ordering::Relaxed);
        io::Error::other("input limit reached")
    }

    fn fail(&self, error: io::Error) -> io::Error {
        let kept = io::Error::from(error.kind());
        *self.health.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        kept
    }

    fn prepare(&mut self) -> io::Result<()> {
        let total = match &self.kind {
            Kind::Bytes(c) => Some(c.get_ref().len() as u64),
            Kind::File(f) => Some(f.metadata()?.len()),
            Kind::Stream(_) => None,
        };
        if total.is_some_and(|n| n > self.health.limit) {
            return Err(self.refuse());
        }
        self.len = total;
        for _ in 0..=MAX_LEADING_TAGS {
            let head = self.read_head()?;
            let tag = id3_length(&head);
            self.head = head;
            if tag == 0 {
                break;
            }
            self.skip(tag)?;
        }
        Ok(())
    }

    /// Reads the first bytes at the present base without moving it.
    fn read_head(&mut self) -> io::Result<Vec<u8>> {
        let mut head = std::mem::take(&mut self.head);
        if !matches!(self.kind, Kind::Stream(_)) {
            head.clear();
            self.seek(SeekFrom::Start(0))?;
        }
        let mut buf = [0; SNIFF_BYTES];
        while head.len() < SNIFF_BYTES {
            let n = self.pull(&mut buf[..SNIFF_BYTES - head.len()])?;
            if n == 0 {
                break;
            }
            head.extend_from_slice(&buf[..n]);
        }
        if !matches!(self.kind, Kind::Stream(_)) {
            self.seek(SeekFrom::Start(0))?;
        }
        Ok(head)
    }

    fn skip(&mut self, n: u64) -> io::Result<()> {
        if let Some(len) = self.len {
            self.base += n.min(len - self.base);
            self.head.clear();
            return Ok(());
        }
        let from_head = (n as usize).min(self.head.len());
        self.head.drain(..from_head);
        let mut left = n - from_head as u64;
        let mut buf = [0; 4096];
        while left > 0 {
            let want = left.min(buf.len() as u64) as usize;
            let n = self.pull(&mut buf[..want])?;
            if n == 0 {
                break;
            }
            left -= n as u64;
        }
        Ok(())
    }

    fn pull(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.kind {
            Kind::Bytes(c) => return c.read(buf),
            Kind::File(f) => return retry(|| f.read(buf)).map_err(|e| self.fail(e)),
            Kind::Stream(s) => {
                let s = s.get_mut().unwrap_or_else(PoisonError::into_inner);
                retry(|| s.read(buf))
            }
        };
        let n = read.map_err(|e| self.fail(e))?;
        self.pulled += n as u64;
        if self.pulled > self.health.limit {
            return Err(self.refuse());
        }
        Ok(n)
    }
}

fn retry(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Adds to `bytes` what one read gives, `want` bytes in all at most, and at least one whole `frame` unless the
/// input ends: a live pipe is passed on as it comes.
pub(super) fn read_frames(
    reader: &mut impl Read,
    bytes: &mut Vec<u8>,
    frame: usize,
    want: usize,
) -> io::Result<()> {
    let mut have = bytes.len();
    bytes.resize(want.max(have), 0);
    while have < frame.min(want) {
        match retry(|| reader.read(&mut bytes[have..])) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) => {
                bytes.truncate(have);
                return Err(e);
            }
        }
    }
    bytes.truncate(have);
    Ok(())
}

/// Length of an ID3v2 tag at the start of `head`, 0 when there is none.
fn id3_length(head: &[u8]) -> u64 {
    let [b'I', b'D', b'3', major, _, flags, s0, s1, s2, s3, ..] = *head else { return 0 };
    if major == 0xff || [s0, s1, s2, s3].iter().any(|&b| b & 0x80 != 0) {
        return 0;
    }
    let size = [s0, s1, s2, s3].iter().fold(0u64, |n, &b| n << 7 | u64::from(b));
    10 + size + if flags & 0x10 != 0 { 10 } else { 0 }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = match &self.kind {
            Kind::Stream(_) if self.pos < self.head.len() as u64 => {
                let rest = &self.head[self.pos as usize..];
                let n = rest.len().min(buf.len());
                buf[..n].copy_from_slice(&rest[..n]);
                n
            }
            _ => self.pull(buf)?,
        };
        self.pos += n as u64;
        Ok(n)
    }
}

impl Seek for Input {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(n) => SeekFrom::Start(n.saturating_add(self.base)),
            other => other,
        };
        let at = match &mut self.kind {
            Kind::Bytes(c) => c.seek(to)?,
            Kind::File(f) => f.seek(to)?,
            Kind::Stream(_) => return Err(io::ErrorKind::NotSeekable.into()),
        };
        at.checked_sub(self.base).ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }
}

impl MediaSource for Input {
    fn is_seekable(&self) -> bool {
        !matches!(self.kind, Kind::Stream(_))
    }

    fn byte_len(&self) -> Option<u64> {
        self.len.map(|n| n - self.base)
    }
}
