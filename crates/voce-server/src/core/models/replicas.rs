//! A model on one device or on several: each replica has the whole model and a share of the slots, and a stream goes where
//! the fewest are.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use voce_engine::{EngineError, Pulse};

use super::held::Held;
use super::verdict::Incurable;
use super::{Kept, LoadError, Model, Open, Seat};
use crate::core::admission::Gate;
use crate::core::error::ServerError;

/// What happened to a model so far, and what there is of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Times a replica was opened.
    pub(crate) loads: u64,
    /// Times one was opened after it had been lost.
    pub(crate) restarts: u64,
    /// Times the idle model was unloaded.
    pub(crate) unloads: u64,
    /// Bytes of weights, over all replicas that are open.
    pub(crate) bytes: usize,
}

/// The replicas of a model as those see them who look after it, whatever its kind.
pub(crate) trait Watched: Send + Sync {
    /// How many replicas there are to be.
    fn count(&self) -> usize;

    /// How many of them take streams.
    fn ready(&self) -> usize;

    /// The pulses of those that are open, with their numbers.
    fn pulses(&self) -> Vec<(usize, Arc<Pulse>)>;

    /// Opens again what has died, gives up what hangs for longer than `hung`, and says what only a new process can mend.
    fn look_after(&self, hung: Duration) -> Option<Incurable>;

    /// Unloads a model that has been idle for as long as it may be.
    fn rest(&self);

    /// What happened so far.
    fn tally(&self) -> Tally;
}

/// A model behind its door: what admission, metrics and watch-over see of every kind.
pub(crate) trait Served: Send + Sync {
    /// Its name on the wire.
    fn id(&self) -> &str;

    /// The door to its slots, which knows its kind.
    fn gate(&self) -> &Gate;

    /// Its replicas, where it has any to look after.
    fn replicas(&self) -> Option<&dyn Watched>;

    /// Whether a stream would be served.
    fn is_ready(&self) -> bool {
        self.replicas().is_none_or(|r| r.ready() > 0)
    }
}

/// The replicas of a model.
pub(crate) struct Replicas<M: Model> {
    held: Vec<Arc<Held<M>>>,
    /// Opened before the server is ready; else when it is first asked for.
    preload: bool,
    /// How long it may be idle before it is unloaded.
    keep_alive: Option<Duration>,
    born: Instant,
    /// Milliseconds after `born`.
    last_used: AtomicU64,
    unloads: AtomicU64,
}

impl<M: Model> Replicas<M> {
    /// Replicas that are opened by these, one at least.
    pub(crate) fn new(id: &str, opens: Vec<Open<M>>, preload: bool, keep_alive: Option<Duration>) -> Self {
        assert!(!opens.is_empty(), "a model is somewhere");
        let held = opens.into_iter().enumerate().map(|(i, open)| Held::new(id.to_owned(), i, open));
        Self {
            held: held.collect(),
            preload,
            keep_alive,
            born: Instant::now(),
            last_used: AtomicU64::new(0),
            unloads: AtomicU64::new(0),
        }
    }

    /// Opens every replica that is to be there from the start.
    pub(crate) async fn load(&self) -> Result<(), LoadError> {
        if self.preload {
            for held in &self.held {
                held.enter().await?;
            }
        }
        Ok(())
    }

    /// A replica that is open.
    pub(crate) fn present(&self) -> Option<Kept<M>> {
        self.held.iter().find_map(|h| h.present())
    }

    /// All that are open.
    pub(crate) fn all_present(&self) -> impl Iterator<Item = Kept<M>> {
        self.held.iter().filter_map(|h| h.present())
    }

    /// Replicas in the order in which a stream tries them: those that are well, with the fewest streams first.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.held.len()).collect();
        order.sort_by_cached_key(|&i| (!self.held[i].is_ready(!self.preload), self.held[i].live()));
        order
    }

    fn touch(&self) {
        self.last_used.store(self.born.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Begins something at the replica where the fewest streams are. One that is lost or full does not take the stream
    /// with it: the next in line gets it.
    pub(crate) async fn start<T, B, F>(&self, begin: B) -> Result<(T, Seat), ServerError>
    where
        B: Fn(Kept<M>) -> F,
        F: Future<Output = Result<T, EngineError>>,
    {
        self.touch();
        let mut refused = ServerError::NotReady;
        for i in self.order() {
            let Ok((model, seat)) = self.held[i].enter().await else { continue };
            match begin(model).await {
                Ok(begun) => return Ok((begun, seat)),
                Err(error @ EngineError::Stopped(_)) => {
                    self.held[i].bury();
                    refused = error.into();
                }
                Err(error @ EngineError::Busy(_)) => refused = error.into(),
                Err(error) => return Err(error.into()),
            }
        }
        Err(refused)
    }

    /// A stream of this replica says that its model has died.
    pub(crate) fn bury(&self, replica: usize) {
        if let Some(held) = self.held.get(replica) {
            held.bury();
        }
    }

    /// A stream has ended: the model was in use until now.
    pub(crate) fn left(&self) {
        self.touch();
    }
}

impl<M: Model> Watched for Replicas<M> {
    fn count(&self) -> usize {
        self.held.len()
    }

    fn ready(&self) -> usize {
        self.held.iter().filter(|h| h.is_ready(!self.preload)).count()
    }

    fn pulses(&self) -> Vec<(usize, Arc<Pulse>)> {
        self.held.iter().enumerate().filter_map(|(i, h)| Some((i, h.pulse()?))).collect()
    }

    fn look_after(&self, hung: Duration) -> Option<Incurable> {
        // Every one of them is looked after, whatever the others say.
        self.held.iter().fold(None, |told, h| h.look_after(hung).or(told))
    }

    fn rest(&self) {
        let Some(keep_alive) = self.keep_alive else { return };
        let used = Duration::from_millis(self.last_used.load(Ordering::Relaxed));
        if self.born.elapsed().saturating_sub(used) < keep_alive {
            return;
        }
        if self.held.iter().filter(|h| h.unload()).count() > 0 {
            self.unloads.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn tally(&self) -> Tally {
        let (loads, restarts) =
            self.held.iter().map(|h| h.counts()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        let bytes = self.all_present().map(|m| m.bytes()).sum();
        Tally { loads, restarts, unloads: self.unloads.load(Ordering::Relaxed), bytes }
    }
}

#[cfg(test)]
mod tests;
