//! Mel rows on their way from a sender to the model: a bounded queue, with marks between rows.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll};

use super::mel_tail::MelTail;
use crate::EngineError;
use crate::wake::{Waker, lock};

/// Samples per second of every recogniser here.
pub(super) const SAMPLE_RATE: usize = 16_000;
/// Marks beyond which those at the same place become one.
const MAX_MARKS: usize = 64;

/// Nobody listens any more: the stream has ended, and its events say why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream has ended: its events say why")]
pub struct HungUp;

/// Something that happens between two rows.
pub(super) enum Mark {
    /// The utterance ends; so many samples came before.
    End { samples: u64 },
    /// The stream ends.
    Finish,
    /// Somebody wants the stream's state.
    Snapshot { tail: Box<MelTail>, samples: u64, reply: SyncSender<Result<Vec<u8>, EngineError>> },
}

/// What the model may take.
pub(super) struct Offer {
    /// Rows before the first mark, or all.
    pub rows: usize,
    /// Whether a mark follows them, and whether it ends an utterance.
    pub mark: Option<bool>,
    /// The sender was dropped before the end.
    pub abandoned: bool,
}

struct Rows {
    values: VecDeque<f32>,
    /// Rows that went in and rows that came out.
    pushed: u64,
    taken: u64,
    marks: VecDeque<(u64, Mark)>,
    /// Rows at which the model wants to be woken.
    wanted: usize,
    samples: u64,
    hung_up: bool,
    abandoned: bool,
    task: Option<std::task::Waker>,
}

impl Rows {
    fn len(&self) -> usize {
        (self.pushed - self.taken) as usize
    }
}

/// A bounded queue of mel rows.
pub(super) struct Inlet {
    rows: Mutex<Rows>,
    room: Condvar,
    waker: Arc<Waker>,
    bins: usize,
    capacity: usize,
}

impl Inlet {
    /// A queue of up to `capacity` rows.
    pub(super) fn new(waker: Arc<Waker>, bins: usize, capacity: usize) -> Arc<Self> {
        let rows = Rows {
            values: VecDeque::new(),
            pushed: 0,
            taken: 0,
            marks: VecDeque::new(),
            wanted: 1,
            samples: 0,
            hung_up: false,
            abandoned: false,
            task: None,
        };
        Arc::new(Self { rows: Mutex::new(rows), room: Condvar::new(), waker, bins, capacity })
    }

    // The sender's side.

    /// Rows there is room for.
    pub(super) fn room(&self) -> Result<usize, HungUp> {
        let r = lock(&self.rows);
        if r.hung_up { Err(HungUp) } else { Ok(self.capacity.saturating_sub(r.len())) }
    }

    /// Waits until there is room.
    pub(super) fn wait_for_room(&self) -> Result<(), HungUp> {
        let mut r = lock(&self.rows);
        while !r.hung_up && r.len() >= self.capacity {
            r = self.room.wait(r).unwrap_or_else(|e| e.into_inner());
        }
        if r.hung_up { Err(HungUp) } else { Ok(()) }
    }

    /// Ready once there is room.
    pub(super) fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        let mut r = lock(&self.rows);
        if r.hung_up {
            return Poll::Ready(Err(HungUp));
        }
        if r.len() < self.capacity {
            return Poll::Ready(Ok(()));
        }
        r.task = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Adds rows that `samples` samples gave.
    pub(super) fn push(&self, values: &[f32], samples: usize) {
        let mut r = lock(&self.rows);
        r.samples += samples as u64;
        r.values.extend(values);
        r.pushed += (values.len() / self.bins) as u64;
        if !values.is_empty() && r.len() >= r.wanted {
            drop(r);
            self.waker.wake();
        }
    }

    /// Adds a mark after the rows so far. Where many wait, an end right after another takes its place.
    pub(super) fn mark(&self, mark: Mark) {
        let mut r = lock(&self.rows);
        if r.hung_up {
            return;
        }
        let at = r.pushed;
        let many = r.marks.len() >= MAX_MARKS;
        if let (Mark::End { samples }, Some((last_at, Mark::End { samples: last }))) =
            (&mark, r.marks.back_mut())
            && *last_at == at
            && many
        {
            *last = *samples;
            return;
        }
        r.marks.push_back((at, mark));
        drop(r);
        self.waker.wake();
    }

    /// The sender is gone without a word.
    pub(super) fn abandon(&self) {
        lock(&self.rows).abandoned = true;
        self.waker.wake();
    }

    // The model's side.

    /// What there is; the model is woken when there are `wanted` rows or a mark.
    pub(super) fn offer(&self, wanted: usize) -> Offer {
        let mut r = lock(&self.rows);
        r.wanted = wanted;
        let mark = r.marks.front();
        Offer {
            rows: mark.map_or(r.pushed, |(at, _)| *at).saturating_sub(r.taken) as usize,
            mark: mark.map(|(_, m)| matches!(m, Mark::End { .. } | Mark::Finish)),
            abandoned: r.abandoned,
        }
    }

    /// Copies the first rows, and takes `advance` of them out.
    pub(super) fn take(&self, out: &mut [f32], advance: usize) {
        let r = lock(&self.rows);
        let (a, b) = r.values.as_slices();
        let n = a.len().min(out.len());
        let (first, second) = out.split_at_mut(n);
        first.copy_from_slice(&a[..n]);
        second.copy_from_slice(&b[..second.len()]);
        self.advance(r, advance);
    }

    fn advance(&self, mut r: MutexGuard<'_, Rows>, rows: usize) {
        r.values.drain(..rows * self.bins);
        r.taken += rows as u64;
        let task = r.task.take();
        drop(r);
        self.room.notify_one();
        if let Some(task) = task {
            task.wake();
        }
    }

    /// The rows that are left before the first mark, for a snapshot.
    pub(super) fn rest(&self) -> Vec<f32> {
        let r = lock(&self.rows);
        let end = r.marks.front().map_or(r.pushed, |(at, _)| *at);
        let count = end.saturating_sub(r.taken) as usize * self.bins;
        r.values.iter().take(count).copied().collect()
    }

    /// The first mark, once no rows are before it.
    pub(super) fn pop_mark(&self) -> Option<Mark> {
        let mut r = lock(&self.rows);
        let reached = r.marks.front().is_some_and(|(at, _)| *at <= r.taken);
        if reached { r.marks.pop_front().map(|(_, m)| m) } else { None }
    }

    /// The first mark if it asks for a snapshot, whatever rows are before it.
    pub(super) fn pop_snapshot(&self) -> Option<Mark> {
        let mut r = lock(&self.rows);
        let asked = matches!(r.marks.front(), Some((_, Mark::Snapshot { .. })));
        if asked { r.marks.pop_front().map(|(_, m)| m) } else { None }
    }

    /// The stream has ended: senders stop, and those who wait for snapshots learn of it.
    pub(super) fn hang_up(&self) {
        let mut r = lock(&self.rows);
        r.hung_up = true;
        let marks = std::mem::take(&mut r.marks);
        r.values = VecDeque::new();
        r.taken = r.pushed;
        let task = r.task.take();
        drop(r);
        drop(marks);
        self.room.notify_all();
        if let Some(task) = task {
            task.wake();
        }
    }

    pub(super) fn is_hung_up(&self) -> bool {
        lock(&self.rows).hung_up
    }

    /// Seconds of audio that came in.
    pub(super) fn seconds(&self) -> f64 {
        lock(&self.rows).samples as f64 / SAMPLE_RATE as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_marks_keep_their_order() {
        let inlet = Inlet::new(Arc::default(), 2, 4);
        inlet.push(&[1.0, 1.0, 2.0, 2.0], 320);
        (0..100).for_each(|i| inlet.mark(Mark::End { samples: 320 + i }));
        inlet.push(&[3.0, 3.0], 160);
        inlet.mark(Mark::Finish);
        assert_eq!(inlet.room(), Ok(1));
        let offer = inlet.offer(1);
        assert_eq!((offer.rows, offer.mark), (2, Some(true)));
        assert!(inlet.pop_mark().is_none());
        let mut out = [0.0; 4];
        inlet.take(&mut out, 2);
        assert_eq!(out, [1.0, 1.0, 2.0, 2.0]);
        let ends: Vec<Mark> = std::iter::from_fn(|| inlet.pop_mark()).collect();
        assert_eq!(ends.len(), MAX_MARKS);
        assert!(matches!(ends.last(), Some(Mark::End { samples: 419 })));
        assert_eq!(inlet.rest(), [3.0, 3.0]);
        inlet.hang_up();
        assert_eq!((inlet.room(), inlet.wait_for_room()), (Err(HungUp), Err(HungUp)));
        assert_eq!(inlet.offer(1).rows, 0);
    }
}
