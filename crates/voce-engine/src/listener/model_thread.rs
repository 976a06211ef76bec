//! The model thread of a lane: it owns the lane's encoder state, search and slots, and steps what has audio for a chunk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use voce_audio::mel::DEVIATION_GUARD;
use voce_models::fastconformer::{Encoder, EncoderState, MelNormalize, StreamShape};
use voce_models::transducer::{Decoder, Search, SearchOptions, SearchState};
use voce_runtime::{Buffer, Exec, FrameSpan, Span};

use super::ROW_RATE;
use super::device_mel::DeviceMel;
use super::event::EndReason;
use super::histogram::Histogram;
use super::inlet::{Inlet, Mark, SAMPLE_RATE};
use super::lanes::Live;
use super::outlet::Outlet;
use super::slot::{NewStream, Plan, Planned, Slot};
use super::step_room::StepRoom;
use super::words::Speller;
use crate::EngineError;
use crate::fault::{FaultPoint, Faults};
use crate::pulse::{Life, Pulse, Stage};
use crate::trace::Tracer;
use crate::wake::{Waker, lock};

/// Encoder frames of a step at most, unless one stream alone needs more.
const STEP_FRAMES: usize = 512;
/// The same of all lanes of a device, which has room for thousands of streams.
const DEVICE_STEP_FRAMES: usize = 1 << 16;
/// Encoder frames for each multiprocessor of a device from which a step fills it: such steps of several lanes take turns.
const TURN_FRAMES: usize = 6;
/// Encoder frames from which a device begins while the host still asks for the last layers.
const EARLY_FRAMES: usize = 4096;
/// Encoder frames of an offline utterance that memory is made for at first.
const FIRST_UTTERANCE: usize = 128;
/// Mel rows of a step that keeps an offline model warm.
const WARM_ROWS: usize = 64;

/// What the model is, shared with those who ask.
pub(super) struct Model {
    pub encoder: Encoder,
    pub decoder: Decoder,
    pub speller: Arc<Speller>,
    pub bins: usize,
    pub normalize: MelNormalize,
    /// Seconds of an encoder frame.
    pub frame_seconds: f64,
    /// Tells models and precisions apart.
    pub fingerprint: u64,
}

/// Work of all model threads so far.
#[derive(Clone, Debug, Default)]
pub struct ListenerStats {
    /// Steps.
    pub steps: usize,
    /// How long they took.
    pub step_times: Histogram,
    /// Encoder frames.
    pub frames: usize,
    /// Chunks or windows.
    pub chunks: usize,
    /// Time in taking rows from streams, or in making them where a device does it.
    pub front: Duration,
    /// Time in the encoder.
    pub encoder: Duration,
    /// Time in the search.
    pub search: Duration,
    /// Time in all steps.
    pub total: Duration,
}

impl ListenerStats {
    /// Time in the stage of this name, of those in [`stages`](super::ListenerInfo::stages); finding labels is part
    /// of the search.
    pub fn stage(&self, name: &str) -> Duration {
        match name {
            "encoder" => self.encoder,
            "search" => self.search,
            _ => Duration::ZERO,
        }
    }
}

/// The state of the model thread.
pub(super) struct ModelThread {
    pub model: Arc<Model>,
    /// Taken by the thread when it begins.
    pub state: Option<EncoderState>,
    pub exec: Exec,
    /// Makes mel rows, where a device does it.
    pub front: Option<DeviceMel>,
    pub requests: Receiver<NewStream>,
    pub waker: Arc<Waker>,
    pub stop: Arc<AtomicBool>,
    /// Slots in use of each lane.
    pub live: Live,
    pub stats: Arc<Mutex<ListenerStats>>,
    pub tracer: Tracer,
    /// Which lane this is.
    pub lane: usize,
    /// Held by the lane whose encoder fills the device; none where there is one lane, or no device.
    pub turn: Option<Arc<Mutex<()>>>,
    pub slots: usize,
    /// The number that its first slot has among those of all lanes.
    pub first_slot: usize,
    /// Encoder frames that a step may take of one stream.
    pub room: usize,
    pub pulse: Arc<Pulse>,
    pub keep_warm: Option<Duration>,
    pub faults: Faults,
}

struct Running {
    state: EncoderState,
    search: Search,
    slots: Vec<Option<Slot>>,
    /// The slot that is looked at first in the next step.
    turn: usize,
    mel: Buffer,
    spans: Vec<FrameSpan>,
    /// Encoder frames that they make, or a few more.
    planned: usize,
    step_room: StepRoom,
    parts: Vec<Part>,
    projected: Buffer,
    piece: Buffer,
    pieces: Vec<Span>,
    searches: Vec<SearchState>,
}

/// A slot's rows of a step, and how many of them were searched.
#[derive(Clone, Copy, Debug)]
struct Part {
    slot: usize,
    row: usize,
    rows: usize,
    done: usize,
    /// Rows of the piece under way.
    piece: usize,
}

/// Encoder frames that a step may take of one stream.
pub(super) fn frames_per_stream(encoder: &Encoder, slots: usize) -> usize {
    use voce_models::fastconformer::Attention;
    match &encoder.config().attention {
        Attention::Full => FIRST_UTTERANCE,
        Attention::Chunked { look_aheads, .. } => {
            let chunk = look_aheads.iter().max().map_or(1, |n| n + 1);
            (STEP_FRAMES / slots).max(chunk)
        }
    }
}

impl ModelThread {
    /// Runs until told to stop; every stream is ended on the way out.
    pub(super) fn run(mut self) {
        let life = Life(self.pulse.clone());
        let model = self.model.clone();
        let width = model.decoder.frame_width();
        let Some(state) = self.state.take() else { return };
        let mut r = Running {
            state,
            search: Search::new(&model.decoder, self.slots),
            slots: (0..self.slots).map(|_| None).collect(),
            turn: 0,
            mel: Buffer::new(1, model.bins),
            spans: Vec::with_capacity(self.slots),
            planned: 0,
            step_room: StepRoom::default(),
            parts: Vec::with_capacity(self.slots),
            projected: Buffer::new(1, width),
            piece: Buffer::new(1, width),
            pieces: Vec::with_capacity(self.slots),
            searches: Vec::with_capacity(self.slots),
        };
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run_until_stopped(&mut r)));
        // Whoever learns of the end by a stream finds the model dead.
        drop(life);
        let reason = match (&result, self.exec.status()) {
            (Err(_), _) => "the model thread panicked".to_owned(),
            (Ok(()), Err(e)) => e.to_string(),
            (Ok(()), Ok(())) => "it was closed".to_owned(),
        };
        let end = |outlet: &Outlet, inlet: &Inlet| {
            outlet.finish(Err(EngineError::Stopped(reason.clone())));
            inlet.hang_up();
        };
        r.slots.iter().flatten().for_each(|s| end(&s.outlet, &s.inlet));
        self.requests.try_iter().for_each(|n| end(&n.outlet, &n.inlet));
    }

    fn run_until_stopped(&mut self, r: &mut Running) {
        // A device that has failed does not come back: nothing of it may be taken for a result.
        while !self.stop.load(Ordering::Relaxed) && self.exec.status().is_ok() {
            self.take_requests(r);
            // After new ones were taken: a stream that was left before it had a slot wakes nobody any more.
            self.drop_cancelled(r);
            if !self.step(r) {
                self.rest(r);
            }
        }
    }

    /// Waits for work. A model without streams is stepped now and then to keep it warm, if that was asked for; while
    /// another lane has some, it is warm.
    fn rest(&mut self, r: &mut Running) {
        let empty = r.slots.iter().all(Option::is_none);
        let woken = self.waker.wait(self.keep_warm.filter(|_| empty));
        if !woken && empty && self.live.iter().all(|n| n.load(Ordering::Relaxed) == 0) {
            self.warm_step(r);
        }
    }

    /// A step of silence that nobody hears. The slot it uses starts anew with its next stream.
    fn warm_step(&mut self, r: &mut Running) {
        let model = self.model.clone();
        let Ok(search) = SearchState::new(&model.decoder, &SearchOptions::with_beam(1)) else { return };
        self.pulse.begin(Stage::Lane(self.lane));
        self.faults.pass(FaultPoint::Step);
        let offline = model.encoder.is_offline();
        let rows = if offline { WARM_ROWS } else { model.encoder.mel_rows(0, 1, true) };
        make_room(&mut r.mel, rows);
        r.mel.head_mut(rows).fill(0.0);
        model.encoder.start(&mut r.state, 0, StreamShape { look_ahead: 0, language: 0 });
        let span = FrameSpan { slot: 0, rows, last: offline };
        let (x, spans) = model.encoder.step(&mut self.exec, &mut r.state, &r.mel, &[span]);
        let frames = spans.iter().map(|s| s.rows).sum();
        if frames > 0 {
            r.projected.shape(frames, model.decoder.frame_width());
            model.decoder.project(&mut self.exec, x, frames, &mut r.projected);
            let span = Span { slot: 0, rows: frames };
            r.search.step(&mut self.exec, &model.decoder, &mut r.projected, &[span], &mut [search]);
        }
        self.pulse.warmed(Stage::Lane(self.lane));
    }

    /// Does something for one stream; if that panics, this stream ends and no other.
    fn alone(&mut self, r: &mut Running, i: usize, work: impl FnOnce(&mut Self, &mut Running)) {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.faults.pass(FaultPoint::Stream);
            work(self, r);
        }));
        if result.is_err() {
            tracing::error!(
                slot = self.first_slot + i,
                "a panic in one stream: it was ended, the others go on"
            );
            self.free(r, i, Err(EngineError::Broken));
        }
    }

    fn drop_cancelled(&self, r: &mut Running) {
        for i in 0..r.slots.len() {
            if r.slots[i].as_ref().is_some_and(|s| s.outlet.is_cancelled() || s.inlet.is_hung_up()) {
                self.free(r, i, Ok(()));
            }
        }
    }

    fn take_requests(&mut self, r: &mut Running) {
        while let Some(free) = r.slots.iter().position(Option::is_none)
            && let Ok(mut new) = self.requests.try_recv()
        {
            let saved = new.saved.take();
            let slot = Slot::new(new, self.model.speller.clone(), self.model.frame_seconds);
            self.model.encoder.start(&mut r.state, free, slot.shape);
            let waited = slot.outlet.since(Instant::now());
            slot.outlet.record(|s| s.queue = waited);
            r.slots[free] = Some(slot);
            let Some(saved) = saved else { continue };
            self.alone(r, free, |this, r| {
                let Some(slot) = &mut r.slots[free] else { return };
                if let Err(e) = slot.restore(&this.model, &mut this.exec, &mut r.state, free, saved) {
                    this.free(r, free, Err(e));
                }
            });
        }
    }

    /// Ends a slot's stream.
    fn free(&self, r: &mut Running, i: usize, result: Result<(), EngineError>) {
        if let Some(slot) = r.slots[i].take() {
            // Whoever learns of the end may ask for a new stream at once.
            self.live[self.lane].fetch_sub(1, Ordering::Relaxed);
            slot.inlet.hang_up();
            slot.outlet.finish(result);
        }
    }

    /// One step of every stream that has audio for it. Returns whether anything was done.
    fn step(&mut self, r: &mut Running) -> bool {
        let begun = Instant::now();
        let did = self.gather(r);
        if r.spans.is_empty() {
            return did;
        }
        self.pulse.begin(Stage::Lane(self.lane));
        self.faults.pass(FaultPoint::Step);
        let model = self.model.clone();
        let held = self.exec.device().map_or(0, |d| d.used());
        let filling = Instant::now();
        self.exec.note(0);
        self.fill(r);
        self.exec.note(1);
        // Two large steps side by side would both end late, and the device would wait for both lanes' hosts at once. What
        // can be asked of it before its turn is.
        let processors = self.exec.device().map_or(0, |d| d.info().processors as usize);
        let turn = self.turn.clone().filter(|_| r.planned >= TURN_FRAMES * processors);
        let early = turn.as_deref().filter(|_| r.planned >= EARLY_FRAMES).and_then(|t| t.try_lock().ok());
        self.exec.hold_back(turn.is_some() && early.is_none());
        let encoding = Instant::now();
        let (x, spans) = model.encoder.step(&mut self.exec, &mut r.state, &r.mel, &r.spans);
        let rows = spans.iter().map(|s| s.rows).sum();
        if rows > 0 {
            r.projected.shape(rows, model.decoder.frame_width());
            model.decoder.project(&mut self.exec, x, rows, &mut r.projected);
        }
        self.exec.note(2);
        let asked = Instant::now();
        let mut turned = asked;
        if let Some(turn) = &turn {
            let taken = early.unwrap_or_else(|| lock(turn));
            turned = Instant::now();
            self.exec.finish();
            drop(taken);
        }
        r.parts.clear();
        let mut row = 0;
        for s in spans {
            r.parts.push(Part { slot: s.slot, row, rows: s.rows, done: 0, piece: 0 });
            row += s.rows;
        }
        let searching = Instant::now();
        self.search(r);
        if let Err(e) = self.exec.status() {
            tracing::error!("the device has failed, and its streams end: {e}");
            return true;
        }
        r.step_room.count(r.planned, held, self.exec.device().map_or(0, |d| d.used()));
        let spent = [encoding - filling, searching - encoding - (turned - asked), searching.elapsed()];
        let [front, encoder, search] = self.times(spent, turn.is_some());
        self.tracer.event("mel", filling, front, rows);
        let encoded = if turn.is_some() { turned } else { filling + front };
        self.tracer.event("encoder", encoded, encoder, rows);
        self.tracer.event("search", searching + searching.elapsed().saturating_sub(search), search, rows);
        self.count(r, rows, [front, encoder, search, begun.elapsed()]);
        self.settle(r);
        let slots = r.spans.iter().map(|s| self.first_slot + s.slot);
        self.pulse.end(Stage::Lane(self.lane), begun.elapsed(), rows, slots);
        true
    }

    /// Plans what streams have audio for, in turn. Returns whether anything was done without a step.
    fn gather(&mut self, r: &mut Running) -> bool {
        let model = self.model.clone();
        let (n, offline) = (r.slots.len(), model.encoder.is_offline());
        let factor = model.encoder.config().subsampling_factor;
        let live = r.slots.iter().flatten().count().max(1);
        let mut most = match self.exec.device() {
            Some(_) => DEVICE_STEP_FRAMES / self.live.len(),
            None => STEP_FRAMES,
        };
        let mut asked = false;
        let room = self.room.min(most / live);
        r.spans.clear();
        let (mut frames, mut did) = (0, false);
        let first = r.turn;
        for i in (0..n).map(|k| (first + k) % n) {
            let Some(planned) = self.plan(r, i, room, &mut did) else { continue };
            let more = planned.rows.div_ceil(factor);
            // A step that is larger than any before it asks first what is free.
            if !asked && frames + more > r.step_room.largest {
                asked = true;
                if let Some(Ok((free, _))) = self.exec.device().map(|d| d.memory()) {
                    most = most.min(r.step_room.frames(free, self.live.len()));
                }
            }
            if frames > 0 && frames + more > most {
                r.turn = i;
                break;
            }
            frames += more;
            let Some(slot) = &mut r.slots[i] else { continue };
            slot.planned = planned;
            if offline {
                model.encoder.start(&mut r.state, i, slot.shape);
            }
            r.spans.push(FrameSpan { slot: i, rows: planned.rows, last: planned.closes || offline });
        }
        r.planned = frames;
        did
    }

    /// How long front end, encoder and search took, of the time that the host spent on each. A device does what the host
    /// waits for, with the search or, where lanes take turns, before it: what that took for the others is theirs.
    fn times(&self, [front, encoder, search]: [Duration; 3], in_turn: bool) -> [Duration; 3] {
        let between = |from| self.exec.between(from, from + 1).unwrap_or_default();
        if in_turn {
            let encoded = between(1).min(encoder);
            return [front + (encoder - encoded), encoded, search];
        }
        let made = between(0).min(search);
        let encoded = between(1).min(search - made);
        [front + made, encoder + encoded, search - made - encoded]
    }

    /// Takes the rows that were planned, or makes them on a device.
    fn fill(&mut self, r: &mut Running) {
        let rows = r.spans.iter().map(|s| s.rows).sum();
        make_room(&mut r.mel, rows);
        match &mut self.front {
            Some(front) => front.run(&mut self.exec, &r.slots, &r.spans, &mut r.mel),
            None => {
                let mut to = r.mel.head_mut(rows);
                for span in &r.spans {
                    let (part, rest) = to.split_at_mut(span.rows * self.model.bins);
                    if let Some(slot) = &r.slots[span.slot] {
                        slot.inlet.take(&mut [], part, slot.planned.advance);
                    }
                    to = rest;
                }
            }
        }
        if self.model.normalize == MelNormalize::PerFeature {
            self.exec.standardise(&mut r.mel, &r.spans, DEVIATION_GUARD);
        }
    }

    /// What the next step takes of a slot; what needs no step is done at once.
    fn plan(&mut self, r: &mut Running, i: usize, room: usize, did: &mut bool) -> Option<Planned> {
        loop {
            let slot = r.slots[i].as_ref()?;
            if slot.outlet.is_full() {
                return None;
            }
            match slot.plan(&self.model.encoder, room) {
                Plan::Wait => return None,
                Plan::Step(planned) => return Some(planned),
                Plan::Snapshot => self.alone(r, i, |this, r| {
                    let Some(slot) = &r.slots[i] else { return };
                    let front = this.front.as_mut();
                    slot.answer_snapshot(&this.model, &r.search, &mut this.exec, front, &r.state, i);
                }),
                Plan::Close => self.alone(r, i, |this, r| this.close_part(r, i)),
                Plan::Abandoned => self.free(r, i, Err(EngineError::Abandoned)),
            }
            *did = true;
        }
    }

    /// Searches the frames of a step, piece by piece: a piece ends where a rule may end its utterance.
    fn search(&mut self, r: &mut Running) {
        let model = self.model.clone();
        let offline = model.encoder.is_offline();
        loop {
            r.pieces.clear();
            let mut whole = true;
            for part in &mut r.parts {
                let Some(slot) = &mut r.slots[part.slot] else { continue };
                let left = part.rows - part.done;
                part.piece = if offline { left } else { slot.piece(left) };
                whole &= part.piece == part.rows;
                if part.piece > 0
                    && let Some(search) = slot.search.take()
                {
                    r.pieces.push(Span { slot: part.slot, rows: part.piece });
                    r.searches.push(search);
                }
            }
            if r.pieces.is_empty() {
                return;
            }
            let frames = if whole {
                &mut r.projected
            } else {
                cut(&mut self.exec, r.parts.iter(), &r.projected, &mut r.piece)
            };
            r.search.step(&mut self.exec, &model.decoder, frames, &r.pieces, &mut r.searches);
            for (piece, search) in r.pieces.iter().zip(r.searches.drain(..)) {
                if let Some(slot) = &mut r.slots[piece.slot] {
                    slot.search = Some(search);
                }
            }
            for part in &mut r.parts {
                part.done += part.piece;
            }
            for k in 0..r.pieces.len() {
                let Span { slot, rows } = r.pieces[k];
                if !offline {
                    self.alone(r, slot, |this, r| this.hear(r, slot, rows));
                }
            }
        }
    }

    /// Takes what the search found in `frames` more frames of a stream.
    fn hear(&mut self, r: &mut Running, i: usize, frames: usize) {
        let Some(slot) = &mut r.slots[i] else { return };
        slot.searched += frames;
        slot.hear();
        if let Some(reason) = slot.utterance.end_at(slot.searched) {
            let at = slot.utterance.seconds(slot.searched);
            let nbest = slot.conclude(&self.model, &mut r.search, &mut self.exec);
            slot.utterance.end(at, reason, nbest, &mut slot.events);
            if let Some(search) = &mut slot.search {
                search.reset_utterance(&self.model.decoder);
            }
        }
    }

    /// Tells what was heard, and ends parts that are over.
    fn settle(&mut self, r: &mut Running) {
        self.end_beams(r);
        for k in 0..r.spans.len() {
            let i = r.spans[k].slot;
            self.alone(r, i, |this, r| this.settle_one(r, i));
        }
    }

    /// Lets the beams of all parts that are over come to their end together; [`Slot::conclude`] finds them there.
    fn end_beams(&mut self, r: &mut Running) {
        let offline = self.model.encoder.is_offline();
        r.pieces.clear();
        for span in &r.spans {
            let Some(slot) = &mut r.slots[span.slot] else { continue };
            if slot.beam
                && (offline || slot.planned.closes)
                && let Some(search) = slot.search.take()
            {
                r.pieces.push(Span { slot: span.slot, rows: 0 });
                r.searches.push(search);
            }
        }
        if r.pieces.is_empty() {
            return;
        }
        r.search.flush(&mut self.exec, &self.model.decoder, &mut r.searches);
        for (piece, search) in r.pieces.iter().zip(r.searches.drain(..)) {
            if let Some(slot) = &mut r.slots[piece.slot] {
                slot.search = Some(search);
            }
        }
    }

    fn settle_one(&mut self, r: &mut Running, i: usize) {
        let Some(slot) = &mut r.slots[i] else { return };
        let Planned { advance, closes, .. } = slot.planned;
        slot.taken += advance;
        if self.model.encoder.is_offline() {
            slot.take_window(&self.model, &mut r.search, &mut self.exec, closes);
        }
        if closes {
            self.close_part(r, i);
        } else {
            slot.utterance.tell_partial(&mut slot.events);
            slot.tell_progress();
            slot.outlet.push(&mut slot.events);
        }
    }

    /// The rows before a mark are all heard: does what the mark says.
    fn close_part(&mut self, r: &mut Running, i: usize) {
        let Some(slot) = &mut r.slots[i] else { return };
        let Some(mark) = slot.inlet.pop_mark() else { return };
        let offline = self.model.encoder.is_offline();
        // An offline search was concluded with its window.
        let nbest = if offline {
            std::mem::take(&mut slot.readings)
        } else {
            slot.conclude(&self.model, &mut r.search, &mut self.exec)
        };
        match mark {
            Mark::End { samples } => {
                let at = samples as f64 / SAMPLE_RATE as f64;
                slot.utterance.end(at, EndReason::Forced, nbest, &mut slot.events);
                slot.begin_part(samples);
                slot.tell_progress();
                self.model.encoder.start(&mut r.state, i, slot.shape);
                slot.outlet.push(&mut slot.events);
            }
            Mark::Finish => {
                slot.utterance.finish(nbest, &mut slot.events);
                slot.outlet.push(&mut slot.events);
                slot.outlet.record(|s| s.segments = slot.utterance.ended);
                self.free(r, i, Ok(()));
            }
            // Snapshots are answered before.
            Mark::Snapshot { .. } => {}
        }
    }

    fn count(&self, r: &Running, rows: usize, times: [Duration; 4]) {
        let [front, encoder, search, total] = times;
        {
            let mut s = lock(&self.stats);
            s.steps += 1;
            s.frames += rows;
            s.chunks += r.spans.len();
            s.front += front;
            s.encoder += encoder;
            s.search += search;
            s.total += total;
            s.step_times.add(total);
        }
        let now = Instant::now();
        for part in &r.parts {
            let Some(slot) = &r.slots[part.slot] else { continue };
            let portion = part.rows as f64 / rows.max(1) as f64;
            let share = total.mul_f64(portion);
            let end = slot.outlet.since(now);
            slot.outlet.record(|s| {
                s.encoder.add(end.saturating_sub(search), encoder, encoder.mul_f64(portion));
                s.search.add(end, search, search.mul_f64(portion));
                s.steps += 1;
                s.step_times.add(total);
                s.step_time += share;
                s.frames += part.rows;
                s.segments = slot.utterance.ended;
                s.consumed += slot.planned.advance as f64 / ROW_RATE as f64;
            });
        }
    }
}

/// Makes room for `rows` rows; what the buffer held means nothing any more.
fn make_room(buffer: &mut Buffer, rows: usize) {
    if buffer.rows() < rows {
        buffer.shape(rows.next_power_of_two(), buffer.cols());
    }
    buffer.discard();
}

/// The rows of the pieces under way, one after the other.
fn cut<'a, 'b>(
    exec: &mut Exec,
    parts: impl Iterator<Item = &'b Part> + Clone,
    all: &Buffer,
    out: &'a mut Buffer,
) -> &'a mut Buffer {
    out.shape(parts.clone().map(|p| p.piece).sum(), all.cols());
    let rows: Vec<usize> = parts.flat_map(|p| (0..p.piece).map(|k| p.row + p.done + k)).collect();
    exec.gather_rows(all, &rows, 0, out);
    out
}
