//! Ops of a transducer's search, apart from those that every model has: looks of the joint are decided where they were
//! computed, by executors that say so ([`crate::Exec::decides_searches`]).

mod beams;
mod greedy;

pub use beams::{BEAM_LANES, BeamHeld, BeamHyp, BeamNode, BeamRun, Beams, BeamsOp, MAX_WIDTH};
pub(crate) use beams::{BEAM_RUN_WORDS, HELD_WORDS, HYP_WORDS, NODE_WORDS};
pub(crate) use greedy::{FOUND_WORDS, RUN_WORDS};
pub use greedy::{GreedyOp, GreedyRun, GreedyRuns, MAX_AHEAD, MAX_CYCLE, Repeats};
