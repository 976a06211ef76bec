//! A recogniser that counts: a word for each loud half second, so that tests know what must be heard.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use voce_server::ServerError;
use voce_server::ears::{
    AudioIn, EarInfo, EndReason, EventSource, HearRequest, HungUp, ListenEvent, Recogniser, Report, Segment,
    Stream, Word,
};

/// Samples of half a second.
pub(crate) const HALF: usize = 8_000;

/// Counts; `stuck` makes it take nothing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counter {
    pub(crate) stuck: bool,
}

#[derive(Default)]
struct State {
    request: HearRequest,
    stuck: bool,
    partial: Vec<f32>,
    halves: usize,
    count: usize,
    quiet: usize,
    words: Vec<Word>,
    events: VecDeque<ListenEvent>,
    spoken: Option<f64>,
    finished: bool,
    waker: Option<Waker>,
}

impl State {
    fn half(&mut self, samples: &[f32]) {
        self.halves += 1;
        let loud = samples.iter().map(|s| s.abs()).sum::<f32>() / samples.len() as f32 > 0.01;
        if loud {
            self.quiet = 0;
            self.count += 1;
            let text = match self.request.hotwords.first() {
                Some((word, _)) => word.clone(),
                None => format!("w{}", self.count),
            };
            let end = self.halves as f64 / 2.0;
            let word = Word { text, start: end - 0.5, end, confidence: 0.5 };
            self.spoken = Some(end);
            self.words.push(word.clone());
            self.events.push_back(ListenEvent::Word(word));
            if self.request.partials {
                let partial = self.segment();
                self.events.push_back(ListenEvent::Partial(partial));
            }
        } else {
            self.quiet += 1;
            let due = self.request.silence_ms.is_some_and(|ms| self.quiet * 500 >= ms as usize);
            if due && !self.words.is_empty() {
                self.end(EndReason::Silence);
            }
        }
        if self.request.progress {
            let at = self.halves as f64 / 2.0;
            self.events.push_back(ListenEvent::Progress { at, spoken: self.spoken });
        }
    }

    fn segment(&self) -> Segment {
        Segment {
            text: self.words.iter().map(|w| w.text.as_str()).collect::<Vec<_>>().join(" "),
            words: self.words.clone(),
            start: self.words.first().map_or(0.0, |w| w.start),
            end: self.words.last().map_or(0.0, |w| w.end),
            ..Segment::default()
        }
    }

    fn end(&mut self, reason: EndReason) {
        self.events.push_back(ListenEvent::Endpoint { at: self.halves as f64 / 2.0, reason });
        self.events.push_back(ListenEvent::Final(self.segment()));
        self.words.clear();
        if reason == EndReason::Forced {
            self.partial.clear();
        }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

struct In(Arc<Mutex<State>>);
struct Out(Arc<Mutex<State>>);

impl Recogniser for Counter {
    fn info(&self) -> EarInfo {
        EarInfo { frame_ms: 80, languages: vec!["en".into()], streaming: true, ..EarInfo::default() }
    }

    fn open(&self, request: &HearRequest) -> Result<Stream, ServerError> {
        let state = State { request: request.clone(), stuck: self.stuck, ..State::default() };
        let state = Arc::new(Mutex::new(state));
        Ok((Box::new(In(state.clone())), Box::new(Out(state))))
    }
}

impl AudioIn for In {
    fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp> {
        let mut state = self.0.lock().unwrap();
        if state.stuck {
            return Ok(0);
        }
        // No more than a second at once, so that the rest has to wait for its turn.
        let taken = samples.len().min(2 * HALF);
        state.partial.extend_from_slice(&samples[..taken]);
        while state.partial.len() >= HALF {
            let half: Vec<f32> = state.partial.drain(..HALF).collect();
            state.half(&half);
        }
        state.wake();
        Ok(taken)
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        if self.0.lock().unwrap().stuck { Poll::Pending } else { Poll::Ready(Ok(())) }
    }

    fn report(&mut self, _: Report) {
        let mut state = self.0.lock().unwrap();
        state.end(EndReason::Forced);
        state.wake();
    }

    fn finish(self: Box<Self>) {
        let mut state = self.0.lock().unwrap();
        state.finished = true;
        if !state.words.is_empty() {
            let last = state.segment();
            state.events.push_back(ListenEvent::Final(last));
        }
        state.wake();
    }
}

impl EventSource for Out {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, ServerError>>> {
        let mut state = self.0.lock().unwrap();
        match state.events.pop_front() {
            Some(event) => Poll::Ready(Some(Ok(event))),
            None if state.finished => Poll::Ready(None),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
