//! Voices: a loaded speaker, or one on each of several devices, with its slots, its voices and its way back when its thread dies.

mod part;

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use serde_json::json;
use voce_engine::speaker::{SpeakStats, TextSender};
use voce_engine::stage::weight_bytes;
use voce_engine::store::Store;
use voce_engine::{EngineError, Pulse, SpeakRequest, Speaker, SpeechStream, StageTime, VoiceChoice};

use crate::core::admission::{Gate, Load, Permit};
use crate::core::error::ServerError;
use crate::core::journal::Tap;
use crate::core::limits;
use crate::core::metrics::{Kind, Metrics, ModelLabel};
use crate::core::otlp::Field;
use crate::core::query::short;
use crate::core::telemetry::Telemetry;
use crate::core::trace::{StreamEnd, StreamTrace};
use part::{Part, Place};

/// Opens a speaker; called again when its model was unloaded or died.
pub type OpenSpeaker = Box<dyn Fn() -> Result<Speaker, EngineError> + Send + Sync>;

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
    /// Unload it after so long without a request.
    pub keep_alive: Option<Duration>,
    /// The voice when none is asked for; the model's own when absent.
    pub voice: Option<String>,
    /// Other names of voices.
    pub voice_aliases: Vec<(String, String)>,
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
            // One chunk at a time: a long text must not take the slots of others.
            request: SpeakRequest { lockstep: 1, ..SpeakRequest::default() },
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
}

/// A voice model and its slots.
pub(crate) struct Mouth {
    options: MouthOptions,
    store: Store,
    metrics: Metrics,
    telemetry: Telemetry,
    gate: Gate,
    /// One at least.
    parts: Vec<Part>,
    born: Instant,
    /// Milliseconds after `born`.
    last_used: AtomicU64,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Mouth {
    pub(crate) fn new(mut options: MouthOptions, store: Store, telemetry: Telemetry) -> Self {
        let metrics = telemetry.metrics.clone();
        let parts: Vec<Part> = std::mem::take(&mut options.open).into_iter().map(Part::new).collect();
        assert!(!parts.is_empty(), "a voice is somewhere");
        let gate = Gate::new(Kind::Speech, options.slots, options.queue, options.patience, metrics.clone());
        Self {
            options,
            store,
            metrics,
            telemetry,
            gate,
            parts,
            born: Instant::now(),
            last_used: AtomicU64::new(0),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.options.id
    }

    pub(crate) fn slots(&self) -> (usize, usize) {
        (self.gate.used(), self.gate.total())
    }

    pub(crate) fn preloads(&self) -> bool {
        self.options.preload
    }

    pub(crate) fn keep_alive(&self) -> Option<Duration> {
        self.options.keep_alive
    }

    /// Whether a request would find the model somewhere, or may load it.
    pub(crate) fn is_ready(&self) -> bool {
        self.parts.iter().any(|p| p.is_ready(self.options.preload))
    }

    pub(crate) fn load(&self) -> Load {
        self.gate.load()
    }

    pub(crate) fn pulses(&self) -> Vec<Arc<Pulse>> {
        self.parts.iter().filter_map(|p| p.present().map(|s| s.pulse().clone())).collect()
    }

    fn present(&self) -> Option<Arc<Speaker>> {
        self.parts.iter().find_map(Part::present)
    }

    /// The parts in the order in which a request tries them: those that are well, with the fewest requests first.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.parts.len()).collect();
        order.sort_by_key(|&i| (!self.parts[i].is_ready(self.options.preload), self.parts[i].live()));
        order
    }

    fn touch(&self) {
        self.last_used.store(self.born.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// The speaker that the next request would have, loaded if it is not there.
    pub(crate) async fn speaker(self: &Arc<Self>) -> Result<Arc<Speaker>, EngineError> {
        self.at(self.order()[0]).await
    }

    /// The speaker of a part, loaded if it is not there.
    async fn at(self: &Arc<Self>, part: usize) -> Result<Arc<Speaker>, EngineError> {
        self.touch();
        let place = &self.parts[part];
        if let Some(speaker) = place.present() {
            return Ok(speaker);
        }
        let _one_at_a_time = place.loading.lock().await;
        if let Some(speaker) = place.present() {
            return Ok(speaker);
        }
        let this = self.clone();
        let opened = tokio::task::spawn_blocking(move || {
            let speaker = (this.parts[part].open)()?;
            this.run_once(part, &speaker)?;
            Ok(speaker)
        });
        let opened = opened.await;
        let speaker =
            Arc::new(opened.unwrap_or_else(|_| Err(EngineError::Stopped("loading panicked".into())))?);
        place.hold(speaker.clone());
        let label = ModelLabel { model: self.id().into() };
        let bytes = |s: Arc<Speaker>| weight_bytes(&s.info().stages);
        let held: usize = self.parts.iter().filter_map(Part::present).map(bytes).sum();
        self.metrics.model_bytes.get_or_create(&label).set(held as i64);
        self.metrics.model_loads.get_or_create(&label).inc();
        // The series is there from the start, at zero.
        let _ = self.metrics.model_unloads.get_or_create(&label);
        if place.dead.swap(false, Ordering::Relaxed) {
            self.metrics.model_restarts.get_or_create(&label).inc();
        }
        tracing::info!(model = self.id(), part, "loaded");
        Ok(speaker)
    }

    /// Loads the model and its default voice wherever it is to be, and runs it once.
    pub(crate) async fn warm(self: &Arc<Self>) -> Result<(), EngineError> {
        for part in 0..self.parts.len() {
            self.at(part).await?;
        }
        Ok(())
    }

    /// The first request finds memory, caches and its voice as the second one does.
    fn run_once(&self, part: usize, speaker: &Speaker) -> Result<(), EngineError> {
        self.voice(part, speaker, &Ask { any_voice: true, ..Ask::default() })?;
        speaker.warm()
    }

    /// Gives the memory back after so long without a request.
    pub(crate) async fn unload_when_idle(self: Arc<Self>, keep_alive: Duration) {
        let step = (keep_alive / 4).max(Duration::from_millis(10));
        loop {
            tokio::time::sleep(step).await;
            let used = Duration::from_millis(self.last_used.load(Ordering::Relaxed));
            let idle = self.born.elapsed().saturating_sub(used);
            if idle < keep_alive || self.gate.used() > 0 || self.present().is_none() {
                continue;
            }
            self.parts.iter().for_each(Part::drop_model);
            self.metrics.model_unloads.get_or_create(&ModelLabel { model: self.id().into() }).inc();
            tracing::info!(model = self.id(), "unloaded after {} s without a request", idle.as_secs());
        }
    }

    /// Notes that a part's thread has died: it is loaded again.
    fn bury(self: &Arc<Self>, part: usize) {
        let place = &self.parts[part];
        // Requests of a model that has died may tell so when there is a new one already.
        if place.present().is_some_and(|s| s.pulse().is_alive()) {
            return;
        }
        if !place.dead.swap(true, Ordering::Relaxed) {
            tracing::error!(model = self.id(), part, "the model's thread has died: loading it again");
            place.drop_model();
            self.reload(part);
        }
    }

    fn reload(self: &Arc<Self>, part: usize) {
        let this = self.clone();
        tokio::spawn(async move {
            match this.at(part).await {
                Ok(_) => this.parts[part].backoff.succeeded(),
                Err(error) => {
                    this.parts[part].backoff.failed();
                    tracing::error!(model = this.id(), part, %error, "cannot load the model again");
                }
            }
        });
    }

    /// Loads what has died again; called now and then.
    pub(crate) fn revive(self: &Arc<Self>) {
        for (part, place) in self.parts.iter().enumerate() {
            match place.present() {
                Some(speaker) if !speaker.pulse().is_alive() => self.bury(part),
                None if place.dead.load(Ordering::Relaxed)
                    && place.backoff.is_due()
                    && place.loading.try_lock().is_ok() =>
                {
                    self.reload(part);
                }
                _ => {}
            }
        }
    }

    /// Names of the voices.
    pub(crate) async fn voice_names(self: &Arc<Self>) -> Result<Vec<String>, ServerError> {
        Ok(self.speaker().await?.voice_names())
    }

    /// The name of the default voice.
    pub(crate) async fn default_voice(self: &Arc<Self>) -> Result<Option<String>, ServerError> {
        let speaker = self.speaker().await?;
        Ok(self.options.voice.clone().or_else(|| speaker.default_voice()))
    }

    /// The voice of a request. Only names are taken, never paths: clients have no business with files.
    fn voice(&self, part: usize, speaker: &Speaker, ask: &Ask) -> Result<VoiceChoice, EngineError> {
        let asked = ask.voice.as_deref().filter(|v| !v.is_empty() && *v != "default");
        let asked = asked.map(|v| {
            self.options
                .voice_aliases
                .iter()
                .find(|(alias, _)| alias == v)
                .map_or(v, |(_, name)| name.as_str())
        });
        let known = speaker.voice_names();
        let name = match asked {
            Some(name) if known.iter().any(|k| k == name) => Some(name.to_owned()),
            Some(name) if !ask.any_voice && !OPENAI_VOICES.contains(&name) => {
                return Err(EngineError::UnknownVoice { name: short(name), known });
            }
            _ => self.options.voice.clone().or_else(|| speaker.default_voice()),
        };
        let Some(name) = name else { return Ok(VoiceChoice::Default) };
        let voices = &self.parts[part].voices;
        if let Some(voice) = lock(voices).get(&name) {
            return Ok(voice.clone().into());
        }
        let voice = speaker.voice(&name)?;
        let mut cache = lock(voices);
        if cache.len() >= limits::VOICE_CACHE {
            cache.clear();
        }
        cache.insert(name, voice.clone());
        Ok(voice.into())
    }

    /// Forgets a voice whose file has changed.
    pub(crate) fn forget_voice(&self, name: &str) {
        self.parts.iter().for_each(|p| drop(lock(&p.voices).remove(name)));
    }

    /// Starts to speak a text.
    pub(crate) async fn speak(self: &Arc<Self>, text: String, ask: Ask) -> Result<Utterance, ServerError> {
        let permit = self.gate.enter().await?;
        let begun = Instant::now();
        let mut told = Told::new(self);
        let kept = self.telemetry.journal.as_ref().map(|_| json!({"text": text, "voice": ask.voice}));
        let (stream, place) = self.start(ask, move |speaker, request| speaker.speak(&text, request)).await?;
        told.keep(self, kept);
        Ok(self.utterance(stream, place, permit, begun, told))
    }

    /// Starts to speak a text that arrives piece by piece.
    pub(crate) async fn speak_live(
        self: &Arc<Self>,
        ask: Ask,
    ) -> Result<(TextSender, Utterance), ServerError> {
        let permit = self.gate.enter().await?;
        let begun = Instant::now();
        let mut told = Told::new(self);
        let kept = self.telemetry.journal.as_ref().map(|_| json!({"text": null, "voice": ask.voice}));
        let started =
            self.start(ask, |speaker: &Speaker, request: &SpeakRequest| speaker.speak_live(request));
        let ((text, stream), place) = started.await?;
        told.keep(self, kept);
        Ok((text, self.utterance(stream, place, permit, begun, told)))
    }

    /// Begins to speak where the fewest do. A part that has died does not take requests with it: the next one gets them.
    async fn start<T: Send + 'static>(
        self: &Arc<Self>,
        ask: Ask,
        speak: impl Fn(&Speaker, &SpeakRequest) -> Result<T, EngineError> + Send + Sync + 'static,
    ) -> Result<(T, Place), ServerError> {
        let (speak, mut refused) = (Arc::new(speak), ServerError::NotReady);
        for part in self.order() {
            let speaker = match self.at(part).await {
                Ok(speaker) => speaker,
                Err(error) => {
                    refused = error.into();
                    continue;
                }
            };
            let place = Place::new(part, &self.parts[part]);
            let (this, ask, speak) = (self.clone(), ask.clone(), speak.clone());
            let started = tokio::task::spawn_blocking(move || {
                let mut request = this.options.request.clone();
                request.voice = this.voice(part, &speaker, &ask)?;
                request.seed = ask.seed.unwrap_or_else(random_seed);
                request.temperature = ask.temperature.or(request.temperature);
                speak(&speaker, &request)
            });
            match started.await.map_err(|_| ServerError::Internal)? {
                Err(error @ EngineError::Stopped(_)) => {
                    self.bury(part);
                    refused = error.into();
                }
                result => return Ok((result?, place)),
            }
        }
        Err(refused)
    }

    fn utterance(
        self: &Arc<Self>,
        stream: SpeechStream,
        place: Place,
        permit: Permit,
        begun: Instant,
        told: Told,
    ) -> Utterance {
        let rate = self.parts[place.part].present().map_or(24_000, |s| s.info().sample_rate as u32);
        Utterance {
            stream,
            rate,
            mouth: self.clone(),
            place,
            permit,
            begun,
            told,
            samples: 0,
            playing: None,
            waited: false,
            ended: false,
        }
    }
}

/// What is told of a request beside its audio.
struct Told {
    trace: Option<StreamTrace>,
    tap: Option<Tap>,
    error: Option<&'static str>,
}

impl Told {
    fn new(mouth: &Mouth) -> Self {
        Self { trace: mouth.telemetry.tracing.stream("speak", mouth.id()), tap: None, error: None }
    }

    /// Begins to keep the request, now that the model's rate is known.
    fn keep(&mut self, mouth: &Mouth, line: Option<serde_json::Value>) {
        let (Some(journal), Some(line)) = (&mouth.telemetry.journal, line) else { return };
        let rate = mouth.present().map_or(24_000, |s| s.info().sample_rate as u32);
        self.tap = journal.stream(Kind::Speech, mouth.id(), rate);
        if let Some(tap) = &mut self.tap {
            tap.line(&line);
        }
    }

    fn end(&mut self, stats: &SpeakStats, seconds: f64, waited: Duration, error: Option<&'static str>) {
        if let Some(tap) = &mut self.tap {
            tap.summary(json!({
                "tokens": stats.tokens, "frames": stats.frames, "seconds": seconds, "error": error,
            }));
        }
        let Some(trace) = self.trace.take() else { return };
        let mut queue = StageTime::default();
        queue.add(stats.queue, stats.queue, stats.queue);
        let stages = [
            ("queue", queue),
            ("prefill", stats.prefill_span),
            ("synth", stats.synth_span),
            ("codec", stats.codec_span),
        ];
        let mut fields = vec![
            ("voce.audio_seconds", Field::Float(seconds)),
            ("voce.frames", Field::Int(stats.frames as i64)),
            ("voce.tokens", Field::Int(stats.tokens as i64)),
        ];
        if let Some(first) = stats.first_audio {
            fields.push(("voce.first_audio_seconds", Field::Float(first.as_secs_f64())));
        }
        trace.end(StreamEnd { waited, stages: &stages, fields, error });
    }
}

fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// Speech on its way to a client. Dropping it frees its slot within a frame.
pub(crate) struct Utterance {
    stream: SpeechStream,
    rate: u32,
    mouth: Arc<Mouth>,
    place: Place,
    permit: Permit,
    begun: Instant,
    told: Told,
    samples: usize,
    /// When a listener who began at the first chunk will have heard all of it.
    playing: Option<Instant>,
    waited: bool,
    ended: bool,
}

impl Utterance {
    /// Samples per second.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    pub(crate) fn stats(&self) -> SpeakStats {
        self.stream.stats()
    }

    /// The next samples; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<f32>, ServerError>> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// As [`Utterance::next`], for streams.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Vec<f32>, ServerError>>> {
        match self.stream.poll_next(cx) {
            Poll::Pending => {
                self.waited = true;
                Poll::Pending
            }
            Poll::Ready(Some(Ok(chunk))) => {
                self.count(chunk.samples.len());
                if let Some(tap) = &mut self.told.tap {
                    tap.audio(&chunk.samples);
                }
                Poll::Ready(Some(Ok(chunk.samples)))
            }
            Poll::Ready(Some(Err(error))) => {
                self.ended = true;
                if matches!(error, EngineError::Stopped(_)) {
                    self.mouth.bury(self.place.part);
                }
                self.mouth.metrics.error(error.code());
                self.told.error = Some(error.code());
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                self.ended = true;
                Poll::Ready(None)
            }
        }
    }

    fn count(&mut self, samples: usize) {
        let now = Instant::now();
        let metrics = &self.mouth.metrics;
        if self.samples == 0 {
            metrics.first_audio.observe((now - self.begun).as_secs_f64());
        }
        let length = Duration::from_secs_f64(samples as f64 / f64::from(self.rate));
        let until = match self.playing {
            // Only audio that had to be waited for can be late: a slow reader is not the model's fault.
            Some(until) if self.waited && now > until => {
                metrics.underruns.inc();
                now
            }
            Some(until) => until.max(now),
            None => now,
        };
        self.playing = Some(until + length);
        self.waited = false;
        self.samples += samples;
    }
}

impl Drop for Utterance {
    fn drop(&mut self) {
        let metrics = &self.mouth.metrics;
        metrics.audio("out", self.samples as f64 / f64::from(self.rate));
        if !self.ended {
            metrics.cancel("client_gone");
        }
        let stats = self.stream.stats();
        if stats.frames > 0 {
            let busy = stats.prefill + stats.stages.iter().map(|(_, time)| *time).sum::<Duration>();
            let label = ModelLabel { model: self.mouth.id().into() };
            metrics.step_seconds.get_or_create(&label).observe(busy.as_secs_f64() / stats.frames as f64);
        }
        let error = self.told.error.or((!self.ended).then_some("client_gone"));
        self.told.end(&stats, self.samples as f64 / f64::from(self.rate), self.permit.take_waited(), error);
        self.mouth.touch();
    }
}
