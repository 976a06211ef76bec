//! What a speaker's lane does: it gives slots to passages of text, feeds text to slots that speak, and steps what is live.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use voce_models::speech::{
    Line, Made, Passage, PassageEnd, Prompt, SpeakRequest, Speech, StepTimes, Synth, Voice,
};
use voce_runtime::Exec;

use super::again::{Order, Said};
use super::beside::Codec;
use super::codec::Message;
use super::stream::Output;
use super::text::Piece;
use crate::EngineError;
use crate::fault::{FaultPoint, Faults};
use crate::lane::{self, Work};
use crate::pulse::{Pulse, Stage};
use crate::trace::Tracer;

/// Requests under way at most; more wait in the channel, and are refused once that is full.
const MAX_JOBS: usize = 1024;

/// A request as the lane takes it.
pub(super) struct NewJob {
    pub pieces: Receiver<Piece>,
    pub output: Arc<Output>,
    pub voice: Option<Voice>,
    pub request: Arc<SpeakRequest>,
}

struct Job {
    id: u64,
    new: NewJob,
    /// The next part's place in the order, and the next passage's number.
    order: usize,
    number: u64,
    /// Halves of passages that did not end, and what is to be said after them.
    again: VecDeque<Said>,
    live: usize,
    frames: usize,
    /// A passage that was taken from the queue before its turn.
    held: Option<Passage>,
    /// The slot that text of this request goes to while it speaks.
    open: Option<usize>,
    exhausted: bool,
}

/// What a request's text has next.
enum Next {
    Passage(Passage),
    /// Not yet known.
    Nothing,
    /// No more.
    Over,
}

/// The requests of a lane and its slots.
pub(super) struct SpeakWork {
    pub speech: Arc<dyn Speech>,
    pub synth: Box<dyn Synth>,
    pub codec: Codec,
    pub requests: Receiver<NewJob>,
    pub tracer: Tracer,
    pub sample_rate: usize,
    pub pulse: Arc<Pulse>,
    pub faults: Faults,
    /// Which request each slot speaks for.
    slots: Vec<Option<u64>>,
    jobs: VecDeque<Job>,
    next_id: u64,
    /// What each slot speaks.
    said: Vec<Option<Said>>,
    /// Passages that each slot has had: what is made for one is not for the next.
    turns: Vec<u64>,
    /// Slots whose passage has made nothing yet.
    fresh: Vec<bool>,
    /// Slots that wait for text, and whose frames are all on their way.
    resting: Vec<bool>,
    live: Vec<usize>,
    made: Vec<Made>,
    /// A step that a device works on while the next one is made ready.
    flight: Option<Flight>,
    /// Lists of steps that are over, for those to come.
    spare: Vec<(Vec<usize>, Vec<u64>)>,
    /// When the last step's result was there.
    landed: Instant,
    /// Where each request is among the jobs, for the step under way.
    places: HashMap<u64, usize>,
}

/// A step that was enqueued: its slots, the passage that each had, and when that was.
struct Flight {
    live: Vec<usize>,
    turns: Vec<u64>,
    begun: Instant,
}

/// What a [`SpeakWork`] is made of.
pub(super) struct SpeakParts {
    pub speech: Arc<dyn Speech>,
    pub synth: Box<dyn Synth>,
    pub codec: Codec,
    pub requests: Receiver<NewJob>,
    pub tracer: Tracer,
    pub sample_rate: usize,
    pub slots: usize,
    pub pulse: Arc<Pulse>,
    pub faults: Faults,
}

impl From<SpeakParts> for SpeakWork {
    fn from(parts: SpeakParts) -> Self {
        let SpeakParts { speech, synth, codec, requests, tracer, sample_rate, slots, pulse, faults } = parts;
        Self {
            speech,
            synth,
            codec,
            requests,
            tracer,
            sample_rate,
            pulse,
            faults,
            slots: vec![None; slots],
            said: vec![None; slots],
            turns: vec![0; slots],
            fresh: vec![false; slots],
            resting: vec![false; slots],
            flight: None,
            spare: Vec::new(),
            landed: Instant::now(),
            jobs: VecDeque::new(),
            next_id: 0,
            live: Vec::with_capacity(slots),
            made: Vec::with_capacity(slots),
            places: HashMap::new(),
        }
    }
}

impl Work for SpeakWork {
    fn admit(&mut self, _exec: &mut Exec) {
        self.drop_cancelled();
        self.take_requests();
    }

    fn step(&mut self, exec: &mut Exec) -> bool {
        let fed = self.feed();
        let begun = self.begin(exec);
        let stepped = self.step_live(exec);
        let closed = self.close_finished();
        self.codec.flush();
        let decoded = self.codec.work(exec);
        fed || begun || stepped || closed || decoded
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.flight.is_none() && self.slots.iter().all(Option::is_none)
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.pulse.begin(Stage::Model);
        self.faults.pass(FaultPoint::Step);
        self.synth.warm(exec);
        self.pulse.warmed(Stage::Model);
        self.codec.send(Message::Warm);
        self.codec.flush();
        self.codec.work(exec);
    }

    fn failure(&self) -> Option<&'static str> {
        self.codec.is_gone().then_some("the codec thread panicked")
    }

    fn end(&mut self, reason: &str) {
        let stopped = || Err(EngineError::Stopped(reason.to_owned()));
        self.jobs.iter().for_each(|job| job.new.output.finish(stopped()));
        self.codec.fail(reason);
        self.requests.try_iter().for_each(|new| new.output.finish(stopped()));
    }
}

impl SpeakWork {
    fn take_requests(&mut self) {
        while self.jobs.len() < MAX_JOBS
            && let Ok(new) = self.requests.try_recv()
        {
            if new.output.is_cancelled() {
                continue;
            }
            let id = self.next_id;
            self.next_id += 1;
            let whole = new.request.whole_passages;
            self.codec.send(Message::Open { job: id, output: new.output.clone(), whole });
            self.jobs.push_back(Job {
                id,
                new,
                order: 0,
                number: 0,
                again: VecDeque::new(),
                live: 0,
                frames: 0,
                held: None,
                open: None,
                exhausted: false,
            });
        }
    }

    fn drop_cancelled(&mut self) {
        let mut gone = Vec::new();
        self.jobs.retain(|j| {
            let cancelled = j.new.output.is_cancelled();
            if cancelled {
                gone.push(j.id);
            }
            !cancelled
        });
        gone.into_iter().for_each(|job| self.drop_job(job));
    }

    /// Frees the slots of a request that is no more.
    fn drop_job(&mut self, job: u64) {
        for (i, slot) in self.slots.iter_mut().enumerate() {
            if slot.take_if(|j| *j == job).is_some() {
                self.said[i] = None;
                self.synth.free(i);
            }
        }
        self.codec.send(Message::Drop { job });
    }

    /// Ends a request that cannot go on, and no other.
    fn break_off(&mut self, id: u64, reason: EngineError) {
        let Some(turn) = self.jobs.iter().position(|j| j.id == id) else { return };
        let Some(job) = self.jobs.remove(turn) else { return };
        self.drop_job(id);
        job.new.output.finish(Err(reason));
    }

    /// Gives arriving text to slots that already speak. Returns whether there was any.
    fn feed(&mut self) -> bool {
        let mut fed = false;
        for job in &mut self.jobs {
            while let Some(slot) = job.open {
                let line = match next(job, &mut self.codec) {
                    Next::Nothing => break,
                    Next::Passage(Passage::More(line)) => line,
                    // Whatever else comes, the slot has all of its text.
                    Next::Passage(passage) => {
                        job.held = Some(passage);
                        Line::default()
                    }
                    Next::Over => Line::default(),
                };
                if !line.open {
                    job.open = None;
                }
                self.synth.feed(slot, line);
                fed = true;
            }
        }
        fed
    }

    /// Gives free slots to the next passages, in turn over the requests. All prompts together take a GPU no longer than
    /// a few frames of all streams, so those that wait begin as one batch; a CPU begins one between two frames.
    fn begin(&mut self, exec: &mut Exec) -> bool {
        let most = if exec.wants_batches() { self.slots.len() } else { 1 };
        let (mut prompts, mut broken) = (Vec::new(), false);
        while prompts.len() < most
            && let Some((id, prompt)) = self.next_prompt()
        {
            match lane::alone(|| self.faults.pass(FaultPoint::Stream)) {
                Ok(()) => prompts.push((id, prompt)),
                Err(e) => {
                    prompts.retain(|(other, _)| *other != id);
                    self.break_off(id, e);
                    broken = true;
                }
            }
        }
        if prompts.is_empty() {
            return broken;
        }
        let (ids, prompts): (Vec<u64>, Vec<Prompt>) = prompts.into_iter().unzip();
        self.pulse.begin(Stage::Model);
        let begun = Instant::now();
        let result = lane::alone(|| {
            self.faults.pass(FaultPoint::Begin);
            self.synth.begin(exec, &prompts)
        });
        if let Err(e) = result.and_then(|begun| begun.map_err(EngineError::from)) {
            let reason = e.to_string();
            self.pulse.end(Stage::Model, begun.elapsed(), 1, std::iter::empty());
            for id in ids {
                let broken = matches!(e, EngineError::Broken);
                let error = if broken { EngineError::Broken } else { EngineError::Stopped(reason.clone()) };
                self.break_off(id, error);
            }
            return true;
        }
        self.count_begun(&ids, &prompts, begun);
        true
    }

    /// The next line that finds a slot, which is its own from now on.
    fn next_prompt(&mut self) -> Option<(u64, Prompt)> {
        let slot = self.slots.iter().position(Option::is_none)?;
        for turn in 0..self.jobs.len() {
            let job = &mut self.jobs[turn];
            let max_frames = job.new.request.max_frames;
            // The first frame of a request is not kept waiting by its later passages.
            let wide = job.frames > 0 && max_frames.is_none();
            let room = if wide { job.new.request.lockstep } else { 1 };
            if job.open.is_some() || job.live >= room || job.new.output.is_full() {
                continue;
            }
            let Some(said) = next_said(job, &mut self.codec, self.sample_rate) else { continue };
            let (id, voice) = (job.id, job.new.voice.clone());
            self.codec.send(Message::Begin { slot, job: id, order: said.order, voice: voice.clone() });
            let prompt = Prompt {
                slot,
                voice,
                request: job.new.request.clone(),
                number: said.number,
                limit: max_frames.map(|n| n - job.frames),
                line: said.line.clone(),
            };
            self.said[slot] = Some(said);
            self.slots[slot] = Some(id);
            self.turns[slot] += 1;
            self.fresh[slot] = true;
            job.open = prompt.line.open.then_some(slot);
            job.live += 1;
            self.jobs.rotate_left(1);
            return Some((id, prompt));
        }
        None
    }

    fn count_begun(&mut self, ids: &[u64], prompts: &[Prompt], begun: Instant) {
        let took = begun.elapsed();
        self.tracer.event("prefill", begun, took, prompts.iter().map(|p| p.line.tokens.len()).sum());
        self.pulse.end(Stage::Model, took, prompts.len(), prompts.iter().map(|p| p.slot));
        let share = took / prompts.len() as u32;
        for (id, prompt) in ids.iter().zip(prompts) {
            let Some(job) = self.jobs.iter().find(|j| j.id == *id) else { continue };
            let (from, end) = (job.new.output.since(begun), job.new.output.since(begun + took));
            job.new.output.record(|s| {
                if s.passages == 0 {
                    s.queue = from;
                }
                s.prefill_span.add(end, took, share);
                s.prefill += share;
                if self.said[prompt.slot].as_ref().is_some_and(Said::is_new) {
                    s.passages += 1;
                    s.tokens += prompt.line.tokens.len();
                }
            });
        }
    }

    /// One step of every live slot, and what a step has made: of this one, or of the one before where a device works on
    /// both. Returns whether there was anything.
    fn step_live(&mut self, exec: &mut Exec) -> bool {
        self.find_live();
        let ahead = self.synth.runs_ahead(exec);
        let before = self.flight.take();
        if !self.live.is_empty() {
            if before.is_none() {
                self.pulse.begin(Stage::Model);
            }
            self.faults.pass(FaultPoint::Step);
            let begun = Instant::now();
            self.synth.step(exec, &self.live);
            let (mut live, mut turns) = self.spare.pop().unwrap_or_default();
            live.clone_from(&self.live);
            turns.clear();
            turns.extend(self.live.iter().map(|&i| self.turns[i]));
            self.flight = Some(Flight { live, turns, begun });
        }
        let stepped = before.is_some() || self.flight.is_some();
        if let Some(flight) = before {
            self.land(exec, flight);
        }
        // The first audio of a passage does not wait until a device that is full has room for the codec.
        let first = exec.fills_device(self.live.len()) && self.live.iter().any(|&i| self.fresh[i]);
        if (first || !ahead)
            && let Some(flight) = self.flight.take()
        {
            self.land(exec, flight);
            if first {
                self.codec.settle();
            }
        }
        self.rest();
        stepped
    }

    /// Tells the codec of slots that wait for text: what they have said so far is heard before more comes.
    fn rest(&mut self) {
        let under_way = self.flight.as_ref().map_or(&[][..], |f| &f.live);
        for (i, resting) in self.resting.iter_mut().enumerate() {
            let rests = self.slots[i].is_some() && self.synth.wants_text(i) && !under_way.contains(&i);
            if rests && !*resting {
                self.codec.send(Message::Rest { slot: i });
            }
            *resting = rests;
        }
    }

    /// Slots that are to be stepped.
    fn find_live(&mut self) {
        let Self { slots, jobs, live, places, .. } = self;
        live.clear();
        places.clear();
        places.extend(jobs.iter().enumerate().map(|(i, j)| (j.id, i)));
        for (i, slot) in slots.iter().enumerate() {
            let Some(job) = slot else { continue };
            // Passages end soon, so those of a slow reader go on: they hold no slot for long, and only the next
            // one waits. A request with a frame limit of its own may go on for hours, and pauses.
            let may_go_on = |j: &Job| j.new.request.max_frames.is_none() || !j.new.output.is_full();
            if places.get(job).is_some_and(|&j| may_go_on(&jobs[j])) && !self.synth.wants_text(i) {
                live.push(i);
            }
        }
    }

    /// Waits for what a step has made, and passes it on.
    fn land(&mut self, exec: &mut Exec, flight: Flight) {
        self.made.clear();
        let times = self.synth.fetch(exec, &flight.live, &mut self.made);
        if let Err(e) = exec.status() {
            tracing::error!("the device has failed, and its requests end: {e}");
            return;
        }
        // Where a device had the step before it to do first, this one began when that was done.
        let now = Instant::now();
        let begun = flight.begun.max(self.landed);
        self.landed = now;
        let mut at = begun;
        for (name, time) in &times {
            self.tracer.event(name, at, *time, flight.live.len());
            at += *time;
        }
        self.pulse.end(Stage::Model, now - begun, flight.live.len(), flight.live.iter().copied());
        if self.flight.is_some() {
            self.pulse.begin(Stage::Model);
        }
        self.deliver(&flight, &times);
        self.spare.push((flight.live, flight.turns));
    }

    /// Passes on what a step has made. A passage that has ended since is not there any more.
    fn deliver(&mut self, flight: &Flight, times: &StepTimes) {
        let now = Instant::now();
        let n = flight.live.len() as u32;
        let total: std::time::Duration = times.iter().map(|(_, time)| *time).sum();
        for ((&i, &turn), made) in flight.live.iter().zip(&flight.turns).zip(self.made.drain(..)) {
            let Some(id) = self.slots[i].filter(|_| self.turns[i] == turn) else { continue };
            self.fresh[i] = false;
            let job = &mut self.jobs[self.places[&id]];
            if let Some(frame) = made.frame {
                self.codec.send(Message::Frame { slot: i, frame, words: made.words });
                job.frames += 1;
                self.said[i].iter_mut().for_each(|said| said.frames += 1);
            }
            let end = job.new.output.since(now);
            job.new.output.record(|st| {
                st.synth_span.add(end, total, total / n);
                times.iter().for_each(|(name, time)| st.add(name, *time / n));
                st.frames = job.frames;
            });
            let Some(reason) = made.end else { continue };
            let said = self.said[i].take();
            over(job, i, said, reason, &*self.speech, &mut self.codec);
            self.synth.free(i);
            self.slots[i] = None;
            job.live -= 1;
            job.open.take_if(|slot| *slot == i);
            if job.new.request.max_frames.is_some_and(|n| job.frames >= n) {
                job.exhausted = true;
            }
            if reason == PassageEnd::NoMemory {
                job.exhausted = true;
                job.again.clear();
                self.codec.send(Message::Close { job: id, result: Err(EngineError::PassageTooLong) });
            }
        }
    }

    /// Closes requests with nothing left to say. Returns whether there was any.
    fn close_finished(&mut self) -> bool {
        let mut closed = Vec::new();
        self.jobs.retain(|j| {
            let over = j.exhausted && j.live == 0 && j.again.is_empty();
            if over {
                closed.push(j.id);
            }
            !over
        });
        let any = !closed.is_empty();
        for job in closed {
            self.codec.send(Message::Close { job, result: Ok(()) });
        }
        any
    }
}

/// What comes next of a request's text. A text that turned out to be no good ends the request.
fn next(job: &mut Job, codec: &mut Codec) -> Next {
    if let Some(passage) = job.held.take() {
        return Next::Passage(passage);
    }
    match job.new.pieces.try_recv() {
        Ok(Ok(passage)) => Next::Passage(passage),
        Ok(Err(e)) => {
            job.exhausted = true;
            codec.send(Message::Close { job: job.id, result: Err(e) });
            Next::Over
        }
        Err(TryRecvError::Empty) => Next::Nothing,
        Err(TryRecvError::Disconnected) => {
            job.exhausted = true;
            Next::Over
        }
    }
}

/// What a slot that is over leaves to be said: the halves of a passage that did not end, or what comes after such a half.
fn over(
    job: &mut Job,
    slot: usize,
    said: Option<Said>,
    end: PassageEnd,
    speech: &dyn Speech,
    codec: &mut Codec,
) {
    let Some(said) = said else { return codec.send(Message::End { slot, goes_on: false }) };
    let whole = job.new.request.whole_passages;
    // What a caller limits is no failure of the model.
    let may = job.new.request.max_frames.is_none();
    if may && let Some(halves) = said.again(end, speech, !whole) {
        job.new.output.record(|st| st.respoken += usize::from(said.is_new()));
        if whole {
            job.frames -= said.frames;
            codec.send(Message::Discard { slot });
        } else {
            codec.send(Message::End { slot, goes_on: true });
        }
        return job.again.push_back(halves);
    }
    job.new.output.record(|st| st.unended += usize::from(end == PassageEnd::Limit));
    codec.send(Message::End { slot, goes_on: said.goes_on() });
    job.again.extend(said.next());
}

/// What a request says next: what is to be said again, else the next line of its text. Pauses on the way go straight to
/// the codec.
fn next_said(job: &mut Job, codec: &mut Codec, sample_rate: usize) -> Option<Said> {
    if let Some(again) = job.again.pop_front() {
        return Some(again);
    }
    while !job.exhausted {
        match next(job, codec) {
            // A passage that ended before all of its text had come goes on in a slot of its own.
            Next::Passage(Passage::New(line) | Passage::More(line)) => {
                let said = Said::new(line, job.order, job.number);
                job.order += 1;
                job.number += 1;
                return Some(said);
            }
            Next::Passage(Passage::Pause(d)) => {
                let samples = (d.as_secs_f64() * sample_rate as f64).round() as usize;
                let order = Order { passage: job.order, piece: 0 };
                codec.send(Message::Silence { job: job.id, order, samples });
                job.order += 1;
            }
            Next::Nothing | Next::Over => return None,
        }
    }
    None
}
