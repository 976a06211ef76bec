//! A lane: one thread that owns an executor and the slots of a model, and steps what is live.
//!
//! The loop is the same for every kind of model: it ends when told to stop, when the device has failed or when the
//! work itself cannot go on; it rests while there is nothing to do, keeps an idle model warm, and ends every stream on
//! its way out, whatever the reason.

mod spread;
mod team;
mod turn;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use voce_runtime::Exec;

use crate::EngineError;
use crate::pulse::{Life, Pulse};
use crate::wake::Waker;

pub use spread::MAX_LANES;
pub(crate) use spread::{Lanes, Seat, count, shares, threads};
pub(crate) use team::Team;
pub use team::default_threads;
pub(crate) use turn::{Turn, Turned};

/// What a lane does: the streams of one kind of model, and its slots.
pub(crate) trait Work {
    /// Takes new streams and lets go of those that nobody waits for any more.
    fn admit(&mut self, exec: &mut Exec);
    /// Does what can be done now. Returns whether there was anything.
    fn step(&mut self, exec: &mut Exec) -> bool;
    /// Whether a step that nobody hears would delay no stream.
    fn is_idle(&self) -> bool;
    /// A step that nobody hears: it keeps caches and clocks warm.
    fn warm(&mut self, exec: &mut Exec);
    /// Why the work cannot go on, although the executor could.
    fn failure(&self) -> Option<&'static str> {
        None
    }
    /// Ends every stream, those included that still wait to be taken.
    fn end(&mut self, reason: &str);
}

/// A lane before it runs.
pub(crate) struct Lane {
    pub exec: Exec,
    pub waker: Arc<Waker>,
    /// Raised to end the lane.
    pub stop: Arc<AtomicBool>,
    pub pulse: Arc<Pulse>,
    /// How long an idle model rests before it is stepped to keep it warm; never when absent.
    pub keep_warm: Option<Duration>,
}

impl Lane {
    /// Runs until told to stop, or until it cannot go on; every stream is ended then.
    pub(crate) fn run(mut self, work: &mut dyn Work) {
        let life = Life(self.pulse.clone());
        let panicked = catch_unwind(AssertUnwindSafe(|| self.run_until_stopped(work))).is_err();
        // Whoever learns of the end by a stream finds the model dead.
        drop(life);
        let reason = match (panicked, self.exec.status(), work.failure()) {
            (true, ..) => "the model thread panicked".to_owned(),
            (false, Err(e), _) => e.to_string(),
            (false, Ok(()), Some(failure)) => failure.to_owned(),
            (false, Ok(()), None) => "it was closed".to_owned(),
        };
        work.end(&reason);
    }

    fn run_until_stopped(&mut self, work: &mut dyn Work) {
        // A device that has failed does not come back: nothing of it may be taken for a result.
        while !self.stop.load(Ordering::Relaxed) && work.failure().is_none() && self.exec.status().is_ok() {
            work.admit(&mut self.exec);
            if !work.step(&mut self.exec) {
                self.rest(work);
            }
        }
    }

    /// Waits for work. An idle model is stepped now and then to keep it warm, if that was asked for.
    fn rest(&mut self, work: &mut dyn Work) {
        let idle = work.is_idle();
        let woken = self.waker.wait(self.keep_warm.filter(|_| idle));
        if !woken && idle {
            work.warm(&mut self.exec);
        }
    }
}

/// Does something for one stream. A panic in it is logged and told to the caller, who ends that stream and no other.
pub(crate) fn alone<T>(work: impl FnOnce() -> T) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| {
        tracing::error!("a panic in one stream: it was ended, the others go on");
        EngineError::Broken
    })
}
