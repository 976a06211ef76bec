//! Mel rows, or the windows of samples that a device makes them of, on their way from a sender to the model: a bounded
//! queue, with marks between rows.

use std::collections::VecDeque;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};

use voce_audio::mel::{MEL_HOP, MelWindows};

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
    /// How many of all that wait are mel rows in a queue of windows.
    pub given: usize,
    /// Whether a mark follows them, and whether it ends an utterance.
    pub mark: Option<bool>,
    /// The sender was dropped before the end.
    pub abandoned: bool,
}

/// How rows lie in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bands of a mel row.
    pub bins: usize,
    /// Values from a row to the next.
    pub step: usize,
    /// Values more that the last row needs: what windows share.
    pub overlap: usize,
}

impl Layout {
    /// Mel rows one after the other.
    pub(super) fn rows(bins: usize) -> Self {
        Self { bins, step: bins, overlap: 0 }
    }

    /// Windows of samples.
    pub(super) fn windows(bins: usize) -> Self {
        Self { bins, step: MEL_HOP, overlap: MelWindows::OVERLAP }
    }

    /// Values that so many rows are.
    pub(super) fn values(self, rows: usize) -> usize {
        if rows == 0 { 0 } else { rows * self.step + self.overlap }
    }
}

struct Rows {
    /// Mel rows that a resumed stream brought along, where others are windows: they come first.
    given: VecDeque<f32>,
    values: VecDeque<f32>,
    /// Whether rows of this part were taken from `values`: what they share with rows to come is still there.
    begun: bool,
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
    /// Threads that wait for room.
    blocked: usize,
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
    layout: Layout,
    capacity: usize,
}

impl Inlet {
    /// A queue of up to `capacity` rows.
    pub(super) fn new(waker: Arc<Waker>, layout: Layout, capacity: usize) -> Arc<Self> {
        let rows = Rows {
            given: VecDeque::new(),
            begun: false,
            values: VecDeque::new(),
            pushed: 0,
            taken: 0,
            marks: VecDeque::new(),
            wanted: 1,
            samples: 0,
            hung_up: false,
            abandoned: false,
            task: None,
            blocked: 0,
        };
        Arc::new(Self { rows: Mutex::new(rows), room: Condvar::new(), waker, layout, capacity })
    }

    // The sender's side.

    /// Rows there is room for.
    pub(super) fn room(&self) -> Result<usize, HungUp> {
        let r = lock(&self.rows);
        if r.hung_up { Err(HungUp) } else { Ok(self.capacity.saturating_sub(r.len())) }
    }

    /// Rows that wait for the model.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.rows).len()
    }

    /// Waits until there is room.
    pub(super) fn wait_for_room(&self) -> Result<(), HungUp> {
        let mut r = lock(&self.rows);
        while !r.hung_up && r.len() >= self.capacity {
            r.blocked += 1;
            r = self.room.wait(r).unwrap_or_else(|e| e.into_inner());
            r.blocked -= 1;
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

    /// Makes room for what so many samples will give, as far as the queue may grow.
    pub(super) fn expect(&self, samples: usize) {
        let mut r = lock(&self.rows);
        let rows = (samples / MEL_HOP).min(self.capacity.saturating_sub(r.len()));
        r.values.reserve(self.layout.values(rows));
    }

    /// Adds rows that `samples` samples gave; the first of a part bring what all of them share.
    pub(super) fn push(&self, values: &[f32], rows: usize, samples: usize) {
        let mut r = lock(&self.rows);
        if r.hung_up {
            return;
        }
        r.samples += samples as u64;
        r.values.extend(values);
        r.pushed += rows as u64;
        if rows > 0 && r.len() >= r.wanted {
            drop(r);
            self.waker.wake();
        }
    }

    /// Adds mel rows that a resumed stream brought along, before all others.
    pub(super) fn give(&self, rows: &[f32]) {
        let mut r = lock(&self.rows);
        let to = if self.layout.overlap == 0 { &mut r.values } else { &mut r.given };
        to.extend(rows);
        r.pushed += (rows.len() / self.layout.bins) as u64;
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
            given: r.given.len() / self.layout.bins,
            mark: mark.map(|(_, m)| matches!(m, Mark::End { .. } | Mark::Finish)),
            abandoned: r.abandoned,
        }
    }

    /// Copies the first rows, those that were given and then others, and takes `advance` of them out. A stream that
    /// has ended in between has silence.
    pub(super) fn take(&self, given: &mut [f32], out: &mut [f32], advance: usize) {
        let mut r = lock(&self.rows);
        if r.values.len() < out.len() || r.given.len() < given.len() {
            given.fill(0.0);
            return out.fill(0.0);
        }
        copy_front(&r.given, given);
        copy_front(&r.values, out);
        let first = advance.min(r.given.len() / self.layout.bins);
        r.given.drain(..first * self.layout.bins);
        r.values.drain(..(advance - first) * self.layout.step);
        r.begun |= !out.is_empty();
        r.taken += advance as u64;
        let (task, blocked) = (r.task.take(), r.blocked > 0);
        drop(r);
        if blocked {
            self.room.notify_one();
        }
        if let Some(task) = task {
            task.wake();
        }
    }

    /// The rows that are left before the first mark, for a snapshot: those that were given, and others.
    pub(super) fn rest(&self) -> (Vec<f32>, Vec<f32>) {
        let r = lock(&self.rows);
        let end = r.marks.front().map_or(r.pushed, |(at, _)| *at);
        let rows = end.saturating_sub(r.taken) as usize;
        let given = rows.min(r.given.len() / self.layout.bins);
        let first = |from: &VecDeque<f32>, count: usize| from.iter().take(count).copied().collect();
        (first(&r.given, given * self.layout.bins), first(&r.values, self.layout.values(rows - given)))
    }

    /// The first mark, once no rows are before it.
    pub(super) fn pop_mark(&self) -> Option<Mark> {
        let mut r = lock(&self.rows);
        if r.marks.front().is_none_or(|(at, _)| *at > r.taken) {
            return None;
        }
        let (_, mark) = r.marks.pop_front()?;
        if matches!(mark, Mark::End { .. }) && std::mem::take(&mut r.begun) {
            // What windows of the part shared with such as did not come.
            r.values.drain(..self.layout.overlap);
        }
        Some(mark)
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
        (r.given, r.values, r.begun) = (VecDeque::new(), VecDeque::new(), false);
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

/// Copies the first values of a queue.
fn copy_front(from: &VecDeque<f32>, to: &mut [f32]) {
    let (a, b) = from.as_slices();
    let (first, second) = to.split_at_mut(a.len().min(to.len()));
    first.copy_from_slice(&a[..first.len()]);
    second.copy_from_slice(&b[..second.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_marks_keep_their_order() {
        let inlet = Inlet::new(Arc::default(), Layout::rows(2), 4);
        inlet.push(&[1.0, 1.0, 2.0, 2.0], 2, 320);
        (0..100).for_each(|i| inlet.mark(Mark::End { samples: 320 + i }));
        inlet.push(&[3.0, 3.0], 1, 160);
        inlet.mark(Mark::Finish);
        assert_eq!(inlet.room(), Ok(1));
        let offer = inlet.offer(1);
        assert_eq!((offer.rows, offer.mark), (2, Some(true)));
        assert!(inlet.pop_mark().is_none());
        let mut out = [0.0; 4];
        inlet.take(&mut [], &mut out, 2);
        assert_eq!(out, [1.0, 1.0, 2.0, 2.0]);
        let ends: Vec<Mark> = std::iter::from_fn(|| inlet.pop_mark()).collect();
        assert_eq!(ends.len(), MAX_MARKS);
        assert!(matches!(ends.last(), Some(Mark::End { samples: 419 })));
        assert_eq!(inlet.rest(), (vec![], vec![3.0, 3.0]));
        inlet.hang_up();
        assert_eq!((inlet.room(), inlet.wait_for_room()), (Err(HungUp), Err(HungUp)));
        assert_eq!(inlet.offer(1).rows, 0);
        // Whoever planned to take rows before the end finds silence.
        inlet.take(&mut [], &mut out, 2);
        assert_eq!(out, [0.0; 4]);
    }

    #[test]
    fn windows_share_values_within_a_part_and_not_beyond() {
        let inlet = Inlet::new(Arc::default(), Layout { bins: 3, step: 2, overlap: 1 }, 10);
        inlet.give(&[7.0, 8.0, 9.0]);
        inlet.push(&[0.0, 1.0, 2.0, 3.0, 4.0], 2, 4);
        inlet.push(&[5.0, 6.0], 1, 2);
        inlet.mark(Mark::End { samples: 6 });
        inlet.push(&[10.0, 11.0, 12.0], 1, 2);
        let offer = inlet.offer(1);
        assert_eq!((offer.rows, offer.given), (4, 1));
        assert_eq!(inlet.rest(), (vec![7.0, 8.0, 9.0], (0..7).map(|v| v as f32).collect()));
        let (mut given, mut out) = ([0.0; 3], [0.0; 5]);
        inlet.take(&mut given, &mut out, 2);
        assert_eq!((given, out), ([7.0, 8.0, 9.0], [0.0, 1.0, 2.0, 3.0, 4.0]));
        assert_eq!((inlet.offer(1).rows, inlet.offer(1).given), (2, 0));
        inlet.take(&mut [], &mut out, 2);
        assert_eq!(out, [2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!(inlet.pop_mark().is_some());
        assert_eq!(inlet.rest(), (vec![], vec![10.0, 11.0, 12.0]));
    }
}
