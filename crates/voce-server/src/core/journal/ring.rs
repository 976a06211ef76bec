//! The ring between streams and the writer: bounded in bytes; what does not fit is not taken.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What an item weighs beside its bytes.
const OVERHEAD: usize = 128;

/// A piece of a stream.
#[derive(Debug)]
pub(super) enum Item {
    Open { id: u64, kind: &'static str, model: String, rate: u32, unix: Duration },
    Audio { id: u64, bytes: Vec<u8> },
    Line { id: u64, text: String },
    Close { id: u64 },
}

impl Item {
    fn weight(&self) -> usize {
        OVERHEAD
            + match self {
                Item::Open { model, .. } => model.len(),
                Item::Audio { bytes, .. } => bytes.len(),
                Item::Line { text, .. } => text.len(),
                Item::Close { .. } => 0,
            }
    }
}

#[derive(Default)]
struct Inside {
    items: VecDeque<Item>,
    bytes: usize,
    /// The writer works on items it has taken.
    writing: bool,
    closed: bool,
}

/// A bounded queue that never makes a stream wait.
pub(super) struct Ring {
    inside: Mutex<Inside>,
    changed: Condvar,
    room: usize,
}

impl Ring {
    pub(super) fn new(room: usize) -> Self {
        Self { inside: Mutex::default(), changed: Condvar::new(), room }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes an item if there is room.
    pub(super) fn push(&self, item: Item) -> bool {
        let mut r = self.lock();
        if r.bytes + item.weight() > self.room {
            return false;
        }
        self.put(&mut r, item);
        true
    }

    /// Takes the end of a stream, room or not: each stream that was let in has one.
    pub(super) fn push_close(&self, id: u64) {
        let mut r = self.lock();
        self.put(&mut r, Item::Close { id });
    }

    fn put(&self, r: &mut Inside, item: Item) {
        r.bytes += item.weight();
        r.items.push_back(item);
        self.changed.notify_all();
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits for items and gives them all; none at the end. Their room is free at once, so that at most twice the bound is
    /// held while they are written.
    pub(super) fn take(&self) -> Option<VecDeque<Item>> {
        let mut r = self.lock();
        r.writing = false;
        self.changed.notify_all();
        while r.items.is_empty() {
            if r.closed {
                return None;
            }
            r = self.changed.wait(r).unwrap_or_else(PoisonError::into_inner);
        }
        r.writing = true;
        r.bytes = 0;
        Some(std::mem::take(&mut r.items))
    }

    /// Waits until all is written, but not for longer than this.
    pub(super) fn wait_empty(&self, at_most: Duration) {
        let until = Instant::now() + at_most;
        let mut r = self.lock();
        while r.writing || !r.items.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            r = self.changed.wait_timeout(r, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
