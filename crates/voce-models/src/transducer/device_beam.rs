//! MALSD whose decisions are a device's: look after look without the host, which is told what became of the beams after
//! several of them. The rules are those of `malsd.rs` and `prune.rs`.

use voce_runtime::transducer::{BEAM_LANES, BeamHeld, BeamHyp, BeamRun, BeamsOp, MAX_WIDTH};
use voce_runtime::{AddReluOp, Exec};

use super::beam::{BeamScratch, Run};
use super::decoder::Transducer;
use super::hypothesis::{Hyp, TIDY};
use super::prune::{Held, LANES};
use super::search::{Search, padded};
use super::state::{Beam, Kind, SearchState};
use super::{MAX_BEAM, Method, SearchOptions, Token};

/// Logits of a look, unless one stream has more.
const LOGITS: usize = 32 << 20;
/// Looks until the host is told, at most.
const LOOKS: usize = 16;

const _: () = assert!(LANES == BEAM_LANES && MAX_BEAM <= MAX_WIDTH);

/// Rows of a look below which the host decides: predictors then run for new labels alone.
const FEW_ROWS: usize = 16;

/// Whether nothing but labels has a say.
fn is_plain(options: &SearchOptions) -> bool {
    options.method == Method::Malsd && !options.fuses() && options.guard_on_device().is_some()
}

fn number(x: usize) -> u32 {
    u32::try_from(x).unwrap_or(u32::MAX)
}

impl Search {
    /// Takes every beam whose options ask for nothing but the best labels to where it rests.
    pub(super) fn beams_on_device<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        states: &mut [S],
        s: &mut BeamScratch,
    ) {
        let mut widest = 1;
        let mut searching = Vec::with_capacity(s.runs.len());
        for (i, run) in s.runs.iter().enumerate() {
            let SearchState { options, kind, .. } = states[run.index].as_mut();
            if let Kind::Beam(beam) = kind
                && is_plain(options)
                && !run.rests(&beam.hyps)
            {
                searching.push(i);
                widest = widest.max(options.beam);
            }
        }
        while searching.len() * widest >= FEW_ROWS {
            for part in searching.chunks((LOGITS / t.joint.classes() / widest).max(1)) {
                self.take_on_device(exec, t, states, s, part, widest);
            }
            let lost = !exec.delivers();
            searching.retain(|&i| {
                let run = &s.runs[i];
                let Kind::Beam(beam) = &mut states[run.index].as_mut().kind else { return false };
                if lost {
                    // Nothing more is found, and whoever asks for the status ends the streams.
                    beam.hyps.iter_mut().for_each(|h| h.time = h.time.max(run.end));
                }
                !run.rests(&beam.hyps)
            });
        }
    }

    /// Some looks of some beams.
    fn take_on_device<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        states: &mut [S],
        s: &mut BeamScratch,
        part: &[usize],
        width: usize,
    ) {
        let mut left = 1;
        for &i in part {
            if let Kind::Beam(beam) = &states[s.runs[i].index].as_mut().kind {
                left = left.max(s.runs[i].left(&beam.hyps));
            }
        }
        // A frame takes a look; labels take more of them, durations fewer. One that nobody needs costs less than asking.
        let looks = if t.durations.is_empty() { left + 1 + left / 4 } else { 1 + left / 2 }.min(LOOKS);
        self.beams.clear(padded(exec, part.len()), width, looks);
        for (place, &i) in part.iter().enumerate() {
            let run = &s.runs[i];
            let SearchState { options, stable, kind, .. } = states[run.index].as_mut();
            let Kind::Beam(beam) = kind else { continue };
            let (cycle, repeats) = options.guard_on_device().unwrap_or_default();
            let given = BeamRun {
                row: number(run.row),
                lane: number(run.lane),
                end: number(run.end - run.frame),
                last: run.last,
                beam: number(options.beam),
                max_symbols: number(options.max_symbols.unwrap_or(t.max_symbols)),
                base: number(beam.tree.nodes.len()),
                round: s.round as u32,
                gap: options.max_gap.unwrap_or(f32::INFINITY),
                cycle,
                repeats,
            };
            let hyps = beam.hyps.iter().map(|h| {
                let past = options.past(beam.tree.up(h.node).chain(stable.iter().rev()));
                BeamHyp { past, ..h.for_device(run.frame) }
            });
            let held = beam.held.iter().map(|h| h.for_device());
            self.beams.set(place, &given, hyps, held);
        }
        s.round += looks;
        exec.beams_begin(&s.frames, &s.lanes, &mut self.beams);
        let lanes = self.lanes.as_mut().expect("a transducer has lanes");
        let joint = self.joint.as_mut().expect("a transducer has a joint");
        let predictor = self.predictor.as_mut().expect("a transducer has a predictor");
        for _ in 0..looks {
            let [a_rows, b_rows] = self.beams.pairs();
            t.joint.run(exec, &AddReluOp { a: &self.frames, a_rows, b: lanes.out(), b_rows }, joint);
            let (logits, blank) = (&joint.logits, self.blank as usize);
            exec.beams_decide(&BeamsOp { logits, blank, durations: &t.durations }, &mut self.beams);
            t.predictor.step_found(exec, self.beams.moves(), lanes, predictor);
        }
        exec.fetch_beams(&mut self.beams);
        if !exec.delivers() {
            return;
        }
        for (place, &i) in part.iter().enumerate() {
            let run = &s.runs[i];
            let SearchState { options, stable, kind, .. } = states[run.index].as_mut();
            let Kind::Beam(beam) = kind else { continue };
            self.bring_back(place, run, options, beam);
            if beam.tree.nodes.len() > TIDY {
                beam.settle(stable);
            }
        }
    }

    /// What became of a beam.
    fn bring_back(&self, place: usize, run: &Run, options: &SearchOptions, beam: &mut Beam) {
        for node in self.beams.nodes(place) {
            let log_prob = node.log_prob;
            let token = Token {
                id: node.label,
                frame: run.frame + node.time as usize,
                duration: node.duration as usize,
                log_prob,
                confidence: log_prob.exp().min(1.0),
            };
            beam.tree.push(node.parent, token);
        }
        beam.hyps.clear();
        beam.hyps.extend(self.beams.hyps(place).map(|h| Hyp {
            score: h.score,
            node: h.node,
            len: h.len as usize,
            hash: h.hash,
            time: run.frame + h.time as usize,
            symbols: h.symbols as usize,
            lane: h.lane as usize,
            fusion: options.fusion_start(),
        }));
        beam.held.iter_mut().zip(self.beams.held(place)).for_each(|(to, held)| *to = Held::of_device(&held));
    }
}

impl Run {
    /// Frames until it rests, if it goes on one by one.
    fn left(&self, hyps: &[Hyp]) -> usize {
        let times = hyps.iter().map(|h| h.time);
        let at = if self.last { times.min() } else { times.max() };
        self.end.saturating_sub(at.unwrap_or(self.end))
    }
}

impl Hyp {
    fn for_device(&self, begins: usize) -> BeamHyp {
        BeamHyp {
            score: self.score,
            hash: self.hash,
            node: self.node,
            len: number(self.len),
            time: number(self.time - begins),
            symbols: number(self.symbols),
            lane: number(self.lane),
            ..BeamHyp::default()
        }
    }
}

impl Held {
    fn for_device(&self) -> BeamHeld {
        BeamHeld { hash: self.hash, len: number(self.len), used: self.used as u32 }
    }

    /// A length that no device has is that of nothing.
    fn of_device(held: &BeamHeld) -> Self {
        let len = if held.len == u32::MAX { usize::MAX } else { held.len as usize };
        Self { hash: held.hash, len, used: held.used as usize, taken: false }
    }
}
