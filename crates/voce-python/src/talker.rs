//! Models that hold conversations: `Talker`, and `Talking`, a stream of audio and text over audio that is pushed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, ready};

use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use voce_engine::store::Task;
use voce_engine::talker::{TalkEvent, TalkRequest, TalkSender, TalkStream, TalkerOptions};

use crate::interrupt::{LOOK, Stop, apart, lock, wait};
use crate::options::Place;
use crate::{failure, samples};

/// A model that holds conversations, kept open.
#[pyclass(frozen, module = "voce._native")]
pub(crate) struct Talker {
    talker: Arc<voce_engine::talker::Talker>,
    model: String,
}

#[pymethods]
impl Talker {
    #[new]
    #[pyo3(signature = (model, *, store=None, device="auto", precision="auto", threads=0, slots=None))]
    fn new(
        py: Python<'_>,
        model: String,
        store: Option<PathBuf>,
        device: &str,
        precision: &str,
        threads: usize,
        slots: Option<usize>,
    ) -> PyResult<Self> {
        let place = Place::new(store, device, precision)?;
        apart(py, move || {
            let model = place.reference(Task::Dialogue, Some(&model))?;
            let mut options = TalkerOptions::default()
                .with_precision(place.precision)
                .with_device(place.device.into())
                .with_threads(threads);
            options.slots = slots.unwrap_or(options.slots);
            let talker = voce_engine::talker::Talker::open(&place.store, &model, &options);
            talker.map(|t| Self { talker: Arc::new(t), model }).map_err(failure::engine)
        })
    }

    #[getter]
    fn model(&self) -> &str {
        &self.model
    }

    #[getter]
    fn sample_rate(&self) -> usize {
        self.talker.info().sample_rate
    }

    #[getter]
    fn frame_size(&self) -> usize {
        self.talker.info().frame_size
    }

    /// Begins a conversation.
    #[pyo3(signature = (*, temperature=None, text_temperature=None, top_k=None, text_top_k=None, seed=0))]
    fn start(
        &self,
        py: Python<'_>,
        temperature: Option<f32>,
        text_temperature: Option<f32>,
        top_k: Option<usize>,
        text_top_k: Option<usize>,
        seed: u64,
    ) -> PyResult<Talking> {
        let request = TalkRequest::default()
            .with_temperature(temperature)
            .with_text_temperature(text_temperature)
            .with_top_k(top_k)
            .with_text_top_k(text_top_k)
            .with_seed(seed);
        py.detach(|| {
            let (sender, stream) = self.talker.talk(&request).map_err(failure::engine)?;
            Ok(Talking {
                _talker: self.talker.clone(),
                sender: Mutex::new(Some(sender)),
                stream: Mutex::new(Some(stream)),
                cancelled: AtomicBool::new(false),
            })
        })
    }
}

/// A conversation.
#[pyclass(frozen, module = "voce._native")]
pub(crate) struct Talking {
    /// The model stays open as long as it talks.
    _talker: Arc<voce_engine::talker::Talker>,
    sender: Mutex<Option<TalkSender>>,
    stream: Mutex<Option<TalkStream>>,
    cancelled: AtomicBool,
}

/// Audio as bytes of float32, or text.
type Said<'py> = (Option<Bound<'py, PyByteArray>>, Option<String>);

impl Talking {
    fn next_event(&self) -> PyResult<Option<TalkEvent>> {
        let mut held = lock(&self.stream);
        let Some(stream) = held.as_mut() else { return Ok(None) };
        let result = loop {
            match wait(LOOK, &self.cancelled, |cx| stream.poll_next(cx)) {
                Ok(Some(Ok(event @ (TalkEvent::Audio(_) | TalkEvent::Text(_))))) => return Ok(Some(event)),
                Ok(Some(Ok(_))) => {}
                // Cancelling lets go of the sender: what the stream made of that is no news then.
                Ok(Some(Err(_))) if self.cancelled.load(Ordering::Relaxed) => break Ok(None),
                Ok(Some(Err(e))) => break Err(failure::engine(e)),
                Ok(None) | Err(Stop::Cancelled) => break Ok(None),
                Err(Stop::Raised(raised)) => break Err(raised),
            }
        };
        *held = None;
        result
    }
}

#[pymethods]
impl Talking {
    /// What the model says next: audio or text; none at the end.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Said<'py>>> {
        match py.detach(|| self.next_event())? {
            Some(TalkEvent::Audio(audio)) => Ok(Some((Some(samples::bytes(py, &audio)?), None))),
            Some(TalkEvent::Text(text)) => Ok(Some((None, Some(text)))),
            _ => Ok(None),
        }
    }

    /// Adds audio, at the model's sample rate.
    fn push(&self, py: Python<'_>, audio: &Bound<'_, PyAny>) -> PyResult<()> {
        let samples = samples::mono(audio)?;
        py.detach(|| {
            let mut held = lock(&self.sender);
            let sender = held.as_mut().ok_or_else(failure::ended)?;
            let mut taken = 0;
            let result = match wait(LOOK, &self.cancelled, |cx| {
                while taken < samples.len() {
                    ready!(sender.poll_ready(cx))?;
                    taken += sender.try_push(&samples[taken..])?;
                }
                Poll::Ready(Ok::<_, voce_engine::talker::HungUp>(()))
            }) {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(_)) | Err(Stop::Cancelled) => Err(failure::ended()),
                Err(Stop::Raised(raised)) => Err(raised),
            };
            *held = None;
            result
        })
    }

    /// No more audio comes: the conversation ends once all of it was heard.
    fn finish(&self, py: Python<'_>) {
        py.detach(|| *lock(&self.sender) = None);
    }

    /// Ends the conversation at once.
    fn cancel(&self, py: Python<'_>) {
        self.cancelled.store(true, Ordering::Relaxed);
        py.detach(|| {
            if let Ok(mut stream) = self.stream.try_lock() {
                *stream = None;
            }
            if let Ok(mut sender) = self.sender.try_lock() {
                *sender = None;
            }
        });
    }
}
