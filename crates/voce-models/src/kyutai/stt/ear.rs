//! The slots of a lane: frames of samples go in, the codec encodes those of all streams at once, and the language model
//! steps through them. On a device each has an executor of its own: the codec encodes a step while the language model is
//! still at the one before, and hands its codes over there. Codes and text stay where the executors are until everything
//! of a step was asked for.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Buffer, Exec, RuntimeError, SampleOp, SampleRow, SentTokens, Span, TokenMove, Tokens};

use super::hearing::{MOST_FRAMES, Model, Wish};
use super::ring::TokenRing;
use super::words::Words;
use crate::hearing::{
    Ear, EarRoom, Heard, HearingError, Heed, Offer, Planned, Reading, Rows, Token, Track, Verdict,
};
use crate::kyutai::{LmState, TEXT};
use crate::mimi::MimiTokenizerState;

/// A stream in a slot.
pub(super) struct Slot {
    pub wish: Wish,
    pub words: Words,
    /// Frames that were told.
    pub frames: usize,
    /// Steps of the language model that were asked for, the one before the first frame included.
    pub asked: usize,
    /// Which of all streams and parts of streams it is: a slot's next one is another.
    number: u64,
}

/// A slot's frames of a step.
#[derive(Clone, Copy, Debug)]
struct Part {
    slot: usize,
    number: u64,
    frames: usize,
    /// Steps of the language model before them.
    before: usize,
}

impl Part {
    /// Whether a step without audio comes before them.
    fn is_fresh(&self) -> bool {
        self.before == 0
    }

    /// The position of a frame: step 0 of a stream sees none.
    fn position(&self, frame: usize) -> usize {
        self.before.max(1) + frame
    }
}

/// A step between its encoding and its telling.
struct Step {
    parts: Vec<Part>,
    /// The first of two moments of the codec's executor, around its encoding.
    noted: usize,
}

impl Step {
    /// Frames of the slot that has the most.
    fn frames(&self) -> usize {
        self.parts.iter().map(|p| p.frames).max().unwrap_or(0)
    }
}

/// All slots of a lane.
pub(super) struct SttEar {
    pub model: Arc<Model>,
    pub room: EarRoom,
    pub mimi: MimiTokenizerState,
    pub lm: LmState,
    pub ring: TokenRing,
    pub slots: Vec<Option<Slot>>,
    /// The codec's executor, where a device runs it beside the lane's.
    pub codec: Option<Exec>,
    /// Streams and parts of streams so far.
    started: u64,
    samples: Vec<f32>,
    parts: Vec<Part>,
    encoded: Option<Step>,
    begun: VecDeque<Step>,
    /// Where the last step's encoding was noted.
    noted: usize,
    /// How long the codec took for the step that was told last.
    encoded_in: Option<Duration>,
    /// Text tokens of a step by slot: of the one without audio, and of each frame.
    told: Tokens,
    told_sent: SentTokens,
    /// Logits of the extra heads: rows of all slots for each frame.
    heads: Buffer,
    heads_sent: SentTokens,
    /// Those of the step that is told.
    foreseen: Vec<f32>,
}

impl SttEar {
    pub(super) fn new(model: Arc<Model>, room: EarRoom) -> Self {
        let slot_frames = room.slot_frames.clamp(1, MOST_FRAMES);
        let frames = room.frames.clamp(slot_frames, room.slots.max(1) * slot_frames);
        let room = EarRoom { slots: room.slots, slot_frames, frames };
        let outputs = model.lm.config().extra_heads_num_heads * model.lm.config().extra_heads_dim;
        Self {
            mimi: model.mimi.state(room.slots, room.frames, room.slot_frames),
            lm: model.lm.state(room.slots),
            ring: TokenRing::new(&model.lm, room.slots, slot_frames),
            slots: (0..room.slots).map(|_| None).collect(),
            codec: None,
            started: 0,
            samples: Vec::new(),
            parts: Vec::with_capacity(room.slots),
            encoded: None,
            begun: VecDeque::new(),
            noted: 0,
            encoded_in: None,
            told: Tokens::new(room.slots, 1 + room.slot_frames, u32::MAX),
            told_sent: SentTokens::default(),
            heads: Buffer::new(room.slots * room.slot_frames, outputs),
            heads_sent: SentTokens::default(),
            foreseen: Vec::new(),
            room,
            model,
        }
    }

    fn start_slot(&mut self, exec: &mut Exec, slot: usize, wish: Wish) {
        let model = &self.model;
        let config = model.lm.config();
        let padding = config.existing_text_padding_id;
        let end_padding = config.existing_text_end_padding_id;
        let words = Words::new(padding, end_padding, model.delay, model.prefix_frames());
        self.started += 1;
        self.slots[slot] = Some(Slot { wish, words, frames: 0, asked: 0, number: self.started });
        self.mimi.reset(slot);
        self.lm.decoder.cache.reset(slot);
        self.ring.start(exec, &self.model.lm, slot);
    }

    /// Does something with the codec's executor, if it has one of its own.
    pub(super) fn with_codec<T>(&mut self, work: impl FnOnce(&mut Self, Option<&mut Exec>) -> T) -> T {
        let mut codec = self.codec.take();
        let result = work(self, codec.as_mut());
        self.codec = codec;
        result
    }

    /// Notes what a step takes of slots, whose samples are there.
    fn set_parts(&mut self, of: impl Iterator<Item = (usize, usize)>) {
        self.parts.clear();
        for (slot, frames) in of {
            let (number, before) = self.slots[slot].as_ref().map_or((0, 0), |s| (s.number, s.asked));
            self.parts.push(Part { slot, number, frames, before });
        }
    }

    /// Enqueues the codec's part of a step: the codes of its frames.
    fn encode_parts(&mut self, exec: &mut Exec, codec: Option<&mut Exec>) {
        let parts = std::mem::take(&mut self.parts);
        let spans: Vec<Span> = parts.iter().map(|p| Span { slot: p.slot, rows: p.frames }).collect();
        let rows = parts.iter().flat_map(|p| (0..p.frames).map(|f| self.ring.row(p.slot, p.position(f))));
        let rows: Vec<usize> = rows.collect();
        let frames: Vec<usize> = (0..rows.len()).collect();
        // Notes of two steps are kept.
        self.noted = 2 - self.noted;
        let noted = self.noted;
        let (mimi, audio) = (&self.model.mimi, self.model.lm.audio());
        match codec {
            Some(codec) => {
                codec.note(noted);
                mimi.begin(codec, &mut self.mimi, &spans, &self.samples);
                mimi.find(codec, &mut self.mimi, &frames, &rows, &mut self.ring.tokens, audio);
                codec.note(noted + 1);
                codec.begin();
                exec.take_failure(codec);
            }
            None => {
                mimi.begin(exec, &mut self.mimi, &spans, &self.samples);
                mimi.find(exec, &mut self.mimi, &frames, &rows, &mut self.ring.tokens, audio);
                exec.begin();
            }
        }
        for p in &parts {
            if let Some(slot) = &mut self.slots[p.slot] {
                slot.asked = p.position(p.frames);
            }
        }
        self.encoded = Some(Step { parts, noted });
    }

    /// Enqueues the language model's part of the step that was encoded.
    fn begin_parts(&mut self, exec: &mut Exec, codec: Option<&mut Exec>) {
        let Some(step) = self.encoded.take() else { return };
        if let Some(codec) = codec {
            exec.follow(codec);
        }
        let fresh: Vec<Part> = step.parts.iter().filter(|p| p.is_fresh()).copied().collect();
        if !fresh.is_empty() {
            self.step_slots(exec, &fresh, None);
        }
        for frame in 0..step.frames() {
            let parts: Vec<Part> = step.parts.iter().filter(|p| p.frames > frame).copied().collect();
            self.step_slots(exec, &parts, Some(frame));
            if self.heads.cols() > 0 {
                let rows: Vec<usize> = (0..parts.len()).collect();
                let to: Vec<usize> = parts.iter().map(|p| frame * self.room.slots + p.slot).collect();
                exec.copy_rows(&self.lm.heads, &rows, &mut self.heads, &to);
            }
        }
        if self.heads.cols() > 0 {
            exec.send_rows(&self.heads, step.frames() * self.room.slots, &mut self.heads_sent);
        }
        exec.send_tokens(&self.told, &mut self.told_sent);
        self.begun.push_back(step);
    }

    /// One step of the language model, of a frame or before all of them; what is drawn is noted in a column of what was
    /// told, and stands where the step after it looks.
    fn step_slots(&mut self, exec: &mut Exec, parts: &[Part], frame: Option<usize>) {
        let model = self.model.clone();
        let at = |p: &Part| frame.map_or(0, |frame| p.position(frame));
        let live: Vec<usize> = parts.iter().map(|p| p.slot).collect();
        let from: Vec<usize> = parts.iter().map(|p| self.ring.row(p.slot, at(p))).collect();
        model.lm.step_from(exec, &mut self.lm, &live, (&self.ring.tokens, &from));
        let row = |p: &Part| {
            let sampling = self.slots[p.slot].as_ref().map(|s| s.wish.sampling).unwrap_or_default();
            SampleRow { slot: self.ring.row(p.slot, at(p) + 1), step: at(p) as u32, sampling }
        };
        let rows: Vec<SampleRow> = parts.iter().map(row).collect();
        let logits = self.lm.logits.view();
        let op = SampleOp { logits, rows: &rows, column: TEXT, history: None, next: None };
        exec.sample(op, &mut self.ring.tokens);
        // And to where the host reads those of all frames at once.
        let column = frame.map_or(0, |frame| 1 + frame);
        let moves = parts.iter().zip(&rows);
        let moves = moves.map(|(p, row)| TokenMove { from: [row.slot, TEXT], to: [p.slot, column] });
        exec.move_tokens(&self.ring.tokens, &moves.collect::<Vec<_>>(), &mut self.told);
    }

    /// Waits for the oldest step, and tells what it found.
    fn tell_parts(&mut self, exec: &mut Exec, codec: Option<&mut Exec>, heed: &mut dyn Heed) {
        let Some(step) = self.begun.pop_front() else { return };
        let (width, columns, slots) = (self.heads.cols(), self.told.cols(), self.room.slots);
        let mut told_sent = std::mem::take(&mut self.told_sent);
        let told = exec.receive_tokens(&mut told_sent);
        let mut foreseen = std::mem::take(&mut self.foreseen);
        foreseen.clear();
        if width > 0 {
            foreseen.extend(exec.receive_tokens(&mut self.heads_sent).iter().map(|w| f32::from_bits(*w)));
        }
        self.encoded_in = codec.and_then(|codec| codec.between(step.noted, step.noted + 1));
        for part in &step.parts {
            // Whoever has left, or begun anew, is told nothing.
            let is_there = |slot: &Option<Slot>| slot.as_ref().is_some_and(|s| s.number == part.number);
            if !is_there(&self.slots[part.slot]) {
                continue;
            }
            let tokens = &told[part.slot * columns..][..columns];
            if part.is_fresh() {
                self.hear(part.slot, tokens[0], None, heed);
            }
            for frame in 0..part.frames {
                let row = (frame * slots + part.slot) * width;
                self.hear(part.slot, tokens[1 + frame], Some(&foreseen[row..row + width]), heed);
            }
        }
        (self.told_sent, self.foreseen) = (told_sent, foreseen);
    }

    /// Tells a token of a slot and, where it was a frame's, the pauses that the heads foresee.
    fn hear(&mut self, slot: usize, token: u32, heads: Option<&[f32]>, heed: &mut dyn Heed) {
        let Some(stream) = &mut self.slots[slot] else { return };
        let is_audio = heads.is_some();
        stream.frames += usize::from(is_audio);
        let heard = stream.words.push(token);
        let (frames, words) = (stream.frames, stream.words.steps());
        debug_assert_eq!(frames + 1, words, "a step for each frame, and one before");
        if heed.until(slot, 1) == 0 {
            return;
        }
        heed.drew(slot, token);
        if heard.word {
            heed.word_spelled(slot);
        }
        if let Some(frame) = heard.ended {
            heed.word_ended(slot, frame);
        }
        let prefix = self.model.prefix_frames();
        if let Some(heads) = heads.filter(|heads| !heads.is_empty() && frames > prefix) {
            let values = self.model.lm.config().extra_heads_dim;
            let probabilities: Vec<f32> = heads.chunks_exact(values).map(first_of_softmax).collect();
            heed.pauses(slot, &probabilities);
        }
        let token =
            heard.frame.map(|frame| Token { id: token, frame, duration: 1, log_prob: 0.0, confidence: 1.0 });
        // Frames whose text is known by now.
        let done = is_audio && frames > self.model.delay + prefix;
        let heard = Heard { frames: usize::from(done), certain: token.as_slice(), guess: &[] };
        if heed.heard(slot, heard) == Verdict::End {
            heed.concluded(slot, Heard::default(), Vec::new());
        }
    }

    /// Runs frames of silence of slots that have a stream.
    fn silence(&mut self, exec: &mut Exec, slots: &[usize], frames: usize, heed: &mut dyn Heed) {
        let size = self.model.mimi.frame_size();
        let each = self.room.slot_frames.min(self.room.frames);
        for slots in slots.chunks((self.room.frames / each).max(1)) {
            let mut left = frames;
            while left > 0 {
                let now = left.min(each);
                self.set_parts(slots.iter().map(|&slot| (slot, now)));
                self.samples.clear();
                self.samples.resize(slots.len() * now * size, 0.0);
                self.with_codec(|this, codec| this.step_now(exec, codec, heed));
                left -= now;
            }
        }
    }

    /// A step from its samples to its telling.
    fn step_now(&mut self, exec: &mut Exec, mut codec: Option<&mut Exec>, heed: &mut dyn Heed) {
        self.encode_parts(exec, codec.as_deref_mut());
        self.begin_parts(exec, codec.as_deref_mut());
        self.tell_parts(exec, codec, heed);
    }

    /// A step of silence of some streams that nobody hears.
    fn rehearse(&mut self, exec: &mut Exec, codec: Option<&mut Exec>, streams: [usize; 2], wish: Wish) {
        let [streams, frames] = streams;
        let slots: Vec<usize> = (0..streams.clamp(1, self.room.slots)).collect();
        slots.iter().for_each(|&slot| self.start_slot(exec, slot, wish));
        self.set_parts(slots.iter().map(|&slot| (slot, frames)));
        self.samples.clear();
        self.samples.resize(slots.len() * frames * self.model.mimi.frame_size(), 0.0);
        self.step_now(exec, codec, &mut Nobody);
        slots.into_iter().for_each(|slot| self.slots[slot] = None);
    }

    /// The largest steps there can be, each twice.
    fn rehearse_all(&mut self, exec: &mut Exec, mut codec: Option<&mut Exec>) {
        let room = self.room;
        let frames = room.slot_frames.min(room.frames);
        let wish = Wish { sampling: Default::default() };
        for largest in [[room.frames / frames, frames], [room.slots.min(room.frames), 1]] {
            (0..2).for_each(|_| self.rehearse(exec, codec.as_deref_mut(), largest, wish));
        }
    }
}

/// The first probability of logits.
fn first_of_softmax(logits: &[f32]) -> f32 {
    let top = logits.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    let sum: f32 = logits.iter().map(|v| (v - top).exp()).sum();
    (logits[0] - top).exp() / sum
}

/// Somebody who does not listen.
struct Nobody;

impl Heed for Nobody {
    fn until(&self, _: usize, _: usize) -> usize {
        0
    }

    fn heard(&mut self, _: usize, _: Heard<'_>) -> Verdict {
        Verdict::GoOn
    }

    fn heard_whole(&mut self, _: usize, _: Heard<'_>) {}

    fn concluded(&mut self, _: usize, _: Heard<'_>, _: Vec<Reading>) {}

    fn word_ended(&mut self, _: usize, _: usize) {}

    fn pauses(&mut self, _: usize, _: &[f32]) {}
}

impl Ear for SttEar {
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError> {
        if exec.shares_memory() {
            return Ok(Reserved::default());
        }
        self.lm.reserve(exec)?;
        self.codec = exec.beside()?;
        self.with_codec(|this, codec| {
            let Some(codec) = codec else { return Ok(Reserved::default()) };
            let mut beside = Ok(Reserved::default());
            let own = exec.rehearse(|exec| {
                beside = codec.rehearse(|codec| this.rehearse_all(exec, Some(codec)));
            })?;
            let Reserved { given, missing, .. } = beside?;
            Ok(Reserved { given: own.given + given, missing: own.missing + missing, free: own.free })
        })
    }

    fn start(&mut self, exec: &mut Exec, slot: usize, track: &Track) -> Result<(), RuntimeError> {
        let wish: &Wish = track.family().expect("a track of this model");
        self.start_slot(exec, slot, *wish);
        Ok(())
    }

    fn free(&mut self, slot: usize) {
        self.slots[slot] = None;
    }

    fn wants(&self, _: usize) -> usize {
        1
    }

    fn plan(&self, slot: usize, offer: Offer, frames: usize) -> Option<Planned> {
        self.slots[slot].as_ref()?;
        let rows = offer.rows.min(frames.clamp(1, self.room.slot_frames));
        let closes = offer.closes && rows == offer.rows;
        (rows > 0).then_some(Planned { slot, kept: 0, rows, advance: rows, frames: rows, closes })
    }

    fn take(&mut self, _: &mut Exec, planned: &[Planned], rows: &dyn Rows) {
        let size = self.model.mimi.frame_size();
        self.set_parts(planned.iter().map(|p| (p.slot, p.rows)));
        self.samples.resize(planned.iter().map(|p| p.rows).sum::<usize>() * size, 0.0);
        let mut to = &mut self.samples[..];
        for p in planned {
            let (own, rest) = to.split_at_mut(p.rows * size);
            rows.take(p, own);
            to = rest;
        }
    }

    fn encode(&mut self, exec: &mut Exec, _: &[Planned]) {
        self.with_codec(|this, codec| this.encode_parts(exec, codec));
    }

    fn runs_ahead(&self) -> bool {
        self.codec.is_some()
    }

    fn begin(&mut self, exec: &mut Exec, _: &[Planned]) {
        self.with_codec(|this, codec| this.begin_parts(exec, codec));
    }

    fn encoded_in(&self) -> Option<Duration> {
        self.encoded_in
    }

    fn decode(&mut self, exec: &mut Exec, _: &[Planned], heed: &mut dyn Heed) {
        self.with_codec(|this, mut codec| {
            this.begin_parts(exec, codec.as_deref_mut());
            this.tell_parts(exec, codec, heed);
        });
    }

    fn flush(&mut self, exec: &mut Exec, slots: &[usize], heed: &mut dyn Heed) {
        debug_assert!(self.begun.is_empty(), "all steps are told before the end");
        // The rest of the text comes with silence after the audio; where there was none, there is no text.
        let heard = |slot: &&usize| self.slots[**slot].as_ref().is_some_and(|s| s.frames > 0);
        let late: Vec<usize> = slots.iter().filter(heard).copied().collect();
        self.silence(exec, &late, self.model.delay, heed);
        slots.iter().for_each(|&slot| heed.concluded(slot, Heard::default(), Vec::new()));
    }

    fn save(&mut self, exec: &mut Exec, slot: usize, waiting: &[f32]) -> Vec<u8> {
        debug_assert!(waiting.is_empty() && self.begun.is_empty(), "every row is stepped before a snapshot");
        self.save_slot(exec, slot)
    }

    fn restore(
        &mut self,
        exec: &mut Exec,
        slot: usize,
        track: &Track,
        saved: &[u8],
    ) -> Result<(), HearingError> {
        let wish: &Wish = track.family().expect("a track of this model");
        self.restore_slot(exec, slot, *wish, saved)
    }

    fn warm(&mut self, exec: &mut Exec, streams: usize, track: &Track) {
        let wish: &Wish = track.family().expect("a track of this model");
        let streams = [streams.min(self.room.frames), 1];
        self.with_codec(|this, codec| this.rehearse(exec, codec, streams, *wish));
    }
}
