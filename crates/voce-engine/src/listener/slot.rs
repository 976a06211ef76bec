//! A stream as its lane has it: where its rows come from, what was heard of it, and by which rules its utterances end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use voce_models::hearing::{Heard, Planned, Reading, Token, Track, Verdict};

use super::event::{Alternative, EndReason};
use super::inlet::Inlet;
use super::outlet::Outlet;
use super::quiet::Quiet;
use super::snapshot::Saved;
use super::told::Told;
use super::utterance::{Rules, Utterance};
use super::words::Speller;

/// Frames at most that wait for the stream to pass them before they are reported.
pub(super) const MAX_PASSES: usize = 256;
/// Frames of quiet before a place, the one that it is in included, from which on the last word before it is over.
const OVER: usize = 2;

/// How probable a pause has to be to end an utterance.
const PAUSE_PROBABILITY: f32 = 0.6;

/// What a lane is asked for.
pub(super) enum Ask {
    /// To take a stream.
    Hear(Box<NewStream>),
    /// To make steps of every size that streams will have, while there are none; answered when done.
    Prepare(SyncSender<()>),
}

/// A stream as it is handed to a lane.
pub(super) struct NewStream {
    pub inlet: Arc<Inlet>,
    pub outlet: Arc<Outlet>,
    /// The request, as the model has checked it.
    pub track: Track,
    pub rules: Rules,
    pub tells: Tells,
    /// Chunks that one step may take; 0 is any number.
    pub chunks_per_step: usize,
    /// Where to go on; from the start when absent.
    pub saved: Option<Saved>,
}

/// What a stream is told besides words and utterances.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tells {
    pub partials: bool,
    pub progress: bool,
    pub pauses: bool,
    pub word_ends: bool,
    pub drawn: bool,
}

/// A stream in a slot.
pub(super) struct Slot {
    pub inlet: Arc<Inlet>,
    pub outlet: Arc<Outlet>,
    pub track: Track,
    rules: Rules,
    tells: Tells,
    chunks_per_step: usize,
    pub utterance: Utterance,
    /// Where the signal is quiet, up to the last frame that has come.
    pub quiet: Quiet,
    /// Places that are reported when the stream has passed them: the frame, and seconds.
    pub passes: VecDeque<(usize, f64)>,
    /// Frames of this part that were decoded.
    pub decoded: usize,
    /// What the step under way takes.
    pub planned: Planned,
    /// Frames that it had decoded.
    pub frames: usize,
    /// The model foresees the pause that ends utterances.
    foresees: bool,
    /// Where and why the utterance ends that is being concluded.
    ending: Option<(f64, EndReason)>,
    /// Readings of an utterance that was concluded and has not ended yet.
    pub readings: Vec<Alternative>,
    /// What is to be told.
    pub told: Vec<Told>,
}

impl Slot {
    pub(super) fn new(new: NewStream, speller: Arc<Speller>, frame_seconds: f64) -> Self {
        Self {
            utterance: Utterance::new(speller, new.rules, new.tells.partials, frame_seconds),
            inlet: new.inlet,
            outlet: new.outlet,
            track: new.track,
            rules: new.rules,
            tells: new.tells,
            chunks_per_step: new.chunks_per_step,
            quiet: Quiet::default(),
            passes: VecDeque::new(),
            decoded: 0,
            planned: Planned::default(),
            frames: 0,
            foresees: false,
            ending: None,
            readings: Vec::new(),
            told: Vec::new(),
        }
    }

    /// Frames that a step may take of it where there is room for `room`.
    pub(super) fn room(&self, room: usize) -> usize {
        let asked = self.chunks_per_step.saturating_mul(self.track.chunk);
        if asked == 0 { room } else { room.min(asked) }
    }

    /// Tells how far the stream is, where that was asked for.
    pub(super) fn tell_progress(&mut self) {
        if self.tells.progress {
            let at = self.utterance.seconds(self.decoded);
            self.told.push(Told::Progress { at, spoken: self.utterance.spoken_until() });
        }
    }

    /// Takes the levels of the frames that have come.
    pub(super) fn listen(&mut self) {
        self.quiet.extend(self.inlet.take_levels());
    }

    /// How many of `left` frames to decode before the rules must be looked at.
    pub(super) fn until(&self, left: usize) -> usize {
        let passed = self.passes.front().map_or(usize::MAX, |(frame, _)| frame.saturating_sub(self.decoded));
        let left = left.min(passed.max(1));
        let Rules { silence, longest, .. } = self.rules;
        let silence = silence.map_or(usize::MAX, |n| n.max(self.rules.settled));
        let soonest = silence.min(longest.unwrap_or(usize::MAX));
        if soonest == usize::MAX {
            return left;
        }
        if let Some(chunk) = self.track.recheck {
            // The best guess may change at any time, so it is looked at where chunks end.
            return left.min(chunk - self.decoded % chunk);
        }
        // No rule can end the utterance before the first token after here is as old as a rule wants.
        let stop = self.utterance.stop(self.decoded, self.decoded + left, &self.quiet);
        let stop = stop.map_or(usize::MAX, |(at, _)| at - self.decoded);
        left.min(stop).min(soonest).max(left.min(1))
    }

    /// Takes what was heard, and looks at the rules.
    pub(super) fn heard(&mut self, heard: Heard<'_>) -> Verdict {
        self.frames += heard.frames;
        self.decoded += heard.frames;
        self.take(heard);
        // Rules look at the signal up to the frame before.
        self.quiet.forget(self.decoded.saturating_sub(1));
        let mut cut = None;
        while let Some(&(_, at)) = self.passes.front().filter(|(frame, _)| *frame <= self.decoded) {
            self.passes.pop_front();
            let (settled, heard) = (self.rules.settled, self.decoded.saturating_sub(1));
            let is_quiet = self.quiet.before(heard) >= settled.max(OVER);
            if is_quiet && self.utterance.is_still(self.decoded, settled) {
                self.utterance.spell_word(&mut self.told);
            }
            cut = Some(self.utterance.part(at, EndReason::Forced, &mut self.told));
        }
        let pause = self.foresees && self.utterance.is_between_words();
        let stop = self.utterance.stop(self.decoded, self.decoded, &self.quiet).map(|(_, reason)| reason);
        let at = self.utterance.seconds(self.decoded);
        match stop.or(pause.then_some(EndReason::Pause)) {
            Some(EndReason::Length) => {
                cut = Some(self.utterance.part(at, EndReason::Length, &mut self.told));
            }
            Some(reason) => {
                self.ending = Some((at, reason));
                return Verdict::End;
            }
            None => cut = self.utterance.cut(&mut self.told).or(cut),
        }
        cut.map_or(Verdict::GoOn, |keep| Verdict::Cut { keep })
    }

    /// Whether the signal was quiet long enough before a frame that the word before it is over.
    pub(super) fn is_over(&self, frame: usize) -> bool {
        self.quiet.before(frame) >= OVER
    }

    /// The stream ends: what it was to pass is told.
    pub(super) fn tell_passes(&mut self) {
        while let Some((_, at)) = self.passes.pop_front() {
            self.utterance.end(at, EndReason::Forced, Vec::new(), &mut self.told);
        }
    }

    /// Reports a place of the stream: with what a copy of its state has heard ahead of it, or else with the words that are
    /// over.
    pub(super) fn report(&mut self, at: f64, heard: Option<&[Token]>, until: usize) {
        match heard {
            Some(heard) => self.utterance.end_early(at, heard, until, &mut self.told),
            None => {
                self.utterance.part(at, EndReason::Forced, &mut self.told);
            }
        }
    }

    /// Takes what was heard of audio that was searched whole, and ends utterances where the rules say so.
    pub(super) fn heard_whole(&mut self, heard: Heard<'_>) {
        self.frames += heard.frames;
        self.utterance.guess(&[]);
        for token in heard.certain {
            if let Some((stop, reason)) = self.utterance.end_before(token) {
                let at = self.utterance.seconds(stop);
                self.utterance.end(at, reason, Vec::new(), &mut self.told);
            }
            self.utterance.take(&[*token], &mut self.told);
            self.utterance.cut(&mut self.told);
        }
        self.utterance.guess(heard.guess);
    }

    /// Takes the last of an utterance, and ends it if a rule has said so.
    pub(super) fn concluded(&mut self, heard: Heard<'_>, readings: Vec<Reading>) {
        self.take(heard);
        let text = |tokens: &[u32]| self.utterance.speller().text(tokens);
        let spelled = |r: Reading| Alternative { text: text(&r.tokens), tokens: r.tokens, score: r.score };
        self.readings = readings.into_iter().map(spelled).collect();
        if let Some((at, reason)) = self.ending.take() {
            let nbest = std::mem::take(&mut self.readings);
            self.utterance.end(at, reason, nbest, &mut self.told);
        }
    }

    /// The word of the newest certain token has all its tokens.
    pub(super) fn word_spelled(&mut self) {
        self.utterance.spell_word(&mut self.told);
    }

    /// The word of the newest certain token is over at a frame.
    pub(super) fn word_ended(&mut self, frame: usize) {
        self.utterance.end_word(frame, &mut self.told);
        if self.tells.word_ends {
            self.told.push(Told::WordEnd { at: self.utterance.seconds(frame) });
        }
    }

    /// Tells a token that was drawn, where that was asked for.
    pub(super) fn tell_drawn(&mut self, token: u32) {
        if !self.tells.drawn {
            return;
        }
        match self.told.last_mut() {
            Some(Told::Drawn(tokens)) => tokens.push(token),
            _ => self.told.push(Told::Drawn(vec![token])),
        }
    }

    /// Tells how probable pauses are, where that was asked for, and notes whether one ends the utterance.
    pub(super) fn tell_pauses(&mut self, probabilities: &[f32]) {
        let foreseen = self.rules.pause.and_then(|number| probabilities.get(number));
        self.foresees = foreseen.is_some_and(|p| *p >= PAUSE_PROBABILITY);
        if self.tells.pauses {
            let (at, probabilities) = (self.utterance.seconds(self.decoded), probabilities.to_vec());
            self.told.push(Told::Pause { at, probabilities });
        }
    }

    fn take(&mut self, heard: Heard<'_>) {
        self.utterance.take(heard.certain, &mut self.told);
        self.utterance.guess(heard.guess);
    }

    /// Goes on where a snapshot was taken, as far as words are concerned.
    pub(super) fn restore(&mut self, saved: Saved) {
        self.utterance.restore(saved.utterance, &mut self.told);
        self.decoded = saved.decoded;
        self.quiet = saved.quiet;
        self.passes = saved.passes;
    }

    /// A new part of the stream begins after this many seconds.
    pub(super) fn begin_part(&mut self, seconds: f64) {
        self.decoded = 0;
        self.quiet.begin_part();
        self.passes.clear();
        self.utterance.begin_part(seconds);
    }
}
