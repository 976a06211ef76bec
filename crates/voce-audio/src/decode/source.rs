//! Where encoded bytes come from: memory, a file or a pipe, with the limits of bytes, the leading ID3 tags and what
//! is to be skipped handled once for every format.

use std::fs::File;
use std::io::{self, Cursor, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use symphonia::core::io::MediaSource;

use super::DecodeLimits;
use super::blanks::Blank;
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

/// Bytes in memory, whoever holds them.
struct Held(Box<dyn AsRef<[u8]> + Send + Sync>);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

enum Kind {
    Bytes(Cursor<Held>),
    File(File),
    Stream(Mutex<Box<dyn Read + Send>>),
}

impl Source {
    /// Encoded audio in memory, which is not copied.
    pub fn bytes(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self { kind: Kind::Bytes(Cursor::new(Held(Box::new(bytes)))), name: "the audio".into() }
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
    pub(super) fn open(self, limits: &DecodeLimits) -> Result<Opened, AudioError> {
        let health = Arc::new(Health {
            name: self.name,
            max_input: AtomicU64::new(limits.max_input_bytes),
            max_gap: limits.max_gap_bytes,
            ..Health::default()
        });
        let mut input = Input {
            kind: self.kind,
            head: Vec::new(),
            base: 0,
            pos: 0,
            len: None,
            blanks: Vec::new(),
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

/// Why no more is read from a source.
#[derive(Clone, Copy)]
enum Refusal {
    Input,
    Packet,
    Gap,
}

/// How the source itself fares and what was read from it: decoders hide or rename its errors, so they are kept here.
#[derive(Default)]
pub(super) struct Health {
    name: String,
    max_input: AtomicU64,
    max_gap: u64,
    /// Most bytes between two packets; 0 where nobody counts packets.
    leash: AtomicU64,
    /// What the leash is called in its error.
    max_packet: AtomicU64,
    read: AtomicU64,
    since_packet: AtomicU64,
    since_sample: AtomicU64,
    refused: Mutex<Option<Refusal>>,
    failed: Mutex<Option<io::Error>>,
}

impl Health {
    /// The source's own error, if it has had one.
    pub(super) fn verdict(&self) -> Option<AudioError> {
        let refused = *self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refusal) = refused {
            return Some(match refusal {
                Refusal::Input => AudioError::TooLarge { limit: self.max_input.load(Ordering::Relaxed) },
                Refusal::Packet => {
                    AudioError::PacketTooLarge { limit: self.max_packet.load(Ordering::Relaxed) }
                }
                Refusal::Gap => AudioError::NoSound { limit: self.max_gap },
            });
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.map(|e| AudioError::reading(&self.name, e))
    }

    /// From now on at most `limit` bytes, and `ahead` more that are read ahead, may be read between two packets.
    pub(super) fn leash(&self, limit: u64, ahead: u64) {
        self.max_packet.store(limit, Ordering::Relaxed);
        self.leash.store(limit.saturating_add(ahead), Ordering::Relaxed);
        self.packet_done();
    }

    /// At most this many bytes may be read in all.
    pub(super) fn cap_input(&self, limit: u64) {
        self.max_input.fetch_min(limit, Ordering::Relaxed);
    }

    /// A packet is whole: what was kept for it is gone.
    pub(super) fn packet_done(&self) {
        self.since_packet.store(0, Ordering::Relaxed);
    }

    /// There was a sample.
    pub(super) fn sample_done(&self) {
        self.since_sample.store(0, Ordering::Relaxed);
    }

    /// Most bytes of the next read: one more than allowed, so that no large buffer is filled in vain.
    fn most(&self) -> usize {
        let left = |limit: u64, counter: &AtomicU64| limit.saturating_sub(counter.load(Ordering::Relaxed));
        let leash = match self.leash.load(Ordering::Relaxed) {
            0 => u64::MAX,
            leash => left(leash, &self.since_packet),
        };
        let most = left(self.max_gap, &self.since_sample).min(leash).saturating_add(1);
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Counts bytes that were read; says no where they are too many.
    fn count(&self, n: usize, is_stream: bool) -> io::Result<()> {
        let n = n as u64;
        let add = |counter: &AtomicU64| counter.fetch_add(n, Ordering::Relaxed).saturating_add(n);
        let (read, packet, gap) = (add(&self.read), add(&self.since_packet), add(&self.since_sample));
        let leash = self.leash.load(Ordering::Relaxed);
        let refusal = if is_stream && read > self.max_input.load(Ordering::Relaxed) {
            Refusal::Input
        } else if leash > 0 && packet > leash {
            Refusal::Packet
        } else if gap > self.max_gap {
            Refusal::Gap
        } else {
            return Ok(());
        };
        Err(self.refuse(refusal))
    }

    fn refuse(&self, refusal: Refusal) -> io::Error {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        io::Error::other("a limit of the input is reached")
    }

    fn fail(&self, error: io::Error) -> io::Error {
        let kept = io::Error::from(error.kind());
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        kept
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
    len: Option<u64>,
    /// Bytes that decoders see otherwise, in order.
    blanks: Vec<Blank>,
    health: Arc<Health>,
}

impl Input {
    fn prepare(&mut self) -> io::Result<()> {
        let total = match &self.kind {
            Kind::Bytes(c) => Some(c.get_ref().as_ref().len() as u64),
            Kind::File(f) => Some(f.metadata()?.len()),
            Kind::Stream(_) => None,
        };
        if total.is_some_and(|n| n > self.health.max_input.load(Ordering::Relaxed)) {
            return Err(self.health.refuse(Refusal::Input));
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
        let most = buf.len().min(self.health.most());
        let buf = &mut buf[..most];
        let (read, is_stream) = match &mut self.kind {
            Kind::Bytes(c) => (c.read(buf), false),
            Kind::File(f) => (retry(|| f.read(buf)), false),
            Kind::Stream(s) => {
                let s = s.get_mut().unwrap_or_else(PoisonError::into_inner);
                (retry(|| s.read(buf)), true)
            }
        };
        let n = read.map_err(|e| self.health.fail(e))?;
        self.health.count(n, is_stream)?;
        Ok(n)
    }

    /// Whether it can go back.
    pub(super) fn can_seek(&self) -> bool {
        !matches!(self.kind, Kind::Stream(_))
    }

    /// All that it gives from here on, where that is in memory.
    pub(super) fn held(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Bytes(c) => c.get_ref().as_ref().get(self.base as usize..),
            Kind::File(_) | Kind::Stream(_) => None,
        }
    }

    /// Has decoders see other bytes in these places.
    pub(super) fn blank(&mut self, blanks: Vec<Blank>) {
        self.blanks = blanks;
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
pub(super) fn id3_length(head: &[u8]) -> u64 {
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
        for blank in &self.blanks {
            blank.apply(self.pos, &mut buf[..n]);
        }
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
        self.pos = at.checked_sub(self.base).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.pos)
    }
}

impl MediaSource for Input {
    fn is_seekable(&self) -> bool {
        self.can_seek()
    }

    fn byte_len(&self) -> Option<u64> {
        self.len.map(|n| n - self.base)
    }
}
