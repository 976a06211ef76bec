//! Beam search of transducers on a device: after a look of the joint the hypotheses of every stream go on where it was
//! computed, so that several looks follow each other without the host.

use super::greedy::{MAX_CYCLE, Repeats};
use crate::cuda::Memory;
use crate::exec::{Buffer, Exec, NO_ROW, RowList, Tokens};

/// The widest beam that a device takes.
pub const MAX_WIDTH: usize = 32;
/// Lanes of predictors per hypothesis: as in `beams.cu`.
pub const BEAM_LANES: usize = 4;

/// Words of a run, a hypothesis, a lane and a node: as in `beams.cu`.
pub(crate) const BEAM_RUN_WORDS: usize = 14;
pub(crate) const HYP_WORDS: usize = 10;
const PAST_WORDS: usize = 2 * MAX_CYCLE;
pub(crate) const HELD_WORDS: usize = 4;
pub(crate) const NODE_WORDS: usize = 5;

/// A stream with a beam.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BeamRun {
    /// Where its frames begin among all rows of frames that are given.
    pub row: u32,
    /// Where its lanes begin among all lanes that are given.
    pub lane: u32,
    /// Frames it has.
    pub end: u32,
    /// Whether nothing comes after them: then all hypotheses go to the end.
    pub last: bool,
    /// Hypotheses at most.
    pub beam: u32,
    /// Labels per frame at most.
    pub max_symbols: u32,
    /// The number of the next node.
    pub base: u32,
    /// A number above all that lanes were used at.
    pub round: u32,
    /// Drops hypotheses whose score is so far below the best.
    pub gap: f32,
    /// The longest cycle of labels that is guarded against, up to [`MAX_CYCLE`].
    pub cycle: u32,
    /// Rounds of it that are let through.
    pub repeats: u32,
}

/// A hypothesis: see the search that has them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BeamHyp {
    /// Log-probability.
    pub score: f64,
    /// Of all its labels.
    pub hash: u64,
    /// Its last label's node.
    pub node: u32,
    /// Labels.
    pub len: u32,
    /// The frame of the stream it stands at.
    pub time: u32,
    /// Labels since it came there.
    pub symbols: u32,
    /// Which of the stream's lanes is its predictor's.
    pub lane: u32,
    /// Its labels, for the guard; they stay on the device.
    pub past: Repeats,
}

/// What a lane holds: the predictor's state after labels of this hash and number, and when it was last of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BeamHeld {
    /// Of all labels.
    pub hash: u64,
    /// Labels; `u32::MAX` for nothing.
    pub len: u32,
    /// When it was last of use.
    pub used: u32,
}

/// A label that a hypothesis was given.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BeamNode {
    /// The node before it.
    pub parent: u32,
    /// The label.
    pub label: u32,
    /// The frame of the stream it was found at.
    pub time: u32,
    /// Frames it lasts.
    pub duration: u32,
    /// Its log-probability.
    pub log_prob: f32,
}

/// Beams of several streams as a device has them.
pub struct Beams {
    pub(crate) streams: usize,
    /// Hypotheses of a stream, and looks, that there is room for.
    pub(crate) width: usize,
    pub(crate) looks: usize,
    /// Runs of all streams, then their hypotheses, their pasts, what their lanes hold, and the nodes that were made.
    pub(crate) words: Vec<u32>,
    pub(crate) memory: Option<Memory>,
    /// Rows of frames and of lanes that runs refer to.
    pub(crate) rows: Option<Memory>,
    pub(crate) lane_rows: usize,
    /// Of each row of the next look: its frame and its lane.
    pub(crate) frames: Tokens,
    pub(crate) lanes: Tokens,
    /// Labels for predictors, and the lanes that they take to others.
    pub(crate) labels: Tokens,
    pub(crate) from: Tokens,
    pub(crate) to: Tokens,
}

impl Default for Beams {
    fn default() -> Self {
        let none = || Tokens::new(1, 1, NO_ROW);
        let (frames, lanes, labels, from, to) = (none(), none(), none(), none(), none());
        let (streams, width, looks, words) = (0, 1, 1, vec![]);
        let (memory, rows, lane_rows) = (None, None, 0);
        Self { streams, width, looks, words, memory, rows, lane_rows, frames, lanes, labels, from, to }
    }
}

impl Beams {
    /// Makes room for streams that each have up to `width` hypotheses and are given up to `looks` labels each; none of
    /// them has any yet.
    pub fn clear(&mut self, streams: usize, width: usize, looks: usize) {
        assert!((1..=MAX_WIDTH).contains(&width), "1 to {MAX_WIDTH} hypotheses");
        (self.streams, self.width, self.looks) = (streams, width, looks);
        let rows = streams * width;
        let lists = [&mut self.frames, &mut self.lanes, &mut self.labels, &mut self.from, &mut self.to];
        for list in lists {
            if list.cols() < rows {
                *list = Tokens::new(1, rows.next_power_of_two(), NO_ROW);
            }
        }
        self.words.clear();
        self.words.resize(self.nodes_at(), 0);
        // A stream without hypotheses rests when it is the last of it.
        self.words[..streams * BEAM_RUN_WORDS].chunks_exact_mut(BEAM_RUN_WORDS).for_each(|w| w[3] = 1);
    }

    /// Sets a stream's beam.
    pub fn set(
        &mut self,
        stream: usize,
        run: &BeamRun,
        hyps: impl ExactSizeIterator<Item = BeamHyp>,
        held: impl Iterator<Item = BeamHeld>,
    ) {
        assert!(stream < self.streams && run.beam as usize <= self.width && hyps.len() <= run.beam as usize);
        let BeamRun { row, lane, end, last, beam, max_symbols, base, round, gap, cycle, repeats } = *run;
        assert!(cycle as usize <= MAX_CYCLE, "cycles of up to {MAX_CYCLE} labels");
        let count = hyps.len() as u32;
        let (last, gap) = (u32::from(last), gap.to_bits());
        let words = [row, lane, end, last, beam, max_symbols, count, 0, base, round, gap, cycle, repeats, 0];
        self.words[stream * BEAM_RUN_WORDS..][..BEAM_RUN_WORDS].copy_from_slice(&words);
        let (at, past) = (self.hyps_at(stream), self.past_at(stream));
        for (i, h) in hyps.enumerate() {
            let ([a, b], [c, d]) = (halves(h.score.to_bits()), halves(h.hash));
            let words = [a, b, c, d, h.node, h.len, h.time, h.symbols, h.lane, 0];
            self.words[at + i * HYP_WORDS..][..HYP_WORDS].copy_from_slice(&words);
            let to = &mut self.words[past + i * PAST_WORDS..][..PAST_WORDS];
            to[..MAX_CYCLE].copy_from_slice(&h.past.labels);
            to[MAX_CYCLE..].copy_from_slice(&h.past.counts);
        }
        let at = self.held_at(stream);
        for (to, h) in
            self.words[at..][..HELD_WORDS * BEAM_LANES * self.width].chunks_exact_mut(HELD_WORDS).zip(held)
        {
            let [a, b] = halves(h.hash);
            to.copy_from_slice(&[a, b, h.len, h.used]);
        }
    }

    pub(crate) fn hyps_at(&self, stream: usize) -> usize {
        self.streams * BEAM_RUN_WORDS + stream * self.width * HYP_WORDS
    }

    pub(crate) fn past_at(&self, stream: usize) -> usize {
        self.hyps_at(self.streams) + stream * self.width * PAST_WORDS
    }

    pub(crate) fn held_at(&self, stream: usize) -> usize {
        self.past_at(self.streams) + stream * self.width * BEAM_LANES * HELD_WORDS
    }

    pub(crate) fn nodes_at(&self) -> usize {
        self.held_at(self.streams)
    }

    /// A stream's hypotheses, once fetched.
    pub fn hyps(&self, stream: usize) -> impl ExactSizeIterator<Item = BeamHyp> {
        let count = self.words[stream * BEAM_RUN_WORDS + 6] as usize;
        self.words[self.hyps_at(stream)..][..count * HYP_WORDS].chunks_exact(HYP_WORDS).map(|w| BeamHyp {
            score: f64::from_bits(whole(w[0], w[1])),
            hash: whole(w[2], w[3]),
            node: w[4],
            len: w[5],
            time: w[6],
            symbols: w[7],
            lane: w[8],
            past: Repeats::default(),
        })
    }

    /// What a stream's lanes hold, once fetched.
    pub fn held(&self, stream: usize) -> impl Iterator<Item = BeamHeld> {
        let words = &self.words[self.held_at(stream)..][..self.width * BEAM_LANES * HELD_WORDS];
        words.chunks_exact(HELD_WORDS).map(|w| BeamHeld { hash: whole(w[0], w[1]), len: w[2], used: w[3] })
    }

    /// The labels that a stream's hypotheses were given, in order, once fetched.
    pub fn nodes(&self, stream: usize) -> impl Iterator<Item = BeamNode> {
        let (made, room) = (self.words[stream * BEAM_RUN_WORDS + 7] as usize, self.looks * self.width);
        let words = &self.words[self.nodes_at() + stream * room * NODE_WORDS..][..made * NODE_WORDS];
        words.chunks_exact(NODE_WORDS).map(|w| BeamNode {
            parent: w[0],
            label: w[1],
            time: w[2],
            duration: w[3],
            log_prob: f32::from_bits(w[4]),
        })
    }

    /// Of each row of the next look, which are `width` for each stream, the row of frames and that of lanes.
    pub fn pairs(&self) -> [RowList<'_>; 2] {
        [&self.frames, &self.lanes].map(|list| RowList::Device(list, self.streams * self.width))
    }

    /// Labels for predictors, the lanes that are read and those that are written.
    pub fn moves(&self) -> [RowList<'_>; 3] {
        [&self.labels, &self.from, &self.to].map(|list| RowList::Device(list, self.streams * self.width))
    }
}

fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

fn whole(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Takes hypotheses on after a look.
pub struct BeamsOp<'a> {
    /// What the joint says about the frame of each hypothesis: labels, blank, durations.
    pub logits: &'a Buffer,
    /// Which class is the blank.
    pub blank: usize,
    /// Durations in frames; none for RNN-T.
    pub durations: &'a [usize],
}

impl Exec {
    /// Takes what [`Beams::set`] was told to the device; the rows of the first look are known then.
    pub fn beams_begin(&mut self, frame_rows: &[usize], lane_rows: &[usize], beams: &mut Beams) {
        let cuda = self.cuda.as_mut().expect("beams are searched here on devices only");
        cuda.beams_begin(frame_rows, lane_rows, beams);
    }

    /// Gives every hypothesis that has a frame one more label or blank; the rows of the next look and the labels for
    /// predictors are known then.
    pub fn beams_decide(&mut self, op: &BeamsOp<'_>, beams: &mut Beams) {
        let (rows, classes) = (beams.streams * beams.width, op.blank + 1 + op.durations.len());
        assert!(rows <= op.logits.rows && classes == op.logits.cols, "a row of classes for every hypothesis");
        let cuda = self.cuda.as_mut().expect("beams are searched here on devices only");
        cuda.beams_decide(op, beams);
    }

    /// Brings beams back.
    pub fn fetch_beams(&mut self, beams: &mut Beams) {
        let cuda = self.cuda.as_mut().expect("beams are searched here on devices only");
        cuda.fetch_beams(beams);
    }
}
