//! A stream as the model thread has it: what waits at its inlet, and what the next step takes of it.

use std::sync::Arc;

use voce_models::fastconformer::{Encoder, EncoderState, StreamShape};
use voce_models::transducer::{Hypothesis, Method, Search, SearchState};
use voce_runtime::Exec;

use super::device_mel::DeviceMel;
use super::event::{Alternative, ListenEvent};
use super::inlet::{Inlet, Mark, Offer, SAMPLE_RATE};
use super::model_thread::Model;
use super::outlet::Outlet;
use super::snapshot::Saved;
use super::utterance::{Rules, Utterance};
use super::windows::{Joiner, OVERLAP, WINDOW};
use super::words::Speller;
use crate::EngineError;

/// A stream as it is handed to the model thread.
pub(super) struct NewStream {
    pub inlet: Arc<Inlet>,
    pub outlet: Arc<Outlet>,
    pub shape: StreamShape,
    /// The search before its first frame.
    pub fresh: SearchState,
    pub rules: Rules,
    pub partials: bool,
    pub progress: bool,
    pub nbest: usize,
    pub chunks_per_step: usize,
    /// Where to go on; from the begin when absent.
    pub saved: Option<Saved>,
}

/// A stream in a slot.
pub(super) struct Slot {
    pub inlet: Arc<Inlet>,
    pub outlet: Arc<Outlet>,
    pub shape: StreamShape,
    fresh: SearchState,
    /// Taken out while it is stepped.
    pub search: Option<SearchState>,
    pub beam: bool,
    rules: Rules,
    progress: bool,
    pub nbest: usize,
    chunks_per_step: usize,
    pub utterance: Utterance,
    pub joiner: Joiner,
    /// Mel rows of this part that were taken.
    pub taken: usize,
    /// Encoder frames of this part that were searched.
    pub searched: usize,
    /// What the step under way takes.
    pub planned: Planned,
    /// Readings of the utterance, from a window that was all of it.
    pub readings: Vec<Alternative>,
    pub events: Vec<ListenEvent>,
}

/// What a step takes of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Planned {
    /// Mel rows to look at.
    pub rows: usize,
    /// How many of them the stream brought along as such, where a device makes the others.
    pub given: usize,
    /// Mel rows that are over after it.
    pub advance: usize,
    /// Nothing follows in this part of the stream.
    pub closes: bool,
}

/// What can be done with a stream now.
pub(super) enum Plan {
    /// Wait for more audio.
    Wait,
    /// Step.
    Step(Planned),
    /// Answer a snapshot.
    Snapshot,
    /// End the part: no rows are left before its mark.
    Close,
    /// The sender is gone.
    Abandoned,
}

impl Offer {
    /// All of it, as the end of a part.
    fn all(&self) -> Planned {
        Planned { rows: self.rows, given: self.given.min(self.rows), advance: self.rows, closes: true }
    }
}

impl Slot {
    pub(super) fn new(new: NewStream, speller: Arc<Speller>, frame_seconds: f64) -> Self {
        Self {
            search: Some(new.fresh.clone()),
            beam: new.fresh.options().method != Method::Greedy,
            fresh: new.fresh,
            rules: new.rules,
            utterance: Utterance::new(speller, new.rules, new.partials, frame_seconds),
            joiner: Joiner::default(),
            inlet: new.inlet,
            outlet: new.outlet,
            shape: new.shape,
            progress: new.progress,
            nbest: new.nbest,
            chunks_per_step: new.chunks_per_step,
            taken: 0,
            searched: 0,
            planned: Planned::default(),
            readings: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Looks at the inlet. `room` is how many encoder frames a step may take of one stream.
    pub(super) fn plan(&self, encoder: &Encoder, room: usize) -> Plan {
        if encoder.is_offline() { self.plan_window(encoder) } else { self.plan_chunks(encoder, room) }
    }

    fn plan_chunks(&self, encoder: &Encoder, room: usize) -> Plan {
        let (ahead, first) = (self.shape.look_ahead, self.taken == 0);
        let needed = encoder.mel_rows(ahead, 1, first);
        let offer = self.inlet.offer(needed);
        if offer.abandoned {
            return Plan::Abandoned;
        }
        if offer.rows >= needed {
            let most = if self.chunks_per_step > 0 { self.chunks_per_step } else { usize::MAX };
            let most = most.min(room / (ahead + 1)).max(1);
            let there = 1 + (offer.rows - needed) / encoder.mel_rows(ahead, 1, false);
            let rows = encoder.mel_rows(ahead, there.min(most), first);
            return Plan::Step(Planned { rows, given: offer.given.min(rows), advance: rows, closes: false });
        }
        match offer.mark {
            None => Plan::Wait,
            Some(false) => Plan::Snapshot,
            Some(true) if offer.rows == 0 => Plan::Close,
            Some(true) => Plan::Step(offer.all()),
        }
    }

    fn plan_window(&self, encoder: &Encoder) -> Plan {
        let factor = encoder.config().subsampling_factor;
        let window = WINDOW * factor;
        // A window is full when audio goes on after it: else it is the last, and may be shorter.
        let offer = self.inlet.offer(window + 1);
        if offer.abandoned {
            return Plan::Abandoned;
        }
        if offer.rows > window {
            let advance = (WINDOW - OVERLAP) * factor;
            return Plan::Step(Planned {
                rows: window,
                given: offer.given.min(window),
                advance,
                closes: false,
            });
        }
        match offer.mark {
            None => Plan::Wait,
            Some(false) => Plan::Snapshot,
            Some(true) if offer.rows == 0 => Plan::Close,
            Some(true) => Plan::Step(offer.all()),
        }
    }

    /// Tells how far the stream is, where that was asked for.
    pub(super) fn tell_progress(&mut self) {
        if self.progress {
            let at = self.utterance.seconds(self.searched);
            self.events.push(ListenEvent::Progress { at, spoken: self.utterance.spoken() });
        }
    }

    /// Takes what the search has found of a chunk.
    pub(super) fn hear(&mut self) {
        let Some(search) = &mut self.search else { return };
        self.utterance.take(search.take_stable(), &mut self.events);
        if self.beam {
            let tokens = search.tokens();
            self.utterance.guess(&tokens[search.stable().len()..]);
        }
    }

    /// Lets the search come to an end, and gives its readings.
    pub(super) fn conclude(
        &mut self,
        model: &Model,
        search: &mut Search,
        exec: &mut Exec,
    ) -> Vec<Alternative> {
        let Some(state) = &mut self.search else { return Vec::new() };
        if !self.beam && self.nbest == 0 {
            return Vec::new();
        }
        search.flush(exec, &model.decoder, std::slice::from_mut(state));
        self.utterance.take(state.take_stable(), &mut self.events);
        let readings = state.finish();
        if let Some(best) = readings.first() {
            self.utterance.guess(&best.tokens[state.stable().len()..]);
        }
        self.alternatives(&model.speller, &readings)
    }

    /// Takes a window's tokens, and ends utterances where the rules say so.
    pub(super) fn take_window(&mut self, model: &Model, search: &mut Search, exec: &mut Exec, last: bool) {
        let Some(state) = &mut self.search else { return };
        search.flush(exec, &model.decoder, std::slice::from_mut(state));
        let readings = state.finish();
        // Readings of parts of an utterance are not readings of the whole.
        let whole = last && self.joiner == Joiner::default();
        self.readings = if whole { self.alternatives(&model.speller, &readings) } else { Vec::new() };
        let best = readings.into_iter().next().map(|h| h.tokens).unwrap_or_default();
        self.search = Some(self.fresh.clone());
        let mut certain = Vec::new();
        self.joiner.take(best, last, &mut certain);
        self.utterance.guess(&[]);
        for token in certain {
            self.end_before(token.frame);
            self.utterance.take(&[token], &mut self.events);
        }
        self.utterance.guess(&self.joiner.open);
    }

    /// Ends the utterance if a rule did before this frame.
    fn end_before(&mut self, frame: usize) {
        let stop = self.utterance.next_stop();
        if stop <= frame
            && let Some(reason) = self.utterance.end_at(stop)
        {
            let at = self.utterance.seconds(stop);
            self.utterance.end(at, reason, Vec::new(), &mut self.events);
        }
    }

    /// The readings as callers see them.
    pub(super) fn alternatives(&self, speller: &Speller, readings: &[Hypothesis]) -> Vec<Alternative> {
        let alternative = |h: &Hypothesis| {
            let tokens: Vec<u32> = h.tokens.iter().map(|t| t.id).collect();
            Alternative { text: speller.text(&tokens), tokens, score: h.score as f32 }
        };
        readings.iter().take(self.nbest).map(alternative).collect()
    }

    /// How many of `left` frames to search before the rules must be looked at.
    pub(super) fn piece(&self, left: usize) -> usize {
        let Rules { silence, longest } = self.rules;
        let soonest = silence.unwrap_or(usize::MAX).min(longest.unwrap_or(usize::MAX));
        if soonest == usize::MAX {
            return left;
        }
        if self.beam {
            // A beam's best reading may change at any time, so it is looked at where chunks end.
            let chunk = self.shape.look_ahead + 1;
            return left.min(chunk - self.searched % chunk);
        }
        // No rule can end the utterance before the first label after here is as old as a rule wants.
        left.min(self.utterance.next_stop().saturating_sub(self.searched)).min(soonest).max(left.min(1))
    }

    /// Tells a sender the stream's state.
    pub(super) fn answer_snapshot(
        &self,
        model: &Model,
        search: &Search,
        exec: &mut Exec,
        front: Option<&mut DeviceMel>,
        state: &EncoderState,
        i: usize,
    ) {
        // The rows that wait have to be read before the mark is gone.
        let (mut rows, rest) = self.inlet.rest();
        match front {
            Some(front) => rows.extend(front.rows_of(exec, &rest)),
            None => rows = rest,
        }
        let Some(Mark::Snapshot { tail, samples, reply }) = self.inlet.pop_snapshot() else { return };
        let offline = model.encoder.is_offline();
        let saved = Saved {
            shape: [self.shape.look_ahead, self.shape.language],
            samples,
            taken: self.taken,
            searched: self.searched,
            tail: *tail,
            rows,
            utterance: self.utterance.save(),
            joiner: self.joiner.clone(),
            encoder: if offline { Vec::new() } else { model.encoder.save(exec, state, i) },
            search: self.search.as_ref().map(|s| search.save(exec, s)).unwrap_or_default(),
        };
        // Nobody may wait for it any more.
        let _ = reply.try_send(Ok(saved.to_bytes(model.fingerprint)));
    }

    /// Goes on where a snapshot was taken.
    pub(super) fn restore(
        &mut self,
        model: &Model,
        exec: &mut Exec,
        state: &mut EncoderState,
        i: usize,
        saved: Saved,
    ) -> Result<(), EngineError> {
        let bad = |e: &dyn std::fmt::Display| EngineError::Snapshot(e.to_string());
        if !model.encoder.is_offline() {
            model.encoder.restore(exec, state, i, &saved.encoder).map_err(|e| bad(&e))?;
        }
        let search = SearchState::from_bytes(&saved.search, &model.decoder, self.fresh.options());
        self.search = Some(search.map_err(|e| bad(&e))?);
        self.utterance.restore(saved.utterance);
        self.joiner = saved.joiner;
        self.taken = saved.taken;
        self.searched = saved.searched;
        Ok(())
    }

    /// A new part of the stream begins after so many samples.
    pub(super) fn begin_part(&mut self, samples: u64) {
        self.joiner = Joiner::default();
        self.taken = 0;
        self.searched = 0;
        self.search = Some(self.fresh.clone());
        self.utterance.begin_part(samples as f64 / SAMPLE_RATE as f64);
    }
}
