//! What a listener's lane does: it owns an ear and the streams in its slots, and steps what has audio for a chunk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use voce_models::hearing::{Ear, EarRoom, Hearing, Offer, Planned, Token, Track};
use voce_runtime::Exec;

use super::ahead::{Behind, Eager};
use super::event::EndReason;
use super::flight::{Flight, Times};
use super::inlet::{self, Ahead, Mark, Reply, Report, Taken};
use super::share::{Pace, Share};
use super::slot::{Ask, MAX_PASSES, NewStream, Slot};
use super::snapshot::Saved;
use super::stats::ListenerStats;
use super::streams::{Streams, Waiting};
use crate::EngineError;
use crate::fault::{FaultPoint, Faults};
use crate::lane::{Turn, Work, alone};
use crate::pulse::{Pulse, Stage};
use crate::trace::Tracer;
use crate::wake::lock;

/// Frames of a step at most, unless one stream alone needs more.
pub(super) const STEP_FRAMES: usize = 512;
/// The same of all lanes of a device, which has room for thousands of streams.
pub(super) const DEVICE_STEP_FRAMES: usize = 1 << 16;

/// The next step is asked for ahead when it has one frame or more for this many of the step under way: a step of few
/// streams would only keep those waiting that come next.
const AHEAD_PART: usize = 2;

/// Milliseconds by which a stream has to pass a place before it is reported as passed: tokens come after their audio.
const PASSED_MS: u32 = 400;

/// Numbers of streams that each have their own step prepared.
const FEW_SIZES: usize = 8;

/// The work of a lane.
pub(super) struct Hear {
    pub hearing: Arc<dyn Hearing>,
    pub ear: Box<dyn Ear>,
    pub streams: Streams,
    pub stats: Arc<Mutex<ListenerStats>>,
    pub tracer: Tracer,
    pub turn: Turn,
    /// What a step may take.
    pub room: EarRoom,
    pub pulse: Arc<Pulse>,
    pub faults: Faults,
    pub planning: Planning,
    /// Steps that were asked for and not told yet, the oldest first: one, or two while the first of them is told.
    pub flights: VecDeque<Flight>,
    /// When a step was told last.
    pub landed: Option<Instant>,
    /// A stream of the shortest chunks, and one of those that streams have unless they ask for others.
    pub warm_track: Track,
    pub usual_track: Track,
}

/// What the step under way takes, and who goes first in the next.
#[derive(Default)]
pub(super) struct Planning {
    /// The slot that is looked at first, among those that keep to the clock and among the others.
    turn: usize,
    ahead_turn: usize,
    /// Slots of streams that are ahead of the clock, and what these offer.
    ahead: Vec<(usize, inlet::Offer)>,
    planned: Vec<Planned>,
    /// Frames that it makes, or a few more.
    frames: usize,
    share: Share,
}

impl Planning {
    fn begin(&mut self) {
        self.planned.clear();
        self.ahead.clear();
        self.frames = 0;
    }
}

impl Work for Hear {
    fn admit(&mut self, exec: &mut Exec) {
        while let Some(free) = self.streams.slots.iter().position(Option::is_none)
            && let Ok(ask) = self.streams.seat.requests.try_recv()
        {
            match ask {
                Ask::Hear(new) => self.take(exec, free, *new),
                Ask::Prepare(done) => {
                    self.prepare(exec);
                    // Nobody may wait for it any more.
                    let _ = done.try_send(());
                }
            }
        }
        // After new ones were taken: a stream that was left before it had a slot wakes nobody any more.
        self.streams.drop_cancelled();
        self.let_go();
    }

    fn step(&mut self, exec: &mut Exec) -> bool {
        if !self.flights.is_empty() && !self.should_run_ahead(exec) {
            return self.land(exec);
        }
        let begun = Instant::now();
        let did = self.gather(exec);
        self.let_go();
        if self.planning.planned.is_empty() {
            return self.land(exec) || did;
        }
        self.pulse.begin(self.stage());
        self.faults.pass(FaultPoint::Step);
        self.ask(exec, begun);
        if exec.status().is_err() {
            self.ground(exec, Vec::new());
            return true;
        }
        if self.flights.len() > 1 {
            // The device goes on with the step that was asked for just now.
            self.land(exec);
        }
        if !self.should_run_ahead(exec) {
            self.land(exec);
        }
        true
    }

    fn is_idle(&self) -> bool {
        self.streams.live() == 0
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.land(exec);
        // While another lane has streams, the model is warm.
        if self.streams.seat.all_are_empty() {
            self.pulse.begin(self.stage());
            self.faults.pass(FaultPoint::Step);
            self.ear.warm(exec, 1, &self.warm_track);
            self.pulse.warmed(self.stage());
        }
    }

    fn end(&mut self, reason: &str) {
        self.streams.end(reason);
    }
}

impl Hear {
    fn stage(&self) -> Stage {
        Stage::Lane(self.streams.seat.lane)
    }

    /// Tells the ear which slots are empty.
    fn let_go(&mut self) {
        for slot in self.streams.take_freed() {
            self.flights.iter_mut().for_each(|f| f.planned.retain(|p| p.slot != slot));
            if self.streams.slots[slot].is_none() {
                self.ear.free(slot);
            }
        }
    }

    /// Does something for one stream, of which the ear has a part; if that panics, this stream ends and no other.
    fn alone(&mut self, i: usize, work: impl FnOnce(&mut Self)) {
        let result = alone(|| {
            self.faults.pass(FaultPoint::Stream);
            work(self);
        });
        if let Err(e) = result {
            self.streams.free(i, Err(e));
        }
    }

    /// Gives a new stream a slot.
    fn take(&mut self, exec: &mut Exec, free: usize, mut new: NewStream) {
        let saved = new.saved.take();
        let started = self.ear.start(exec, free, &new.track);
        self.streams.admit(free, new);
        match (started, saved) {
            (Err(e), _) => self.streams.free(free, Err(e.into())),
            (Ok(()), Some(saved)) => self.resume(exec, free, saved),
            (Ok(()), None) => {}
        }
    }

    /// Steps of silence of every size that streams will have: a device has its graphs and algorithms ready then.
    fn prepare(&mut self, exec: &mut Exec) {
        self.land(exec);
        if !self.is_idle() {
            return;
        }
        self.pulse.begin(self.stage());
        self.faults.pass(FaultPoint::Step);
        let most = (self.room.frames / self.usual_track.chunk).clamp(1, self.room.slots);
        for streams in sizes(most) {
            // The second time a device keeps what it did the first time.
            (0..2).for_each(|_| self.ear.warm(exec, streams, &self.usual_track));
        }
        self.pulse.warmed(self.stage());
        self.recover(exec, &[]);
    }

    /// Whether to ask for the next step before the one under way is told: where enough rows wait that the device would not
    /// be done sooner with both in turn, and nobody waits for something that has to come between them.
    fn should_run_ahead(&self, exec: &Exec) -> bool {
        let may = |f: &&Flight| self.ear.runs_ahead() && !f.closes() && !exec.fills_device(f.planned.len());
        let Some(flight) = self.flights.front().filter(may) else { return false };
        let mut waiting = 0;
        for (i, slot) in self.streams.slots.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let offer = slot.inlet.offer(self.ear.wants(i));
            if offer.abandoned || (offer.rows == 0 && offer.mark.is_some()) {
                return false;
            }
            waiting += usize::from(offer.rows > 0 && !slot.outlet.is_full());
        }
        waiting > 0 && waiting * AHEAD_PART >= flight.planned.len()
    }

    /// Goes on after lack of memory: streams that took part in what failed end, and no other does.
    fn recover(&mut self, exec: &mut Exec, slots: &[usize]) {
        let Err(e) = exec.status() else { return };
        if !e.is_out_of_memory() {
            return;
        }
        tracing::warn!(streams = slots.len(), "no memory for what was asked of the device: {e}");
        for &slot in slots {
            self.streams.free(slot, Err(e.clone().into()));
        }
        // A device that is lost beyond that ends the lane, by its status.
        let _ = exec.recover();
    }

    /// Goes on where a snapshot was taken.
    fn resume(&mut self, exec: &mut Exec, i: usize, saved: Saved) {
        self.alone(i, |this| {
            let Some(slot) = &mut this.streams.slots[i] else { return };
            match this.ear.restore(exec, i, &slot.track, &saved.ear) {
                Ok(()) => {
                    slot.restore(saved);
                    slot.outlet.push(&mut slot.told);
                }
                Err(e) => this.streams.free(i, Err(e.into())),
            }
        });
        self.recover(exec, &[i]);
    }

    /// Plans what streams have audio for, in turn: first those that keep to the clock, then those that are ahead of it, as
    /// far as no live one has to wait for them. Returns whether anything was done without a step.
    fn gather(&mut self, exec: &mut Exec) -> bool {
        let n = self.streams.slots.len();
        let most = self.room.frames;
        self.planning.begin();
        let mut did = false;
        let room = self.room.slot_frames.min(most / self.streams.live().max(1));
        let (first, mut is_live) = (self.planning.turn, false);
        let (now, frame_seconds) = (Instant::now(), self.hearing.info().frame_seconds());
        for i in (0..n).map(|k| (first + k) % n) {
            let Some(slot) = &self.streams.slots[i] else { continue };
            let offer = slot.inlet.offer(self.ear.wants(i));
            match offer.pace(now, slot.track.chunk as f64 * frame_seconds) {
                Pace::Ahead => {
                    self.planning.ahead.push((i, offer));
                    continue;
                }
                Pace::Live => is_live = !self.hearing.info().offline(),
                Pace::Unknown => {}
            }
            if let Some(planned) = self.plan(exec, i, offer, room, &mut did)
                && !self.add(planned, most)
            {
                self.planning.turn = i;
                break;
            }
        }
        self.gather_ahead(exec, is_live, &mut did);
        did
    }

    /// Adds streams that are ahead of the clock to a step: all that has room or, beside live ones, their share.
    fn gather_ahead(&mut self, exec: &mut Exec, is_live: bool, did: &mut bool) {
        let mut ahead = std::mem::take(&mut self.planning.ahead);
        ahead.sort_unstable_by_key(|&(i, _)| i);
        let first = ahead.partition_point(|&(i, _)| i < self.planning.ahead_turn);
        ahead.rotate_left(first);
        let mut most = self.room.frames;
        if is_live {
            most = most.min(self.planning.frames + self.planning.share.frames());
        }
        let left = most.saturating_sub(self.planning.frames);
        let room = self.room.slot_frames.min(left / ahead.len().max(1));
        // Somebody goes on where there is any room: a file ends, however many are live.
        let mut is_first = true;
        for &(i, offer) in &ahead {
            let Some(planned) = self.plan(exec, i, offer, room, did) else { continue };
            let limit = if is_first { self.room.frames } else { most };
            if !self.add(planned, limit) {
                self.planning.ahead_turn = i;
                break;
            }
            is_first = false;
        }
        self.planning.ahead = ahead;
    }

    /// Adds a stream to the step, unless that would have more than `most` frames then.
    fn add(&mut self, planned: Planned, most: usize) -> bool {
        let frames = self.planning.frames + planned.frames;
        if self.planning.frames > 0 && frames > most {
            return false;
        }
        if self.streams.slots[planned.slot].is_some() {
            self.planning.frames = frames;
            self.planning.planned.push(planned);
        }
        true
    }

    /// What the next step takes of a slot; what needs no step is done at once.
    fn plan(
        &mut self,
        exec: &mut Exec,
        i: usize,
        mut offer: inlet::Offer,
        room: usize,
        did: &mut bool,
    ) -> Option<Planned> {
        loop {
            let slot = self.streams.slots[i].as_ref()?;
            if slot.outlet.is_full() {
                return None;
            }
            // Ends, marks and snapshots wait until the step under way is told.
            let may_act = self.flights.is_empty();
            if offer.abandoned && !may_act {
                return None;
            }
            if offer.abandoned {
                self.streams.free(i, Err(EngineError::Abandoned));
                *did = true;
                return None;
            }
            let closes = offer.mark == Some(true);
            let planned = self.ear.plan(i, Offer { rows: offer.rows, closes }, slot.room(room));
            if planned.is_some() || !may_act {
                return planned;
            }
            match offer.mark {
                None => return None,
                Some(false) => self.alone(i, |this| this.pass_mark(exec, i)),
                // No rows are left before the mark.
                Some(true) => self.alone(i, |this| {
                    this.streams.slots[i].iter_mut().for_each(Slot::listen);
                    this.ear.flush(exec, &[i], &mut this.streams);
                    this.close_part(exec, i);
                }),
            }
            self.recover(exec, &[i]);
            *did = true;
            offer = self.streams.slots[i].as_ref()?.inlet.offer(self.ear.wants(i));
        }
    }

    /// Asks for the planned step.
    fn ask(&mut self, exec: &mut Exec, begun: Instant) {
        let Self { ear, streams, planning, .. } = self;
        let planned = std::mem::take(&mut planning.planned);
        let taking = Instant::now();
        exec.note(0);
        ear.take(exec, &planned, &Waiting(&streams.slots));
        exec.note(1);
        let encoding = Instant::now();
        let ((), turned) = self.turn.take(exec, planning.frames, |exec| {
            ear.encode(exec, &planned);
            exec.note(2);
        });
        let (encode, asked) = (encoding.elapsed(), Instant::now());
        ear.begin(exec, &planned);
        let (front, frames, beside) = (encoding - taking, planning.frames, !self.flights.is_empty());
        let flight = Flight { planned, frames, begun, taking, asked, front, encode, turned, beside };
        self.flights.push_back(flight);
    }

    /// Tells the oldest step under way. Returns whether there was one.
    fn land(&mut self, exec: &mut Exec) -> bool {
        let Some(mut flight) = self.flights.pop_front() else { return false };
        self.pulse.begin(self.stage());
        for p in &flight.planned {
            if let Some(slot) = &mut self.streams.slots[p.slot] {
                (slot.planned, slot.frames) = (*p, 0);
                slot.listen();
            }
        }
        self.ear.decode(exec, &flight.planned, &mut self.streams);
        if exec.status().is_err() {
            self.ground(exec, flight.planned);
            return true;
        }
        let times = flight.times(exec, self.ear.as_ref(), self.landed);
        self.trace(&flight, times);
        let frames = self.count(&flight, times);
        self.planning.share.record(flight.frames, times.total);
        let first = self.streams.seat.first_slot;
        let slots: Vec<usize> = flight.planned.iter().map(|p| first + p.slot).collect();
        let told = Instant::now();
        self.settle(exec, &flight.planned);
        self.landed = Some(Instant::now());
        self.pulse.end(self.stage(), times.total + told.elapsed(), frames, slots.into_iter());
        self.let_go();
        flight.planned.clear();
        self.planning.planned = flight.planned;
        true
    }

    /// The device failed in a step: those that took part in any that is under way, or are named, end where it lacked
    /// memory, and all where it is lost.
    fn ground(&mut self, exec: &mut Exec, mut planned: Vec<Planned>) {
        for flight in std::mem::take(&mut self.flights) {
            self.ear.decode(exec, &flight.planned, &mut self.streams);
            planned.extend(flight.planned);
        }
        let Err(e) = exec.status() else { return };
        if e.is_out_of_memory() {
            let slots: Vec<usize> = planned.iter().map(|p| p.slot).collect();
            self.recover(exec, &slots);
            self.let_go();
        } else {
            tracing::error!("the device has failed, and its streams end: {e}");
        }
    }

    /// Writes the phases of a step down, where they are traced.
    fn trace(&mut self, flight: &Flight, times: Times) {
        let Times { front, encode, decode, .. } = times;
        let (now, frames) = (Instant::now(), flight.frames);
        let [encoder, search] = self.hearing.info().phases;
        let encoded = flight.turned.map_or(flight.taking + front, |t| t.at);
        self.tracer.event("front", flight.taking, front, frames);
        self.tracer.event(encoder, encoded, encode, frames);
        self.tracer.event(search, now.checked_sub(decode).unwrap_or(now), decode, frames);
    }

    /// Tells what was heard, and ends parts that are over.
    fn settle(&mut self, exec: &mut Exec, planned: &[Planned]) {
        let closing: Vec<usize> = planned.iter().filter(|p| p.closes).map(|p| p.slot).collect();
        if !closing.is_empty() {
            self.ear.flush(exec, &closing, &mut self.streams);
        }
        for p in planned {
            self.alone(p.slot, |this| this.settle_one(exec, *p));
        }
        self.recover(exec, &closing);
    }

    fn settle_one(&mut self, exec: &mut Exec, planned: Planned) {
        if planned.closes {
            return self.close_part(exec, planned.slot);
        }
        let Some(slot) = &mut self.streams.slots[planned.slot] else { return };
        slot.utterance.tell_partial(&mut slot.told);
        slot.tell_progress();
        slot.outlet.push(&mut slot.told);
    }

    /// The rows before a mark are all heard and concluded: does what the mark says.
    fn close_part(&mut self, exec: &mut Exec, i: usize) {
        let sample_rate = self.hearing.info().sample_rate as f64;
        let Some(slot) = &mut self.streams.slots[i] else { return };
        let Some(mark) = slot.inlet.pop_mark() else { return };
        let nbest = std::mem::take(&mut slot.readings);
        match mark {
            Mark::End { samples } => {
                let at = samples as f64 / sample_rate;
                slot.utterance.end(at, EndReason::Forced, nbest, &mut slot.told);
                slot.begin_part(at);
                slot.tell_progress();
                slot.outlet.push(&mut slot.told);
                if let Err(e) = self.ear.start(exec, i, &slot.track) {
                    self.streams.free(i, Err(e.into()));
                }
            }
            Mark::Finish => {
                slot.tell_passes();
                slot.utterance.finish(nbest, &mut slot.told);
                slot.outlet.push(&mut slot.told);
                slot.outlet.record(|s| s.segments = slot.utterance.ended);
                self.streams.free(i, Ok(()));
            }
            // The stream has passed these.
            Mark::Snapshot { .. } | Mark::Report { .. } => {}
        }
    }

    /// Does what a mark says that the stream goes on after.
    fn pass_mark(&mut self, exec: &mut Exec, i: usize) {
        let Some(slot) = &mut self.streams.slots[i] else { return };
        slot.listen();
        // The rows that wait have to be read before the mark is gone.
        let (waiting, rest) = (slot.inlet.copy(), slot.inlet.rest());
        match slot.inlet.pop_passing() {
            Some(Mark::Report { report, samples, ahead }) => {
                self.report(exec, i, report, samples, waiting, ahead)
            }
            Some(Mark::Snapshot { taken, reply }) => self.answer_snapshot(exec, i, &rest, taken, reply),
            _ => {}
        }
    }

    /// Reports a place of a stream, which goes on as it was.
    fn report(
        &mut self,
        exec: &mut Exec,
        i: usize,
        report: Report,
        samples: u64,
        waiting: (Vec<f32>, usize),
        ahead: Ahead,
    ) {
        let info = self.hearing.info();
        let at = samples as f64 / info.sample_rate as f64;
        let Some(slot) = &mut self.streams.slots[i] else { return };
        let frame = slot.utterance.frame_of(at);
        if report == Report::Passed && slot.passes.len() < MAX_PASSES {
            return slot.passes.push_back((frame + PASSED_MS.div_ceil(info.frame_ms()) as usize, at));
        }
        let known = frame.saturating_sub(usize::from(ahead.level.is_some()));
        let is_over = slot.is_over(known) && ahead.level.is_none_or(|level| slot.quiet.is_quiet(level));
        let heard = if is_over || report == Report::All {
            let rows = Behind::new(slot.inlet.layout(), waiting, ahead);
            match self.hear_ahead(exec, i, rows) {
                Ok(heard) => Some(heard),
                Err(e) => return self.streams.free(i, Err(e)),
            }
        } else {
            None
        };
        let Some(slot) = &mut self.streams.slots[i] else { return };
        slot.report(at, heard.as_deref(), frame);
        slot.tell_progress();
        slot.outlet.push(&mut slot.told);
    }

    /// What a copy of a stream's state hears if nothing follows some rows.
    fn hear_ahead(&mut self, exec: &mut Exec, i: usize, rows: Behind) -> Result<Vec<Token>, EngineError> {
        let Some(track) = self.streams.slots[i].as_ref().map(|s| s.track.clone()) else {
            return Ok(Vec::new());
        };
        let before = self.ear.save(exec, i, &[]);
        let mut eager = Eager::default();
        let mut left = rows.rows();
        while let Some(planned) =
            self.ear.plan(i, Offer { rows: left, closes: true }, self.room.slot_frames.min(self.room.frames))
        {
            let planned = [planned];
            self.ear.take(exec, &planned, &rows);
            self.ear.encode(exec, &planned);
            self.ear.begin(exec, &planned);
            self.ear.decode(exec, &planned, &mut eager);
            left -= planned[0].advance;
            if planned[0].closes {
                break;
            }
        }
        self.ear.flush(exec, &[i], &mut eager);
        self.ear.start(exec, i, &track)?;
        self.ear.restore(exec, i, &track, &before)?;
        Ok(eager.tokens())
    }

    /// Tells a sender the stream's state.
    fn answer_snapshot(
        &mut self,
        exec: &mut Exec,
        i: usize,
        waiting: &[f32],
        Taken { front, meter, gain, samples }: Taken,
        reply: Reply,
    ) {
        let ear = self.ear.save(exec, i, waiting);
        let Some(slot) = &self.streams.slots[i] else { return };
        let (decoded, utterance) = (slot.decoded, slot.utterance.save());
        let (quiet, passes) = (slot.quiet.clone(), slot.passes.clone());
        let saved = Saved { samples, decoded, utterance, quiet, meter, gain, passes, front, ear };
        let answer = match exec.status() {
            Ok(()) => Ok(saved.to_bytes(self.hearing.fingerprint())),
            // Nothing was changed: the stream goes on without its snapshot.
            Err(e) => exec.recover().map_or_else(|lost| Err(lost.into()), |()| Err(e.into())),
        };
        reply(answer);
    }

    /// Counts a step that was told just now. Returns its frames.
    fn count(&self, flight: &Flight, times: Times) -> usize {
        let Times { front, encode, decode, total } = times;
        let slots = || flight.planned.iter().filter_map(|p| self.streams.slots[p.slot].as_ref());
        let frames = slots().map(|s| s.frames).sum::<usize>();
        {
            let mut s = lock(&self.stats);
            s.steps += 1;
            s.frames += frames;
            s.chunks += flight.planned.len();
            s.front += front;
            s.encode += encode;
            s.decode += decode;
            s.total += total;
            s.step_times.add(total);
        }
        let end = Instant::now();
        for slot in slots() {
            let portion = slot.frames as f64 / frames.max(1) as f64;
            let share = total.mul_f64(portion);
            let end = slot.outlet.since(end);
            let consumed = self.hearing.info().row_seconds(slot.planned.advance);
            slot.outlet.record(|s| {
                s.encode.add(end.saturating_sub(decode), encode, encode.mul_f64(portion));
                s.decode.add(end, decode, decode.mul_f64(portion));
                s.steps += 1;
                s.step_times.add(total);
                s.step_time += share;
                s.frames += slot.frames;
                s.segments = slot.utterance.ended;
                s.consumed += consumed;
            });
        }
        frames
    }
}

/// Numbers of streams to prepare a device for: few streams meet it one by one, many by their order of magnitude.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    let few = FEW_SIZES.min(most);
    let doubled = std::iter::successors(Some(2 * FEW_SIZES), |n| Some(2 * n));
    (1..=few).chain(doubled.take_while(move |n| *n < most)).chain((most > few).then_some(most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_prepared_for_few_streams_one_by_one_and_for_all() {
        let list = |most| sizes(most).collect::<Vec<_>>();
        assert_eq!(list(1), [1]);
        assert_eq!(list(8), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(list(9), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(list(64), [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64]);
    }
}
