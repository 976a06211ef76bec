//! Rows on their way from a sender's front end to the model: a bounded queue, with marks between rows.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use voce_models::hearing::RowLayout;

use super::gain::Gain;
use super::quiet::Meter;
use super::share::Pace;
use crate::EngineError;
use crate::wake::{Waker, lock};

/// Marks beyond which those at the same place become one.
const MAX_MARKS: usize = 64;

/// Nobody listens any more: the stream has ended, and its events say why.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream has ended: its events say why")]
pub struct HungUp;

/// How far a place of the audio is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// At once, with all words that are over there. One that is under way belongs to what follows.
    Words,
    /// At once, with all that can be heard: the word that is under way there is told as far as it goes.
    All,
    /// With all words that are over, as soon as the stream itself has passed the place. Nothing is heard ahead of it, so that
    /// audio has to follow, or the end.
    Passed,
}

/// What comes after a place of the audio if nothing follows it: rows of its last samples and of some silence.
#[derive(Default)]
pub(super) struct Ahead {
    pub values: Vec<f32>,
    pub rows: usize,
    /// The level of the frame under way.
    pub level: Option<f32>,
}

/// What a sender knows of the samples so far, for a snapshot.
pub(super) struct Taken {
    pub front: Vec<u8>,
    pub meter: Meter,
    pub gain: Option<Gain>,
    pub samples: u64,
}

/// Something that happens between two rows.
pub(super) enum Mark {
    /// A place is reported, after `samples`.
    Report { report: Report, samples: u64, ahead: Ahead },
    /// The utterance ends after `samples`.
    End { samples: u64 },
    /// The stream ends.
    Finish,
    /// Somebody wants the stream's state.
    Snapshot { taken: Taken, reply: Reply },
}

impl Mark {
    /// Whether what follows it is heard anew, or not at all.
    fn closes(&self) -> bool {
        matches!(self, Mark::End { .. } | Mark::Finish)
    }
}

/// Called with a stream's state; dropped where the stream ends before.
pub(super) type Reply = Box<dyn FnOnce(Result<Vec<u8>, EngineError>) + Send>;

/// What the model may take.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    /// Rows before the first mark, or all.
    pub rows: usize,
    /// Whether a mark follows them, and whether it closes a part of the stream.
    pub mark: Option<bool>,
    /// The sender was dropped before the end.
    pub abandoned: bool,
    /// Seconds of audio so far, and when the first and the last of it came.
    audio: f64,
    came: Option<(Instant, Instant)>,
}

impl Offer {
    /// How the stream's audio keeps to the clock.
    pub(super) fn pace(&self, now: Instant, chunk_seconds: f64) -> Pace {
        let Some((first, last)) = self.came else { return Pace::Unknown };
        let since = |then| now.saturating_duration_since(then);
        Pace::of(self.audio, since(first), since(last), chunk_seconds)
    }
}

struct Rows {
    values: VecDeque<f32>,
    /// Whether rows of this part were taken from `values`: what they share with rows to come is still there.
    begun: bool,
    /// Rows that went in and rows that came out.
    pushed: u64,
    taken: u64,
    marks: VecDeque<(u64, Mark)>,
    /// Levels of frames that nobody took, and those of them that are of this part, up to each mark that closes one.
    levels: VecDeque<f32>,
    parts: VecDeque<usize>,
    /// Rows at which the model wants to be woken.
    wanted: usize,
    samples: u64,
    /// When the first and the last audio came.
    came: Option<(Instant, Instant)>,
    hung_up: bool,
    abandoned: bool,
    /// Why the sender has ended the stream.
    refused: Option<EngineError>,
    task: Option<std::task::Waker>,
    /// Threads that wait for room.
    blocked: usize,
}

impl Rows {
    fn len(&self) -> usize {
        (self.pushed - self.taken) as usize
    }
}

/// A bounded queue of rows.
pub(super) struct Inlet {
    rows: Mutex<Rows>,
    room: Condvar,
    waker: Arc<Waker>,
    layout: RowLayout,
    capacity: usize,
    sample_rate: usize,
}

impl Inlet {
    /// A queue of up to `capacity` rows.
    pub(super) fn new(
        waker: Arc<Waker>,
        layout: RowLayout,
        capacity: usize,
        sample_rate: usize,
    ) -> Arc<Self> {
        let rows = Rows {
            begun: false,
            values: VecDeque::new(),
            pushed: 0,
            taken: 0,
            marks: VecDeque::new(),
            levels: VecDeque::new(),
            parts: VecDeque::new(),
            wanted: 1,
            samples: 0,
            came: None,
            hung_up: false,
            abandoned: false,
            refused: None,
            task: None,
            blocked: 0,
        };
        Arc::new(Self { rows: Mutex::new(rows), room: Condvar::new(), waker, layout, capacity, sample_rate })
    }

    // The sender's side.

    /// Rows there is room for.
    pub(super) fn room(&self) -> Result<usize, HungUp> {
        let r = lock(&self.rows);
        if r.hung_up { Err(HungUp) } else { Ok(self.capacity.saturating_sub(r.len())) }
    }

    /// Samples, to the nearest row, that wait for the model.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.rows).len() * self.layout.hop
    }

    /// Samples from one row to the next.
    pub(super) fn hop(&self) -> usize {
        self.layout.hop
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

    /// Makes room for what `samples` will give, as far as the queue may grow.
    pub(super) fn expect(&self, samples: usize) {
        let mut r = lock(&self.rows);
        let rows = (samples / self.layout.hop).min(self.capacity.saturating_sub(r.len()));
        r.values.reserve(self.layout.values(rows));
    }

    /// Adds rows and levels that `samples` samples gave; the first rows of a part bring what all of them share.
    pub(super) fn push(&self, values: &[f32], rows: usize, levels: &[f32], samples: usize) {
        let mut r = lock(&self.rows);
        if r.hung_up {
            return;
        }
        r.levels.extend(levels);
        r.samples += samples as u64;
        let now = Instant::now();
        r.came.get_or_insert((now, now)).1 = now;
        if r.values.capacity() == 0 {
            // Two chunks: a queue that grows in steps would be copied, and its pages asked for, in each of them.
            let room = self.layout.values((2 * r.wanted).min(self.capacity));
            r.values.reserve_exact(room.max(values.len()));
        }
        r.values.extend(values);
        r.pushed += rows as u64;
        if rows > 0 && r.len() >= r.wanted {
            drop(r);
            self.waker.wake();
        }
    }

    /// Adds a mark after the rows so far. Where many wait, an end or a report right after another takes its place.
    pub(super) fn mark(&self, mark: Mark) {
        let mut r = lock(&self.rows);
        if r.hung_up {
            return;
        }
        let at = r.pushed;
        let many = r.marks.len() >= MAX_MARKS;
        if let Some((last_at, last)) = r.marks.back_mut()
            && *last_at == at
            && many
        {
            match (&mark, &*last) {
                (Mark::End { .. }, Mark::End { .. }) => return *last = mark,
                (Mark::Report { report, .. }, Mark::Report { report: before, .. }) if report == before => {
                    return *last = mark;
                }
                _ => {}
            }
        }
        if mark.closes() {
            let before: usize = r.parts.iter().sum();
            let here = r.levels.len() - before;
            r.parts.push_back(here);
        }
        r.marks.push_back((at, mark));
        drop(r);
        self.waker.wake();
    }

    /// The sender is gone without a word.
    pub(super) fn abandon(&self) {
        let mut r = lock(&self.rows);
        r.abandoned = !r.hung_up;
        drop(r);
        self.waker.wake();
    }

    /// Something is wrong with the audio: the stream takes no more, and the model ends it.
    pub(super) fn refuse(&self, why: EngineError) {
        lock(&self.rows).refused = Some(why);
        self.hang_up();
        self.waker.wake();
    }

    // The model's side.

    /// Why the sender has ended the stream, once.
    pub(super) fn take_refusal(&self) -> Option<EngineError> {
        lock(&self.rows).refused.take()
    }

    /// What there is; the model is woken when there are `wanted` rows or a mark.
    pub(super) fn offer(&self, wanted: usize) -> Offer {
        let mut r = lock(&self.rows);
        r.wanted = wanted;
        let mark = r.marks.front();
        Offer {
            rows: mark.map_or(r.pushed, |(at, _)| *at).saturating_sub(r.taken) as usize,
            mark: mark.map(|(_, m)| m.closes()),
            abandoned: r.abandoned,
            audio: r.samples as f64 / self.sample_rate as f64,
            came: r.came,
        }
    }

    /// As if the first audio had come that much earlier.
    #[cfg(test)]
    pub(super) fn came_earlier(&self, by: std::time::Duration) {
        if let Some((first, _)) = &mut lock(&self.rows).came {
            *first -= by;
        }
    }

    /// Copies the values of the first rows, and takes `advance` rows out. A stream that has ended in between has silence.
    pub(super) fn take(&self, out: &mut [f32], advance: usize) {
        let mut r = lock(&self.rows);
        if r.values.len() < out.len() {
            return out.fill(0.0);
        }
        copy_front(&r.values, out);
        r.values.drain(..advance * self.layout.step);
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

    /// The values of the rows that are left before the first mark, for a snapshot.
    pub(super) fn rest(&self) -> Vec<f32> {
        let r = lock(&self.rows);
        let end = r.marks.front().map_or(r.pushed, |(at, _)| *at);
        let rows = end.saturating_sub(r.taken) as usize;
        r.values.iter().take(self.layout.values(rows)).copied().collect()
    }

    /// The first mark, once no rows are before it.
    pub(super) fn pop_mark(&self) -> Option<Mark> {
        let mut r = lock(&self.rows);
        if r.marks.front().is_none_or(|(at, _)| *at > r.taken) {
            return None;
        }
        let (_, mark) = r.marks.pop_front()?;
        if mark.closes() {
            // Levels that nobody looked at are of no use to the next part.
            let left = r.parts.pop_front().unwrap_or(0);
            r.levels.drain(..left);
        }
        if matches!(mark, Mark::End { .. }) && std::mem::take(&mut r.begun) {
            // Drops the overlap kept for rows that never arrived.
            r.values.drain(..self.layout.overlap);
        }
        Some(mark)
    }

    /// The first mark if the stream goes on after it as if it were not there, whatever rows are before it.
    pub(super) fn pop_passing(&self) -> Option<Mark> {
        let mut r = lock(&self.rows);
        let passing = r.marks.front().is_some_and(|(_, m)| !m.closes());
        if passing { r.marks.pop_front().map(|(_, m)| m) } else { None }
    }

    /// The levels of this part that have come since the last call.
    pub(super) fn take_levels(&self) -> Vec<f32> {
        let mut r = lock(&self.rows);
        let all = r.levels.len();
        let levels = r.parts.front_mut().map_or(all, std::mem::take);
        r.levels.drain(..levels).collect()
    }

    /// A copy of the rows before the first mark, and of what they share with those after them.
    pub(super) fn copy(&self) -> (Vec<f32>, usize) {
        let r = lock(&self.rows);
        let end = r.marks.front().map_or(r.pushed, |(at, _)| *at);
        let rows = end.saturating_sub(r.taken) as usize;
        let shared = if r.begun || rows > 0 { self.layout.overlap } else { 0 };
        (r.values.iter().take(rows * self.layout.step + shared).copied().collect(), rows)
    }

    /// How rows lie.
    pub(super) fn layout(&self) -> RowLayout {
        self.layout
    }

    /// The stream has ended: senders stop, and those who wait for snapshots learn of it.
    pub(super) fn hang_up(&self) {
        let mut r = lock(&self.rows);
        r.hung_up = true;
        let marks = std::mem::take(&mut r.marks);
        (r.values, r.levels, r.begun) = (VecDeque::new(), VecDeque::new(), false);
        r.parts.clear();
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
        lock(&self.rows).samples as f64 / self.sample_rate as f64
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

    fn inlet(step: usize, overlap: usize, capacity: usize) -> Arc<Inlet> {
        Inlet::new(Arc::default(), RowLayout { hop: 160, step, overlap }, capacity, 16_000)
    }

    #[test]
    fn rows_and_marks_keep_their_order() {
        let inlet = inlet(2, 0, 4);
        inlet.push(&[1.0, 1.0, 2.0, 2.0], 2, &[-20.0], 320);
        (0..100).for_each(|i| inlet.mark(Mark::End { samples: 320 + i }));
        inlet.push(&[3.0, 3.0], 1, &[-30.0, -40.0], 160);
        inlet.mark(Mark::Finish);
        assert_eq!(inlet.room(), Ok(1));
        let offer = inlet.offer(1);
        assert_eq!((offer.rows, offer.mark), (2, Some(true)));
        assert!(inlet.pop_mark().is_none());
        let mut out = [0.0; 4];
        inlet.take(&mut out, 2);
        assert_eq!(out, [1.0, 1.0, 2.0, 2.0]);
        assert_eq!(inlet.take_levels(), [-20.0], "those of this part");
        let ends: Vec<Mark> = std::iter::from_fn(|| inlet.pop_mark()).collect();
        assert_eq!((inlet.take_levels(), inlet.take_levels()), (vec![-30.0, -40.0], Vec::new()));
        assert_eq!(ends.len(), MAX_MARKS);
        assert!(matches!(ends.last(), Some(Mark::End { samples: 419 })));
        assert_eq!((inlet.rest(), inlet.waiting()), (vec![3.0, 3.0], 160));
        inlet.hang_up();
        assert_eq!((inlet.room(), inlet.wait_for_room()), (Err(HungUp), Err(HungUp)));
        assert_eq!(inlet.offer(1).rows, 0);
        // Whoever planned to take rows before the end finds silence.
        inlet.take(&mut out, 2);
        assert_eq!(out, [0.0; 4]);
    }

    #[test]
    fn windows_share_values_within_a_part_and_not_beyond() {
        let inlet = inlet(2, 1, 10);
        inlet.push(&[0.0, 1.0, 2.0, 3.0, 4.0], 2, &[], 4);
        inlet.push(&[5.0, 6.0], 1, &[], 2);
        inlet.mark(Mark::End { samples: 6 });
        inlet.push(&[10.0, 11.0, 12.0], 1, &[], 2);
        assert_eq!(inlet.offer(1).rows, 3);
        assert_eq!(inlet.rest(), (0..7).map(|v| v as f32).collect::<Vec<_>>());
        let mut out = [0.0; 5];
        inlet.take(&mut out, 1);
        assert_eq!(out, [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(inlet.offer(1).rows, 2);
        inlet.take(&mut out, 2);
        assert_eq!(out, [2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(inlet.copy(), (vec![6.0], 0), "what the next row would share");
        assert!(inlet.pop_mark().is_some());
        assert_eq!(inlet.rest(), [10.0, 11.0, 12.0]);
    }
}
