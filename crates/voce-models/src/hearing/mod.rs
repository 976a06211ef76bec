//! Hearing, one of the three kinds of model: audio goes in, tokens come out, a chunk at a time.
//!
//! A family implements [`Hearing`] over its weights. A [`Front`] turns a stream's samples into rows on the sender's
//! thread; an [`Ear`] holds what a lane's slots know between two steps and turns rows into tokens. The engine owns the
//! threads, the slots and the queues, and the words and the rules by which utterances end, which an ear sees as [`Heed`].

pub mod language;
mod request;

use std::any::Any;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError};
use voce_text::Tokenizer;

use crate::stage::StageInfo;
use crate::transducer::Ngram;

pub use request::{HearingError, Hotword, MAX_BEAM, MAX_HOTWORDS, TrackRequest};

/// Weights that hear.
pub trait Hearing: Send + Sync {
    /// What the model is.
    fn info(&self) -> &HearingInfo;

    /// The tokeniser, whose pieces the tokens are.
    fn tokenizer(&self) -> &Tokenizer;

    /// Checks a request once. A family refuses by name what it cannot do. `saved` is what an [`Ear::save`] gave, for a
    /// stream that goes on: what the request leaves open is then the saved stream's, and what it asks for must agree.
    fn track(&self, ask: &TrackRequest<'_>, saved: Option<&[u8]>) -> Result<Track, HearingError>;

    /// Reads a language model over this model's tokens, in ARPA's format.
    fn language_model(&self, from: &mut dyn BufRead) -> Result<Arc<Ngram>, HearingError>;

    /// A front end before its first sample.
    fn front(&self) -> Box<dyn Front>;

    /// A front end that goes on where [`Front::save`] was called.
    fn resume_front(&self, saved: &[u8]) -> Result<Box<dyn Front>, HearingError>;

    /// The state of a lane's slots.
    fn ear(&self, room: EarRoom) -> Box<dyn Ear>;

    /// Memory of a device that an ear needs.
    fn footprint(&self, room: EarRoom) -> Footprint;

    /// A number that tells models and precisions apart, weights of the same shape included.
    fn fingerprint(&self) -> u64;
}

/// What a model that hears is.
#[derive(Clone, Debug)]
pub struct HearingInfo {
    /// The family's name as people write it.
    pub family: &'static str,
    /// Samples per second that it takes.
    pub sample_rate: usize,
    /// How the rows of its front end lie.
    pub layout: RowLayout,
    /// Samples of a frame, by which tokens are timed.
    pub frame_size: usize,
    /// Chunks in milliseconds that streams may choose from, the model's own first; none for models that take whole
    /// utterances.
    pub chunks_ms: Vec<u32>,
    /// Frames of the shortest chunk; 1 where there are none.
    pub least_frames: usize,
    /// Frames of the longest chunk, or those that a whole utterance is cut into.
    pub most_frames: usize,
    /// Rows that a stream has to hold at once so that a step can begin.
    pub window: usize,
    /// Frames by which tokens come after their audio, besides the chunk.
    pub delay: usize,
    /// Whether it tells where words end apart from the words.
    pub word_ends: bool,
    /// Seconds of silence to come whose probabilities it reports with every frame; empty where it reports none.
    pub pauses: Vec<f32>,
    /// Whether it hears soft speech worse than usual speech, so that raising it helps.
    pub raises: bool,
    /// Languages that it hears, as far as that is known: each may be [asked for](language::position), others are refused.
    pub languages: Vec<String>,
    /// Whether it has to be told which of them; others know one alone, or find it out by themselves.
    pub takes_language: bool,
    /// What turns frames into tokens, in a word.
    pub head: &'static str,
    /// Tokens.
    pub vocab: usize,
    /// Whether tokens say how many frames they last.
    pub durations: bool,
    /// The token that ends an utterance, in models that have one.
    pub end_token: Option<u32>,
    /// Whether one lane keeps a device busy: its ears [run ahead](Ear::runs_ahead) there.
    pub one_lane: bool,
    /// What the times of [`Ear::encode`] and [`Ear::decode`] are called, each the name of a stage.
    pub phases: [&'static str; 2],
    /// What a frame passes through, in order.
    pub stages: Vec<StageInfo>,
}

impl HearingInfo {
    /// Whether it takes whole utterances only.
    pub fn offline(&self) -> bool {
        self.chunks_ms.is_empty()
    }

    /// Refuses a language that is none of the model's, by name.
    pub fn check_language(&self, asked: Option<&str>) -> Result<(), HearingError> {
        match asked.filter(|code| language::known(&self.languages, code).is_none()) {
            Some(code) => Err(HearingError::Language { asked: code.to_owned(), has: self.languages.clone() }),
            None => Ok(()),
        }
    }

    /// Seconds of a frame.
    pub fn frame_seconds(&self) -> f64 {
        self.frame_size as f64 / self.sample_rate as f64
    }

    /// Milliseconds of a frame.
    pub fn frame_ms(&self) -> u32 {
        (self.frame_size * 1000 / self.sample_rate) as u32
    }

    /// Seconds of `rows` rows.
    pub fn row_seconds(&self, rows: usize) -> f64 {
        (rows * self.layout.hop) as f64 / self.sample_rate as f64
    }
}

/// How rows lie one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// Samples from one row to the next.
    pub hop: usize,
    /// Values from one row to the next.
    pub step: usize,
    /// Values more that the last row needs: what neighbouring rows share.
    pub overlap: usize,
}

impl RowLayout {
    /// Values of `rows` rows.
    pub fn values(self, rows: usize) -> usize {
        if rows == 0 { 0 } else { rows * self.step + self.overlap }
    }
}

/// A request that a model has checked, as its ears take it.
#[derive(Clone)]
pub struct Track {
    /// Frames of a chunk.
    pub chunk: usize,
    /// Frames after which a guess at the last tokens may have changed, so that rules must look at it; none where
    /// tokens are certain at once.
    pub recheck: Option<usize>,
    family: Arc<dyn Any + Send + Sync>,
}

impl Track {
    /// A track with what the family wants to know of it.
    pub fn new<T: Send + Sync + 'static>(chunk: usize, recheck: Option<usize>, family: T) -> Self {
        Self { chunk, recheck, family: Arc::new(family) }
    }

    /// What the family put into it; none if that was another family.
    pub fn family<T: 'static>(&self) -> Option<&T> {
        self.family.downcast_ref()
    }
}

/// A stream's front end: samples become rows, on the sender's thread.
pub trait Front: Send {
    /// Takes samples, appends the values of every row they complete (with what rows share before the first of an
    /// utterance), and returns how many rows these are.
    fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> usize;

    /// Ends the utterance: appends its last rows, and starts afresh.
    fn finish(&mut self, out: &mut Vec<f32>) -> usize;

    /// Appends the rows that [`Front::finish`] would append after `silence` more samples of silence. Nothing ends: the front
    /// end goes on as if nobody had asked.
    fn rest(&self, silence: usize, out: &mut Vec<f32>) -> usize;

    /// Where it stands, for [`Hearing::resume_front`].
    fn save(&self) -> Vec<u8>;
}

/// How much an ear must be able to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarRoom {
    /// Streams side by side.
    pub slots: usize,
    /// Frames of one stream in a step.
    pub slot_frames: usize,
    /// Frames of all streams in a step.
    pub frames: usize,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Of each slot, between steps.
    pub slot: usize,
    /// Of each frame of the largest step.
    pub frame: usize,
    /// Of everything else.
    pub fixed: usize,
}

impl Footprint {
    /// Bytes of an ear.
    pub fn total(&self, room: EarRoom) -> usize {
        room.slots * self.slot + room.frames * self.frame + self.fixed
    }
}

/// What waits for a slot's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Rows.
    pub rows: usize,
    /// Whether nothing follows them in this part of the stream.
    pub closes: bool,
}

/// What a step takes of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Whose.
    pub slot: usize,
    /// Rows to look at that the ear itself kept.
    pub kept: usize,
    /// Rows to look at that wait.
    pub rows: usize,
    /// Of those that wait, how many are over after the step.
    pub advance: usize,
    /// Frames that they make, or a few more.
    pub frames: usize,
    /// Nothing follows in this part of the stream.
    pub closes: bool,
}

/// Where the rows of a step are.
pub trait Rows: Sync {
    /// Copies the rows of a plan that wait, and lets go of those that are over. Several threads may do so at once, each
    /// for slots of its own.
    fn take(&self, planned: &Planned, out: &mut [f32]);
}

/// All slots of one lane. On a CPU a slot's tokens depend on its own rows alone.
///
/// A step is [`Ear::take`], [`Ear::encode`], [`Ear::begin`] and [`Ear::decode`], with the same plans. Where an ear
/// [runs ahead](Ear::runs_ahead), the first three of the next step may come before the last of this one; nothing but
/// [`Ear::start`], [`Ear::free`] and [`Ear::restore`] may come between them.
pub trait Ear: Send {
    /// Takes the device memory that all slots and the largest step need, while no slot is taken. After it, streams that
    /// ask for nothing unusual (wide beams of many streams at once) start, step and end without more.
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError>;

    /// Starts a stream in a slot, or a new part of one. Where there is no memory for what it asks, it has not started and
    /// the others go on.
    fn start(&mut self, exec: &mut Exec, slot: usize, track: &Track) -> Result<(), RuntimeError>;

    /// Lets go of a slot.
    fn free(&mut self, slot: usize);

    /// Rows that have to wait so that a slot can be stepped before its part ends.
    fn wants(&self, slot: usize) -> usize;

    /// What a step would take of a slot, up to `frames` frames but at least what can be stepped at all; none while it has
    /// to wait for more rows.
    fn plan(&self, slot: usize, offer: Offer, frames: usize) -> Option<Planned>;

    /// Takes the rows of a step; several threads of the executor may copy them.
    fn take(&mut self, exec: &mut Exec, planned: &[Planned], rows: &dyn Rows);

    /// Enqueues the model's work on them.
    fn encode(&mut self, exec: &mut Exec, planned: &[Planned]);

    /// Whether the next step may be asked for before this one is told: a device then encodes it while this one is decoded,
    /// and goes on without a pause.
    fn runs_ahead(&self) -> bool {
        false
    }

    /// Enqueues what finds the tokens of a step that was encoded, where that needs no look at what was found before.
    fn begin(&mut self, _exec: &mut Exec, _planned: &[Planned]) {}

    /// How long a device took to encode the step that was told last, where that ran beside the lane's executor.
    fn encoded_in(&self) -> Option<Duration> {
        None
    }

    /// Waits for the oldest step that was not told yet, finds its tokens, and tells them.
    fn decode(&mut self, exec: &mut Exec, planned: &[Planned], heed: &mut dyn Heed);

    /// Comes to the end of what some slots were given: tells the rest of their tokens, and ends with
    /// [`Heed::concluded`] for each. They are started anew, or let go of, before they are stepped again.
    fn flush(&mut self, exec: &mut Exec, slots: &[usize], heed: &mut dyn Heed);

    /// What a slot's stream needs to go on elsewhere; `waiting` are the values of rows that no step has taken yet.
    fn save(&mut self, exec: &mut Exec, slot: usize, waiting: &[f32]) -> Vec<u8>;

    /// Goes on where [`Ear::save`] was called, in a slot that was just started. Nothing in the bytes is believed.
    fn restore(
        &mut self,
        exec: &mut Exec,
        slot: usize,
        track: &Track,
        saved: &[u8],
    ) -> Result<(), HearingError>;

    /// A step of silence, one chunk of each of `streams` streams that nobody hears, while no slot is taken.
    fn warm(&mut self, exec: &mut Exec, streams: usize, track: &Track);
}

/// A token that was heard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Token {
    /// Its number.
    pub id: u32,
    /// The frame it was found at, counted from the start of its part of the stream.
    pub frame: usize,
    /// Frames it lasts: the model's word where it has one, one otherwise.
    pub duration: usize,
    /// Logarithm of its probability, without the help of phrases or a language model.
    pub log_prob: f32,
    /// How sure the model was, 0 to 1.
    pub confidence: f32,
}

/// What was heard of a slot since the last time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Heard<'a> {
    /// Frames that were decoded.
    pub frames: usize,
    /// Tokens that will not change any more.
    pub certain: &'a [Token],
    /// The best guess at what follows all certain ones, instead of the last guess.
    pub guess: &'a [Token],
}

/// One reading of an utterance.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Logarithm of its probability, with what phrases and language model added.
    pub score: f32,
}

/// What becomes of an utterance after something was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on.
    GoOn,
    /// What was certain is told, all but the last `keep` tokens: it may be forgotten, and the search goes on.
    Cut {
        /// Tokens that belong to what follows.
        keep: usize,
    },
    /// It is over: the ear concludes it ([`Heed::concluded`]). That is a report: what is heard after it is what would have
    /// been heard without it, but that a beam is narrowed to its best reading.
    End,
}

/// The engine's words and rules, seen by an ear.
pub trait Heed {
    /// Of `left` frames of a slot, how many to decode before the rules are looked at: at least one, unless nobody
    /// listens to the slot any more.
    fn until(&self, slot: usize, left: usize) -> usize;

    /// Tells what was heard.
    fn heard(&mut self, slot: usize, heard: Heard<'_>) -> Verdict;

    /// Tells what was heard of audio that is searched as a whole: rules end utterances between its tokens.
    fn heard_whole(&mut self, slot: usize, heard: Heard<'_>);

    /// Tells the last of an utterance, and its readings where those were asked for.
    fn concluded(&mut self, slot: usize, heard: Heard<'_>, readings: Vec<Reading>);

    /// Tells that the word of the newest certain token is over at a frame, for models that know.
    fn word_ended(&mut self, slot: usize, frame: usize);

    /// Tells that the word of the newest certain token has all its tokens, for models that know; it ends where
    /// [`Heed::word_ended`] says later.
    fn word_spelled(&mut self, _slot: usize) {}

    /// Tells what a model that draws a token in every step drew, whether it says something or not.
    fn drew(&mut self, _slot: usize, _token: u32) {}

    /// Tells how probable the [pauses](HearingInfo::pauses) are after the newest frame.
    fn pauses(&mut self, slot: usize, probabilities: &[f32]);
}
