//! One passage's bookkeeping: which tokens each step sees, which frames are whole, when words are heard, when it ends.

use std::collections::VecDeque;

use super::machine::{Machine, MachineRules, Taken};
use crate::kyutai::delays::Undelay;
use crate::kyutai::{Branch, KyutaiConfig, NONE};
use crate::speech::SpokenWord;

/// Numbers that all passages of a model share.
#[derive(Clone, Debug)]
pub(super) struct Timing {
    /// Of each codebook.
    pub delays: Vec<usize>,
    pub max_delay: usize,
    /// Steps by which audio comes after its text.
    pub lead: usize,
    /// Steps after the last word.
    pub final_padding: usize,
    /// The code of a stream that has not started.
    pub initial: u32,
    pub frame_rate: f64,
}

impl Timing {
    pub(super) fn new(config: &KyutaiConfig, frame_rate: f64, final_padding: usize) -> Self {
        let delay = config.tts_config.map_or(0.0, |t| t.audio_delay);
        Self {
            delays: config.delays[1..].to_vec(),
            max_delay: config.max_delay(),
            lead: (delay * frame_rate) as usize,
            final_padding,
            initial: config.card as u32,
            frame_rate,
        }
    }
}

/// A frame that is whole, and what is known about it.
#[derive(Debug, PartialEq)]
pub(super) struct Whole {
    pub codes: Vec<u32>,
    pub words: Vec<SpokenWord>,
}

/// A passage under way.
pub(super) struct PassageState {
    pub machine: Machine,
    /// Codebooks that are drawn.
    codes: usize,
    /// Codes of a voice that stand before the first frame, by codebook.
    prefix: Vec<Vec<u32>>,
    step: usize,
    undelay: Undelay,
    /// Words that were taken and not yet told, and entries that ended them.
    taken: VecDeque<Taken>,
}

impl PassageState {
    pub(super) fn new(rules: MachineRules, timing: &Timing, codes: usize, prefix: Vec<Vec<u32>>) -> Self {
        let drawn = &timing.delays[..codes];
        Self {
            machine: Machine::new(rules),
            codes,
            prefix,
            step: 0,
            undelay: Undelay::new(drawn, timing.max_delay),
            taken: VecDeque::new(),
        }
    }

    /// Frames of the voice that stand before the first.
    fn before(&self) -> usize {
        self.prefix.first().map_or(0, Vec::len)
    }

    /// What codebook `k` was given in place of what `step` drew, if anything.
    fn given(&self, timing: &Timing, step: usize, k: usize) -> Option<u32> {
        let starts = timing.delays[k] + timing.lead;
        let voiced = step.checked_sub(starts).and_then(|at| self.prefix.get(k)?.get(at).copied());
        voiced.or((step < starts || k >= self.codes).then_some(NONE))
    }

    /// Codes that the next step is to see in place of what the last one drew: runs of columns from the first codebook on.
    pub(super) fn overrides(&self, timing: &Timing) -> Vec<(usize, Vec<u32>)> {
        let mut runs: Vec<(usize, Vec<u32>)> = Vec::new();
        let Some(last) = self.step.checked_sub(1) else { return runs };
        for k in 0..timing.delays.len() {
            let (starts, wrote) = (timing.delays[k] + 1, last >= timing.lead && k < self.codes);
            let given = self.given(timing, last, k);
            let voiced = given.is_some_and(|code| code != NONE);
            let value = if self.step < starts { Some(timing.initial) } else { given };
            // What nobody has written over since the step before is still there.
            let Some(value) = value.filter(|_| wrote || voiced || self.step == starts) else { continue };
            match runs.last_mut() {
                Some((first, run)) if *first + run.len() == k => run.push(value),
                _ => runs.push((k, vec![value])),
            }
        }
        runs
    }

    /// What the stream without text and voice sees in the next step: codebooks that become nothing, and those that are
    /// the stream's own again.
    pub(super) fn without(&self, timing: &Timing) -> (Vec<usize>, Vec<usize>) {
        let hidden = if self.before() > 0 { self.before() + timing.lead } else { 0 };
        let columns = 0..timing.delays.len();
        let starts = |k: &usize| self.step == timing.delays[*k] + 1 && hidden > 0;
        let same = |k: &usize| self.step > timing.delays[*k] + hidden;
        (columns.clone().filter(starts).collect(), columns.filter(same).collect())
    }

    /// Whether the next step is the first that could see text.
    pub(super) fn is_second(&self) -> bool {
        self.step == 1
    }

    /// What becomes of the text that the next step draws.
    pub(super) fn branch(&self) -> Branch {
        let branch = self.machine.outlook();
        if self.step < self.before() {
            return Branch { then: [NONE; 2], otherwise: [NONE; 2], free: false, ..branch };
        }
        branch
    }

    /// Codes that the next step draws.
    pub(super) fn draws(&self, timing: &Timing) -> usize {
        if self.step < timing.lead { 0 } else { self.codes }
    }

    /// Whether the next step makes no frame.
    pub(super) fn leads(&self, timing: &Timing) -> bool {
        self.step < timing.lead
    }

    /// Whether it cannot go on without more text.
    pub(super) fn is_short(&self) -> bool {
        self.step >= self.before() && self.machine.end().is_none() && self.machine.is_short()
    }

    /// Takes what a step drew. Gives the frame that is whole with it.
    pub(super) fn take(&mut self, timing: &Timing, drawn: u32, codes: &[u32]) -> Option<Whole> {
        let step = self.step;
        if step >= self.before() {
            self.taken.extend(self.machine.take(step, drawn).1);
        }
        let tokens: Vec<u32> =
            (0..self.codes).map(|k| self.given(timing, step, k).unwrap_or(codes[k])).collect();
        self.step += 1;
        let frame = self.undelay.push(&tokens)?;
        // The frame's number, counted from the first that is audio.
        let number = (step - timing.max_delay).checked_sub(timing.lead + self.before())?;
        let words = self.told(timing, number);
        Some(Whole { codes: frame, words })
    }

    /// Words that have started by a frame and whose end is known.
    fn told(&mut self, timing: &Timing, number: usize) -> Vec<SpokenWord> {
        let mut words = Vec::new();
        let before = self.before();
        while let Some(word) = self.taken.front().filter(|w| w.step <= number + before) {
            let Some(end) = self.taken.get(1).map(|next| next.step).or(self.machine.end()) else { break };
            if !word.text.is_empty() {
                let seconds = |step: usize| step.saturating_sub(before) as f64 / timing.frame_rate;
                words.push(SpokenWord {
                    text: word.text.clone(),
                    start: seconds(word.step),
                    end: seconds(end),
                });
            }
            self.taken.pop_front();
        }
        words
    }

    /// Whether all of it was spoken.
    pub(super) fn is_over(&self, timing: &Timing) -> bool {
        let tail = timing.lead + timing.final_padding + timing.max_delay;
        self.machine.end().is_some_and(|end| self.step >= end + tail)
    }
}
