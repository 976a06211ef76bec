//! The model thread: it owns the language model's slots, admits chunks of text and steps what is live.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError};
use std::time::{Duration, Instant};

use voce_models::pocket::{FlowLm, FlowLmState, MIN_FRAMES_BEFORE_EOS, Voice, max_frames};
use voce_nn::Watch;
use voce_runtime::Exec;

use super::codec::{CodecStage, Message};
use super::noise::Noise;
use super::pieces::Piece;
use super::stream::Output;
use super::trace::Tracer;
use crate::EngineError;
use crate::fault::{FaultPoint, Faults};
use crate::pulse::{Life, Pulse, Stage};
use crate::wake::Waker;

/// Positions of a cache are a multiple of this, so that it seldom has to grow.
const POSITION_STEP: usize = 128;

/// Requests under way at most; more wait in the channel, and are refused once that is full.
const MAX_JOBS: usize = 1024;

/// A request as the model thread takes it.
pub(super) struct NewJob {
    pub pieces: Receiver<Piece>,
    pub output: Arc<Output>,
    pub voice: Arc<Voice>,
    pub temperature: f32,
    pub noise_clamp: Option<f32>,
    pub seed: u64,
    pub steps: usize,
    pub eos_threshold: f32,
    pub max_frames: Option<usize>,
    pub lockstep: usize,
}

struct Job {
    id: u64,
    new: NewJob,
    /// The next part's place in the order, and the next chunk's number.
    order: usize,
    chunk: u64,
    live: usize,
    frames: usize,
    exhausted: bool,
}

struct Slot {
    job: u64,
    noise: Noise,
    /// Noise of the next frame, if it was drawn while a device made the last one.
    drawn: Vec<f32>,
    std: f32,
    made: usize,
    limit: usize,
    eos_step: Option<usize>,
    frames_after_eos: usize,
}

/// A chunk of text that has its slot.
struct Prompt {
    job: u64,
    slot: usize,
    voice: Arc<Voice>,
    tokens: Vec<u32>,
}

/// Where latents go.
pub(super) enum Codec {
    /// To a thread of their own, what a step has made together: frames that are made together are decoded so.
    Beside { sender: SyncSender<Vec<Message>>, held: Vec<Message> },
    /// Through the same executor.
    InLine(Box<CodecStage>),
    /// Nowhere: the codec's thread has ended.
    Gone,
}

impl Codec {
    /// Passes a message on, or keeps it for [`Codec::flush`].
    fn send(&mut self, message: Message) {
        match self {
            Codec::Beside { held, .. } => held.push(message),
            Codec::InLine(stage) => stage.handle(message),
            Codec::Gone => {}
        }
    }

    /// Passes on what was kept.
    fn flush(&mut self) {
        if let Codec::Beside { sender, held } = self
            && !held.is_empty()
            && sender.send(std::mem::take(held)).is_err()
        {
            *self = Codec::Gone;
        }
    }
}

/// The state of the model thread.
pub(super) struct ModelThread {
    pub lm: Arc<FlowLm>,
    pub exec: Exec,
    pub codec: Codec,
    pub requests: Receiver<NewJob>,
    pub waker: Arc<Waker>,
    pub stop: Arc<AtomicBool>,
    pub tracer: Tracer,
    pub frame_rate: f64,
    pub sample_rate: usize,
    pub slots: usize,
    pub pulse: Arc<Pulse>,
    pub keep_warm: Option<Duration>,
    pub faults: Faults,
}

struct Running {
    state: Option<FlowLmState>,
    slots: Vec<Option<Slot>>,
    jobs: VecDeque<Job>,
    next_id: u64,
    live: Vec<usize>,
    noise: Vec<f32>,
    /// Where each request is among the jobs, for the step under way.
    places: HashMap<u64, usize>,
}

impl ModelThread {
    /// Runs until told to stop; every stream is ended on the way out.
    pub(super) fn run(mut self) {
        let life = Life(self.pulse.clone());
        let mut r = Running {
            state: None,
            slots: (0..self.slots).map(|_| None).collect(),
            jobs: VecDeque::new(),
            next_id: 0,
            live: Vec::with_capacity(self.slots),
            noise: Vec::new(),
            places: HashMap::new(),
        };
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run_until_stopped(&mut r)));
        // Whoever learns of the end by a stream finds the model dead.
        drop(life);
        let reason = match (&result, self.exec.status(), &self.codec) {
            (Err(_), ..) => "the model thread panicked".to_owned(),
            (Ok(()), Err(e), _) => e.to_string(),
            (Ok(()), Ok(()), Codec::Gone) => "the codec thread panicked".to_owned(),
            (Ok(()), Ok(()), _) => "it was closed".to_owned(),
        };
        for job in &r.jobs {
            job.new.output.finish(Err(EngineError::Stopped(reason.clone())));
        }
        if let Codec::InLine(stage) = &mut self.codec {
            stage.fail(&reason);
        }
        while let Ok(new) = self.requests.try_recv() {
            new.output.finish(Err(EngineError::Stopped(reason.clone())));
        }
    }

    fn run_until_stopped(&mut self, r: &mut Running) {
        // A device that has failed does not come back: nothing of it may be taken for speech.
        while !self.stop.load(Ordering::Relaxed)
            && !matches!(self.codec, Codec::Gone)
            && self.exec.status().is_ok()
        {
            self.drop_cancelled(r);
            self.take_requests(r);
            let admitted = self.admit(r);
            let stepped = self.step(r);
            let closed = self.close_finished(r);
            self.codec.flush();
            let decoded = match &mut self.codec {
                Codec::InLine(stage) => {
                    let decoded = stage.work(&mut self.exec);
                    stage.hand_over();
                    decoded
                }
                Codec::Beside { .. } | Codec::Gone => false,
            };
            if !(admitted || stepped || closed || decoded) {
                self.rest(r);
            }
        }
    }

    /// Waits for work. A model without requests is stepped now and then to keep it warm, if that was asked for.
    fn rest(&mut self, r: &mut Running) {
        let idle = r.jobs.is_empty() && r.slots.iter().all(Option::is_none);
        let woken = self.waker.wait(self.keep_warm.filter(|_| idle));
        if !woken && idle {
            self.warm_step(r);
        }
    }

    /// A frame that nobody hears. The slot it uses starts anew with its next chunk.
    fn warm_step(&mut self, r: &mut Running) {
        self.pulse.begin(Stage::Model);
        self.faults.pass(FaultPoint::Step);
        self.make_room(&mut r.state, 1);
        let Some(state) = &mut r.state else { return };
        self.lm.start(&mut self.exec, state, 0, &Voice::empty(&self.lm));
        r.noise.clear();
        r.noise.resize(self.lm.latent_dim(), 0.0);
        self.lm.step(&mut self.exec, state, &[0], &r.noise, 1);
        self.pulse.warmed(Stage::Model);
        self.codec.send(Message::Warm);
        self.codec.flush();
        if let Codec::InLine(stage) = &mut self.codec {
            stage.work(&mut self.exec);
        }
    }

    fn take_requests(&mut self, r: &mut Running) {
        while r.jobs.len() < MAX_JOBS
            && let Ok(new) = self.requests.try_recv()
        {
            if new.output.is_cancelled() {
                continue;
            }
            let id = r.next_id;
            r.next_id += 1;
            self.codec.send(Message::Open { job: id, output: new.output.clone() });
            r.jobs.push_back(Job { id, new, order: 0, chunk: 0, live: 0, frames: 0, exhausted: false });
        }
    }

    fn drop_cancelled(&mut self, r: &mut Running) {
        let mut gone = Vec::new();
        r.jobs.retain(|j| {
            let cancelled = j.new.output.is_cancelled();
            if cancelled {
                gone.push(j.id);
            }
            !cancelled
        });
        for id in gone {
            for slot in &mut r.slots {
                if slot.as_ref().is_some_and(|s| s.job == id) {
                    *slot = None;
                }
            }
            self.codec.send(Message::Drop { job: id });
        }
    }

    /// Gives free slots to the next chunks, in turn over the requests. All prompts together take a GPU no longer than
    /// a few frames of all streams, so those that wait begin as one batch; a CPU begins one between two frames.
    fn admit(&mut self, r: &mut Running) -> bool {
        let most = if self.exec.device().is_some() { self.slots } else { 1 };
        let (mut prompts, mut broken) = (Vec::new(), false);
        while prompts.len() < most
            && let Some(next) = self.next_prompt(r)
        {
            match next {
                Ok(prompt) => prompts.push(prompt),
                Err(turn) => {
                    let id = r.jobs[turn].id;
                    prompts.retain(|p: &Prompt| p.job != id);
                    self.break_off(r, turn);
                    broken = true;
                }
            }
        }
        if prompts.is_empty() {
            return broken;
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.begin(r, &prompts)));
        if result.is_err() {
            for prompt in prompts {
                if let Some(turn) = r.jobs.iter().position(|j| j.id == prompt.job) {
                    self.break_off(r, turn);
                }
            }
        }
        true
    }

    /// The next chunk that finds a slot, which is its own from now on; or the turn of a request that panicked.
    fn next_prompt(&mut self, r: &mut Running) -> Option<Result<Prompt, usize>> {
        let slot = r.slots.iter().position(Option::is_none)?;
        for turn in 0..r.jobs.len() {
            let job = &mut r.jobs[turn];
            // The first frame of a request is not kept waiting by its later chunks.
            let wide = job.frames > 0 && job.new.max_frames.is_none();
            let room = if wide { job.new.lockstep } else { 1 };
            if job.exhausted || job.live >= room || job.new.output.is_full() {
                continue;
            }
            let Some((tokens, after)) = self.next_chunk(job) else { continue };
            // What the text should take; a request with a limit of its own may grow beyond.
            let frames = max_frames(tokens.len(), self.frame_rate);
            let frames = job.new.max_frames.map_or(frames, |n| frames.min(n));
            let positions = job.new.voice.positions() + tokens.len() + frames;
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                self.faults.pass(FaultPoint::Stream);
                self.make_room(&mut r.state, positions);
            }));
            if result.is_err() {
                return Some(Err(turn));
            }
            let job = &mut r.jobs[turn];
            let prompt = Prompt { job: job.id, slot, voice: job.new.voice.clone(), tokens };
            self.codec.send(Message::Begin { slot, job: job.id, order: job.order });
            r.slots[slot] = Some(Slot {
                job: job.id,
                noise: Noise::new(job.new.seed, job.chunk),
                drawn: Vec::new(),
                std: job.new.temperature.sqrt(),
                made: 0,
                limit: match job.new.max_frames {
                    Some(n) => n - job.frames,
                    None => frames,
                },
                eos_step: None,
                frames_after_eos: after,
            });
            job.order += 1;
            job.chunk += 1;
            job.live += 1;
            r.jobs.rotate_left(1);
            return Some(Ok(prompt));
        }
        None
    }

    /// Ends a request that panicked, and no other.
    fn break_off(&mut self, r: &mut Running, turn: usize) {
        let Some(job) = r.jobs.remove(turn) else { return };
        tracing::error!("a panic in one request: it was ended, the others go on");
        for slot in &mut r.slots {
            slot.take_if(|s| s.job == job.id);
        }
        self.codec.send(Message::Drop { job: job.id });
        job.new.output.finish(Err(EngineError::Broken));
    }

    /// The next chunk of a request's text; pauses on the way go straight to the codec.
    fn next_chunk(&mut self, job: &mut Job) -> Option<(Vec<u32>, usize)> {
        loop {
            match job.new.pieces.try_recv() {
                Ok(Piece::Chunk { tokens, frames_after_eos }) => return Some((tokens, frames_after_eos)),
                Ok(Piece::Pause(d)) => {
                    let samples = (d.as_secs_f64() * self.sample_rate as f64).round() as usize;
                    self.codec.send(Message::Silence { job: job.id, order: job.order, samples });
                    job.order += 1;
                }
                Ok(Piece::Failed(e)) => {
                    job.exhausted = true;
                    self.codec.send(Message::Close { job: job.id, result: Err(e) });
                    return None;
                }
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => {
                    job.exhausted = true;
                    return None;
                }
            }
        }
    }

    /// Makes the cache hold streams of this many positions.
    fn make_room(&mut self, state: &mut Option<FlowLmState>, positions: usize) {
        let positions = positions.next_multiple_of(POSITION_STEP);
        match state {
            Some(state) if state.capacity() >= positions => {}
            Some(state) => self.lm.grow(&mut self.exec, state, positions),
            None => *state = Some(self.lm.state(self.slots, positions)),
        }
    }

    /// Voices and texts into slots.
    fn begin(&mut self, r: &mut Running, prompts: &[Prompt]) {
        let state = r.state.as_mut().expect("made by make_room");
        self.pulse.begin(Stage::Model);
        let begun = Instant::now();
        let voices: Vec<_> = prompts.iter().map(|p| (p.slot, &*p.voice)).collect();
        self.lm.start_all(&mut self.exec, state, &voices);
        let texts: Vec<_> = prompts.iter().map(|p| (p.slot, &p.tokens[..])).collect();
        self.lm.prefill_texts(&mut self.exec, state, &texts);
        let took = begun.elapsed();
        self.tracer.event("prefill", begun, took, texts.iter().map(|(_, t)| t.len()).sum());
        self.pulse.end(Stage::Model, took, prompts.len(), prompts.iter().map(|p| p.slot));
        let share = took / prompts.len() as u32;
        for prompt in prompts {
            let Some(job) = r.jobs.iter().find(|j| j.id == prompt.job) else { continue };
            let (from, end) = (job.new.output.since(begun), job.new.output.since(begun + took));
            job.new.output.record(|s| {
                if s.chunks == 0 {
                    s.queue = from;
                }
                s.prefill_span.add(end, took, share);
                s.prefill += share;
                s.chunks += 1;
                s.tokens += prompt.tokens.len();
            });
        }
    }

    /// One frame for every live slot. Returns whether there was any.
    fn step(&mut self, r: &mut Running) -> bool {
        let mut steps: Vec<usize> = r.jobs.iter().filter(|j| j.live > 0).map(|j| j.new.steps).collect();
        steps.sort_unstable();
        steps.dedup();
        let mut any = false;
        for steps in steps {
            any |= self.step_group(r, steps);
        }
        any
    }

    fn step_group(&mut self, r: &mut Running, steps: usize) -> bool {
        let Running { state, slots, jobs, live, noise, places, .. } = r;
        live.clear();
        places.clear();
        places.extend(jobs.iter().enumerate().map(|(i, j)| (j.id, i)));
        for (i, slot) in slots.iter().enumerate() {
            let Some(s) = slot else { continue };
            // Chunks end soon, so those of a slow reader go on: they hold no slot for long, and only the next
            // one waits. A request with a frame limit of its own may go on for hours, and pauses.
            let may_go_on = |j: &Job| j.new.max_frames.is_none() || !j.new.output.is_full();
            if places.get(&s.job).is_some_and(|&j| jobs[j].new.steps == steps && may_go_on(&jobs[j])) {
                live.push(i);
            }
        }
        if let Some(longest) = state.as_ref().and_then(|s| live.iter().map(|&i| s.position(i)).max()) {
            let capacity = state.as_ref().map_or(0, FlowLmState::capacity);
            if longest >= capacity {
                self.make_room(state, capacity + capacity / 2);
            }
        }
        let Some(state) = state.as_mut().filter(|_| !live.is_empty()) else { return false };
        let latent = self.lm.latent_dim();
        noise.resize(live.len() * latent, 0.0);
        for (&i, out) in live.iter().zip(noise.chunks_exact_mut(latent)) {
            let s = slots[i].as_mut().expect("live");
            if s.drawn.is_empty() {
                let clamp = places.get(&s.job).and_then(|&j| jobs[j].new.noise_clamp);
                s.noise.fill(s.std, clamp, out);
            } else {
                out.copy_from_slice(&s.drawn);
                s.drawn.clear();
            }
        }
        self.pulse.begin(Stage::Model);
        self.faults.pass(FaultPoint::Step);
        let begun = Instant::now();
        let mut through_backbone = begun;
        // A look at the rows of a device would stop it.
        let mut watch = |_: usize, _: &[f32]| through_backbone = Instant::now();
        let watch: Watch<'_> = if self.exec.device().is_none() { Some(&mut watch) } else { None };
        self.lm.begin_step(&mut self.exec, state, live, noise, steps, watch);
        if self.exec.device().is_some() {
            for &i in live.iter() {
                let s = slots[i].as_mut().expect("live");
                let clamp = places.get(&s.job).and_then(|&j| jobs[j].new.noise_clamp);
                s.drawn.resize(latent, 0.0);
                s.noise.fill(s.std, clamp, &mut s.drawn);
            }
        }
        let out = self.lm.finish_step(&mut self.exec, state, live.len());
        if let Err(e) = self.exec.status() {
            tracing::error!("the device has failed, and its requests end: {e}");
            return true;
        }
        let (backbone, head) = (through_backbone - begun, through_backbone.elapsed());
        self.tracer.event("backbone", begun, backbone, live.len());
        self.tracer.event("head", through_backbone, head, live.len());
        self.pulse.end(Stage::Model, backbone + head, live.len(), live.iter().copied());
        let now = Instant::now();
        for (row, &i) in live.iter().enumerate() {
            let s = slots[i].as_mut().expect("live");
            let job = &mut jobs[places[&s.job]];
            let t = s.made;
            if out.eos.row(row)[0] > job.new.eos_threshold
                && s.eos_step.is_none()
                && t >= MIN_FRAMES_BEFORE_EOS
            {
                s.eos_step = Some(t);
            }
            let over = s.eos_step.is_some_and(|e| t >= e + s.frames_after_eos);
            if !over {
                let latent = out.latents[row * latent..(row + 1) * latent].to_vec();
                self.codec.send(Message::Frame { slot: i, latent });
                s.made += 1;
                job.frames += 1;
            }
            let n = live.len() as u32;
            let unended = !over && s.made == s.limit;
            let end = job.new.output.since(now);
            job.new.output.record(|st| {
                st.synth_span.add(end, backbone + head, (backbone + head) / n);
                st.backbone += backbone / n;
                st.head += head / n;
                st.frames = job.frames;
                st.unended += usize::from(unended);
            });
            if over || unended {
                self.codec.send(Message::End { slot: i });
                slots[i] = None;
                job.live -= 1;
                if job.new.max_frames.is_some_and(|n| job.frames >= n) {
                    job.exhausted = true;
                }
            }
        }
        true
    }

    /// Closes requests with nothing left to say. Returns whether there was any.
    fn close_finished(&mut self, r: &mut Running) -> bool {
        let mut closed = Vec::new();
        r.jobs.retain(|j| {
            let over = j.exhausted && j.live == 0;
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
