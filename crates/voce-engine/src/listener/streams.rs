//! The streams of a lane, as the model's ear sees them: rows come from their queues, and what is heard goes to their words
//! and rules. What goes wrong for one stream ends that stream and no other.

use std::sync::Arc;
use std::time::Instant;

use voce_models::hearing::{Heard, Heed, Planned, Reading, Rows, Verdict};

use super::slot::{Ask, NewStream, Slot};
use super::words::Speller;
use crate::EngineError;
use crate::fault::{FaultPoint, Faults};
use crate::lane::{Seat, alone};

/// The slots of a lane, and who is in them.
pub(super) struct Streams {
    pub slots: Vec<Option<Slot>>,
    pub seat: Seat<Ask>,
    speller: Arc<Speller>,
    frame_seconds: f64,
    faults: Faults,
    /// Slots that were let go of since somebody last asked.
    freed: Vec<usize>,
}

impl Streams {
    pub(super) fn new(seat: Seat<Ask>, speller: Arc<Speller>, frame_seconds: f64, faults: Faults) -> Self {
        let slots = (0..seat.slots).map(|_| None).collect();
        Self { slots, seat, speller, frame_seconds, faults, freed: Vec::new() }
    }

    /// Puts a new stream into a free slot.
    pub(super) fn admit(&mut self, free: usize, new: NewStream) {
        let slot = Slot::new(new, self.speller.clone(), self.frame_seconds);
        let waited = slot.outlet.since(Instant::now());
        slot.outlet.record(|s| s.queue = waited);
        self.slots[free] = Some(slot);
    }

    /// Streams in slots.
    pub(super) fn live(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Does something for one stream; if that panics, this stream ends and no other.
    pub(super) fn alone<T>(&mut self, i: usize, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let faults = self.faults.clone();
        let result = alone(|| {
            faults.pass(FaultPoint::Stream);
            work(self)
        });
        result.map_err(|e| self.free(i, Err(e))).ok()
    }

    /// The same with a slot's stream, if there is one.
    fn with<T>(&mut self, i: usize, work: impl FnOnce(&mut Slot) -> T) -> Option<T> {
        self.alone(i, |this| this.slots[i].as_mut().map(work)).flatten()
    }

    /// Ends a slot's stream.
    pub(super) fn free(&mut self, i: usize, result: Result<(), EngineError>) {
        if let Some(slot) = self.slots[i].take() {
            self.seat.leave();
            self.freed.push(i);
            slot.inlet.hang_up();
            slot.outlet.finish(result);
        }
    }

    /// Ends the streams that nobody reads, or nobody may go on with.
    pub(super) fn drop_cancelled(&mut self) {
        for i in 0..self.slots.len() {
            let Some(slot) = &self.slots[i] else { continue };
            if slot.outlet.is_cancelled() || slot.inlet.is_hung_up() {
                let refused = slot.inlet.take_refusal();
                self.free(i, refused.map_or(Ok(()), Err));
            }
        }
    }

    /// Slots that were let go of since the last call.
    pub(super) fn take_freed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.freed)
    }

    /// Ends all streams, those included that wait for a slot.
    pub(super) fn end(&mut self, reason: &str) {
        let stopped = || Err(EngineError::Stopped(reason.to_owned()));
        for slot in self.slots.iter().flatten() {
            slot.outlet.finish(stopped());
            slot.inlet.hang_up();
        }
        for ask in self.seat.requests.try_iter() {
            // Whoever waits for something else is told by its channel.
            if let Ask::Hear(new) = ask {
                new.outlet.finish(stopped());
                new.inlet.hang_up();
            }
        }
    }
}

/// The rows that wait for slots.
pub(super) struct Waiting<'a>(pub &'a [Option<Slot>]);

impl Rows for Waiting<'_> {
    fn take(&self, planned: &Planned, out: &mut [f32]) {
        match &self.0[planned.slot] {
            Some(slot) => slot.inlet.take(out, planned.advance),
            None => out.fill(0.0),
        }
    }
}

impl Heed for Streams {
    fn until(&self, slot: usize, left: usize) -> usize {
        self.slots[slot].as_ref().map_or(0, |s| s.until(left))
    }

    fn heard(&mut self, slot: usize, heard: Heard<'_>) -> Verdict {
        self.with(slot, |slot| slot.heard(heard)).unwrap_or(Verdict::GoOn)
    }

    fn heard_whole(&mut self, slot: usize, heard: Heard<'_>) {
        self.with(slot, |slot| slot.heard_whole(heard));
    }

    fn concluded(&mut self, slot: usize, heard: Heard<'_>, readings: Vec<Reading>) {
        self.with(slot, |slot| slot.concluded(heard, readings));
    }

    fn word_ended(&mut self, slot: usize, frame: usize) {
        self.with(slot, |slot| slot.word_ended(frame));
    }

    fn word_spelled(&mut self, slot: usize) {
        self.with(slot, Slot::word_spelled);
    }

    fn drew(&mut self, slot: usize, token: u32) {
        self.with(slot, |slot| slot.tell_drawn(token));
    }

    fn pauses(&mut self, slot: usize, probabilities: &[f32]) {
        self.with(slot, |slot| slot.tell_pauses(probabilities));
    }
}
