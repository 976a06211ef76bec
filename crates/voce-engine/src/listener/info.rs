//! What a loaded recogniser is.

use voce_models::hearing::HearingInfo;
use voce_models::stage::StageInfo;
use voce_nn::Precision;
use voce_runtime::Isa;

use super::options::ListenerOptions;
use crate::device::Place;

/// What a loaded recogniser is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ListenerInfo {
    /// The reference it was opened by.
    pub id: String,
    /// Samples per second that it takes.
    pub sample_rate: usize,
    /// Milliseconds of a frame of the model.
    pub frame_ms: u32,
    /// Chunks in milliseconds that streams may choose from, the model's own first; none for offline models.
    pub chunks_ms: Vec<u32>,
    /// The chunk of streams that do not choose; none for offline models.
    pub default_chunk_ms: Option<u32>,
    /// Whether it takes whole utterances only.
    pub offline: bool,
    /// Milliseconds by which words come after their audio, besides the chunk.
    pub delay_ms: u32,
    /// Whether it tells where words end apart from the words, to those who ask.
    pub word_ends: bool,
    /// Seconds of silence to come whose probabilities it can tell; empty where it tells none.
    pub pauses: Vec<f32>,
    /// Languages that it hears, as far as that is known: each may be asked for, others are refused.
    pub languages: Vec<String>,
    /// Whether it has to be told which of them; others know one alone, or find it out by themselves.
    pub takes_language: bool,
    /// What turns frames into tokens, in a word.
    pub head: &'static str,
    /// Tokens.
    pub vocab: usize,
    /// Precision of the weights.
    pub precision: Precision,
    /// Threads in use.
    pub threads: usize,
    /// Instruction set in use.
    pub isa: Isa,
    /// The GPU in use, if the model runs on one.
    pub device: Option<String>,
    /// Streams that run side by side.
    pub slots: usize,
    /// Model threads that share them.
    pub lanes: usize,
    /// What the model is made of, in the order in which a frame passes.
    pub stages: Vec<StageInfo>,
    /// Bytes of state that each slot takes on a device.
    pub state_bytes: usize,
}

impl ListenerInfo {
    pub(super) fn new(
        id: String,
        about: &HearingInfo,
        place: &Place,
        options: &ListenerOptions,
        [threads, slots, lanes]: [usize; 3],
        state_bytes: usize,
    ) -> Self {
        Self {
            id,
            sample_rate: about.sample_rate,
            frame_ms: about.frame_ms(),
            default_chunk_ms: about.chunks_ms.first().copied(),
            offline: about.offline(),
            chunks_ms: about.chunks_ms.clone(),
            delay_ms: about.delay as u32 * about.frame_ms(),
            word_ends: about.word_ends,
            pauses: about.pauses.clone(),
            languages: about.languages.clone(),
            takes_language: about.takes_language,
            head: about.head,
            vocab: about.vocab,
            precision: place.precision(options.precision),
            threads: threads * lanes,
            isa: place.isa,
            device: place.device.as_ref().map(|d| d.info().to_string()),
            slots,
            lanes,
            stages: about.stages.clone(),
            state_bytes,
        }
    }
}
