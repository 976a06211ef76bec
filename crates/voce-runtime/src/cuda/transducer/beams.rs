//! Beam search on the device: see `beams.cu`.

use crate::cuda::driver::{Address, Shape};
use crate::cuda::program::KernelOf;
use crate::cuda::queue::Args;
use crate::cuda::rows::numbers;
use crate::cuda::{Cuda, bytes, program};
use crate::exec::transducer::{Beams, BeamsOp, NODE_WORDS};

/// Arguments of `beam_begin` and `beam_decide`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct BeamArgs {
    top: Address,
    stats: Address,
    tail: Address,
    runs: Address,
    hyps: Address,
    past: Address,
    held: Address,
    nodes: Address,
    frame_rows: Address,
    lane_rows: Address,
    durations: Address,
    frames: Address,
    lanes: Address,
    labels: Address,
    from: Address,
    to: Address,
    streams: u32,
    width: u32,
    looks: u32,
    blank: u32,
    duration_count: u32,
    pad: u32,
}

// SAFETY: fields without padding, as the kernels declare them.
unsafe impl Args for BeamArgs {}

/// Words of all beams and of the nodes there is room for.
fn words(beams: &Beams) -> usize {
    beams.nodes_at() + beams.streams * beams.width * beams.looks * NODE_WORDS
}

impl Cuda {
    fn beam_args(&mut self, beams: &mut Beams) -> BeamArgs {
        let room = words(beams) * 4;
        let runs = self.queue.reserve(&mut beams.memory, room);
        let place = |words: usize| runs + 4 * words as u64;
        let rows = beams.rows.as_ref().map_or(0, |m| m.at);
        BeamArgs {
            top: 0,
            stats: 0,
            tail: 0,
            runs,
            hyps: place(beams.hyps_at(0)),
            past: place(beams.past_at(0)),
            held: place(beams.held_at(0)),
            nodes: place(beams.nodes_at()),
            frame_rows: rows + 4 * beams.lane_rows as u64,
            lane_rows: rows,
            durations: 0,
            frames: self.written_tokens(&mut beams.frames),
            lanes: self.written_tokens(&mut beams.lanes),
            labels: self.written_tokens(&mut beams.labels),
            from: self.written_tokens(&mut beams.from),
            to: self.written_tokens(&mut beams.to),
            streams: beams.streams as u32,
            width: beams.width as u32,
            looks: beams.looks as u32,
            blank: 0,
            duration_count: 0,
            pad: 0,
        }
    }

    fn launch_beams(&mut self, kernel: KernelOf<BeamArgs>, args: &BeamArgs) {
        self.queue.launch(kernel, Shape { grid: [args.streams, 1, 1], block: 32, shared: 0 }, args);
    }

    pub(crate) fn beams_begin(&mut self, frame_rows: &[usize], lane_rows: &[usize], beams: &mut Beams) {
        // Lanes come first, and both have some room, so that a step with other frames is the same recording.
        let room = |n: usize| n.next_multiple_of(64).next_multiple_of((n / 4).next_power_of_two());
        beams.lane_rows = room(lane_rows.len());
        let mut rows = numbers(lane_rows);
        rows.resize(beams.lane_rows, 0);
        rows.extend(frame_rows.iter().map(|&r| r as u32));
        rows.resize(beams.lane_rows + room(frame_rows.len()), 0);
        let at = self.queue.reserve(&mut beams.rows, rows.len() * 4);
        self.queue.upload(at, bytes(&rows));
        let args = self.beam_args(beams);
        self.queue.upload(args.runs, bytes(&beams.words));
        self.launch_beams(program::BEAM_BEGIN, &args);
    }

    pub(crate) fn beams_decide(&mut self, op: &BeamsOp<'_>, beams: &mut Beams) {
        let mut args = self.beam_args(beams);
        let columns = [&(0..op.blank + 1), &(op.blank..op.logits.cols())];
        let rows = beams.streams * beams.width;
        let found = self.select_there(op.logits, rows, columns, 0.0, beams.width, args.frames);
        (args.top, args.stats, args.tail) = (found.top, found.stats, found.tail);
        (args.blank, args.duration_count) = (op.blank as u32, op.durations.len() as u32);
        args.durations = self.row_list(op.durations.into());
        self.launch_beams(program::BEAM_DECIDE, &args);
    }

    pub(crate) fn fetch_beams(&mut self, beams: &mut Beams) {
        beams.words.resize(words(beams), 0);
        let at = beams.memory.as_ref().map_or(0, |m| m.at);
        self.queue.download(at, &mut beams.words);
    }
}
