//! Events of the stages for a Chrome trace, kept only when asked for.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::wake::lock;

/// Events kept before more are dropped and counted.
const MAX_EVENTS: usize = 200_000;

/// One interval of work.
#[derive(Clone, Debug)]
pub struct TraceEvent {
    /// The stage.
    pub name: &'static str,
    /// The thread it ran on.
    pub thread: &'static str,
    /// Since the trace began.
    pub start: Duration,
    /// How long it took.
    pub duration: Duration,
    /// Rows (tokens, slots or frames) it worked on.
    pub rows: usize,
}

/// A recording of events.
#[derive(Clone, Debug)]
pub struct Trace {
    begun: Instant,
    events: Arc<Mutex<Vec<TraceEvent>>>,
}

impl Default for Trace {
    fn default() -> Self {
        Self { begun: Instant::now(), events: Arc::default() }
    }
}

impl Trace {
    /// What was recorded so far.
    pub fn events(&self) -> Vec<TraceEvent> {
        lock(&self.events).clone()
    }

    /// Forgets what was recorded so far.
    pub fn clear(&self) {
        lock(&self.events).clear();
    }
}

/// A thread's way into a trace.
#[derive(Clone)]
pub(crate) struct Tracer {
    trace: Option<Trace>,
    thread: &'static str,
}

impl Tracer {
    pub(crate) fn new(trace: Option<Trace>, thread: &'static str) -> Self {
        Self { trace, thread }
    }

    pub(crate) fn event(&self, name: &'static str, begun: Instant, duration: Duration, rows: usize) {
        let Some(trace) = &self.trace else { return };
        let mut events = lock(&trace.events);
        if events.len() < MAX_EVENTS {
            let start = begun.saturating_duration_since(trace.begun);
            events.push(TraceEvent { name, thread: self.thread, start, duration, rows });
        }
    }
}
