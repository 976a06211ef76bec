//! Speech, one of the three kinds of model: text goes in, audio comes out, a frame at a time.
//!
//! A family implements [`Speech`] over its weights. What a lane's slots hold between two steps is the [`Synth`]'s
//! (text to frames) and the [`Vocoder`]'s (frames to samples); the engine owns the threads, the slots and the streams.

mod decoder;
mod language;
mod request;
mod voice;

use std::sync::Arc;
use std::time::Duration;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError, Span};
use voce_text::TextError;

use crate::stage::StageInfo;

pub use decoder::{SlotDecoder, SlotVocoder};
pub use language::{language_name, spoken};
pub use request::{
    FineSampling, MAX_FRAMES, MAX_PENALTY, MAX_STEPS, MAX_TOKENS, MAX_TOP_K, MODEL_TOKENS, SpeakRequest,
    TextMode, VoiceChoice,
};
pub use voice::{ClipRules, Voice, VoiceData, VoiceError, VoiceSource, VoiceTensor};

/// Weights that speak.
pub trait Speech: Send + Sync {
    /// What the model is.
    fn info(&self) -> &SpeechInfo;

    /// Checks a request once, and makes what turns its text into passages. A family refuses by name what it cannot use.
    fn script(&self, request: &SpeakRequest) -> Result<Box<dyn Script>, SpeechError>;

    /// The two halves of a line whose passage did not end, to be spoken instead; none where it cannot be cut.
    fn halves(&self, line: &Line) -> Option<[Line; 2]> {
        let _ = line;
        None
    }

    /// The state of `slots` passages side by side, from text to frames.
    fn synth(&self, slots: usize) -> Box<dyn Synth>;

    /// The state of `slots` passages side by side, from frames to samples.
    fn vocoder(&self, room: VocoderRoom) -> Box<dyn Vocoder>;

    /// Whether it tells when each word is spoken.
    fn tells_words(&self) -> bool {
        false
    }

    /// Whether requests can say in words how to speak.
    fn takes_instructions(&self) -> bool {
        false
    }

    /// Tokens that a text is.
    fn count_tokens(&self, text: &str) -> usize;

    /// Whether a recording can be cloned, with or without what is said in it: the error says what is missing.
    fn can_clone(&self, text: Option<&str>) -> Result<(), VoiceError>;

    /// How a recording is prepared before it is cloned.
    fn clip_rules(&self, text: Option<&str>) -> ClipRules {
        let _ = text;
        ClipRules::EndOnPause
    }

    /// A voice.
    fn voice(&self, exec: &mut Exec, from: VoiceSource<'_>) -> Result<Voice, VoiceError>;

    /// One voice of several, for families whose speakers take turns.
    fn together(&self, exec: &mut Exec, voices: &[Voice]) -> Result<Voice, VoiceError> {
        let _ = (exec, voices);
        Err(VoiceError::Unsupported { family: self.info().family, option: "several voices" })
    }

    /// Whether a voice was made for this model, at this precision.
    fn fits(&self, voice: &Voice) -> bool;

    /// The tensors of a voice in the layout that [`VoiceSource::Tensors`] reads.
    fn export(&self, exec: &mut Exec, voice: &Voice) -> Result<Vec<VoiceTensor>, VoiceError>;
}

/// What a model that speaks is.
#[derive(Clone, Debug)]
pub struct SpeechInfo {
    /// The family's name as people write it.
    pub family: &'static str,
    /// Samples per second.
    pub sample_rate: usize,
    /// Samples of a frame.
    pub frame_size: usize,
    /// Frames of one passage that the vocoder best takes together, once its listener is ahead.
    pub group: usize,
    /// Samples at the start of a passage that rise from silence: a fresh codec starts with a small step.
    pub fade_in: usize,
    /// Sampling temperature of requests that name none.
    pub temperature: f32,
    /// Languages that it speaks, in lower-case English; empty where nobody knows.
    pub languages: Vec<String>,
    /// Voices that are part of the weights, by name.
    pub speakers: Vec<String>,
    /// What a frame passes through, in order.
    pub stages: Vec<StageInfo>,
}

impl SpeechInfo {
    /// Frames per second.
    pub fn frame_rate(&self) -> f64 {
        self.sample_rate as f64 / self.frame_size as f64
    }

    /// Seconds of a frame.
    pub fn frame_seconds(&self) -> f64 {
        self.frame_size as f64 / self.sample_rate as f64
    }
}

/// Turns text, whole or still arriving, into what slots speak.
pub trait Script: Send {
    /// The passages of a text that is all there.
    fn whole(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError>;
    /// Takes text that arrives, and appends what can be spoken by now.
    fn push(&mut self, text: &str, out: &mut Vec<Passage>) -> Result<(), TextError>;
    /// Appends what is left.
    fn finish(&mut self, out: &mut Vec<Passage>) -> Result<(), TextError>;
}

/// A piece of a request's speech.
#[derive(Clone, Debug, PartialEq)]
pub enum Passage {
    /// A line that takes a slot of its own.
    New(Line),
    /// A line for the slot of the last open one, which already speaks.
    More(Line),
    /// Silence between two passages.
    Pause(Duration),
}

/// Text as a slot takes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// The text, for those who are told which words are spoken.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its words, for families that speak word by word; their tokens follow each other in `tokens`.
    pub words: Vec<LineWord>,
    /// Frames to speak after the model has said that it is done.
    pub tail: usize,
    /// Whether more text may follow for the same slot.
    pub open: bool,
}

/// A word of a line, or a break in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineWord {
    /// The word; empty for a break.
    pub text: String,
    /// Tokens that it is.
    pub tokens: usize,
    /// Steps that pass before the next word may start.
    pub pause: usize,
}

/// A line that takes a slot.
pub struct Prompt {
    /// The slot, which no other passage has.
    pub slot: usize,
    /// What to speak.
    pub line: Line,
    /// Who speaks; none is the model's own way of starting.
    pub voice: Option<Voice>,
    /// How to speak.
    pub request: Arc<SpeakRequest>,
    /// Which passage of its request this is: passages of one request draw different noise.
    pub number: u64,
    /// Frames at most, where the request has a limit; else the family's own.
    pub limit: Option<usize>,
}

/// All slots of one lane, from text to frames. A slot's frames depend on its own prompt and text alone.
pub trait Synth: Send {
    /// Takes the device memory that all slots and the largest step need, and says what is missing. After it, beginning a
    /// passage of usual length and stepping it take no more.
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError>;

    /// Begins passages. When there is no memory for them, none of them has begun and the others go on.
    fn begin(&mut self, exec: &mut Exec, prompts: &[Prompt]) -> Result<(), RuntimeError>;

    /// Text for a slot whose line was open; the last of it, where `line.open` is not set.
    fn feed(&mut self, slot: usize, line: Line);

    /// Whether a slot waits for text: it is not stepped until it has some.
    fn wants_text(&self, slot: usize) -> bool;

    /// Whether a step may be enqueued before what the step before it has made was fetched: a slot whose passage turns out
    /// to have ended is then stepped once more for nothing.
    fn runs_ahead(&self, exec: &Exec) -> bool {
        let _ = exec;
        false
    }

    /// Enqueues one step of each live slot; a device works on it until [`Synth::fetch`].
    fn step(&mut self, exec: &mut Exec, live: &[usize]);

    /// What the first step has made that was not fetched yet, one for each of its live slots and in their order; the only
    /// time that the host waits.
    fn fetch(&mut self, exec: &mut Exec, live: &[usize], out: &mut Vec<Made>) -> StepTimes;

    /// Lets go of a slot.
    fn free(&mut self, slot: usize);

    /// A step that nobody hears, while no slot is taken.
    fn warm(&mut self, exec: &mut Exec);
}

/// One frame as a codec takes it.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A vector.
    Latent(Vec<f32>),
    /// A code of each codebook.
    Codes(Vec<u32>),
}

impl Frame {
    /// Its codes, if it is made of them.
    pub fn codes(self) -> Option<Vec<u32>> {
        match self {
            Self::Codes(codes) => Some(codes),
            Self::Latent(_) => None,
        }
    }
}

/// What a step has made of a slot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Made {
    /// A frame; none in a step that was for text alone, or found the end.
    pub frame: Option<Frame>,
    /// Words that begin or end by now. Times count from the passage's start.
    pub words: Vec<SpokenWord>,
    /// The passage is over.
    pub end: Option<PassageEnd>,
}

/// Why a passage is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassageEnd {
    /// The model has said all of it.
    Spoken,
    /// It reached its limit of frames.
    Limit,
    /// The device has no memory for a passage as long as this.
    NoMemory,
}

/// A word and when it is spoken.
#[derive(Clone, Debug, PartialEq)]
pub struct SpokenWord {
    /// The word.
    pub text: String,
    /// Start, in seconds of audio.
    pub start: f64,
    /// End, in seconds of audio.
    pub end: f64,
}

/// How long each stage of a step took, by the names in [`SpeechInfo::stages`].
pub type StepTimes = Vec<(&'static str, Duration)>;

/// How much a vocoder must be able to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VocoderRoom {
    /// Passages side by side.
    pub slots: usize,
    /// Frames of one call over all slots.
    pub frames: usize,
    /// Frames of one call of one slot.
    pub slot_frames: usize,
}

impl VocoderRoom {
    /// The largest call there can be, which takes all the memory that any takes.
    pub fn largest(&self) -> Vec<Span> {
        let mut left = self.frames;
        let rows = (0..self.slots).map_while(|slot| {
            let rows = self.slot_frames.min(left);
            left -= rows;
            (rows > 0).then_some(Span { slot, rows })
        });
        rows.collect()
    }
}

/// All slots of one lane, from frames to samples. A slot's samples depend on its own frames alone.
pub trait Vocoder: Send {
    /// Takes the device memory that all slots and the largest call need, and says what is missing.
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError>;

    /// Starts a slot anew, as the first frame of a passage finds it; what a voice brings along is not heard.
    fn start(&mut self, exec: &mut Exec, slot: usize, voice: Option<&Voice>);

    /// Enqueues frames: `frames` has those of all spans, one span after the other.
    fn step(&mut self, exec: &mut Exec, spans: &[Span], frames: &[Frame]);

    /// The samples of the last call, one span after the other.
    fn fetch(&mut self, exec: &mut Exec) -> &[f32];

    /// A step that nobody hears, while no slot is taken.
    fn warm(&mut self, exec: &mut Exec);
}

/// A request that this model cannot follow.
#[derive(Debug, thiserror::Error)]
pub enum SpeechError {
    /// A number is out of range, or a voice does not fit.
    #[error("{what} is {value}: {rule}")]
    Value {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        rule: &'static str,
    },
    /// The family has no such option.
    #[error("{family} takes no {option}: leave it out, or use a model that has it")]
    Unsupported {
        /// The family.
        family: &'static str,
        /// The option.
        option: &'static str,
    },
    /// The model does not speak this language.
    #[error("language '{asked}': this model speaks {}", .has.join(", "))]
    Language {
        /// As asked for.
        asked: String,
        /// Those it speaks.
        has: Vec<String>,
    },
}
