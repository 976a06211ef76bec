//! Greedy search of transducers on a device: what a look of the joint says is decided where it was computed, so that
//! several looks follow each other without the host.

use crate::cuda::Memory;
use crate::exec::select::choice_of;
use crate::exec::{Buffer, Choice, Confidence, Exec, NO_ROW, RowList, Tokens};
use crate::simd::select::RowStats;

/// The most frames that a look takes of a stream.
pub const MAX_AHEAD: usize = 8;

/// The longest cycle that a device's guard against repetition looks for.
pub const MAX_CYCLE: usize = 8;

/// What a guard against repetition knows of the labels so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Repeats {
    /// The last labels, the last first; `u32::MAX` where there are no more.
    pub labels: [u32; MAX_CYCLE],
    /// For cycles of 1 label, 2 labels and so on: how many of the last labels equal those a cycle before.
    pub counts: [u32; MAX_CYCLE],
}

impl Default for Repeats {
    fn default() -> Self {
        Self { labels: [u32::MAX; MAX_CYCLE], counts: [0; MAX_CYCLE] }
    }
}

/// A stream of a greedy search, as kernels have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct GreedyRun {
    /// Its first row of the frames.
    pub first: u32,
    /// Rows it has.
    pub rows: u32,
    /// Where among them it stands; past the last when a duration goes on there.
    pub at: u32,
    /// Labels since it came there.
    pub symbols: u32,
    /// Labels per frame at most.
    pub max_symbols: u32,
    /// Its predictor's lane.
    pub lane: u32,
    /// Labels that were found.
    pub found: u32,
    /// Whether the last look found one, which its predictor has yet to be fed.
    pub moved: u32,
    /// The longest cycle of labels that is guarded against, up to [`MAX_CYCLE`], and rounds of it that are let through;
    /// another label of it counts as a blank.
    pub cycle: u32,
    /// Rounds that are let through.
    pub repeats: u32,
    /// The labels so far.
    pub past: Repeats,
}

/// Words of a label as the kernel writes it.
pub(crate) const FOUND_WORDS: usize = 5;
/// Words of a run.
pub(crate) const RUN_WORDS: usize = size_of::<GreedyRun>() / 4;

/// Streams that search greedily on a device, and what they found.
pub struct GreedyRuns {
    /// Streams, and looks that there is room for.
    pub(crate) streams: usize,
    pub(crate) looks: usize,
    /// Runs, then labels, as they come back.
    pub(crate) words: Vec<u32>,
    pub(crate) memory: Option<Memory>,
    /// Of each row of the next look: its frame and its lane.
    pub(crate) frames: Tokens,
    pub(crate) lanes: Tokens,
    /// Of each stream: the label that the last look found, and the lane of the predictor to be fed it.
    pub(crate) labels: Tokens,
    pub(crate) moved: Tokens,
}

impl Default for GreedyRuns {
    fn default() -> Self {
        let none = || Tokens::new(1, 1, NO_ROW);
        Self {
            streams: 0,
            looks: 0,
            words: vec![],
            memory: None,
            frames: none(),
            lanes: none(),
            labels: none(),
            moved: none(),
        }
    }
}

impl GreedyRuns {
    /// Of each row of the next look, which are `ahead` for each stream, the row of frames and that of lanes.
    pub fn pairs(&self, ahead: usize) -> [RowList<'_>; 2] {
        [&self.frames, &self.lanes].map(|list| RowList::Device(list, self.streams * ahead))
    }

    /// Of each stream the label that the last look found, and the lane of the predictor to be fed it.
    pub fn moves(&self) -> [RowList<'_>; 2] {
        [&self.labels, &self.moved].map(|list| RowList::Device(list, self.streams))
    }

    /// Where a stream has come to, once fetched; its past stays on the device.
    pub fn run(&self, stream: usize) -> GreedyRun {
        let w = &self.words[stream * RUN_WORDS..(stream + 1) * RUN_WORDS];
        let [first, rows, at, symbols, max_symbols, lane, found, moved] =
            [0, 1, 2, 3, 4, 5, 6, 7].map(|i| w[i]);
        GreedyRun { first, rows, at, symbols, max_symbols, lane, found, moved, ..GreedyRun::default() }
    }

    /// A label of a stream, once fetched: the choice, the row it was made at, and which duration goes with it.
    pub fn label(&self, stream: usize, index: usize, classes: usize) -> (Choice, u32, u32) {
        let begin = self.streams * RUN_WORDS + (stream * self.looks + index) * FOUND_WORDS;
        let w = &self.words[begin..begin + FOUND_WORDS];
        let [max, sum] = [w[3], w[4]].map(f32::from_bits);
        let stats = RowStats { index: w[0] as usize, max, sum, dot: 0.0, power: 0.0 };
        (choice_of(&stats, classes, Confidence::MaxProb), w[1], w[2])
    }
}

/// Decides after a look: blanks go on, the first label of each stream is taken.
pub struct GreedyOp<'a> {
    /// What the joint says about `ahead` frames of each stream: labels, blank, durations.
    pub logits: &'a Buffer,
    /// Which class is the blank.
    pub blank: usize,
    /// Durations in frames; none for RNN-T.
    pub durations: &'a [usize],
    /// Frames of each stream that were looked at, and that the next look takes.
    pub ahead: usize,
}

impl Exec {
    /// Begins a search of `looks` looks at most, each of up to `ahead` frames of every stream. Afterwards the rows of the
    /// first look are known.
    pub fn greedy_begin(&mut self, runs: &[GreedyRun], looks: usize, ahead: usize, state: &mut GreedyRuns) {
        assert!((1..=MAX_AHEAD).contains(&ahead), "a look takes 1 to {MAX_AHEAD} frames");
        assert!(runs.iter().all(|r| r.cycle as usize <= MAX_CYCLE), "cycles of up to {MAX_CYCLE} labels");
        let rows = runs.len() * ahead;
        (state.streams, state.looks) = (runs.len(), looks);
        for (list, rows) in [
            (&mut state.frames, rows),
            (&mut state.lanes, rows),
            (&mut state.labels, runs.len()),
            (&mut state.moved, runs.len()),
        ] {
            if list.cols() < rows {
                *list = Tokens::new(1, rows.next_power_of_two(), NO_ROW);
            }
        }
        let cuda = self.cuda.as_mut().expect("searches are decided here on devices only");
        cuda.greedy_begin(runs, ahead, state);
    }

    /// Decides after a look.
    pub fn greedy_decide(&mut self, op: &GreedyOp<'_>, state: &mut GreedyRuns) {
        let (rows, classes) = (state.streams * op.ahead, op.blank + 1 + op.durations.len());
        assert!(rows <= op.logits.rows && classes == op.logits.cols, "a row of classes for every frame");
        assert!(rows <= state.frames.cols(), "looks of as many frames as the first");
        let cuda = self.cuda.as_mut().expect("searches are decided here on devices only");
        cuda.greedy_decide(op, state);
    }

    /// Brings back where streams have come to and what they found.
    pub fn fetch_greedy(&mut self, state: &mut GreedyRuns) {
        let cuda = self.cuda.as_mut().expect("searches are decided here on devices only");
        cuda.fetch_greedy(state);
    }
}
