//! Architectures that models can be made of with random weights, to measure without a download.

use crate::EngineError;
use crate::store::Task;
use crate::store::catalogue::{self, Shape};

/// Names of the shapes for a task; the first is the one to compare machines with.
pub fn shapes(task: Task) -> impl Iterator<Item = &'static str> {
    catalogue::shapes(task).map(|shape| shape.name)
}

/// The shape of this name or short name.
pub(crate) fn shape(task: Task, name: &str) -> Result<&'static Shape, EngineError> {
    catalogue::shape(task, name).ok_or_else(|| unknown_shape(task, name))
}

/// That there is no such shape.
pub(crate) fn unknown_shape(task: Task, name: &str) -> EngineError {
    EngineError::BadShape { asked: name.chars().take(80).collect(), task, has: shapes(task).collect() }
}
