//! A transducer's search on the device: see `kernels/transducer/`.

mod beams;
mod greedy;

pub(super) use beams::BeamArgs;
pub(super) use greedy::GreedyArgs;
