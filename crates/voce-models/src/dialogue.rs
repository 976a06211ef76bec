//! Dialogue, one of the three kinds of model: audio goes in and comes out at once, a frame at a time, with the text of
//! what the model says.
//!
//! A family implements [`Dialogue`] over its weights. What a lane's slots hold between two steps is the [`Partner`]'s; the
//! engine owns the threads, the slots and the streams.

use std::time::Duration;

use voce_runtime::cuda::Reserved;
use voce_runtime::{Exec, RuntimeError};

use crate::stage::StageInfo;

/// Weights that hold a conversation.
pub trait Dialogue: Send + Sync {
    /// What the model is.
    fn info(&self) -> &DialogueInfo;

    /// Checks a request once. A family refuses by name what it cannot use.
    fn check(&self, request: &TalkRequest) -> Result<(), DialogueError>;

    /// The state of `slots` conversations side by side.
    fn partner(&self, slots: usize) -> Box<dyn Partner>;
}

/// What a model that holds conversations is.
#[derive(Clone, Debug)]
pub struct DialogueInfo {
    /// The family's name as people write it.
    pub family: &'static str,
    /// Samples per second, in and out.
    pub sample_rate: usize,
    /// Samples of a frame, in and out.
    pub frame_size: usize,
    /// Frames after which a conversation is over; none where it may go on for ever.
    pub longest: Option<usize>,
    /// What a frame passes through, in order.
    pub stages: Vec<StageInfo>,
}

/// A conversation, as its caller wants it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TalkRequest {
    /// Sampling temperature of the audio; the model's default when absent.
    pub temperature: Option<f32>,
    /// Sampling temperature of the text; the model's default when absent.
    pub text_temperature: Option<f32>,
    /// Audio codes that are drawn from at most; the model's default when absent.
    pub top_k: Option<usize>,
    /// Text tokens that are drawn from at most; the model's default when absent.
    pub text_top_k: Option<usize>,
    /// Seed of what is drawn.
    pub seed: u64,
}

crate::setters! { TalkRequest {
    with_temperature(temperature: Option<f32>),
    with_text_temperature(text_temperature: Option<f32>),
    with_top_k(top_k: Option<usize>),
    with_text_top_k(text_top_k: Option<usize>),
    with_seed(seed: u64),
} }

/// All slots of one lane. What a slot says depends on what it heard alone.
pub trait Partner: Send {
    /// Takes the device memory that all slots and a step of all of them need, and says what is missing.
    fn reserve(&mut self, exec: &mut Exec) -> Result<Reserved, RuntimeError>;

    /// Starts a conversation in a slot.
    fn start(&mut self, exec: &mut Exec, slot: usize, request: &TalkRequest);

    /// Enqueues one frame of each live slot: `samples` has theirs, one slot after the other.
    fn step(&mut self, exec: &mut Exec, live: &[usize], samples: &[f32]);

    /// What each live slot says in that frame, in their order; the only time that the host waits.
    fn fetch(
        &mut self,
        exec: &mut Exec,
        live: &[usize],
        out: &mut Vec<Uttered>,
    ) -> Vec<(&'static str, Duration)>;

    /// Lets go of a slot.
    fn free(&mut self, slot: usize);

    /// A step that nobody hears, while no slot is taken.
    fn warm(&mut self, exec: &mut Exec);
}

/// What a slot says in one frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Uttered {
    /// A frame of samples; empty while the model is not ready to speak.
    pub samples: Vec<f32>,
    /// Text that was completed by now.
    pub text: String,
    /// The text token and the codes of the frame, for models that draw such; empty while there is no frame.
    pub tokens: Vec<u32>,
    /// The conversation is over.
    pub ended: bool,
}

/// A request that this model cannot follow.
#[derive(Debug, thiserror::Error)]
pub enum DialogueError {
    /// A number is out of range.
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
}
