//! Loaded models, whatever they do: opened, lost, opened again, on one device or on several. Speech, hearing and dialogue
//! are held by the same mechanism; what a kind adds stands in its own folder.

mod backoff;
mod held;
mod kept;
mod replicas;
mod seat;
mod verdict;

use std::sync::Arc;

use voce_engine::listener::Listener;
use voce_engine::{EngineError, Pulse};

pub(crate) use kept::Kept;
pub(crate) use replicas::{Replicas, Served, Watched};
pub(crate) use seat::Seat;
pub(crate) use verdict::Incurable;

/// Opens a model; called again when it was unloaded or lost.
pub type Open<M> = Box<dyn Fn() -> Result<M, EngineError> + Send + Sync>;

/// Why a model could not be opened; everybody who waited for it is told.
pub(crate) type LoadError = Arc<EngineError>;

/// What the server needs of a loaded model.
pub(crate) trait Model: Send + Sync + 'static {
    /// The pulse of its threads.
    fn pulse(&self) -> &Arc<Pulse>;

    /// Bytes of its weights that a step reads.
    fn bytes(&self) -> usize;

    /// Whether it runs on a device: a step that hangs there cannot be ended from here.
    fn is_on_device(&self) -> bool;

    /// Runs it once from end to end, so that the first stream finds memory and caches as the second one does.
    fn warm(&self) -> Result<(), EngineError>;
}

impl Model for Listener {
    fn pulse(&self) -> &Arc<Pulse> {
        self.pulse()
    }

    fn bytes(&self) -> usize {
        voce_engine::stage::weight_bytes(&self.info().stages)
    }

    fn is_on_device(&self) -> bool {
        self.info().device.is_some()
    }

    fn warm(&self) -> Result<(), EngineError> {
        self.warm()
    }
}
