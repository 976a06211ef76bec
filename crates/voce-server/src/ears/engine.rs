//! The engine's listeners behind the protocols: what a client asks, and the two ways of a stream.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use voce_engine::listener::{AudioSender, Endpointing, Hotword, ListenRequest, Listener, TranscriptStream};
use voce_engine::stage::weight_bytes;
use voce_engine::{EngineError, StageTime};

use super::{AudioIn, EarInfo, EventSource, HearRequest, HungUp, ListenEvent, Report, SnapshotReply, Stream};
use crate::core::error::ServerError;
use crate::core::models::{Kept, Open, Replicas, Seat};

/// Longest utterance of a live stream, after which it ends without a pause.
const LONGEST_MS: u32 = 60_000;

/// Opens a listener; called again when it has died.
pub type OpenListener = Open<Listener>;

/// What a listener is.
pub(super) fn info(listener: &Listener) -> EarInfo {
    let info = listener.info();
    EarInfo {
        frame_ms: info.frame_ms,
        chunks_ms: info.chunks_ms.clone(),
        languages: info.languages.clone(),
        takes_language: info.takes_language,
        streaming: !info.offline,
        bytes: weight_bytes(&info.stages),
        word_ends: info.word_ends,
    }
}

/// Opens a stream where the fewest are, or goes on there with one that was saved.
pub(super) async fn open(
    replicas: &Arc<Replicas<Listener>>,
    known: &OnceLock<EarInfo>,
    request: &HearRequest,
    snapshot: Option<&[u8]>,
) -> Result<Stream, ServerError> {
    let begin = |listener: Kept<Listener>| {
        known.get_or_init(|| info(&listener));
        let rate = listener.info().sample_rate as u32;
        let asked = listen_request(request);
        let started = match snapshot {
            Some(snapshot) => listener.resume(snapshot, &asked),
            None => listener.listen(&asked),
        };
        async move { started.map(|(audio, events)| (audio, events, rate)) }
    };
    let ((audio, events, rate), seat) = replicas.start(begin).await?;
    Ok((
        Box::new(In { audio, rate }),
        Box::new(Out { events, seat, replicas: replicas.clone(), ended: false }),
    ))
}

/// Checks a request at the model, which is opened if it is not there.
pub(super) async fn check(
    replicas: &Arc<Replicas<Listener>>,
    request: &ListenRequest,
) -> Result<(), ServerError> {
    let begin = |listener: Kept<Listener>| {
        let checked = listener.check(request);
        async move { checked }
    };
    replicas.start(begin).await.map(drop)
}

/// A request in the engine's words.
pub(super) fn listen_request(request: &HearRequest) -> ListenRequest {
    let hotword = |(phrase, weight): &(String, f32)| Hotword { phrase: phrase.clone(), weight: *weight };
    ListenRequest::default()
        .with_chunk_ms(request.chunk_ms)
        .with_beam(request.beam.unwrap_or(1))
        .with_hotwords(request.hotwords.iter().map(hotword).collect())
        .with_language(request.language.clone())
        .with_endpoint(
            Endpointing::default()
                .with_silence_ms(request.silence_ms)
                .with_pause_ms(request.pause_ms)
                .with_max_ms(request.silence_ms.or(request.pause_ms).map(|_| LONGEST_MS)),
        )
        .with_partials(request.partials)
        .with_progress(request.progress)
        .with_pauses(request.pauses)
        .with_word_ends(request.word_ends)
}

struct In {
    audio: AudioSender,
    rate: u32,
}

impl AudioIn for In {
    fn rate(&self) -> u32 {
        self.rate
    }

    fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp> {
        self.audio.try_push(samples).map_err(|_| HungUp)
    }

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        self.audio.poll_ready(cx).map_err(|_| HungUp)
    }

    fn report(&mut self, report: Report) {
        self.audio.report(report);
    }

    fn snapshot(&mut self, reply: SnapshotReply) -> bool {
        self.audio.snapshot_to(reply);
        true
    }

    fn finish(self: Box<Self>) {
        self.audio.finish();
    }
}

struct Out {
    events: TranscriptStream,
    seat: Seat,
    replicas: Arc<Replicas<Listener>>,
    ended: bool,
}

impl EventSource for Out {
    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, ServerError>>> {
        let event = match self.events.poll_event(cx) {
            Poll::Pending if !self.ended && self.seat.is_gone(cx) => {
                self.ended = true;
                Some(Err(EngineError::Stopped("a step of it hangs".into())))
            }
            Poll::Pending if self.ended => None,
            Poll::Pending => return Poll::Pending,
            Poll::Ready(event) => event,
        };
        if let Some(Err(EngineError::Stopped(_))) = &event {
            self.replicas.bury(self.seat.replica());
        }
        Poll::Ready(event.map(|e| e.map_err(ServerError::from)))
    }

    fn ends_without_audio(&self) -> bool {
        true
    }

    fn stages(&self) -> Vec<(&'static str, StageTime)> {
        let stats = self.events.stats();
        let mut queue = StageTime::default();
        queue.add(stats.queue, stats.queue, stats.queue);
        vec![("queue", queue), ("encode", stats.encode), ("search", stats.decode)]
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        self.replicas.left();
    }
}
