//! A stream as its lane has it: where its rows come from, what was heard of it, and by which rules its utterances end.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use voce_models::hearing::{Heard, Planned, Reading, Track, Verdict};

use super::event::{Alternative, EndReason};
use super::inlet::Inlet;
use super::outlet::Outlet;
use super::snapshot::Saved;
use super::told::Told;
use super::utterance::{Rules, Utterance};
use super::words::Speller;

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

    /// How many of `left` frames to decode before the rules must be looked at.
    pub(super) fn until(&self, left: usize) -> usize {
        let Rules { silence, longest, .. } = self.rules;
        let soonest = silence.unwrap_or(usize::MAX).min(longest.unwrap_or(usize::MAX));
        if soonest == usize::MAX {
            return left;
        }
        if let Some(chunk) = self.track.recheck {
            // The best guess may change at any time, so it is looked at where chunks end.
            return left.min(chunk - self.decoded % chunk);
        }
        // No rule can end the utterance before the first token after here is as old as a rule wants.
        left.min(self.utterance.next_stop().saturating_sub(self.decoded)).min(soonest).max(left.min(1))
    }

    /// Takes what was heard, and looks at the rules.
    pub(super) fn heard(&mut self, heard: Heard<'_>) -> Verdict {
        self.frames += heard.frames;
        self.decoded += heard.frames;
        self.take(heard);
        let pause = self.foresees && self.utterance.is_between_words();
        match self.utterance.end_at(self.decoded).or(pause.then_some(EndReason::Pause)) {
            Some(reason) => {
                self.ending = Some((self.utterance.seconds(self.decoded), reason));
                Verdict::End
            }
            None => match self.utterance.cut(&mut self.told) {
                Some(keep) => Verdict::Cut { keep },
                None => Verdict::GoOn,
            },
        }
    }

    /// Takes what was heard of audio that was searched whole, and ends utterances where the rules say so.
    pub(super) fn heard_whole(&mut self, heard: Heard<'_>) {
        self.frames += heard.frames;
        self.utterance.guess(&[]);
        for token in heard.certain {
            self.end_before(token.frame);
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

    /// Ends the utterance if a rule did before this frame.
    fn end_before(&mut self, frame: usize) {
        let stop = self.utterance.next_stop();
        if stop <= frame
            && let Some(reason) = self.utterance.end_at(stop)
        {
            let at = self.utterance.seconds(stop);
            self.utterance.end(at, reason, Vec::new(), &mut self.told);
        }
    }

    /// Goes on where a snapshot was taken, as far as words are concerned.
    pub(super) fn restore(&mut self, saved: Saved) {
        self.utterance.restore(saved.utterance, &mut self.told);
        self.decoded = saved.decoded;
    }

    /// A new part of the stream begins after this many seconds.
    pub(super) fn begin_part(&mut self, seconds: f64) {
        self.decoded = 0;
        self.utterance.begin_part(seconds);
    }
}
