//! The engine's listener behind the protocols, loaded again when its thread dies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};

use voce_engine::listener::{AudioSender, Endpointing, Hotword, ListenRequest, Listener, TranscriptStream};
use voce_engine::stage::weight_bytes;
use voce_engine::{EngineError, Pulse, StageTime};

use super::{AudioIn, EarInfo, EventSource, HearRequest, HungUp, ListenEvent, Recogniser, Stream};
use crate::core::error::ServerError;
use crate::core::vigil::Backoff;

/// Longest utterance of a live stream, after which it ends without a pause.
const LONGEST_MS: u32 = 60_000;

/// Opens a listener; called again when it has died.
pub type OpenListener = Box<dyn Fn() -> Result<Listener, EngineError> + Send + Sync>;

/// A recogniser of the engine.
pub struct ListenerEars {
    inner: Arc<Inner>,
}

struct Inner {
    open: OpenListener,
    info: EarInfo,
    held: RwLock<Option<Arc<Listener>>>,
    loading: AtomicBool,
    restarts: AtomicU64,
    backoff: Backoff,
}

/// Opens a listener and runs it once.
fn load(open: &OpenListener) -> Result<Listener, EngineError> {
    let listener = open()?;
    listener.warm()?;
    Ok(listener)
}

impl ListenerEars {
    /// Loads the recogniser and runs it once.
    pub fn new(open: OpenListener) -> Result<Self, EngineError> {
        let listener = load(&open)?;
        let info = listener.info();
        let info = EarInfo {
            frame_ms: info.frame_ms,
            languages: info.languages.clone(),
            streaming: !info.offline,
            bytes: weight_bytes(&info.stages),
        };
        let held = RwLock::new(Some(Arc::new(listener)));
        let (loading, restarts, backoff) = Default::default();
        Ok(Self { inner: Arc::new(Inner { open, info, held, loading, restarts, backoff }) })
    }
}

impl Inner {
    fn present(&self) -> Option<Arc<Listener>> {
        self.held.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Drops a listener whose thread has died, and loads it again on a thread of its own.
    fn bury(self: &Arc<Self>) {
        // Streams of a listener that has died may tell so when there is a new one already.
        let is_well = |l: Arc<Listener>| l.pulse().is_alive();
        if self.present().is_some_and(is_well)
            || !self.backoff.is_due()
            || self.loading.swap(true, Ordering::Relaxed)
        {
            return;
        }
        tracing::error!("a recogniser's thread has died: loading it again");
        let dead = self.held.write().unwrap_or_else(PoisonError::into_inner).take();
        let this = self.clone();
        std::thread::spawn(move || {
            drop(dead);
            let loaded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| load(&this.open)));
            match loaded.unwrap_or_else(|_| Err(EngineError::Stopped("loading panicked".into()))) {
                Ok(listener) => {
                    *this.held.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(listener));
                    this.restarts.fetch_add(1, Ordering::Relaxed);
                    this.backoff.succeeded();
                    tracing::info!("the recogniser is there again");
                }
                Err(error) => {
                    this.backoff.failed();
                    tracing::error!(%error, "cannot load the recogniser again");
                }
            }
            this.loading.store(false, Ordering::Relaxed);
        });
    }

    /// An error for the client; one that means the end of the model is acted upon.
    fn note(self: &Arc<Self>, error: EngineError) -> ServerError {
        if matches!(error, EngineError::Stopped(_)) {
            self.bury();
        }
        error.into()
    }
}

impl Recogniser for ListenerEars {
    fn info(&self) -> EarInfo {
        self.inner.info.clone()
    }

    fn is_ready(&self) -> bool {
        self.inner.present().is_some_and(|l| l.pulse().is_alive())
    }

    fn pulses(&self) -> Vec<Arc<Pulse>> {
        self.inner.present().map(|l| l.pulse().clone()).into_iter().collect()
    }

    fn revive(&self) {
        if !self.is_ready() {
            self.inner.bury();
        }
    }

    fn restarts(&self) -> u64 {
        self.inner.restarts.load(Ordering::Relaxed)
    }

    fn open(&self, request: &HearRequest) -> Result<Stream, ServerError> {
        let Some(listener) = self.inner.present() else {
            self.inner.bury();
            return Err(ServerError::NotReady);
        };
        let hotword = |(phrase, weight): &(String, f32)| Hotword { phrase: phrase.clone(), weight: *weight };
        // Clients name languages that models without a choice of them do not know.
        let language = request.language.clone().filter(|l| self.inner.info.languages.contains(l));
        let request = ListenRequest {
            chunk_ms: request.chunk_ms,
            beam: request.beam,
            hotwords: request.hotwords.iter().map(hotword).collect(),
            language,
            endpoint: Endpointing {
                silence_ms: request.silence_ms,
                max_ms: request.silence_ms.map(|_| LONGEST_MS),
            },
            partials: request.partials,
            progress: request.progress,
            ..ListenRequest::default()
        };
        let (audio, events) = listener.listen(&request).map_err(|e| self.inner.note(e))?;
        Ok((Box::new(In(audio)), Box::new(Out { events, inner: self.inner.clone() })))
    }
}

struct In(AudioSender);

impl AudioIn for In {
    fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp> {
        self.0.try_push(samples).map_err(|_| HungUp)
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        self.0.poll_ready(cx).map_err(|_| HungUp)
    }

    fn end_utterance(&mut self) {
        self.0.end_utterance();
    }

    fn finish(self: Box<Self>) {
        self.0.finish();
    }
}

struct Out {
    events: TranscriptStream,
    inner: Arc<Inner>,
}

impl EventSource for Out {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, ServerError>>> {
        self.events.poll_event(cx).map(|event| event.map(|e| e.map_err(|e| self.inner.note(e))))
    }

    fn stages(&self) -> Vec<(&'static str, StageTime)> {
        let stats = self.events.stats();
        let mut queue = StageTime::default();
        queue.add(stats.queue, stats.queue, stats.queue);
        vec![("queue", queue), ("encode", stats.encoder), ("search", stats.search)]
    }
}
