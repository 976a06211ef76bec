//! What a talker's lane does: a frame of every conversation that has one, heard and answered in one step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;

use voce_models::dialogue::{Partner, TalkRequest, Uttered};
use voce_runtime::Exec;

use super::stream::{Line, TalkEvent};
use crate::EngineError;
use crate::fault::{FaultPoint, Faults};
use crate::lane::{self, Work};
use crate::pulse::{Pulse, Stage};
use crate::trace::Tracer;

/// A conversation as the lane takes it.
pub(super) struct NewTalk {
    pub line: Arc<Line>,
    pub request: TalkRequest,
}

/// The conversations of a lane and its slots.
pub(super) struct TalkWork {
    pub partner: Box<dyn Partner>,
    pub frame: usize,
    pub requests: Receiver<NewTalk>,
    pub live: Arc<AtomicUsize>,
    pub tracer: Tracer,
    pub pulse: Arc<Pulse>,
    pub faults: Faults,
    pub slots: Vec<Option<Arc<Line>>>,
    pub stepped: Vec<usize>,
    pub samples: Vec<f32>,
    pub uttered: Vec<Uttered>,
}

impl Work for TalkWork {
    fn admit(&mut self, exec: &mut Exec) {
        for i in 0..self.slots.len() {
            if self.slots[i].as_ref().is_some_and(|line| line.is_cancelled()) {
                self.free(i, Ok(()));
            }
        }
        while let Some(free) = self.slots.iter().position(Option::is_none)
            && let Ok(NewTalk { line, request }) = self.requests.try_recv()
        {
            let waited = line.since(Instant::now());
            line.record(|s| s.queue = waited);
            if line.is_cancelled() {
                // Its reader went before it had a slot, and nobody will wake the lane for it again.
                self.live.fetch_sub(1, Ordering::Relaxed);
                line.end(Ok(()));
                continue;
            }
            self.slots[free] = Some(line);
            let started = lane::alone(|| {
                self.faults.pass(FaultPoint::Stream);
                self.partner.start(exec, free, &request);
            });
            if let Err(e) = started {
                self.free(free, Err(e));
            }
        }
    }

    fn step(&mut self, exec: &mut Exec) -> bool {
        let ended = self.gather();
        if self.stepped.is_empty() {
            return ended;
        }
        self.pulse.begin(Stage::Model);
        self.faults.pass(FaultPoint::Step);
        let begun = Instant::now();
        self.uttered.clear();
        self.partner.step(exec, &self.stepped, &self.samples);
        let times = self.partner.fetch(exec, &self.stepped, &mut self.uttered);
        if let Err(e) = exec.status() {
            tracing::error!("the device has failed, and its conversations end: {e}");
            return true;
        }
        let took = begun.elapsed();
        let mut at = begun;
        for (name, time) in &times {
            self.tracer.event(name, at, *time, self.stepped.len());
            at += *time;
        }
        self.pulse.end(Stage::Model, took, self.stepped.len(), self.stepped.iter().copied());
        let share = took / self.stepped.len() as u32;
        for k in 0..self.stepped.len() {
            let (i, Uttered { samples, text, tokens, ended }) =
                (self.stepped[k], std::mem::take(&mut self.uttered[k]));
            let Some(line) = &self.slots[i] else { continue };
            line.record(|s| {
                s.frames += 1;
                s.busy += share;
            });
            if !text.is_empty() {
                line.say(TalkEvent::Text(text));
            }
            if !tokens.is_empty() {
                line.say(TalkEvent::Tokens(tokens));
            }
            if !samples.is_empty() {
                line.say(TalkEvent::Audio(samples));
            }
            if ended {
                self.free(i, Ok(()));
            }
        }
        true
    }

    fn is_idle(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    fn warm(&mut self, exec: &mut Exec) {
        self.pulse.begin(Stage::Model);
        self.faults.pass(FaultPoint::Step);
        self.partner.warm(exec);
        self.pulse.warmed(Stage::Model);
    }

    fn end(&mut self, reason: &str) {
        let stopped = || Err(EngineError::Stopped(reason.to_owned()));
        self.slots.iter().flatten().for_each(|line| line.end(stopped()));
        self.requests.try_iter().for_each(|new| new.line.end(stopped()));
    }
}

impl TalkWork {
    /// Takes a frame of every conversation that has one. Returns whether one of them was over.
    fn gather(&mut self) -> bool {
        self.stepped.clear();
        self.samples.clear();
        let mut over = false;
        for i in 0..self.slots.len() {
            let Some(line) = &self.slots[i] else { continue };
            // A reader that does not read pauses its own conversation alone.
            if line.is_full() {
                continue;
            }
            if line.take(self.frame, &mut self.samples) {
                self.stepped.push(i);
            } else if line.is_over() {
                self.free(i, Ok(()));
                over = true;
            }
        }
        over
    }

    fn free(&mut self, i: usize, result: Result<(), EngineError>) {
        if let Some(line) = self.slots[i].take() {
            // Whoever learns of the end may ask for a new conversation at once.
            self.live.fetch_sub(1, Ordering::Relaxed);
            self.partner.free(i);
            line.end(result);
        }
    }
}
