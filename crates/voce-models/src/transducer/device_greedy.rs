//! Greedy search whose decisions are a device's: look after look without the host, which is told what several of them
//! found. The labels are those of `greedy.rs`.

use voce_runtime::transducer::{GreedyOp, GreedyRun, MAX_AHEAD};
use voce_runtime::{AddReluOp, Buffer, Exec};

use super::Token;
use super::decoder::Transducer;
use super::greedy::GreedyScratch;
use super::search::{Search, padded};
use super::state::{Kind, SearchState};

/// Logits of a look, unless there are more streams: rows cost less than looks.
pub(crate) const LOGITS: usize = 32 << 20;
/// Looks until the host is told, at most.
const LOOKS: usize = 16;
/// Frames in which speech has about one label.
const FRAMES_PER_LABEL: usize = 3;

impl Search {
    /// Takes the frames of every stream whose options ask for nothing but the best label.
    pub(super) fn greedy_on_device<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        frames: &Buffer,
        states: &mut [S],
        s: &mut GreedyScratch,
    ) {
        s.searching.clear();
        s.searching.extend((0..s.runs.len()).filter(|&i| s.runs[i].plain && s.runs[i].at < s.runs[i].rows));
        while !s.searching.is_empty() {
            self.look_on_device(exec, t, frames, states, s);
            if !exec.delivers() {
                // Nothing more is found, and whoever asks for the status ends the streams.
                s.searching.iter().for_each(|&i| s.runs[i].at = s.runs[i].rows);
                return;
            }
            for (place, &i) in s.searching.iter().enumerate() {
                let (now, run) = (self.greedy_runs.run(place), &mut s.runs[i]);
                let SearchState { options, frames, stable, kind, .. } = states[run.index].as_mut();
                let Kind::Greedy(g) = kind else { continue };
                for n in 0..now.found as usize {
                    let (choice, at, duration) = self.greedy_runs.label(place, n, self.blank as usize + 1);
                    let token = Token {
                        id: choice.index,
                        frame: *frames + at as usize,
                        duration: t.durations.get(duration as usize).copied().unwrap_or(1),
                        log_prob: choice.log_prob(),
                        confidence: choice.confidence,
                    };
                    stable.push(token);
                    g.accept(options, &token);
                }
                (run.at, run.symbols) = (now.at as usize, now.symbols as usize);
                if let Some(last) = stable.last().filter(|_| now.moved != 0) {
                    self.moves.push(last.id, run.lane, run.lane);
                }
            }
            self.predict(exec, t);
            s.searching.retain(|&i| s.runs[i].at < s.runs[i].rows);
        }
    }

    /// Some looks of all searching streams. What the last one found is yet to be fed to the predictors.
    fn look_on_device<S: AsMut<SearchState>>(
        &mut self,
        exec: &mut Exec,
        t: &Transducer,
        frames: &Buffer,
        states: &mut [S],
        s: &GreedyScratch,
    ) {
        let searching = s.searching.iter().map(|&i| &s.runs[i]);
        let left = searching.clone().map(|run| run.rows - run.at).max().unwrap_or(1);
        let streams = padded(exec, s.searching.len());
        let ahead = left.min(LOGITS / t.joint.classes() / streams).clamp(1, MAX_AHEAD);
        // Every label and every stretch of blanks is a look; one that nobody needs costs as much as asking the host.
        let looks = (left.div_ceil(ahead) + left / FRAMES_PER_LABEL).min(LOOKS);
        let mut runs: Vec<GreedyRun> = searching
            .map(|run| {
                let SearchState { options, stable, .. } = states[run.index].as_mut();
                let (cycle, repeats) = options.guard_on_device().unwrap_or_default();
                GreedyRun {
                    first: run.first as u32,
                    rows: run.rows as u32,
                    at: run.at as u32,
                    symbols: run.symbols as u32,
                    max_symbols: u32::try_from(run.max_symbols).unwrap_or(u32::MAX),
                    lane: run.lane as u32,
                    found: 0,
                    moved: 0,
                    cycle,
                    repeats,
                    past: options.past(stable.iter().rev()),
                }
            })
            .collect();
        runs.resize(streams, GreedyRun::default());
        exec.greedy_begin(&runs, looks, ahead, &mut self.greedy_runs);
        let lanes = self.lanes.as_mut().expect("a transducer has lanes");
        let joint = self.joint.as_mut().expect("a transducer has a joint");
        let predictor = self.predictor.as_mut().expect("a transducer has a predictor");
        for look in 0..looks {
            if look > 0 {
                let [labels, moved] = self.greedy_runs.moves();
                t.predictor.step_found(exec, [labels, moved, moved], lanes, predictor);
            }
            let [a_rows, b_rows] = self.greedy_runs.pairs(ahead);
            t.joint.run(exec, &AddReluOp { a: frames, a_rows, b: lanes.out(), b_rows }, joint);
            let blank = self.blank as usize;
            let op = GreedyOp { logits: &joint.logits, blank, durations: &t.durations, ahead };
            exec.greedy_decide(&op, &mut self.greedy_runs);
        }
        exec.fetch_greedy(&mut self.greedy_runs);
    }
}
