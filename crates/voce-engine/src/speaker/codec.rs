//! The codec stage: frames in, audio out in the order of the text.
//!
//! It runs beside the language model on a thread of its own, or in line with it. The first frame of a
//! passage is decoded at once; later ones in growing groups, which read the codec's weights once a group.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use voce_models::speech::{Frame, Speech, SpokenWord, Vocoder, VocoderRoom, Voice};
use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};

use super::again::Order;
use super::stream::{AudioChunk, Output, Sound};
use crate::EngineError;
use crate::fault::{FaultPoint, Faults};
use crate::pulse::{Pulse, Stage};
use crate::trace::Tracer;

/// What traces and statistics call the stage.
const NAME: &str = "codec";
/// Streams of a device from which every frame is decoded as it comes: they fill it without groups, and a step of as
/// many streams as the one before is the same work over again.
const CROWD: usize = 64;

/// Frames that are decoded together beside a model that fills its device: the codec gets what is left of it, and a group takes
/// hardly longer than a frame. The model makes them in less time than one of them lasts.
const FILLED_GROUP: usize = 32;

/// What the language model tells the codec.
pub(super) enum Message {
    /// A request begins.
    Open { job: u64, output: Arc<Output>, whole: bool },
    /// A slot begins a part of a request.
    Begin { slot: usize, job: u64, order: Order, voice: Option<Voice> },
    /// A frame of a slot, and the words that it begins or completes.
    Frame { slot: usize, frame: Frame, words: Vec<SpokenWord> },
    /// A slot makes no frames for now: those that it has made do not wait for more.
    Rest { slot: usize },
    /// A slot's part is complete; its passage may go on in another.
    End { slot: usize, goes_on: bool },
    /// What a slot has made is thrown away: another is to begin the same part.
    Discard { slot: usize },
    /// A part of a request is silence.
    Silence { job: u64, order: Order, samples: usize },
    /// Nothing more of a request is to come.
    Close { job: u64, result: Result<(), EngineError> },
    /// A request is over at once; what its slots hold is thrown away.
    Drop { job: u64 },
    /// Nothing is under way: a step that nobody hears keeps the codec warm.
    Warm,
    /// Tell when all before this is decoded. It is for the thread that the stage runs in.
    Tell(SyncSender<()>),
}

struct Slot {
    job: u64,
    order: Order,
    voice: Option<Voice>,
    frames: VecDeque<(Frame, Vec<SpokenWord>)>,
    decoded: usize,
    /// No frame is to come, for now or for good.
    rests: bool,
    ended: bool,
    /// The passage goes on in another slot.
    goes_on: bool,
}

/// Audio of a slot that is to go to its reader.
struct Decoded {
    slot: usize,
    job: u64,
    order: Order,
    chunk: AudioChunk,
}

/// A part of a request that waits until those before it are complete.
#[derive(Default)]
struct Part {
    sounds: Vec<Sound>,
    /// It is complete, and whether its passage goes on.
    end: Option<bool>,
}

struct Job {
    output: Arc<Output>,
    /// The reader takes parts that are complete alone.
    whole: bool,
    /// The part that goes to the reader now, and the samples that were delivered before it.
    current: Order,
    before: usize,
    /// Samples delivered.
    delivered: usize,
    /// Later parts.
    parts: BTreeMap<Order, Part>,
    closed: Option<Result<(), EngineError>>,
}

impl Job {
    fn push(&mut self, mut sound: Sound, sample_rate: usize) {
        if let Sound::Audio(chunk) = &mut sound {
            let from = self.before as f64 / sample_rate as f64;
            for word in &mut chunk.words {
                word.start += from;
                word.end += from;
            }
        }
        self.delivered += sound.samples();
        self.output.push(sound);
    }

    /// The part under way is complete: the next one begins.
    fn turn(&mut self, goes_on: bool) {
        self.current = self.current.after(goes_on);
        self.before = self.delivered;
    }

    /// Passes on what has its turn of the parts that were kept.
    fn pass_on(&mut self, sample_rate: usize) {
        while let Some(part) = self.parts.remove(&self.current) {
            if self.whole && part.end.is_none() {
                self.parts.insert(self.current, part);
                return;
            }
            part.sounds.into_iter().for_each(|sound| self.push(sound, sample_rate));
            let Some(goes_on) = part.end else { return };
            self.turn(goes_on);
        }
    }
}

/// Decodes and delivers.
pub(super) struct CodecStage {
    vocoder: Box<dyn Vocoder>,
    room: VocoderRoom,
    sample_rate: usize,
    frame_size: usize,
    fade_in: usize,
    slots: Vec<Option<Slot>>,
    jobs: BTreeMap<u64, Job>,
    spans: Vec<Span>,
    frames: Vec<Frame>,
    /// Words of the frames under way, by span.
    words: Vec<Vec<SpokenWord>>,
    /// What a device has decoded last: handed over while it decodes the next frames.
    held: Vec<Decoded>,
    tracer: Tracer,
    pulse: Arc<Pulse>,
    faults: Faults,
    /// A step to keep warm is due.
    warm: bool,
}

impl CodecStage {
    /// A stage for that many slots; `filled` says that the model fills its device.
    pub(super) fn new(
        speech: &dyn Speech,
        slots: usize,
        tracer: Tracer,
        pulse: Arc<Pulse>,
        faults: Faults,
        filled: bool,
    ) -> Self {
        let info = speech.info();
        let group = if filled { FILLED_GROUP.max(info.group) } else { info.group };
        let room = VocoderRoom { slots, frames: slots.max(group), slot_frames: group };
        Self {
            vocoder: speech.vocoder(room),
            room,
            sample_rate: info.sample_rate,
            frame_size: info.frame_size,
            fade_in: info.fade_in,
            slots: (0..slots).map(|_| None).collect(),
            jobs: BTreeMap::new(),
            spans: Vec::with_capacity(slots),
            frames: Vec::new(),
            words: Vec::new(),
            held: Vec::new(),
            tracer,
            pulse,
            faults,
            warm: false,
        }
    }

    /// Takes the device memory that all slots need, and says what is missing.
    pub(super) fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        self.vocoder.reserve(exec)
    }

    pub(super) fn handle(&mut self, message: Message) {
        // Whatever else comes may end a part, and its audio goes before that.
        if !matches!(message, Message::Frame { .. } | Message::Rest { .. }) {
            self.hand_over();
        }
        match message {
            Message::Open { job, output, whole } => {
                let (current, parts) = (Order::default(), BTreeMap::new());
                let new = Job { output, whole, current, before: 0, delivered: 0, parts, closed: None };
                self.jobs.insert(job, new);
            }
            Message::Begin { slot, job, order, voice } => {
                let (frames, decoded, [rests, ended, goes_on]) = (VecDeque::new(), 0, [false; 3]);
                self.slots[slot] = Some(Slot { job, order, voice, frames, decoded, rests, ended, goes_on });
            }
            Message::Frame { slot, frame, words } => {
                if let Some(s) = &mut self.slots[slot] {
                    s.frames.push_back((frame, words));
                    s.rests = false;
                }
            }
            Message::Rest { slot } => {
                if let Some(s) = &mut self.slots[slot] {
                    s.rests = true;
                }
            }
            Message::End { slot, goes_on } => {
                if let Some(s) = &mut self.slots[slot] {
                    (s.rests, s.ended, s.goes_on) = (true, true, goes_on);
                }
                self.retire(slot);
            }
            Message::Discard { slot } => {
                if let Some(s) = self.slots[slot].take()
                    && let Some(job) = self.jobs.get_mut(&s.job)
                {
                    job.parts.remove(&s.order);
                }
            }
            Message::Silence { job, order, samples } => {
                self.deliver(job, order, Some(Sound::Silence(samples)), Some(false));
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
                    slot.take_if(|s| s.job == job);
                }
                self.jobs.remove(&job);
            }
            Message::Warm => self.warm = true,
            Message::Tell(_) => {}
        }
    }

    /// Whether a slot still has frames of an earlier passage.
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
        self.gather(exec);
        if self.spans.is_empty() {
            if std::mem::take(&mut self.warm) && self.slots.iter().all(Option::is_none) {
                self.pulse.begin(Stage::Codec);
                self.vocoder.warm(exec);
                self.pulse.warmed(Stage::Codec);
            }
            return false;
        }
        self.pulse.begin(Stage::Codec);
        self.faults.pass(FaultPoint::Codec);
        let begun = Instant::now();
        self.vocoder.step(exec, &self.spans, &self.frames);
        self.hand_over();
        let audio = self.vocoder.fetch(exec);
        if exec.status().is_err() {
            return false;
        }
        let took = begun.elapsed();
        let frames = self.frames.len();
        self.tracer.event(NAME, begun, took, frames);
        self.pulse.end(Stage::Codec, took, frames, self.spans.iter().map(|s| s.slot));
        let now = Instant::now();
        let mut at = 0;
        let mut frames_of = self.frames.drain(..);
        for (span, words) in self.spans.iter().zip(self.words.drain(..)) {
            let mut samples = audio[at..at + span.rows * self.frame_size].to_vec();
            at += samples.len();
            let codes = frames_of.by_ref().take(span.rows).filter_map(Frame::codes).collect();
            let Some(s) = &mut self.slots[span.slot] else { continue };
            if s.decoded == 0 {
                fade_in(&mut samples, self.fade_in);
            }
            s.decoded += span.rows;
            if let Some(job) = self.jobs.get(&s.job) {
                let share = took.mul_f64(span.rows as f64 / frames as f64);
                let end = job.output.since(now);
                job.output.record(|st| {
                    st.add(NAME, share);
                    st.codec_span.add(end, took, share);
                });
            }
            let chunk = AudioChunk { samples, words, codes };
            self.held.push(Decoded { slot: span.slot, job: s.job, order: s.order, chunk });
        }
        drop(frames_of);
        if exec.shares_memory() {
            self.hand_over();
        }
        true
    }

    /// Takes the frames that are due.
    fn gather(&mut self, exec: &mut Exec) {
        self.spans.clear();
        self.frames.clear();
        self.words.clear();
        let mut room = self.room.frames;
        let crowd = exec.wants_few_sizes() && self.slots.iter().flatten().count() >= CROWD;
        let group = if crowd { 1 } else { self.room.slot_frames };
        for (i, slot) in self.slots.iter_mut().enumerate() {
            let Some(s) = slot else { continue };
            // One frame, then one, then two, ... : the reader is by then ahead of what is held back.
            let due = s.decoded.clamp(1, group);
            if s.frames.is_empty() || (!s.rests && s.frames.len() < due) || room == 0 {
                continue;
            }
            if s.decoded == 0 {
                self.vocoder.start(exec, i, s.voice.as_ref());
            }
            let rows = s.frames.len().min(group).min(room);
            room -= rows;
            let mut words = Vec::new();
            for (frame, with) in s.frames.drain(..rows) {
                self.frames.push(frame);
                words.extend(with);
            }
            self.words.push(words);
            self.spans.push(Span { slot: i, rows });
        }
    }

    /// Gives readers the audio that was held.
    pub(super) fn hand_over(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        for Decoded { slot, job, order, chunk } in held.drain(..) {
            self.deliver(job, order, Some(Sound::Audio(chunk)), None);
            self.retire(slot);
        }
        self.held = held;
    }

    /// Completes a slot's part once all its frames are decoded.
    fn retire(&mut self, slot: usize) {
        if let Some(s) = &self.slots[slot]
            && s.ended
            && s.frames.is_empty()
        {
            let (job, order, goes_on) = (s.job, s.order, s.goes_on);
            self.slots[slot] = None;
            self.deliver(job, order, None, Some(goes_on));
        }
    }

    /// Hands audio of a part to the reader, or keeps it until its turn has come.
    fn deliver(&mut self, job: u64, order: Order, sound: Option<Sound>, end: Option<bool>) {
        let Some(j) = self.jobs.get_mut(&job) else { return };
        if order == j.current && !j.whole {
            sound.into_iter().for_each(|sound| j.push(sound, self.sample_rate));
            if let Some(goes_on) = end {
                j.turn(goes_on);
                j.pass_on(self.sample_rate);
            }
        } else {
            if j.whole && j.delivered == 0 && sound.is_some() {
                j.output.begin();
            }
            let part = j.parts.entry(order).or_default();
            part.sounds.extend(sound);
            part.end = end.or(part.end);
            j.pass_on(self.sample_rate);
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

/// The first `n` samples rise from 0 to 1, both ends included.
fn fade_in(samples: &mut [f32], n: usize) {
    let last = n.saturating_sub(1).max(1) as f32;
    for (i, s) in samples.iter_mut().take(n).enumerate() {
        *s *= i as f32 / last;
    }
}
