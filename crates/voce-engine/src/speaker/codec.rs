//! The codec stage: latents in, audio out in the order of the text.
//!
//! It runs beside the language model on a thread of its own, or in line with it. The first frame of a
//! chunk is decoded at once; later ones in growing groups, which read the codec's weights once a group.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use voce_models::mimi::{MimiDecoder, MimiDecoderState};
use voce_runtime::{Exec, Span};

use super::stream::Output;
use super::trace::Tracer;
use crate::EngineError;
use crate::fault::{FaultPoint, Faults};
use crate::pulse::{Pulse, Stage};

/// Frames of one slot decoded together once it is ahead of playback.
pub(super) const GROUP: usize = 4;
/// Streams of a device from which every frame is decoded as it comes: they fill it without groups, and a step of as
/// many streams as the one before is the same work over again.
const CROWD: usize = 64;

/// What the language model tells the codec.
pub(super) enum Message {
    /// A request begins.
    Open { job: u64, output: Arc<Output> },
    /// A slot begins part `order` of a request.
    Begin { slot: usize, job: u64, order: usize },
    /// A frame of a slot.
    Frame { slot: usize, latent: Vec<f32> },
    /// A slot's part is complete.
    End { slot: usize },
    /// Part `order` of a request is silence.
    Silence { job: u64, order: usize, samples: usize },
    /// Nothing more of a request is to come.
    Close { job: u64, result: Result<(), EngineError> },
    /// A request is over at once; what its slots hold is thrown away.
    Drop { job: u64 },
    /// Nothing is under way: a step that nobody hears keeps the codec warm.
    Warm,
}

struct Slot {
    job: u64,
    order: usize,
    latents: VecDeque<Vec<f32>>,
    decoded: usize,
    ended: bool,
}

/// Audio of a slot that is to go to its reader.
struct Decoded {
    slot: usize,
    job: u64,
    order: usize,
    samples: Vec<f32>,
}

struct Job {
    output: Arc<Output>,
    /// The part that goes to the reader now.
    current: usize,
    /// Later parts: their audio so far, and whether they are complete.
    parts: BTreeMap<usize, (Vec<f32>, bool)>,
    closed: Option<Result<(), EngineError>>,
}

/// Decodes and delivers.
pub(super) struct CodecStage {
    decoder: Arc<MimiDecoder>,
    state: MimiDecoderState,
    slots: Vec<Option<Slot>>,
    jobs: BTreeMap<u64, Job>,
    spans: Vec<Span>,
    input: Vec<f32>,
    /// What a device has decoded last: handed over while it decodes the next frames.
    held: Vec<Decoded>,
    tracer: Tracer,
    pulse: Arc<Pulse>,
    faults: Faults,
    /// A step to keep warm is due.
    warm: bool,
}

impl CodecStage {
    pub(super) fn new(
        decoder: Arc<MimiDecoder>,
        slots: usize,
        tracer: Tracer,
        pulse: Arc<Pulse>,
        faults: Faults,
    ) -> Self {
        let state = decoder.state_for(slots, slots.max(GROUP), GROUP);
        Self {
            state,
            slots: (0..slots).map(|_| None).collect(),
            jobs: BTreeMap::new(),
            spans: Vec::with_capacity(slots),
            input: Vec::new(),
            held: Vec::new(),
            decoder,
            tracer,
            pulse,
            faults,
            warm: false,
        }
    }

    pub(super) fn handle(&mut self, message: Message) {
        // Whatever else comes may end a part, and its audio goes before that.
        if !matches!(message, Message::Frame { .. }) {
            self.hand_over();
        }
        match message {
            Message::Open { job, output } => {
                self.jobs.insert(job, Job { output, current: 0, parts: BTreeMap::new(), closed: None });
            }
            Message::Begin { slot, job, order } => {
                self.state.reset(slot);
                self.slots[slot] =
                    Some(Slot { job, order, latents: VecDeque::new(), decoded: 0, ended: false });
            }
            Message::Frame { slot, latent } => {
                if let Some(s) = &mut self.slots[slot] {
                    s.latents.push_back(latent);
                }
            }
            Message::End { slot } => {
                if let Some(s) = &mut self.slots[slot] {
                    s.ended = true;
                }
                self.retire(slot);
            }
            Message::Silence { job, order, samples } => {
                self.deliver(job, order, vec![0.0; samples], true);
            }
            Message::Close { job, result } => {
                if let Some(j) = self.jobs.get_mut(&job) {
                    // A failure comes before the ordinary end, and counts.
                    j.closed.get_or_insert(result);
                }
                self.finish(job);
            }
            Message::Drop { job } => {
                for slot in &mut self.slots {
                    if slot.as_ref().is_some_and(|s| s.job == job) {
                        *slot = None;
                    }
                }
                self.jobs.remove(&job);
            }
            Message::Warm => self.warm = true,
        }
    }

    /// Whether a slot still has frames of an earlier chunk.
    pub(super) fn is_busy(&mut self, slot: usize) -> bool {
        self.hand_over();
        self.slots[slot].is_some()
    }

    /// Decodes every slot that is due. Returns whether anything was. On a device the last audio is held until
    /// [`CodecStage::hand_over`].
    pub(super) fn work(&mut self, exec: &mut Exec) -> bool {
        let mut worked = false;
        while self.round(exec) {
            worked = true;
        }
        worked
    }

    fn round(&mut self, exec: &mut Exec) -> bool {
        self.spans.clear();
        self.input.clear();
        let mut room = self.state.max_frames();
        let crowd = exec.device().is_some() && self.slots.iter().flatten().count() >= CROWD;
        let group = if crowd { 1 } else { GROUP };
        for (i, slot) in self.slots.iter_mut().enumerate() {
            let Some(s) = slot else { continue };
            // One frame, then one, then two, ... : the reader is by then ahead of what is held back.
            let due = s.decoded.clamp(1, group);
            if s.latents.is_empty() || (!s.ended && s.latents.len() < due) || room == 0 {
                continue;
            }
            let n = s.latents.len().min(group).min(room);
            room -= n;
            s.latents.drain(..n).for_each(|l| self.input.extend_from_slice(&l));
            self.spans.push(Span { slot: i, rows: n });
        }
        if self.spans.is_empty() {
            if std::mem::take(&mut self.warm) && self.slots.iter().all(Option::is_none) {
                self.warm_step(exec);
            }
            return false;
        }
        self.pulse.begin(Stage::Codec);
        self.faults.pass(FaultPoint::Codec);
        let begun = Instant::now();
        self.decoder.begin_decode(exec, &mut self.state, &self.spans, &self.input);
        self.hand_over();
        let audio = self.decoder.finish_decode(exec, &mut self.state);
        if exec.status().is_err() {
            return false;
        }
        let took = begun.elapsed();
        let frames: usize = self.spans.iter().map(|s| s.rows).sum();
        self.tracer.event("codec", begun, took, frames);
        self.pulse.end(Stage::Codec, took, frames, self.spans.iter().map(|s| s.slot));
        let now = Instant::now();
        let (frame, fade) = (self.decoder.frame_size(), self.decoder.sample_rate() / 200);
        let mut at = 0;
        for span in &self.spans {
            let mut samples = audio[at..at + span.rows * frame].to_vec();
            at += samples.len();
            let Some(s) = &mut self.slots[span.slot] else { continue };
            if s.decoded == 0 {
                fade_in(&mut samples, fade);
            }
            s.decoded += span.rows;
            if let Some(job) = self.jobs.get(&s.job) {
                let share = took.mul_f64(span.rows as f64 / frames as f64);
                let end = job.output.since(now);
                job.output.record(|st| {
                    st.codec += share;
                    st.codec_span.add(end, took, share);
                });
            }
            self.held.push(Decoded { slot: span.slot, job: s.job, order: s.order, samples });
        }
        if exec.device().is_none() {
            self.hand_over();
        }
        true
    }

    /// Gives readers the audio that was held.
    pub(super) fn hand_over(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        for Decoded { slot, job, order, samples } in held.drain(..) {
            self.deliver(job, order, samples, false);
            self.retire(slot);
        }
        self.held = held;
    }

    /// A frame that nobody hears. The slot it uses starts anew with its next chunk.
    fn warm_step(&mut self, exec: &mut Exec) {
        self.pulse.begin(Stage::Codec);
        self.input.clear();
        self.input.resize(self.decoder.latent_dim(), 0.0);
        self.state.reset(0);
        self.decoder.decode(exec, &mut self.state, &[Span { slot: 0, rows: 1 }], &self.input);
        self.pulse.warmed(Stage::Codec);
    }

    /// Completes a slot's part once all its frames are decoded.
    fn retire(&mut self, slot: usize) {
        if let Some(s) = &self.slots[slot]
            && s.ended
            && s.latents.is_empty()
        {
            let (job, order) = (s.job, s.order);
            self.slots[slot] = None;
            self.deliver(job, order, Vec::new(), true);
        }
    }

    /// Hands audio of a part to the reader, or keeps it until the parts before are complete.
    fn deliver(&mut self, job: u64, order: usize, samples: Vec<f32>, complete: bool) {
        let Some(j) = self.jobs.get_mut(&job) else { return };
        if order == j.current {
            j.output.push(samples);
            if complete {
                j.current += 1;
                while let Some((samples, complete)) = j.parts.remove(&j.current) {
                    j.output.push(samples);
                    if !complete {
                        break;
                    }
                    j.current += 1;
                }
            }
        } else {
            let part = j.parts.entry(order).or_default();
            part.0.extend_from_slice(&samples);
            part.1 |= complete;
        }
        self.finish(job);
    }

    /// Ends the stream of a closed request whose parts have all been delivered.
    fn finish(&mut self, job: u64) {
        if let Some(j) = self.jobs.get_mut(&job)
            && j.closed.is_some()
            && j.parts.is_empty()
            && !self.slots.iter().flatten().any(|s| s.job == job)
            && let Some(result) = j.closed.take()
        {
            j.output.finish(result);
            self.jobs.remove(&job);
        }
    }

    /// Ends every stream with an error.
    pub(super) fn fail(&mut self, reason: &str) {
        for j in self.jobs.values() {
            j.output.finish(Err(EngineError::Stopped(reason.to_owned())));
        }
        self.jobs.clear();
    }
}

/// A fresh decoder starts with a small step: the first 5 ms rise from 0 to 1, both ends included.
fn fade_in(samples: &mut [f32], n: usize) {
    let last = n.saturating_sub(1).max(1) as f32;
    for (i, s) in samples.iter_mut().take(n).enumerate() {
        *s *= i as f32 / last;
    }
}
