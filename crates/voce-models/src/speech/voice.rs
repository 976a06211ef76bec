//! Voices: who speaks, in whatever form a family keeps it.

use std::fmt;
use std::sync::Arc;

use voce_nn::WeightError;
use voce_nn::weights::SafetensorsFile;
use voce_runtime::cuda::CudaError;

use crate::kyutai::tts;
use crate::{pocket, qwen};

/// A voice ready to speak with; clones share it.
#[derive(Clone)]
#[non_exhaustive]
pub enum Voice {
    /// What a backbone keeps of a prompt.
    Past(Arc<pocket::Voice>),
    /// What a prompt says of a speaker.
    Prompt(Arc<qwen::Voice>),
    /// What every layer looks at, or codes that stand before the first.
    Looked(Arc<tts::Voice>),
}

impl Voice {
    /// Bytes that it holds, on the device where it is there.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Past(voice) => voice.bytes(),
            Self::Prompt(voice) => voice.bytes(),
            Self::Looked(voice) => voice.bytes(),
        }
    }
}

impl fmt::Debug for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Past(voice) => write!(f, "Past of {} positions", voice.positions()),
            Self::Prompt(voice) => write!(f, "Prompt of {voice:?}"),
            Self::Looked(voice) => write!(f, "{voice:?}"),
        }
    }
}

/// What a voice is made of.
#[derive(Clone, Copy)]
pub enum VoiceSource<'a> {
    /// One of [`speakers`](super::SpeechInfo::speakers).
    Name(&'a str),
    /// A file that a voice was exported to.
    Tensors(&'a SafetensorsFile),
    /// A recording to clone, mono, at the model's sample rate.
    Clip {
        /// The recording.
        samples: &'a [f32],
        /// What is said in it, for families that use it.
        text: Option<&'a str>,
    },
}

/// How a recording is prepared before it is cloned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipRules {
    /// Cut inside a pause where it is longer than half a minute, and ended on silence.
    EndOnPause,
    /// Cut inside a pause where it is longer than half a minute, and else as it is.
    AsItIs,
    /// As it is; one of more than half a minute is refused, as a part of it would not fit its text.
    Whole,
}

/// What can be wrong with a voice.
#[derive(Debug, thiserror::Error)]
pub enum VoiceError {
    /// A tensor is missing or of the wrong shape.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// The file is some other safetensors file.
    #[error("this is not a voice of this model: {0}")]
    Other(String),
    /// Longer than a prompt may be.
    #[error("a voice of {positions} positions: {most} is the most")]
    TooLong {
        /// Its length.
        positions: usize,
        /// The most.
        most: usize,
    },
    /// There is no room for it on the device.
    #[error(transparent)]
    Device(CudaError),
    /// The checkpoint has no encoder.
    #[error(
        "these weights have no voice encoder, so they cannot clone a voice from audio: \
         use a ready voice, or pull the weights with voice cloning"
    )]
    NoEncoder,
    /// A recording with too little in it.
    #[error("a recording of {seconds:.2} s: at least {least} s are needed")]
    TooShort {
        /// Its length.
        seconds: f64,
        /// The least.
        least: f64,
    },
    /// The family does not use what was given.
    #[error("{family} takes no {option}: leave it out, or use a model that has it")]
    Unsupported {
        /// The family.
        family: &'static str,
        /// What it does not use.
        option: &'static str,
    },
}

/// One tensor of an exported voice.
pub struct VoiceTensor {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values.
    pub data: VoiceData,
}

/// Values of a [`VoiceTensor`].
pub enum VoiceData {
    /// Keys, values and other numbers.
    Floats(Vec<f32>),
    /// Positions.
    Integers(Vec<i64>),
}
