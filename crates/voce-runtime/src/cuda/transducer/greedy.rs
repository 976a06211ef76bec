//! Greedy search on the device: see `greedy.cu`.

use crate::cuda::driver::{Address, Shape};
use crate::cuda::queue::Args;
use crate::cuda::{Cuda, Plain, program};
use crate::exec::transducer::{FOUND_WORDS, GreedyOp, GreedyRun, GreedyRuns, RUN_WORDS};

/// Threads of a block that takes streams.
const THREADS: u32 = 256;

/// Arguments of `greedy_begin` and `greedy_decide`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct GreedyArgs {
    logits: Address,
    /// Runs that the host gives.
    given: Address,
    durations: Address,
    runs: Address,
    found: Address,
    frames: Address,
    lanes: Address,
    labels: Address,
    moved: Address,
    streams: u32,
    looks: u32,
    ahead: u32,
    blank: u32,
    duration_count: u32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for GreedyArgs {}
// SAFETY: numbers without padding.
unsafe impl Plain for GreedyRun {}

/// Words of all runs and of the labels there is room for.
fn words(state: &GreedyRuns) -> usize {
    state.streams * (RUN_WORDS + state.looks * FOUND_WORDS)
}

impl Cuda {
    fn greedy_args(&mut self, state: &mut GreedyRuns) -> GreedyArgs {
        let bytes = words(state) * 4;
        let runs = self.queue.reserve(&mut state.memory, bytes);
        GreedyArgs {
            logits: 0,
            given: 0,
            durations: 0,
            runs,
            found: runs + (4 * RUN_WORDS * state.streams) as u64,
            frames: self.written_tokens(&mut state.frames),
            lanes: self.written_tokens(&mut state.lanes),
            labels: self.written_tokens(&mut state.labels),
            moved: self.written_tokens(&mut state.moved),
            streams: state.streams as u32,
            looks: state.looks as u32,
            ahead: 0,
            blank: 0,
            duration_count: 0,
            pad: 0,
        }
    }

    pub(crate) fn greedy_begin(&mut self, runs: &[GreedyRun], ahead: usize, state: &mut GreedyRuns) {
        let mut args = self.greedy_args(state);
        args.ahead = ahead as u32;
        args.given = self.queue.table(runs);
        let shape = Shape { grid: [args.streams.div_ceil(THREADS), 1, 1], block: THREADS, shared: 0 };
        self.queue.launch(program::GREEDY_BEGIN, shape, &args);
    }

    pub(crate) fn greedy_decide(&mut self, op: &GreedyOp<'_>, state: &mut GreedyRuns) {
        let logits = self.read(op.logits);
        let mut args = self.greedy_args(state);
        args.ahead = op.ahead as u32;
        (args.logits, args.blank) = (logits, op.blank as u32);
        args.duration_count = op.durations.len() as u32;
        args.durations = self.row_list(op.durations.into());
        let shape = Shape { grid: [args.streams, 1, 1], block: 32 * args.ahead, shared: 0 };
        self.queue.launch(program::GREEDY_DECIDE, shape, &args);
    }

    pub(crate) fn fetch_greedy(&mut self, state: &mut GreedyRuns) {
        state.words.resize(words(state), 0);
        let at = state.memory.as_ref().map_or(0, |m| m.at);
        self.queue.download(at, &mut state.words);
    }
}
