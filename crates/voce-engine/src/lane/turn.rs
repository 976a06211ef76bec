//! Turns on a device: large steps of several lanes go one after the other there. Two side by side would both end late,
//! and the device would wait for both lanes' hosts at once.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use voce_runtime::Exec;

use crate::device::Place;
use crate::wake::lock;

/// Rows for each multiprocessor of a device from which a step fills it.
const TURN_ROWS: usize = 6;
/// Rows from which a device begins while the host still asks for the last layers.
const EARLY_ROWS: usize = 4096;

/// The turn that the lanes of one device share; nobody waits where there is one lane, or no device.
#[derive(Clone, Default)]
pub(crate) struct Turn(Option<Arc<Mutex<()>>>);

/// When a step that had to take its turn had asked for everything, and when its turn came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turned {
    pub asked: Instant,
    pub at: Instant,
}

impl Turned {
    /// How long it waited.
    pub(crate) fn waited(&self) -> Duration {
        self.at - self.asked
    }
}

impl Turn {
    pub(crate) fn new(lanes: usize, place: &Place) -> Self {
        Self((lanes > 1 && place.device.is_some()).then(Arc::default))
    }

    /// Asks a device for the work of a step over `rows` rows and, where they fill it, waits for the lane's turn and
    /// for the result. What can be asked of the device before its turn is.
    pub(crate) fn take<T>(
        &self,
        exec: &mut Exec,
        rows: usize,
        ask: impl FnOnce(&mut Exec) -> T,
    ) -> (T, Option<Turned>) {
        let processors = exec.processors().unwrap_or(0);
        let Some(turn) = self.0.as_deref().filter(|_| rows >= TURN_ROWS * processors) else {
            exec.hold_back(false);
            return (ask(exec), None);
        };
        let early = if rows >= EARLY_ROWS { turn.try_lock().ok() } else { None };
        exec.hold_back(early.is_none());
        let result = ask(exec);
        let asked = Instant::now();
        let taken = early.unwrap_or_else(|| lock(turn));
        let at = Instant::now();
        exec.finish();
        drop(taken);
        (result, Some(Turned { asked, at }))
    }
}
