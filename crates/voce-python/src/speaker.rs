//! Models that speak: `Speaker`, and `Speech`, a stream of audio whose text may still be arriving.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use voce_audio::output::{Output as _, open_output};
use voce_engine::speaker::TextSender;
use voce_engine::store::Task;
use voce_engine::{AudioChunk, SpeakRequest, SpeakerOptions, SpeechStream, VoiceChoice};

use crate::interrupt::{LOOK, Stop, apart, lock, wait};
use crate::options::Place;
use crate::{failure, samples};

/// How often a push that found no room tries again.
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// A voice that is loaded.
#[pyclass(frozen, module = "voce")]
pub(crate) struct Voice {
    speaker: Arc<voce_engine::Speaker>,
    voice: voce_engine::Voice,
}

#[pymethods]
impl Voice {
    /// Writes it as a `.safetensors` file, which `voice=` takes from then on.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let (speaker, voice) = (self.speaker.clone(), self.voice.clone());
        apart(py, move || {
            let bytes = speaker.voice_bytes(&voice).map_err(failure::engine)?;
            let write = || {
                let mut output = open_output(&path)?;
                output.put(&bytes)?;
                output.commit()
            };
            write().map_err(|e| failure::error(e.code(), e.to_string()))
        })
    }
}

/// A voice by name or file, or one that is loaded.
#[derive(FromPyObject)]
pub(crate) enum AnyVoice {
    Loaded(Py<Voice>),
    Named(String),
    File(PathBuf),
}

/// A model that speaks, kept open.
#[pyclass(frozen, module = "voce._native")]
pub(crate) struct Speaker(Arc<voce_engine::Speaker>);

#[pymethods]
impl Speaker {
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
            let reference = place.reference(Task::Speech, model.as_deref())?;
            let mut options = SpeakerOptions::default()
                .with_precision(place.precision)
                .with_device(place.device.into())
                .with_threads(threads);
            options.slots = slots.unwrap_or(options.slots);
            let speaker = voce_engine::Speaker::open(&place.store, &reference, &options);
            speaker.map(|s| Self(Arc::new(s))).map_err(failure::engine)
        })
    }

    #[getter]
    fn model(&self) -> &str {
        &self.0.info().id
    }

    #[getter]
    fn family(&self) -> &str {
        self.0.info().family
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
    fn voices(&self, py: Python<'_>) -> Vec<String> {
        py.detach(|| self.0.voice_names())
    }

    #[getter]
    fn default_voice(&self) -> Option<String> {
        self.0.default_voice()
    }

    /// Clones a voice from a recording.
    #[pyo3(signature = (path, text=None))]
    fn clone_voice(&self, py: Python<'_>, path: PathBuf, text: Option<String>) -> PyResult<Voice> {
        let speaker = self.0.clone();
        apart(py, move || {
            let voice = speaker.clone_voice(&path, text.as_deref()).map_err(failure::engine)?;
            Ok(Voice { speaker, voice })
        })
    }

    /// Speaks a few frames that nobody hears.
    fn warm(&self, py: Python<'_>) -> PyResult<()> {
        let speaker = self.0.clone();
        apart(py, move || speaker.warm().map_err(failure::engine))
    }

    /// Starts to speak a text, or without one text that is pushed.
    #[pyo3(signature = (
        text, *, voice=None, language=None, instruct=None, seed=0, temperature=None, greedy=false, steps=1, top_k=None,
        top_p=None, max_frames=None, normalize=true
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn start(
        &self,
        py: Python<'_>,
        text: Option<String>,
        voice: Option<AnyVoice>,
        language: Option<String>,
        instruct: Option<String>,
        seed: u64,
        temperature: Option<f32>,
        greedy: bool,
        steps: usize,
        top_k: Option<usize>,
        top_p: Option<f32>,
        max_frames: Option<usize>,
        normalize: bool,
    ) -> PyResult<Speech> {
        let voice = match voice {
            None => VoiceChoice::Default,
            Some(AnyVoice::Named(name)) => name.into(),
            Some(AnyVoice::File(path)) => path.display().to_string().into(),
            Some(AnyVoice::Loaded(voice)) => voice.get().voice.clone().into(),
        };
        let request = SpeakRequest::voice(voice)
            .with_language(language)
            .with_instruct(instruct)
            .with_seed(seed)
            .with_temperature(temperature)
            .with_greedy(greedy)
            .with_steps(steps)
            .with_top_k(top_k)
            .with_top_p(top_p)
            .with_max_frames(max_frames)
            .with_normalize(normalize);
        let speaker = self.0.clone();
        // A voice may have to be cloned first.
        apart(py, move || {
            let (sender, stream) = match &text {
                Some(text) => (None, speaker.speak(text, &request).map_err(failure::engine)?),
                None => {
                    let (sender, stream) = speaker.speak_live(&request).map_err(failure::engine)?;
                    (Some(sender), stream)
                }
            };
            Ok(Speech {
                speaker,
                sender: Mutex::new(sender),
                stream: Mutex::new(Some(stream)),
                cancelled: AtomicBool::new(false),
            })
        })
    }
}

/// A word and when it is spoken.
type Word = (String, f64, f64);

/// A stream of audio.
#[pyclass(frozen, module = "voce._native")]
pub(crate) struct Speech {
    /// The model stays open as long as it speaks.
    speaker: Arc<voce_engine::Speaker>,
    sender: Mutex<Option<TextSender>>,
    stream: Mutex<Option<SpeechStream>>,
    cancelled: AtomicBool,
}

impl Speech {
    fn next_chunk(&self) -> PyResult<Option<AudioChunk>> {
        let mut held = lock(&self.stream);
        let Some(stream) = held.as_mut() else { return Ok(None) };
        let result = match wait(LOOK, &self.cancelled, |cx| stream.poll_next(cx)) {
            Ok(Some(Ok(chunk))) => return Ok(Some(chunk)),
            // Cancelling lets go of the sender: what the stream made of that is no news then.
            Ok(Some(Err(_))) if self.cancelled.load(Ordering::Relaxed) => Ok(None),
            Ok(Some(Err(e))) => Err(failure::engine(e)),
            Ok(None) | Err(Stop::Cancelled) => Ok(None),
            Err(Stop::Raised(raised)) => Err(raised),
        };
        // Whatever ended it, the slot is free from now on.
        *held = None;
        result
    }

    /// Gives the sender something to do, and waits until all of it has found room.
    fn send(&self, first: impl FnOnce(&mut TextSender) -> Result<bool, ()>) -> PyResult<()> {
        let mut held = lock(&self.sender);
        let sender = held.as_mut().ok_or_else(failure::ended)?;
        let mut first = Some(first);
        let flushed = wait(TRY_AGAIN, &self.cancelled, |_| {
            let step = match first.take() {
                Some(first) => first(sender),
                None => sender.try_flush().map_err(drop),
            };
            match step {
                Ok(true) => Poll::Ready(Ok(())),
                Ok(false) => Poll::Pending,
                Err(()) => Poll::Ready(Err(failure::ended())),
            }
        });
        let result = match flushed {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(ended)) => Err(ended),
            Err(Stop::Cancelled) => Err(failure::ended()),
            Err(Stop::Raised(raised)) => Err(raised),
        };
        *held = None;
        result
    }
}

#[pymethods]
impl Speech {
    #[getter]
    fn sample_rate(&self) -> usize {
        self.speaker.info().sample_rate
    }

    /// The next audio as bytes of float32, with the words that it begins; none at the end.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyByteArray>, Vec<Word>)>> {
        let Some(chunk) = py.detach(|| self.next_chunk())? else { return Ok(None) };
        let words = chunk.words.into_iter().map(|w| (w.text, w.start, w.end)).collect();
        Ok(Some((samples::bytes(py, &chunk.samples)?, words)))
    }

    /// Adds text.
    fn push(&self, py: Python<'_>, text: &str) -> PyResult<()> {
        py.detach(|| self.send(|sender| sender.try_push(text).map_err(drop)))
    }

    /// No more text comes.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            if lock(&self.sender).is_none() {
                return Ok(());
            }
            self.send(|sender| sender.try_finish().map_err(drop))?;
            *lock(&self.sender) = None;
            Ok(())
        })
    }

    /// Stops speaking; whoever reads or pushes finds the end.
    fn cancel(&self, py: Python<'_>) {
        self.cancelled.store(true, Ordering::Relaxed);
        py.detach(|| {
            // Who holds the lock waits, and sees the switch.
            if let Ok(mut stream) = self.stream.try_lock() {
                *stream = None;
            }
            if let Ok(mut sender) = self.sender.try_lock() {
                *sender = None;
            }
        });
    }

    /// Seconds to the first audio, where there was some, and seconds of audio made so far; none once it has ended.
    fn stats(&self, py: Python<'_>) -> Option<(Option<f64>, f64)> {
        py.detach(|| {
            let stats = lock(&self.stream).as_ref()?.stats();
            let seconds = stats.samples as f64 / self.speaker.info().sample_rate as f64;
            Some((stats.first_audio.map(|t| t.as_secs_f64()), seconds))
        })
    }
}
