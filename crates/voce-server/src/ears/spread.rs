//! One recogniser on several devices: each has the whole model and a share of the slots, and a stream goes where the fewest are.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use voce_engine::{EngineError, Pulse, StageTime};

use super::{EarInfo, EventSource, HearRequest, ListenEvent, Recogniser, Stream};
use crate::core::error::ServerError;

/// Several recognisers of the same model as one.
pub struct SpreadEars {
    parts: Vec<Part>,
}

struct Part {
    ears: Arc<dyn Recogniser>,
    live: Arc<AtomicUsize>,
}

impl SpreadEars {
    /// Of recognisers that are alike, one at least.
    pub fn new(ears: Vec<Arc<dyn Recogniser>>) -> Self {
        assert!(!ears.is_empty(), "a recogniser is somewhere");
        Self { parts: ears.into_iter().map(|ears| Part { ears, live: Arc::default() }).collect() }
    }
}

impl Recogniser for SpreadEars {
    fn info(&self) -> EarInfo {
        let bytes = self.parts.iter().map(|p| p.ears.info().bytes).sum();
        EarInfo { bytes, ..self.parts[0].ears.info() }
    }

    fn is_ready(&self) -> bool {
        self.parts.iter().any(|p| p.ears.is_ready())
    }

    fn pulses(&self) -> Vec<Arc<Pulse>> {
        self.parts.iter().flat_map(|p| p.ears.pulses()).collect()
    }

    fn revive(&self) {
        self.parts.iter().for_each(|p| p.ears.revive());
    }

    fn restarts(&self) -> u64 {
        self.parts.iter().map(|p| p.ears.restarts()).sum()
    }

    /// A part that is lost does not take the others' streams with it: the next one in line gets the stream.
    fn open(&self, request: &HearRequest) -> Result<Stream, ServerError> {
        let mut parts: Vec<&Part> = self.parts.iter().collect();
        parts.sort_by_key(|p| (!p.ears.is_ready(), p.live.load(Ordering::Relaxed)));
        let mut refused = ServerError::NotReady;
        for part in parts {
            match part.ears.open(request) {
                Ok((audio, events)) => {
                    part.live.fetch_add(1, Ordering::Relaxed);
                    return Ok((audio, Box::new(Counted { events, live: part.live.clone() })));
                }
                Err(
                    e @ (ServerError::NotReady
                    | ServerError::Engine(EngineError::Busy(_) | EngineError::Stopped(_))),
                ) => refused = e,
                Err(e) => return Err(e),
            }
        }
        Err(refused)
    }
}

/// A stream that counts as live until it is dropped.
struct Counted {
    events: Box<dyn EventSource>,
    live: Arc<AtomicUsize>,
}

impl EventSource for Counted {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, ServerError>>> {
        self.events.poll_event(cx)
    }

    fn stages(&self) -> Vec<(&'static str, StageTime)> {
        self.events.stages()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::NullEars;
    use super::*;

    /// A recogniser that can be lost.
    #[derive(Default)]
    struct Frail {
        lost: AtomicBool,
        opened: AtomicUsize,
    }

    impl Recogniser for Frail {
        fn info(&self) -> EarInfo {
            EarInfo { bytes: 7, ..NullEars.info() }
        }

        fn is_ready(&self) -> bool {
            !self.lost.load(Ordering::Relaxed)
        }

        fn open(&self, request: &HearRequest) -> Result<Stream, ServerError> {
            if !self.is_ready() {
                return Err(ServerError::NotReady);
            }
            self.opened.fetch_add(1, Ordering::Relaxed);
            NullEars.open(request)
        }
    }

    #[test]
    fn streams_go_where_the_fewest_are_and_round_what_is_lost() {
        let parts: Vec<Arc<Frail>> = (0..3).map(|_| Arc::default()).collect();
        let ears = SpreadEars::new(parts.iter().map(|p| p.clone() as Arc<dyn Recogniser>).collect());
        let opened = || -> Vec<usize> { parts.iter().map(|p| p.opened.load(Ordering::Relaxed)).collect() };
        let request = HearRequest::default();
        let mut streams: Vec<Stream> = (0..6).map(|_| ears.open(&request).unwrap()).collect();
        assert_eq!(opened(), [2, 2, 2]);
        assert_eq!(ears.info().bytes, 21);
        // Both streams of the second part end: it gets the next two.
        streams.remove(4);
        streams.remove(1);
        streams.extend((0..2).map(|_| ears.open(&request).unwrap()));
        assert_eq!(opened(), [2, 4, 2]);
        parts[0].lost.store(true, Ordering::Relaxed);
        streams.extend((0..2).map(|_| ears.open(&request).unwrap()));
        assert_eq!(opened(), [2, 5, 3]);
        assert!(ears.is_ready());
        parts.iter().for_each(|p| p.lost.store(true, Ordering::Relaxed));
        assert!(!ears.is_ready() && matches!(ears.open(&request), Err(ServerError::NotReady)));
    }
}
