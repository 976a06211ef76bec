//! The slots of a lane: frames of samples go in, the codec encodes those of all streams at once, and the language model
//! steps through them. Codes and text stay where the executor is until everything of a step was asked for.

use std::sync::Arc;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Buffer, Exec, RuntimeError, SampleOp, SampleRow, Span, Tokens};

use super::hearing::{MOST_FRAMES, Model, Wish};
use super::words::Words;
use crate::hearing::{
    Ear, EarRoom, Heard, HearingError, Heed, Offer, Planned, Reading, Rows, Token, Track, Verdict,
};
use crate::kyutai::LmState;
use crate::mimi::MimiTokenizerState;

/// A stream in a slot.
pub(super) struct Slot {
    pub wish: Wish,
    pub words: Words,
    /// Frames that the codec has had.
    pub frames: usize,
}

impl Slot {
    /// Whether the language model has yet to see the tokens that streams start from.
    fn is_fresh(&self) -> bool {
        self.words.steps() == 0
    }
}

/// A slot's frames of a step.
#[derive(Clone, Copy, Debug)]
struct Part {
    slot: usize,
    /// Its first latent.
    first: usize,
    frames: usize,
    /// Whether a step without audio comes before them.
    fresh: bool,
}

/// All slots of a lane.
pub(super) struct SttEar {
    pub model: Arc<Model>,
    pub room: EarRoom,
    pub mimi: MimiTokenizerState,
    pub lm: LmState,
    pub slots: Vec<Option<Slot>>,
    samples: Vec<f32>,
    parts: Vec<Part>,
    /// Text tokens of a step by slot: of the one without audio, and of each frame.
    told: Tokens,
    /// Logits of the extra heads: rows of all slots for each frame.
    heads: Buffer,
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
            slots: (0..room.slots).map(|_| None).collect(),
            samples: Vec::new(),
            parts: Vec::with_capacity(room.slots),
            told: Tokens::new(room.slots, 1 + room.slot_frames, u32::MAX),
            heads: Buffer::new(room.slots * room.slot_frames, outputs),
            room,
            model,
        }
    }

    fn begin(&mut self, exec: &mut Exec, slot: usize, wish: Wish) {
        let model = &self.model;
        let config = model.lm.config();
        let padding = config.existing_text_padding_id;
        let end_padding = config.existing_text_end_padding_id;
        let words = Words::new(padding, end_padding, model.delay, model.prefix_frames());
        self.slots[slot] = Some(Slot { wish, words, frames: 0 });
        self.mimi.reset(slot);
        self.model.lm.start(exec, &mut self.lm, slot, &[]);
    }

    /// Notes what a step takes of slots, whose samples are there.
    fn set_parts(&mut self, of: impl Iterator<Item = (usize, usize)>) {
        self.parts.clear();
        let mut first = 0;
        for (slot, frames) in of {
            let fresh = self.slots[slot].as_ref().is_some_and(Slot::is_fresh);
            self.parts.push(Part { slot, first, frames, fresh });
            first += frames;
        }
    }

    /// Enqueues the codec's part of a step.
    fn encode_parts(&mut self, exec: &mut Exec) {
        let spans: Vec<Span> = self.parts.iter().map(|p| Span { slot: p.slot, rows: p.frames }).collect();
        self.model.mimi.begin(exec, &mut self.mimi, &spans, &self.samples);
        exec.begin();
    }

    /// Enqueues the language model's part of a step.
    fn step_parts(&mut self, exec: &mut Exec) {
        let fresh: Vec<Part> = self.parts.iter().filter(|p| p.fresh).copied().collect();
        if !fresh.is_empty() {
            let slots: Vec<usize> = fresh.iter().map(|p| p.slot).collect();
            self.step_slots(exec, &fresh, &slots, 0);
        }
        let most = self.parts.iter().map(|p| p.frames).max().unwrap_or(0);
        for frame in 0..most {
            let parts: Vec<Part> = self.parts.iter().filter(|p| p.frames > frame).copied().collect();
            let live: Vec<usize> = parts.iter().map(|p| p.slot).collect();
            let latents: Vec<usize> = parts.iter().map(|p| p.first + frame).collect();
            let (mimi, audio) = (&self.model.mimi, self.model.lm.audio());
            mimi.find(exec, &mut self.mimi, &latents, &live, &mut self.lm.tokens, audio);
            self.step_slots(exec, &parts, &live, 1 + frame);
            if self.heads.cols() > 0 {
                let rows: Vec<usize> = (0..live.len()).collect();
                let to: Vec<usize> = live.iter().map(|slot| frame * self.room.slots + slot).collect();
                exec.copy_rows(&self.lm.heads, &rows, &mut self.heads, &to);
            }
        }
        exec.begin();
    }

    /// One step of the language model; what is drawn is noted in a column of what was told.
    fn step_slots(&mut self, exec: &mut Exec, parts: &[Part], live: &[usize], column: usize) {
        let model = self.model.clone();
        model.lm.step(exec, &mut self.lm, live);
        let row = |part: &Part| {
            let of = self.slots[part.slot].as_ref();
            let sampling = of.map(|s| s.wish.sampling).unwrap_or_default();
            // Steps of this call that came before.
            let before = if part.fresh { column } else { column - 1 };
            let step = of.map_or(0, |s| s.words.steps()) + before;
            SampleRow { slot: part.slot, step: step as u32, sampling }
        };
        let rows: Vec<SampleRow> = parts.iter().map(row).collect();
        model.lm.draw(exec, &mut self.lm, &rows);
        // The same draw once more, to where the host reads those of all frames at once.
        let logits = self.lm.logits.view();
        let op = SampleOp { logits, rows: &rows, column, history: None, next: None };
        exec.sample(op, &mut self.told);
    }

    /// Waits for a step, and tells what it found.
    fn tell_parts(&mut self, exec: &mut Exec, heed: &mut dyn Heed) {
        exec.fetch_tokens(&mut self.told);
        let width = self.heads.cols();
        if width > 0 {
            let frames = self.parts.iter().map(|p| p.frames).max().unwrap_or(0);
            exec.fetch(&mut self.heads, frames * self.room.slots);
        }
        for i in 0..self.parts.len() {
            let part = self.parts[i];
            if part.fresh {
                self.hear(part.slot, 0, None, heed);
            }
            for frame in 0..part.frames {
                let row = (width > 0).then_some(frame * self.room.slots + part.slot);
                self.hear(part.slot, 1 + frame, row, heed);
            }
        }
    }

    /// Tells a token of a slot, and the pauses that a row of the heads foresees.
    fn hear(&mut self, slot: usize, column: usize, heads: Option<usize>, heed: &mut dyn Heed) {
        let token = self.told.row(slot)[column];
        let Some(stream) = &mut self.slots[slot] else { return };
        let is_audio = column > 0;
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
        if let Some(row) = heads.filter(|_| frames > prefix) {
            let values = self.model.lm.config().extra_heads_dim;
            let probabilities: Vec<f32> =
                self.heads.row(row).chunks_exact(values).map(first_of_softmax).collect();
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
                self.encode_parts(exec);
                self.step_parts(exec);
                self.tell_parts(exec, heed);
                left -= now;
            }
        }
    }

    /// A step of silence of some streams that nobody hears.
    fn rehearse(&mut self, exec: &mut Exec, streams: usize, frames: usize, wish: Wish) {
        let slots: Vec<usize> = (0..streams.clamp(1, self.room.slots)).collect();
        slots.iter().for_each(|&slot| self.begin(exec, slot, wish));
        self.set_parts(slots.iter().map(|&slot| (slot, frames)));
        self.samples.clear();
        self.samples.resize(slots.len() * frames * self.model.mimi.frame_size(), 0.0);
        self.encode_parts(exec);
        self.step_parts(exec);
        self.tell_parts(exec, &mut Nobody);
        slots.into_iter().for_each(|slot| self.slots[slot] = None);
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
        let room = self.room;
        let wish = Wish { sampling: Default::default() };
        let frames = room.slot_frames.min(room.frames);
        let reserved = exec.rehearse(|exec| {
            for (streams, frames) in [(room.frames / frames, frames), (room.slots.min(room.frames), 1)] {
                (0..2).for_each(|_| self.rehearse(exec, streams, frames, wish));
            }
        })?;
        Ok(reserved)
    }

    fn start(&mut self, exec: &mut Exec, slot: usize, track: &Track) -> Result<(), RuntimeError> {
        let wish: &Wish = track.family().expect("a track of this model");
        self.begin(exec, slot, *wish);
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
        self.encode_parts(exec);
    }

    fn decode(&mut self, exec: &mut Exec, _: &[Planned], heed: &mut dyn Heed) {
        self.step_parts(exec);
        self.tell_parts(exec, heed);
    }

    fn flush(&mut self, exec: &mut Exec, slots: &[usize], heed: &mut dyn Heed) {
        // The rest of the text comes with silence after the audio; where there was none, there is no text.
        let heard = |slot: &&usize| self.slots[**slot].as_ref().is_some_and(|s| s.frames > 0);
        let late: Vec<usize> = slots.iter().filter(heard).copied().collect();
        self.silence(exec, &late, self.model.delay, heed);
        slots.iter().for_each(|&slot| heed.concluded(slot, Heard::default(), Vec::new()));
    }

    fn save(&mut self, exec: &mut Exec, slot: usize, waiting: &[f32]) -> Vec<u8> {
        debug_assert!(waiting.is_empty(), "every row is stepped before a snapshot");
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
        self.rehearse(exec, streams.min(self.room.frames), 1, *wish);
    }
}
