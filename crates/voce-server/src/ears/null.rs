//! The null model: it discards audio, keeps time and says nothing. For benches of the server and tests of sockets; it is
//! served only where a configuration names it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{
    AudioIn, EarInfo, EndReason, EventSource, HearRequest, HungUp, ListenEvent, Recogniser, Report,
    SAMPLE_RATE, Segment, Stream,
};
use crate::core::error::ServerError;

/// A recogniser without a model.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullEars;

#[derive(Default)]
struct State {
    /// Whether the client wants to know how much was taken, and how much it knows.
    progress: bool,
    told: u64,
    samples: u64,
    /// Times at which the client ended utterances, not yet told.
    endpoints: std::collections::VecDeque<f64>,
    /// The final of an endpoint that was told.
    final_due: bool,
    finished: bool,
    gone: bool,
    waker: Option<Waker>,
}

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<State>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, f: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        f(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct In(Shared);
struct Out(Shared);

impl Recogniser for NullEars {
    fn info(&self) -> EarInfo {
        EarInfo { frame_ms: 80, streaming: true, ..EarInfo::default() }
    }

    fn open(&self, request: &HearRequest) -> Result<Stream, ServerError> {
        let shared = Shared::default();
        shared.lock().progress = request.progress;
        Ok((Box::new(In(shared.clone())), Box::new(Out(shared))))
    }
}

impl AudioIn for In {
    fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp> {
        let mut state = self.0.lock();
        state.samples += samples.len() as u64;
        if state.gone {
            return Err(HungUp);
        }
        let waker = if state.progress { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(samples.len())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        Poll::Ready(Ok(()))
    }

    fn report(&mut self, _: Report) {
        self.0.change(|s| s.endpoints.push_back(s.samples as f64 / f64::from(SAMPLE_RATE)));
    }

    fn finish(self: Box<Self>) {}
}

impl Drop for In {
    fn drop(&mut self) {
        self.0.change(|s| s.finished = true);
    }
}

impl EventSource for Out {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, ServerError>>> {
        let mut state = self.0.lock();
        if std::mem::take(&mut state.final_due) {
            return Poll::Ready(Some(Ok(ListenEvent::Final(Segment::default()))));
        }
        if let Some(at) = state.endpoints.pop_front() {
            state.final_due = true;
            return Poll::Ready(Some(Ok(ListenEvent::Endpoint { at, reason: EndReason::Forced })));
        }
        if state.progress && state.told < state.samples {
            state.told = state.samples;
            let at = state.samples as f64 / f64::from(SAMPLE_RATE);
            return Poll::Ready(Some(Ok(ListenEvent::Progress { at, spoken: None })));
        }
        if state.finished {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        self.0.lock().gone = true;
    }
}
