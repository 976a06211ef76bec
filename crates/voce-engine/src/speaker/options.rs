//! How a speaker is set up, and what it tells of itself.

use std::time::Duration;

use voce_models::stage::StageInfo;
use voce_nn::Precision;
use voce_runtime::Isa;

use crate::device::Placement;
use crate::fault::Faults;
use crate::trace::Trace;

/// Passages side by side by default.
const DEFAULT_SLOTS: usize = 8;

/// How the two stages of a speaker share the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// In turn up to two threads, side by side above.
    #[default]
    Auto,
    /// Codec and language model side by side, on threads of their own.
    Beside,
    /// In turn, each with all threads.
    InTurn,
}

/// How a speaker is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SpeakerOptions {
    /// Precision of the weights; what suits the CPU or the device when absent.
    pub precision: Option<Precision>,
    /// Threads; 0 chooses.
    pub threads: usize,
    /// Passages and requests that run side by side.
    pub slots: usize,
    /// How the stages share the threads.
    pub overlap: Overlap,
    /// Instruction set; the best, or `VOCE_CPU`'s, when absent.
    pub isa: Option<Isa>,
    /// Where the model runs.
    pub device: Placement,
    /// Where to record what the stages do.
    pub trace: Option<Trace>,
    /// Keep each thread on a core of its own, where there are enough.
    pub pin: bool,
    /// A step of an idle model this often keeps its caches and the CPU's clocks warm; none when absent.
    pub keep_warm: Option<Duration>,
    /// Faults that tests plant.
    pub faults: Faults,
}

voce_models::setters! { SpeakerOptions {
    with_precision(precision: Option<Precision>),
    with_threads(threads: usize),
    with_slots(slots: usize),
    with_overlap(overlap: Overlap),
    with_isa(isa: Option<Isa>),
    with_device(device: Placement),
    with_trace(trace: Option<Trace>),
    with_pin(pin: bool),
    with_keep_warm(keep_warm: Option<Duration>),
    with_faults(faults: Faults),
} }

impl Default for SpeakerOptions {
    fn default() -> Self {
        Self {
            precision: None,
            threads: 0,
            slots: DEFAULT_SLOTS,
            overlap: Overlap::Auto,
            isa: None,
            device: Placement::Auto,
            trace: None,
            pin: false,
            keep_warm: None,
            faults: Faults::default(),
        }
    }
}

/// What a loaded model is.
#[derive(Clone, Debug)]
pub struct SpeakerInfo {
    /// The reference it was opened by.
    pub id: String,
    /// The family's name as people write it.
    pub family: &'static str,
    /// Samples per second.
    pub sample_rate: usize,
    /// Frames per second.
    pub frame_rate: f64,
    /// Precision of the weights.
    pub precision: Precision,
    /// Threads in use.
    pub threads: usize,
    /// Instruction set in use.
    pub isa: Isa,
    /// The GPU in use, if the model runs on one.
    pub device: Option<String>,
    /// Passages that run side by side.
    pub slots: usize,
    /// Whether the stages run side by side.
    pub beside: bool,
    /// What the model is made of, in the order in which a frame passes.
    pub stages: Vec<StageInfo>,
    /// Sampling temperature of the model.
    pub temperature: f32,
    /// Languages of the model, in lower-case English; empty where nobody knows.
    pub languages: Vec<String>,
    /// Whether it can be told in words how to speak.
    pub instructions: bool,
    /// Whether it tells when each word is spoken.
    pub words: bool,
}
