//! One replica of a model: opened on a thread of its own, which nobody has to wait for at the end of the process, buried
//! when its threads have died, given up when a step hangs, and opened again, later each time it cannot be.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use voce_engine::{EngineError, Pulse};

use super::backoff::Backoff;
use super::seat::{Crowd, Seat};
use super::verdict::Incurable;
use super::{Kept, LoadError, Model, Open};

/// A replica.
pub(super) struct Held<M: Model> {
    /// The model's name, for the log.
    name: String,
    /// Its number among the model's replicas.
    number: usize,
    open: Open<M>,
    state: Mutex<State<M>>,
    loads: AtomicU64,
    restarts: AtomicU64,
}

/// An opened model and its streams.
struct There<M: Model> {
    model: Kept<M>,
    crowd: Arc<Crowd>,
}

impl<M: Model> Clone for There<M> {
    fn clone(&self) -> Self {
        Self { model: self.model.clone(), crowd: self.crowd.clone() }
    }
}

/// What is sent to a caller that waits for a model, with a seat, so that the model is not idle before the caller has it.
type Answer<M> = Result<(Kept<M>, Seat), LoadError>;

struct State<M: Model> {
    there: Option<There<M>>,
    is_loading: bool,
    was_loaded: bool,
    /// It was lost and has not been opened again.
    is_lost: bool,
    backoff: Backoff,
    /// Why it could not be opened last time.
    error: Option<LoadError>,
    /// What no reopening cures.
    verdict: Option<Incurable>,
    waiting: Vec<oneshot::Sender<Answer<M>>>,
}

impl<M: Model> Held<M> {
    pub(super) fn new(name: String, number: usize, open: Open<M>) -> Arc<Self> {
        let state = State {
            there: None,
            is_loading: false,
            was_loaded: false,
            is_lost: false,
            backoff: Backoff::default(),
            error: None,
            verdict: None,
            waiting: Vec::new(),
        };
        Arc::new(Self {
            name,
            number,
            open,
            state: Mutex::new(state),
            loads: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model, where it is open.
    pub(super) fn present(&self) -> Option<Kept<M>> {
        self.state().there.as_ref().map(|t| t.model.clone())
    }

    pub(super) fn pulse(&self) -> Option<Arc<Pulse>> {
        self.state().there.as_ref().map(|t| t.model.pulse().clone())
    }

    /// Whether a stream would find the model. One that `may_wait` is opened when it is first asked for.
    pub(super) fn is_ready(&self, may_wait: bool) -> bool {
        let state = self.state();
        let lives = state.there.as_ref().is_none_or(|t| t.model.pulse().is_alive());
        (state.was_loaded || may_wait) && lives && !state.is_lost
    }

    /// Streams that are served now.
    pub(super) fn live(&self) -> usize {
        self.state().there.as_ref().map_or(0, |t| t.crowd.live())
    }

    /// Times it was opened, and times it was opened after it had been lost.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.loads.load(Ordering::Relaxed), self.restarts.load(Ordering::Relaxed))
    }

    /// The model and a seat at it, opened if it is not there. A lost one whose next try is not due is refused at once.
    pub(super) async fn enter(self: &Arc<Self>) -> Result<(Kept<M>, Seat), LoadError> {
        let answer = {
            let mut state = self.state();
            // The seat is taken with the lock held: an idle model is not unloaded in between.
            if let Some(there) = state.there.clone() {
                return Ok(self.seat(there));
            }
            if let Some(error) = state.error.clone().filter(|_| !state.is_loading && !state.backoff.is_due())
            {
                return Err(error);
            }
            let (sender, answer) = oneshot::channel();
            state.waiting.push(sender);
            self.begin_load(&mut state);
            answer
        };
        match answer.await {
            Ok(answer) => answer,
            // Nobody drops the other end without a word.
            Err(_) => Err(Arc::new(EngineError::Stopped("it was not opened".into()))),
        }
    }

    fn seat(&self, there: There<M>) -> (Kept<M>, Seat) {
        (there.model, Seat::new(there.crowd, self.number))
    }

    /// Opens the model on a thread, unless that is under way.
    fn begin_load(self: &Arc<Self>, state: &mut State<M>) {
        if std::mem::replace(&mut state.is_loading, true) {
            return;
        }
        let this = self.clone();
        let thread = std::thread::Builder::new().name("voce-load".into());
        if let Err(error) = thread.spawn(move || this.load()) {
            let error = EngineError::Stopped(format!("cannot start a thread: {error}"));
            self.loaded(state, Err(error));
        }
    }

    fn load(self: Arc<Self>) {
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let model = (self.open)()?;
            model.warm()?;
            Ok(model)
        }));
        let opened = opened.unwrap_or_else(|_| Err(EngineError::Stopped("opening panicked".into())));
        self.loaded(&mut self.state(), opened);
    }

    /// Notes what came of a load, and tells all who wait for it.
    fn loaded(&self, state: &mut State<M>, opened: Result<M, EngineError>) {
        state.is_loading = false;
        let (model, replica) = (self.name.as_str(), self.number);
        let answer = match opened {
            Ok(opened) => {
                let there = There { model: Kept::new(opened), crowd: Arc::default() };
                state.there = Some(there.clone());
                state.was_loaded = true;
                state.error = None;
                state.backoff.succeeded();
                self.loads.fetch_add(1, Ordering::Relaxed);
                if std::mem::take(&mut state.is_lost) {
                    self.restarts.fetch_add(1, Ordering::Relaxed);
                }
                tracing::info!(model, replica, "loaded");
                Ok(there)
            }
            Err(error) => {
                tracing::error!(model, replica, %error, "cannot load the model");
                state.verdict = Incurable::of(&error);
                state.backoff.failed();
                Err(state.error.insert(Arc::new(error)).clone())
            }
        };
        for waiting in state.waiting.drain(..) {
            let _ = waiting.send(answer.clone().map(|there| self.seat(there)));
        }
    }

    /// Notes a model whose threads have died, and opens it again. Streams of one that has died may tell so when there is
    /// a new one already.
    pub(super) fn bury(self: &Arc<Self>) {
        let mut state = self.state();
        if state.there.as_ref().is_some_and(|t| !t.model.pulse().is_alive()) {
            tracing::error!(
                model = self.name,
                replica = self.number,
                "the model's thread has died: loading it again"
            );
            self.lose(&mut state);
        }
    }

    fn lose(self: &Arc<Self>, state: &mut State<M>) {
        state.is_lost = true;
        state.there = None;
        if state.backoff.is_due() {
            self.begin_load(state);
        }
    }

    /// Looks after the replica: one that died is opened again, one whose step has lasted longer than `hung` is given up
    /// and its streams end. Says what only a new process can mend.
    pub(super) fn look_after(self: &Arc<Self>, hung: Duration) -> Option<Incurable> {
        self.bury();
        let mut state = self.state();
        let hangs = |t: &mut There<M>| t.model.pulse().in_step().is_some_and(|time| time > hung);
        if let Some(there) = state.there.take_if(hangs) {
            tracing::error!(
                model = self.name,
                replica = self.number,
                "a step hangs: its streams end and the model is given up"
            );
            there.crowd.give_up();
            if there.model.is_on_device() {
                state.verdict = Some(Incurable::hung(&self.name));
                state.is_lost = true;
            } else {
                self.lose(&mut state);
            }
        }
        let verdict = state.verdict.take();
        if verdict.is_none() && state.there.is_none() && state.is_lost && state.backoff.is_due() {
            self.begin_load(&mut state);
        }
        verdict
    }

    /// Gives the memory back, unless a stream is served. Whether there was any to give.
    pub(super) fn unload(&self) -> bool {
        let there = self.state().there.take_if(|t| t.crowd.live() == 0);
        there.is_some()
    }
}
