//! The server's way out: not ready at once, work in flight until a deadline, then the rest is told to go.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;

/// How far the shutdown has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    Draining,
    Over,
}

/// Shared by the accept loop, the routes and the sockets.
#[derive(Clone)]
pub(crate) struct Drain {
    stage: Arc<watch::Sender<Stage>>,
    /// How long work in flight has; known once it begins.
    time: Arc<OnceLock<Duration>>,
    /// Sockets that have left HTTP behind and are nobody's task to wait for.
    sessions: Arc<watch::Sender<usize>>,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            stage: Arc::new(watch::Sender::new(Stage::Running)),
            time: Arc::default(),
            sessions: Arc::new(watch::Sender::new(0)),
        }
    }
}

/// A session in flight; the server waits for it.
pub(crate) struct Session(Arc<watch::Sender<usize>>);

impl Drop for Session {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

impl Drain {
    /// No new work from here on, and work in flight has this long; only the first call has an effect.
    pub(crate) fn begin(&self, time: Duration) {
        let _ = self.time.set(time);
        self.raise(Stage::Draining);
    }

    /// Time is up for work in flight.
    pub(crate) fn end(&self) {
        self.raise(Stage::Over);
    }

    /// How long work in flight has, once that has begun.
    pub(crate) fn time(&self) -> Duration {
        self.time.get().copied().unwrap_or_default()
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.stage.borrow() >= Stage::Draining
    }

    /// Counts a session until the value is dropped.
    pub(crate) fn session(&self) -> Session {
        self.sessions.send_modify(|n| *n += 1);
        Session(self.sessions.clone())
    }

    /// Waits until no session is in flight.
    pub(crate) async fn idle(&self) {
        let _ = self.sessions.subscribe().wait_for(|n| *n == 0).await;
    }

    /// Waits for the beginning.
    pub(crate) async fn begun(&self) {
        self.reach(Stage::Draining).await;
    }

    /// Waits for the deadline.
    pub(crate) async fn over(&self) {
        self.reach(Stage::Over).await;
    }

    fn raise(&self, to: Stage) {
        self.stage.send_if_modified(|s| {
            let further = to > *s;
            *s = to.max(*s);
            further
        });
    }

    async fn reach(&self, to: Stage) {
        // The sender lives as long as this value, so the wait ends only by the stage.
        let _ = self.stage.subscribe().wait_for(|s| *s >= to).await;
    }
}
