//! Recognisers as the protocols see them: audio in, the engine's closed set of events out, whichever model is behind.

mod engine;
mod hearing;
mod inlet;
mod null;
mod opus_inlet;
mod spread;
mod transcribe;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

pub use engine::{ListenerEars, OpenListener};
pub use null::NullEars;
pub use spread::SpreadEars;
pub use voce_engine::listener::{EndReason, ListenEvent, Segment, Word};

pub(crate) use hearing::{Hearing, Step};
pub(crate) use inlet::Inlet;
pub(crate) use opus_inlet::{Decoded, OpusInlet};
pub(crate) use transcribe::{Transcript, Transcription};

/// Weight of a hot word that comes without one.
pub(crate) const HOTWORD_WEIGHT: f32 = 1.0;

use voce_engine::{Pulse, StageTime};

use crate::core::admission::{Gate, Load, Permit};
use crate::core::error::ServerError;
use crate::core::metrics::Kind;
use crate::core::telemetry::Telemetry;

/// Samples per second that recognisers take.
pub const SAMPLE_RATE: u32 = 16_000;

/// What a client asks of a recogniser.
#[derive(Clone, Debug, PartialEq)]
pub struct HearRequest {
    /// Audio per step; the model's own where absent.
    pub chunk_ms: Option<u32>,
    /// Beam width; 1 is greedy.
    pub beam: usize,
    /// Words and phrases to listen for, with their weights.
    pub hotwords: Vec<(String, f32)>,
    /// Language, where the model takes one.
    pub language: Option<String>,
    /// Silence that ends an utterance; none where absent.
    pub silence_ms: Option<u32>,
    /// Whether partial results are wanted.
    pub partials: bool,
    /// Whether to be told how much was decoded.
    pub progress: bool,
}

impl Default for HearRequest {
    fn default() -> Self {
        Self {
            chunk_ms: None,
            beam: 1,
            hotwords: Vec::new(),
            language: None,
            silence_ms: None,
            partials: false,
            progress: false,
        }
    }
}

/// What a recogniser is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EarInfo {
    /// Audio per model frame.
    pub frame_ms: u32,
    /// Languages, where known.
    pub languages: Vec<String>,
    /// Whether it hears while audio arrives.
    pub streaming: bool,
    /// Bytes of its weights.
    pub bytes: usize,
}

/// Nobody listens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recogniser has stopped listening")]
pub struct HungUp;

/// The way in of a stream: mono, [`SAMPLE_RATE`], bounded.
pub trait AudioIn: Send {
    /// Takes what there is room for, and says how much that was.
    fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp>;

    /// Waits for room.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HungUp>>;

    /// Ends the utterance here; answered by an endpoint that is forced, and then a final, empty or not.
    fn end_utterance(&mut self);

    /// Ends the stream: what is left is recognised.
    fn finish(self: Box<Self>);
}

/// The way out of a stream. Dropping it frees its slot within a step.
pub trait EventSource: Send {
    /// The next event; `None` after the last.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, ServerError>>>;

    /// The stages that worked on it so far, by name, in time from its begin.
    fn stages(&self) -> Vec<(&'static str, StageTime)> {
        Vec::new()
    }
}

/// Both ways of a stream.
pub type Stream = (Box<dyn AudioIn>, Box<dyn EventSource>);

/// A recogniser.
pub trait Recogniser: Send + Sync + 'static {
    /// What it is.
    fn info(&self) -> EarInfo;

    /// Whether streams can be opened now.
    fn is_ready(&self) -> bool {
        true
    }

    /// The pulses of its models, where it has any.
    fn pulses(&self) -> Vec<Arc<Pulse>> {
        Vec::new()
    }

    /// Loads a model again that has died; called now and then.
    fn revive(&self) {}

    /// Times that a model was loaded again.
    fn restarts(&self) -> u64 {
        0
    }

    /// Opens a stream.
    fn open(&self, request: &HearRequest) -> Result<Stream, ServerError>;
}

/// How a recogniser is served.
#[derive(Clone, Debug)]
pub struct EarOptions {
    /// Its name on the wire.
    pub id: String,
    /// Streams at once.
    pub slots: usize,
    /// Streams that may wait for a slot.
    pub queue: usize,
    /// How long a stream waits for a slot.
    pub patience: Duration,
}

impl EarOptions {
    /// The usual settings for a recogniser.
    pub fn new(id: impl Into<String>, slots: usize) -> Self {
        Self { id: id.into(), slots, queue: 0, patience: Duration::from_secs(10) }
    }
}

/// A recogniser and its slots.
pub(crate) struct Ear {
    options: EarOptions,
    recogniser: Arc<dyn Recogniser>,
    info: EarInfo,
    gate: Gate,
    telemetry: Telemetry,
}

impl Ear {
    pub(crate) fn new(options: EarOptions, recogniser: Arc<dyn Recogniser>, telemetry: Telemetry) -> Self {
        let metrics = telemetry.metrics.clone();
        let gate = Gate::new(Kind::Recognition, options.slots, options.queue, options.patience, metrics);
        let info = recogniser.info();
        Self { options, recogniser, info, gate, telemetry }
    }

    pub(crate) fn id(&self) -> &str {
        &self.options.id
    }

    pub(crate) fn info(&self) -> &EarInfo {
        &self.info
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.recogniser.is_ready()
    }

    pub(crate) fn pulses(&self) -> Vec<Arc<Pulse>> {
        self.recogniser.pulses()
    }

    pub(crate) fn revive(&self) {
        self.recogniser.revive();
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.recogniser.restarts()
    }

    pub(crate) fn load(&self) -> Load {
        self.gate.load()
    }

    pub(crate) fn slots(&self) -> (usize, usize) {
        (self.gate.used(), self.gate.total())
    }

    /// A slot, for streams to be opened in.
    pub(crate) async fn admit(&self) -> Result<Arc<Permit>, ServerError> {
        self.gate.enter().await.map(Arc::new)
    }

    /// Opens a stream in a slot.
    pub(crate) fn open_in(
        &self,
        permit: &Arc<Permit>,
        request: &HearRequest,
    ) -> Result<Hearing, ServerError> {
        let (audio, events) = self.recogniser.open(request)?;
        Ok(Hearing::new(audio, events, permit.clone(), &self.telemetry, self.id()))
    }

    /// Opens a stream in a slot of its own.
    pub(crate) async fn open(&self, request: &HearRequest) -> Result<Hearing, ServerError> {
        let permit = self.admit().await?;
        self.open_in(&permit, request)
    }
}
