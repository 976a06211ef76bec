//! Models that hear: `Listener`, and `Hearing`, a stream of events over a recording or over audio that is pushed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use voce_engine::EngineError;
use voce_engine::listener::{
    Endpointing, Hotword, ListenEvent, ListenRequest, ListenerOptions, RatedSender, Recording,
    RecordingStream, Segment, TranscriptStream, Word,
};
use voce_engine::store::Task;

use crate::interrupt::{LOOK, Stop, apart, lock, wait};
use crate::options::Place;
use crate::{failure, samples};

/// A model that hears, kept open.
#[pyclass(frozen, module = "voce._native")]
pub(crate) struct Listener(Arc<voce_engine::listener::Listener>);

/// What is to be heard in one call.
#[derive(FromPyObject)]
pub(crate) enum Source<'py> {
    File(PathBuf),
    Other(Bound<'py, PyAny>),
}

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (model=None, *, store=None, device="auto", precision="auto", threads=0, slots=None))]
    fn new(
        py: Python<'_>,
        model: Option<String>,
        store: Option<PathBuf>,
        device: &str,
        precision: &str,
        threads: usize,
        slots: Option<usize>,
    ) -> PyResult<Self> {
        let place = Place::new(store, device, precision)?;
        apart(py, move || {
            let reference = place.reference(Task::Hearing, model.as_deref())?;
            let mut options = ListenerOptions::default()
                .with_precision(place.precision)
                .with_device(place.device.into())
                .with_threads(threads);
            options.slots = slots.unwrap_or(options.slots);
            let listener = voce_engine::listener::Listener::open(&place.store, &reference, &options);
            listener.map(|l| Self(Arc::new(l))).map_err(failure::engine)
        })
    }

    #[getter]
    fn model(&self) -> &str {
        &self.0.info().id
    }

    #[getter]
    fn sample_rate(&self) -> usize {
        self.0.info().sample_rate
    }

    #[getter]
    fn precision(&self) -> &str {
        self.0.info().precision.name()
    }

    #[getter]
    fn device(&self) -> Option<&str> {
        self.0.info().device.as_deref()
    }

    #[getter]
    fn threads(&self) -> usize {
        self.0.info().threads
    }

    #[getter]
    fn slots(&self) -> usize {
        self.0.info().slots
    }

    #[getter]
    fn languages(&self) -> Vec<String> {
        self.0.info().languages.clone()
    }

    #[getter]
    fn chunks_ms(&self) -> Vec<u32> {
        self.0.info().chunks_ms.clone()
    }

    #[getter]
    fn offline(&self) -> bool {
        self.0.info().offline
    }

    /// Hears some silence, so that the first stream finds memory and caches as the second one does.
    fn warm(&self, py: Python<'_>) -> PyResult<()> {
        let listener = self.0.clone();
        apart(py, move || listener.warm().map_err(failure::engine))
    }

    /// Starts to hear a recording (a path, bytes of a file, an array), or without one audio that is pushed.
    #[pyo3(signature = (
        source=None, *, sample_rate=None, language=None, chunk_ms=None, beam=1, nbest=0, hotwords=Vec::new(), lm=None,
        lm_weight=0.3, partials=false, silence_ms=None, max_ms=None, pause_ms=None, temperature=None, seed=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn start(
        &self,
        py: Python<'_>,
        source: Option<Source<'_>>,
        sample_rate: Option<u32>,
        language: Option<String>,
        chunk_ms: Option<u32>,
        beam: usize,
        nbest: usize,
        hotwords: Vec<(String, f32)>,
        lm: Option<PathBuf>,
        lm_weight: f32,
        partials: bool,
        silence_ms: Option<u32>,
        max_ms: Option<u32>,
        pause_ms: Option<u32>,
        temperature: Option<f32>,
        seed: Option<u64>,
    ) -> PyResult<Hearing> {
        let own = self.0.info().sample_rate as u32;
        let sample_rate = sample_rate.unwrap_or(own);
        let recording = match source {
            None => None,
            Some(Source::File(path)) => Some(Recording::File(path)),
            Some(Source::Other(any)) => Some(match file_bytes(&any) {
                Some(bytes) => Recording::Bytes(bytes),
                None => Recording::Samples { samples: samples::mono(&any)?, sample_rate },
            }),
        };
        let request = ListenRequest::default()
            .with_language(language)
            .with_chunk_ms(chunk_ms)
            .with_beam(beam)
            .with_nbest(nbest)
            .with_hotwords(hotwords.into_iter().map(|(phrase, weight)| Hotword { phrase, weight }).collect())
            .with_lm_weight(lm_weight)
            .with_partials(partials)
            .with_endpoint(
                Endpointing::default()
                    .with_silence_ms(silence_ms)
                    .with_max_ms(max_ms)
                    .with_pause_ms(pause_ms),
            )
            .with_temperature(temperature)
            .with_seed(seed);
        let listener = self.0.clone();
        apart(py, move || {
            let lm = lm.map(|path| listener.language_model(&path)).transpose().map_err(failure::engine)?;
            let request = request.with_lm(lm);
            let (sender, events) = match recording {
                Some(recording) => {
                    (None, Events::Recording(listener.play(recording, &request).map_err(failure::engine)?))
                }
                None => {
                    let (sender, events) = listener.listen(&request).map_err(failure::engine)?;
                    let sender = RatedSender::new(sender, sample_rate, own).map_err(failure::engine)?;
                    (Some(sender), Events::Live(events))
                }
            };
            Ok(Hearing {
                _listener: listener,
                sender: Mutex::new(sender),
                events: Mutex::new(Some(events)),
                cancelled: AtomicBool::new(false),
            })
        })
    }
}

/// The bytes of a file, as opposed to samples of some kind.
fn file_bytes(any: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    if let Ok(bytes) = any.cast::<PyBytes>() {
        return Some(bytes.as_bytes().to_vec());
    }
    any.cast::<PyByteArray>().ok().map(|bytes| bytes.to_vec())
}

/// Where events come from.
enum Events {
    Live(TranscriptStream),
    Recording(RecordingStream),
}

impl Events {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, EngineError>>> {
        match self {
            Self::Live(stream) => stream.poll_event(cx),
            Self::Recording(stream) => stream.poll_event(cx),
        }
    }
}

/// A stream of events.
#[pyclass(frozen, module = "voce._native")]
pub(crate) struct Hearing {
    /// The model stays open as long as it hears.
    _listener: Arc<voce_engine::listener::Listener>,
    sender: Mutex<Option<RatedSender>>,
    events: Mutex<Option<Events>>,
    cancelled: AtomicBool,
}

/// A word: its text, start, end and confidence.
type WordRow = (String, f64, f64, f32);
/// A reading: its text and score.
type ReadingRow = (String, f32);
/// An event: its kind, text, start, end, words, readings and the reason of an end.
type EventRow = (&'static str, String, f64, f64, Vec<WordRow>, Vec<ReadingRow>, &'static str);

fn word_row(word: Word) -> WordRow {
    (word.text, word.start, word.end, word.confidence)
}

fn segment_row(kind: &'static str, segment: Segment) -> EventRow {
    let words = segment.words.into_iter().map(word_row).collect();
    let readings = segment.nbest.into_iter().map(|r| (r.text, r.score)).collect();
    (kind, segment.text, segment.start, segment.end, words, readings, "")
}

/// The event as Python gets it; those that nobody can ask for here are left out.
fn row(event: ListenEvent) -> Option<EventRow> {
    Some(match event {
        ListenEvent::Partial(segment) => segment_row("partial", segment),
        ListenEvent::Final(segment) => segment_row("final", segment),
        ListenEvent::Word(word) => {
            ("word", word.text.clone(), word.start, word.end, vec![word_row(word)], Vec::new(), "")
        }
        ListenEvent::Endpoint { at, reason } => {
            ("endpoint", String::new(), at, at, Vec::new(), Vec::new(), reason.name())
        }
        _ => return None,
    })
}

impl Hearing {
    fn next_row(&self) -> PyResult<Option<EventRow>> {
        let mut held = lock(&self.events);
        let Some(events) = held.as_mut() else { return Ok(None) };
        let result = loop {
            match wait(LOOK, &self.cancelled, |cx| events.poll(cx)) {
                Ok(Some(Ok(event))) => {
                    if let Some(row) = row(event) {
                        return Ok(Some(row));
                    }
                }
                Ok(Some(Err(e))) => break Err(failure::engine(e)),
                Ok(None) | Err(Stop::Cancelled) => break Ok(None),
                Err(Stop::Raised(raised)) => break Err(raised),
            }
        };
        // Whatever ended it, the slot is free from now on.
        *held = None;
        result
    }

    /// Gives the sender something, and waits until all of it has been passed on.
    fn send(&self, give: impl FnOnce(&mut RatedSender)) -> PyResult<()> {
        let mut held = lock(&self.sender);
        let sender = held.as_mut().ok_or_else(failure::ended)?;
        give(sender);
        let result = match wait(LOOK, &self.cancelled, |cx| sender.poll_flush(cx)) {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(_)) | Err(Stop::Cancelled) => Err(failure::ended()),
            Err(Stop::Raised(raised)) => Err(raised),
        };
        *held = None;
        result
    }
}

#[pymethods]
impl Hearing {
    /// The next event; none at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<EventRow>> {
        py.detach(|| self.next_row())
    }

    /// Adds audio.
    fn push(&self, py: Python<'_>, audio: &Bound<'_, PyAny>) -> PyResult<()> {
        let samples = samples::mono(audio)?;
        py.detach(|| self.send(|sender| sender.give(&samples)))
    }

    /// Ends the utterance here: its final comes without waiting for more audio.
    fn end_utterance(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.send(RatedSender::drain)?;
            if let Some(sender) = lock(&self.sender).as_mut() {
                sender.end_utterance();
            }
            Ok(())
        })
    }

    /// No more audio comes.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            if lock(&self.sender).is_none() {
                return Ok(());
            }
            self.send(RatedSender::drain)?;
            if let Some(sender) = lock(&self.sender).take() {
                sender.finish();
            }
            Ok(())
        })
    }

    /// Stops hearing; whoever reads or pushes finds the end.
    fn cancel(&self, py: Python<'_>) {
        self.cancelled.store(true, Ordering::Relaxed);
        py.detach(|| {
            // Who holds the lock waits, and sees the switch.
            if let Ok(mut events) = self.events.try_lock() {
                *events = None;
            }
            if let Ok(mut sender) = self.sender.try_lock() {
                *sender = None;
            }
        });
    }

    /// Seconds of audio that came in so far; none once it has ended.
    fn seconds(&self, py: Python<'_>) -> Option<f64> {
        py.detach(|| {
            Some(match lock(&self.events).as_ref()? {
                Events::Live(stream) => stream.stats().audio,
                Events::Recording(stream) => stream.stats().audio,
            })
        })
    }
}
