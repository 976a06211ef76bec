//! Voices as the protocols see them: a text, whole or arriving, becomes speech, on whichever replica of the model.

mod clip;
mod languages;
mod loaded;
mod utterance;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use voce_engine::speaker::TextSender;
use voce_engine::store::Store;
use voce_engine::{EngineError, SpeakRequest, Speaker, SpeechStream};

use crate::core::admission::{Gate, Room};
use crate::core::aside;
use crate::core::budget::Budget;
use crate::core::caller::Caller;
use crate::core::error::ServerError;
use crate::core::metrics::{Kind, Metrics};
use crate::core::models::{Kept, LoadError, Open, Replicas, Seat, Served, Watched};
use crate::core::telemetry::Telemetry;
use loaded::{Loaded, Manner};
use utterance::{Sound, Told};

pub(crate) use clip::Clip;
pub(crate) use loaded::random_seed;
pub(crate) use utterance::Utterance;

/// Opens a speaker; called again when its model was unloaded or died.
pub type OpenSpeaker = Open<Speaker>;

/// How a voice model is served.
pub struct MouthOptions {
    /// Its name on the wire.
    pub id: String,
    /// Opens it, once for each device it is on; a request goes where the fewest are.
    pub open: Vec<OpenSpeaker>,
    /// Requests at once.
    pub slots: usize,
    /// Requests that may wait for a slot, and how long.
    pub queue: usize,
    /// How long a request waits for a slot.
    pub patience: Duration,
    /// Load it before the server is ready.
    pub preload: bool,
    /// Unload it when it has had no request for this long.
    pub keep_alive: Option<Duration>,
    /// The voice when none is asked for; the model's own when absent.
    pub voice: Option<String>,
    /// Other names of voices.
    pub voice_aliases: Vec<(String, String)>,
    /// Voices beside the model's own, by name, in files.
    pub voice_files: BTreeMap<String, PathBuf>,
    /// Whether a voice of these files stands in the places of two speakers, as moshi-server's `Py` modules have it.
    pub voice_files_twice: bool,
    /// What requests start from: sampling, and how many chunks of one text run side by side.
    pub request: SpeakRequest,
}

impl MouthOptions {
    /// The usual settings for a model.
    pub fn new(id: impl Into<String>, open: OpenSpeaker) -> Self {
        Self {
            id: id.into(),
            open: vec![open],
            slots: 8,
            queue: 0,
            patience: Duration::from_secs(10),
            preload: true,
            keep_alive: None,
            voice: None,
            voice_aliases: Vec::new(),
            voice_files: BTreeMap::new(),
            voice_files_twice: false,
            // One chunk at a time: a long text must not take the slots of others.
            request: SpeakRequest::default().with_lockstep(1),
        }
    }
}

/// OpenAI's voices, which stand for the default voice where the model has none of that name.
pub(crate) const OPENAI_VOICES: [&str; 13] = [
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer",
    "verse",
];

/// What a request asks of a voice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ask {
    pub(crate) voice: Option<String>,
    /// Take the default voice when there is none of that name.
    pub(crate) any_voice: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) temperature: Option<f32>,
    /// The language of the text.
    pub(crate) language: Option<String>,
    /// Whether markup is taken out and numbers are read out; the server's setting when absent.
    pub(crate) normalize: Option<bool>,
    /// Leave the language to the model where it has none of that name.
    pub(crate) any_language: bool,
    /// How to speak, in words; models that take no instructions do not hear of it.
    pub(crate) instructions: Option<String>,
    /// A voice that the client has sent; models of other families do not hear of it.
    pub(crate) embedding: Option<Arc<Embedding>>,
}

/// A voice as numbers.
#[derive(Debug)]
pub(crate) struct Embedding {
    pub(crate) values: Vec<f32>,
    pub(crate) shape: Vec<usize>,
}

/// A voice model and its slots.
pub(crate) struct Mouth {
    id: String,
    metrics: Metrics,
    telemetry: Telemetry,
    budget: Arc<Budget>,
    gate: Gate,
    replicas: Replicas<Loaded>,
}

impl Served for Mouth {
    fn id(&self) -> &str {
        &self.id
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn replicas(&self) -> Option<&dyn Watched> {
        Some(&self.replicas)
    }
}

impl Mouth {
    pub(crate) fn new(
        mut options: MouthOptions,
        store: &Store,
        budget: &Arc<Budget>,
        telemetry: Telemetry,
    ) -> Self {
        let metrics = telemetry.metrics.clone();
        let manner = Arc::new(Manner::new(&options, store));
        let opens = std::mem::take(&mut options.open).into_iter().map(|open| {
            let manner = manner.clone();
            Box::new(move || Ok(Loaded::new(open()?, manner.clone()))) as Open<Loaded>
        });
        let replicas = Replicas::new(&options.id, opens.collect(), options.preload, options.keep_alive);
        let room = Room { slots: options.slots, line: options.queue, patience: options.patience };
        let gate = Gate::new(Kind::Speech, room, budget, metrics.clone());
        Self { id: options.id, metrics, telemetry, budget: budget.clone(), gate, replicas }
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn slots(&self) -> (usize, usize) {
        (self.gate.used(), self.gate.total())
    }

    /// Refuses a caller who would find no slot now.
    pub(crate) fn check(&self) -> Result<(), ServerError> {
        self.gate.check()
    }

    /// Opens the model wherever it is to be from the start, and runs it once.
    pub(crate) async fn load(&self) -> Result<(), LoadError> {
        self.replicas.load().await
    }

    /// Does something with an opened model, on a thread that may wait, where the fewest streams are.
    async fn with<T: Send + 'static>(
        &self,
        work: impl Fn(&Loaded) -> Result<T, EngineError> + Send + Sync + 'static,
    ) -> Result<(T, Seat), ServerError> {
        let work = Arc::new(work);
        let begin = |model: Kept<Loaded>| {
            let work = work.clone();
            async move {
                let done = aside::wait(move || work(&model)).await;
                done.unwrap_or(Err(EngineError::Broken))
            }
        };
        self.replicas.start(begin).await
    }

    /// Names of the voices that the caller may use.
    pub(crate) async fn voice_names(&self) -> Result<Vec<String>, ServerError> {
        let caller = Caller::current();
        Ok(self.with(move |model| Ok(model.voice_names(&caller))).await?.0)
    }

    /// Tags of the languages that it speaks; none where nobody knows.
    pub(crate) async fn languages(&self) -> Result<Vec<String>, ServerError> {
        let tags = |model: &Loaded| {
            model.speaker.info().languages.iter().map(|name| languages::tag(name).to_owned()).collect()
        };
        Ok(self.with(move |model| Ok(tags(model))).await?.0)
    }

    /// Whether voices can be cloned with it.
    pub(crate) async fn clones(&self) -> Result<bool, ServerError> {
        Ok(self.with(|model| Ok(model.speaker.clones())).await?.0)
    }

    /// The name of the default voice.
    pub(crate) async fn default_voice(&self) -> Result<Option<String>, ServerError> {
        Ok(self.with(|model| Ok(model.default_voice())).await?.0)
    }

    /// A voice of a clip, with what is said in it where that is known, as the bytes of its file. It is work as other work is: it takes a slot, and few are made at once.
    pub(crate) async fn clone_voice(
        &self,
        clip: Arc<Clip>,
        text: Option<String>,
    ) -> Result<Vec<u8>, ServerError> {
        let clones = self.budget.clones.take(&Caller::current(), 1);
        let busy = |_| ServerError::Busy { what: "cloning", slots: self.budget.limits.clones };
        // Both are held until the work is done, whether the client waits for it or not.
        let held = Arc::new((clones.map_err(busy)?, self.gate.enter().await?));
        let made = self.with(move |model| {
            let _held = &held;
            let voice = model.speaker.clone_voice(clip.path(), text.as_deref())?;
            model.speaker.voice_bytes(&voice)
        });
        Ok(made.await?.0)
    }

    /// Forgets a voice whose file has changed.
    pub(crate) fn forget_voice(&self, name: &str) {
        self.replicas.all_present().for_each(|model| model.forget(name));
    }

    /// Starts to speak a text.
    pub(crate) async fn speak(self: &Arc<Self>, text: String, ask: Ask) -> Result<Utterance, ServerError> {
        let kept = self.telemetry.journal.as_ref().map(|_| json!({"text": text, "voice": ask.voice}));
        let caller = Caller::current();
        let started = self.start(kept, move |model| {
            let stream = model.speaker.speak(&text, &model.request(&ask, &caller)?)?;
            Ok((stream, ()))
        });
        Ok(started.await?.0)
    }

    /// Starts to speak a text that arrives piece by piece.
    pub(crate) async fn speak_live(
        self: &Arc<Self>,
        ask: Ask,
    ) -> Result<(TextSender, Utterance), ServerError> {
        let kept = self.telemetry.journal.as_ref().map(|_| json!({"text": null, "voice": ask.voice}));
        let caller = Caller::current();
        let started = self.start(kept, move |model| {
            let (text, stream) = model.speaker.speak_live(&model.request(&ask, &caller)?)?;
            Ok((stream, text))
        });
        let (utterance, text) = started.await?;
        Ok((text, utterance))
    }

    /// Takes a slot and begins to speak.
    async fn start<T: Send + 'static>(
        self: &Arc<Self>,
        kept: Option<serde_json::Value>,
        speak: impl Fn(&Loaded) -> Result<(SpeechStream, T), EngineError> + Send + Sync + 'static,
    ) -> Result<(Utterance, T), ServerError> {
        let permit = self.gate.enter().await?;
        let begun = Instant::now();
        let mut told = Told::new(self);
        let speak = move |model: &Loaded| {
            let (stream, more) = speak(model)?;
            let info = model.speaker.info();
            Ok((stream, more, Sound { rate: info.sample_rate as u32, tells_words: info.words }))
        };
        let ((stream, more, sound), seat) = self.with(speak).await?;
        told.keep(self, sound.rate, kept);
        Ok((Utterance::new(self, stream, sound, seat, permit, begun, told), more))
    }
}
