//! Recognisers as the protocols see them: audio in, the engine's closed set of events out, whichever model is behind.

mod claim;
mod decoding;
pub(crate) mod encoding;
mod engine;
mod hearing;
mod inlet;
mod intake;
mod null;
mod opus_inlet;
mod transcribe;

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

pub use engine::OpenListener;
pub use null::NullEars;
pub use voce_engine::listener::{EndReason, ListenEvent, Report, Segment, Word};

pub(crate) use claim::Claim;
pub(crate) use decoding::Decoded;
pub(crate) use hearing::{Hearing, Saved, SavedStream, Step};
pub(crate) use inlet::{Inlet, InletState};
pub(crate) use intake::{Base64Text, Intake, Payload};
pub(crate) use opus_inlet::OpusInlet;
pub(crate) use transcribe::{Transcript, Transcription};

/// Weight of a hot word that comes without one.
pub(crate) const HOTWORD_WEIGHT: f32 = 1.0;

use serde::{Deserialize, Serialize};
use voce_engine::EngineError;
use voce_engine::StageTime;
use voce_engine::listener::{Listener, language};
use voce_jobs::HearSettings;

use crate::core::admission::{Gate, Permit, Room};
use crate::core::budget::{Budget, Share};
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::metrics::Kind;
use crate::core::models::{Kept, LoadError, Replicas, Seat, Served, Watched};
use crate::core::telemetry::Telemetry;
use crate::handover::HandoverError;

/// Samples per second that recognisers take as a rule.
pub const SAMPLE_RATE: u32 = 16_000;

/// What a client asks of a recogniser.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HearRequest {
    /// Audio per step; the server's default where absent, else the model's own.
    pub chunk_ms: Option<u32>,
    /// Beam width, of which 1 is greedy; the server's default where absent, else 1.
    pub beam: Option<usize>,
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
    /// Pause that ends an utterance where the model foresees it; silence of that length where it foresees none.
    pub pause_ms: Option<u32>,
    /// Whether to be told how probable pauses are, where the model foresees them.
    pub pauses: bool,
    /// Whether to be told where words end apart from the words, where the model knows.
    pub word_ends: bool,
}

impl HearRequest {
    /// Whether it asks for nothing that a model could refuse.
    fn is_plain(&self) -> bool {
        self.chunk_ms.is_none() && self.beam.is_none() && self.hotwords.is_empty() && self.language.is_none()
    }
}

/// What a recogniser is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EarInfo {
    /// Audio per model frame.
    pub frame_ms: u32,
    /// Chunks in milliseconds that streams may choose from, the model's own first; none where it hears whole utterances.
    pub chunks_ms: Vec<u32>,
    /// Languages that it hears, where known.
    pub languages: Vec<String>,
    /// Whether it has to be told which of them.
    pub takes_language: bool,
    /// Whether it hears while audio arrives.
    pub streaming: bool,
    /// Bytes of its weights.
    pub bytes: usize,
    /// Whether it tells where words end apart from the words, to those who ask.
    pub word_ends: bool,
}

impl EarInfo {
    /// The language that was heard, as far as somebody knows it: the only one that the model has, else the one that it was told.
    pub(crate) fn language_heard(&self, asked: Option<&str>) -> Option<&str> {
        match &self.languages[..] {
            [only] => Some(only),
            several if self.takes_language => language::known(several, asked?).filter(|code| *code != "auto"),
            _ => None,
        }
    }
}

/// Nobody listens any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the recogniser has stopped listening")]
pub struct HungUp;

/// The way in of a stream: mono, bounded.
pub trait AudioIn: Send {
    /// Samples per second that it takes.
    fn rate(&self) -> u32 {
        SAMPLE_RATE
    }

    /// Takes what there is room for, and says how much that was.
    fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp>;

    /// Waits for room.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HungUp>>;

    /// Tells what was said up to here, as an endpoint that is forced and then a final, empty or not; the stream goes on as if
    /// nobody had asked.
    fn report(&mut self, report: Report);

    /// Calls `reply` with the stream's state once all audio so far was heard and told, and drops it where the stream ends
    /// before. False where streams cannot be saved.
    fn snapshot(&mut self, reply: SnapshotReply) -> bool {
        drop(reply);
        false
    }

    /// Ends the stream: what is left is recognised.
    fn finish(self: Box<Self>);
}

/// Who waits for a stream's state.
pub type SnapshotReply = Box<dyn FnOnce(Result<Vec<u8>, EngineError>) + Send>;

/// The way out of a stream. Dropping it frees its slot within a step.
pub trait EventSource: Send {
    /// The next event; `None` after the last.
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, ServerError>>>;

    /// Whether the events come to an end by themselves once the audio was dropped, and the stream's slot is free then.
    fn ends_without_audio(&self) -> bool {
        false
    }

    /// The stages that worked on it so far, by name, in time from its start.
    fn stages(&self) -> Vec<(&'static str, StageTime)> {
        Vec::new()
    }
}

/// Both ways of a stream.
pub type Stream = (Box<dyn AudioIn>, Box<dyn EventSource>);

/// A recogniser that is not the engine's.
pub trait Recogniser: Send + Sync + 'static {
    /// What it is.
    fn info(&self) -> EarInfo;

    /// Refuses what it cannot do, by name: a language that is none of its own.
    fn check(&self, request: &HearRequest) -> Result<(), ServerError> {
        let has = self.info().languages;
        match &request.language {
            Some(asked) if !has.is_empty() && language::known(&has, asked).is_none() => {
                Err(EngineError::Language { asked: asked.clone(), has }.into())
            }
            _ => Ok(()),
        }
    }

    /// Opens a stream.
    fn open(&self, request: &HearRequest) -> Result<Stream, ServerError>;

    /// Goes on with a stream that was [saved](AudioIn::snapshot).
    fn resume(&self, request: &HearRequest, snapshot: &[u8]) -> Result<Stream, ServerError> {
        let _ = (request, snapshot);
        Err(HandoverError::Weights.into())
    }
}

/// Who hears.
pub enum Hears {
    /// A model of the engine, opened by these, once for each device it is on; a stream goes where the fewest are.
    Engine(Vec<OpenListener>),
    /// Another recogniser.
    Other(Arc<dyn Recogniser>),
}

/// How a recogniser is served.
pub struct EarOptions {
    /// Its name on the wire.
    pub id: String,
    /// Who hears.
    pub hears: Hears,
    /// Streams at once.
    pub slots: usize,
    /// Streams that may wait for a slot.
    pub queue: usize,
    /// How long a stream waits for a slot.
    pub patience: Duration,
    /// Load it before the server is ready.
    pub preload: bool,
    /// Unload it when it has had no stream for this long.
    pub keep_alive: Option<Duration>,
    /// Chunk in milliseconds of streams that name none.
    pub chunk_ms: Option<u32>,
    /// Beam of streams that name none.
    pub beam: Option<usize>,
}

impl EarOptions {
    /// The usual settings for a recogniser.
    pub fn new(id: impl Into<String>, slots: usize, hears: Hears) -> Self {
        let patience = Duration::from_secs(10);
        Self {
            id: id.into(),
            hears,
            slots,
            queue: 0,
            patience,
            preload: true,
            keep_alive: None,
            chunk_ms: None,
            beam: None,
        }
    }
}

/// What a job has of a recogniser.
pub(crate) struct JobSeat {
    pub(crate) listener: Kept<Listener>,
    pub(crate) seat: Seat,
    /// Held as long as the job runs.
    pub(crate) held: (Arc<Permit>, Share, LeftBy),
}

/// Notes when a job leaves a model that may be unloaded when it is idle.
pub(crate) struct LeftBy(Arc<Replicas<Listener>>);

impl Drop for LeftBy {
    fn drop(&mut self) {
        self.0.left();
    }
}

/// A recogniser and its slots.
pub(crate) struct Ear {
    id: String,
    source: Source,
    /// Chunk and beam of streams that name none.
    defaults: (Option<u32>, Option<usize>),
    gate: Gate,
    budget: Arc<Budget>,
    telemetry: Telemetry,
}

enum Source {
    /// The engine's, and what it is, known once it was open.
    Engine(Arc<Replicas<Listener>>, OnceLock<EarInfo>),
    Other(Arc<dyn Recogniser>, EarInfo),
}

impl Served for Ear {
    fn id(&self) -> &str {
        &self.id
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn replicas(&self) -> Option<&dyn Watched> {
        match &self.source {
            Source::Engine(replicas, _) => Some(&**replicas),
            Source::Other(..) => None,
        }
    }
}

impl Ear {
    pub(crate) fn new(options: EarOptions, budget: &Arc<Budget>, telemetry: Telemetry) -> Self {
        let EarOptions { id, hears, slots, queue, patience, preload, keep_alive, chunk_ms, beam } = options;
        let room = Room { slots, line: queue, patience };
        let gate = Gate::new(Kind::Hearing, room, budget, telemetry.metrics.clone());
        let source = match hears {
            Hears::Engine(opens) => {
                let replicas = Replicas::new(&id, opens, preload, keep_alive);
                Source::Engine(Arc::new(replicas), OnceLock::new())
            }
            Hears::Other(recogniser) => {
                let info = recogniser.info();
                Source::Other(recogniser, info)
            }
        };
        Self { id, source, defaults: (chunk_ms, beam), gate, budget: budget.clone(), telemetry }
    }

    /// What it is; nobody knows of a model that was never open.
    pub(crate) fn known(&self) -> Option<EarInfo> {
        match &self.source {
            Source::Other(_, info) => Some(info.clone()),
            Source::Engine(replicas, known) => match (known.get(), replicas.present()) {
                (Some(info), _) => Some(info.clone()),
                (None, Some(listener)) => Some(known.get_or_init(|| engine::info(&listener)).clone()),
                (None, None) => None,
            },
        }
    }

    /// The same, with nothing to tell of a model that was never open.
    pub(crate) fn info(&self) -> EarInfo {
        self.known().unwrap_or_default()
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn slots(&self) -> (usize, usize) {
        (self.gate.used(), self.gate.total())
    }

    /// Opens the model wherever it is to be from the start, and runs it once.
    pub(crate) async fn load(&self) -> Result<(), LoadError> {
        match &self.source {
            Source::Engine(replicas, _) => replicas.load().await,
            Source::Other(..) => Ok(()),
        }
    }

    /// A slot, for streams to be opened in.
    pub(crate) async fn admit(&self) -> Result<Arc<Permit>, ServerError> {
        self.gate.enter().await.map(Arc::new)
    }

    /// Opens a stream in a slot.
    pub(crate) async fn open_in(
        &self,
        permit: &Arc<Permit>,
        request: &HearRequest,
    ) -> Result<Hearing, ServerError> {
        let request = &self.filled(request);
        let stream = match &self.source {
            Source::Engine(replicas, known) => engine::open(replicas, known, request, None).await?,
            Source::Other(recogniser, _) => {
                recogniser.check(request)?;
                recogniser.open(request)?
            }
        };
        Ok(self.hearing(request, stream, permit))
    }

    /// Goes on in a slot with a stream that was saved, here or elsewhere.
    pub(crate) async fn resume_in(
        &self,
        permit: &Arc<Permit>,
        saved: &SavedStream,
    ) -> Result<Hearing, ServerError> {
        let SavedStream { request, samples, snapshot } = saved;
        let stream = match &self.source {
            Source::Engine(replicas, known) => engine::open(replicas, known, request, Some(snapshot)).await?,
            Source::Other(recogniser, _) => recogniser.resume(request, snapshot)?,
        };
        Ok(self.hearing(request, stream, permit).after(*samples))
    }

    /// A request with the server's defaults. A stream is saved with them, so that it goes on elsewhere as it began.
    fn filled(&self, request: &HearRequest) -> HearRequest {
        let (chunk_ms, beam) = self.defaults;
        HearRequest {
            chunk_ms: request.chunk_ms.or(chunk_ms),
            beam: Some(request.beam.or(beam).unwrap_or(1)),
            ..request.clone()
        }
    }

    fn hearing(&self, request: &HearRequest, stream: Stream, permit: &Arc<Permit>) -> Hearing {
        let patience = self.budget.limits.slot_idle;
        Hearing::new(request, stream, permit.clone(), patience, &self.telemetry, &self.id)
    }

    /// A slot, a decoder and the model itself, for a job that keeps checkpoints of its stream.
    pub(crate) async fn begin_job(&self) -> Result<JobSeat, ServerError> {
        let Source::Engine(replicas, _) = &self.source else {
            return Err(ServerError::NoModel("recogniser that keeps checkpoints"));
        };
        let (permit, decoder) = (self.admit().await?, self.decoder()?);
        let (listener, seat) = replicas.start(|listener| async move { Ok(listener) }).await?;
        Ok(JobSeat { listener, seat, held: (permit, decoder, LeftBy(replicas.clone())) })
    }

    /// A share of the decoders for the caller.
    pub(crate) fn decoder(&self) -> Result<Share, ServerError> {
        let share = self.budget.decoders.take(&Caller::current(), 1);
        share.map_err(|_| ServerError::Overloaded("decoders"))
    }

    /// Refuses a caller who would find no slot now.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        self.gate.check()
    }

    /// Refuses a request that the model cannot do, by name, before a slot is taken. A model that is not there is opened for
    /// that, unless the request asks for nothing that a model could refuse.
    pub(crate) async fn accept(&self, request: &HearRequest) -> Result<(), ServerError> {
        if request.is_plain() {
            return Ok(());
        }
        match &self.source {
            Source::Engine(replicas, _) => {
                engine::check(replicas, &engine::listen_request(&self.filled(request))).await
            }
            Source::Other(recogniser, _) => recogniser.check(request),
        }
    }

    /// The same of a job, which is given the server's defaults.
    pub(crate) async fn accept_job(&self, settings: &mut HearSettings) -> Result<(), ServerError> {
        let plain = HearSettings { format: settings.format, ..HearSettings::default() };
        let is_plain = *settings == plain;
        settings.chunk = settings.chunk.or(self.defaults.0);
        settings.beam = if settings.beam == 0 { self.defaults.1.unwrap_or(0) } else { settings.beam };
        match &self.source {
            Source::Engine(replicas, _) if !is_plain => engine::check(replicas, &settings.request()).await,
            _ => Ok(()),
        }
    }

    /// Opens a stream in a slot of its own.
    pub(crate) async fn open(&self, request: &HearRequest) -> Result<Hearing, ServerError> {
        let permit = self.admit().await?;
        self.open_in(&permit, request).await
    }
}
