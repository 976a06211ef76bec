//! What is kept of streams where a deployment asks for it: tokens and texts as lines of JSON, audio as WAV. Streams put pieces
//! into a bounded ring and go on; a thread of its own writes them. A disk that is slow, full or gone costs pieces, which are
//! counted, and never a stream its time.

mod files;
mod ring;
mod salvage;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use voce_audio::wav::put_s16le;

use super::metrics::{Kind, Metrics};
use files::Writer;
use ring::{Item, Ring};

/// Bytes of each folder, beyond which the oldest files go.
pub const JOURNAL_LIMIT: u64 = 1 << 30;
/// Bytes that may wait to be written.
const RING_BYTES: usize = 32 << 20;
/// Bytes of audio that go to the writer at once.
const PIECE: usize = 32 << 10;
/// How long the end of the server waits for the writer.
const FLUSH: Duration = Duration::from_secs(3);

/// What to keep, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// Folder for tokens and texts.
    pub tokens: Option<PathBuf>,
    /// Folder for audio.
    pub audio: Option<PathBuf>,
    /// Bytes of each folder, beyond which the oldest files go.
    pub limit: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { tokens: None, audio: None, limit: JOURNAL_LIMIT }
    }
}

/// The way to the writer.
pub(crate) struct Journal {
    ring: Arc<Ring>,
    tokens: bool,
    audio: bool,
    next: AtomicU64,
    metrics: Metrics,
}

impl Journal {
    /// Starts the writer; none where nothing is to be kept.
    pub(crate) fn start(options: &JournalOptions, metrics: &Metrics) -> std::io::Result<Option<Arc<Self>>> {
        if options.tokens.is_none() && options.audio.is_none() {
            return Ok(None);
        }
        Self::with(Writer::new(options.clone(), metrics.clone()), metrics, RING_BYTES).map(Some)
    }

    fn with(writer: Writer, metrics: &Metrics, room: usize) -> std::io::Result<Arc<Self>> {
        let ring = Arc::new(Ring::new(room));
        let (tokens, audio) = writer.keeps();
        let journal =
            Self { ring: ring.clone(), tokens, audio, next: AtomicU64::new(1), metrics: metrics.clone() };
        std::thread::Builder::new().name("voce-journal".into()).spawn(move || writer.run(&ring))?;
        Ok(Arc::new(journal))
    }

    /// Begins to keep a stream.
    pub(crate) fn stream(self: &Arc<Self>, kind: Kind, model: &str, rate: u32) -> Option<Tap> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let open = Item::Open { id, kind: kind.word(), model: model.to_owned(), rate, unix: now };
        if !self.ring.push(open) {
            self.metrics.journal_dropped.get_or_create(&super::metrics::WhatLabel { what: "stream" }).inc();
            return None;
        }
        let mut tap = Tap { journal: self.clone(), id, audio: Vec::new(), dropped: 0, summary: None };
        tap.line(&json!({"time": now.as_secs_f64(), "kind": kind.word(), "model": model}));
        Some(tap)
    }

    /// Waits a little for what is on its way. Blocks.
    pub(crate) fn flush(&self) {
        self.ring.wait_empty(FLUSH);
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.ring.close();
    }
}

/// A stream's way into the journal; its files are whole when it is dropped.
pub(crate) struct Tap {
    journal: Arc<Journal>,
    id: u64,
    audio: Vec<u8>,
    dropped: u64,
    summary: Option<Value>,
}

impl Tap {
    /// Keeps audio.
    pub(crate) fn audio(&mut self, samples: &[f32]) {
        if !self.journal.audio {
            return;
        }
        put_s16le(samples, &mut self.audio);
        if self.audio.len() >= PIECE {
            self.push_audio();
        }
    }

    fn push_audio(&mut self) {
        if !self.audio.is_empty() {
            let bytes = std::mem::take(&mut self.audio);
            self.push("audio", Item::Audio { id: self.id, bytes });
        }
    }

    /// Keeps a line.
    pub(crate) fn line(&mut self, value: &Value) {
        if self.journal.tokens {
            self.push("tokens", Item::Line { id: self.id, text: format!("{value}\n") });
        }
    }

    /// Keeps a last line.
    pub(crate) fn summary(&mut self, value: Value) {
        self.summary = Some(value);
    }

    fn push(&mut self, what: &'static str, item: Item) {
        if !self.journal.ring.push(item) {
            self.dropped += 1;
            self.journal.metrics.journal_dropped.get_or_create(&super::metrics::WhatLabel { what }).inc();
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.push_audio();
        if let Some(mut summary) = self.summary.take() {
            summary["dropped"] = self.dropped.into();
            self.line(&summary);
        }
        self.journal.ring.push_close(self.id);
    }
}

#[cfg(test)]
mod tests;
