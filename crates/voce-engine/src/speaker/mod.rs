//! A speaker: one loaded model that speaks, its threads and its voices.

mod again;
mod beside;
mod codec;
mod options;
mod stream;
mod text;
mod voices;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use voce_models::speech::Speech;
use voce_text::MarkupStream;

pub use crate::lane::default_threads;
pub use crate::trace::{Trace, TraceEvent};
pub use options::{Overlap, SpeakerInfo, SpeakerOptions};
pub use stream::{AudioChunk, SpeakStats, SpeechStream};
pub use text::{HungUp, TextSender};
pub use voce_models::speech::{
    FineSampling, MAX_FRAMES, MAX_STEPS, MAX_TOKENS, MODEL_TOKENS, SpeakRequest, SpokenWord, TextMode, Voice,
    VoiceChoice, VoiceError, language_name,
};

use crate::EngineError;
use crate::device::{Place, has_room};
use crate::family::{self, OpenedSpeech, Shelf};
use crate::fault::Faults;
use crate::lane::{Lane, Team};
use crate::packed;
use crate::pulse::Pulse;
use crate::store::{Store, Task};
use crate::trace::Tracer;
use crate::wake::Waker;
use beside::Codec;
use codec::CodecStage;
use stream::Output;
use text::Piece;
use voices::Known;
use work::{NewJob, SpeakParts, SpeakWork};

/// Requests that wait for the lane to take them, unless it has more slots.
const REQUESTS: usize = 64;
/// Seconds of audio that a stream holds before its request pauses.
const AHEAD_SECONDS: usize = 20;
/// Passages side by side at most, on a CPU and on a device.
const MAX_SLOTS: usize = 256;
const MAX_DEVICE_SLOTS: usize = 1024;
/// Requests at once that a device is prepared for one by one; beyond, for powers of two.
const WARM_EACH: usize = 64;
/// Frames of a request that warms a model up: enough for a step to repeat.
const WARM_FRAMES: usize = 4;
/// What it says.
const WARM_TEXT: &str = "One two three.";

/// A loaded model that speaks.
pub struct Speaker {
    info: SpeakerInfo,
    speech: Arc<dyn Speech>,
    place: Place,
    shelf: Shelf,
    /// Where voices of the user's own are; none for a model with random weights.
    store: Option<Store>,
    known: Known,
    requests: SyncSender<NewJob>,
    /// Requests there is room for before they are taken.
    room: usize,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    faults: Faults,
    threads: Vec<JoinHandle<()>>,
}

impl Speaker {
    /// Opens a model by reference (a folder, a catalogue name, `owner/repo`), all of whose files are here.
    pub fn open(store: &Store, reference: &str, options: &SpeakerOptions) -> Result<Self, EngineError> {
        let place = Place::new(&options.device, options.isa)?;
        let opened = family::open_speech(store, reference, &place, place.precision(options.precision))?;
        let packed = opened.packed.clone();
        let mut speaker = Self::start(reference.to_owned(), opened, place, options)?;
        speaker.store = Some(store.clone());
        speaker.threads.extend(packed.and_then(|cache| packed::keep(cache, store.packed_dir())));
        Ok(speaker)
    }

    /// A model of a published size with random weights; [`shapes`](crate::shapes) names them.
    pub fn random(shape: &str, seed: u64, options: &SpeakerOptions) -> Result<Self, EngineError> {
        let place = Place::new(&options.device, options.isa)?;
        let shape = crate::shape(Task::Speech, shape)?;
        let opened = family::random_speech(shape, seed, &place, place.precision(options.precision))?;
        Self::start(shape.name.to_owned(), opened, place, options)
    }

    /// A speaker over a model that is loaded, under a name.
    pub fn new(
        name: impl Into<String>,
        speech: Arc<dyn Speech>,
        options: &SpeakerOptions,
    ) -> Result<Self, EngineError> {
        let place = Place::new(&options.device, options.isa)?;
        let opened = OpenedSpeech { speech, shelf: Shelf::default(), packed: None };
        Self::start(name.into(), opened, place, options)
    }

    fn start(
        id: String,
        opened: OpenedSpeech,
        place: Place,
        options: &SpeakerOptions,
    ) -> Result<Self, EngineError> {
        let OpenedSpeech { speech, shelf, .. } = opened;
        // Weights that found no room are known now, before anybody waits for a word.
        if let Some(device) = &place.device {
            device.status()?;
        }
        let most = if place.device.is_some() { MAX_DEVICE_SLOTS } else { MAX_SLOTS };
        let slots = options.slots.clamp(1, most);
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        // The stages of a device each have a queue of their own there.
        let beside = (threads > 1 || place.device.is_some())
            && match options.overlap {
                Overlap::Auto => threads > 2,
                Overlap::Beside => true,
                Overlap::InTurn => false,
            };
        let kind = speech.info();
        let info = SpeakerInfo {
            id,
            family: kind.family,
            sample_rate: kind.sample_rate,
            frame_rate: kind.frame_rate(),
            precision: place.precision(options.precision),
            threads,
            isa: place.isa,
            device: place.device.as_ref().map(|d| d.info().to_string()),
            slots,
            beside,
            stages: kind.stages.clone(),
            temperature: kind.temperature,
            languages: kind.languages.clone(),
            instructions: speech.takes_instructions(),
            words: speech.tells_words(),
        };
        let trace = |thread| Tracer::new(options.trace.clone(), thread);
        let pulse = Pulse::new(Duration::from_secs_f64(kind.frame_seconds()), 2);
        let mut synth = speech.synth(slots);
        let codec_threads = if beside { (threads / 2).clamp(1, 2) } else { threads };
        let lm_threads = if beside { threads - codec_threads } else { threads };
        let tracer = trace(if beside { "codec" } else { "model" });
        let mut handles = Vec::new();
        // The codec of a device is made first: what it holds is not there for slots.
        let codec_team = beside.then(|| Team::at(&place, codec_threads, options.pin, false)).transpose()?;
        // The model makes what the codec waits for, in many small steps.
        let mut team = Team::at(&place, lm_threads, options.pin, true)?;
        let filled = beside && team.exec.fills_device(1);
        let mut stage =
            CodecStage::new(&*speech, slots, tracer, pulse.clone(), options.faults.clone(), filled);
        has_room(synth.reserve(&mut team.exec)?, slots)?;
        let codec = match codec_team {
            Some(mut codec_team) => {
                has_room(stage.reserve(&mut codec_team.exec)?, slots)?;
                let (codec, thread) = Codec::beside(stage, codec_team, pulse.clone())?;
                handles.push(thread);
                codec
            }
            None => {
                has_room(stage.reserve(&mut team.exec)?, slots)?;
                Codec::InLine(Box::new(stage))
            }
        };
        let room = REQUESTS.max(options.slots);
        let (requests, taken) = sync_channel(room);
        let (waker, stop) = <(Arc<Waker>, Arc<AtomicBool>)>::default();
        let mut work = SpeakWork::from(SpeakParts {
            speech: speech.clone(),
            synth,
            codec,
            requests: taken,
            tracer: trace("model"),
            sample_rate: kind.sample_rate,
            slots,
            pulse: pulse.clone(),
            faults: options.faults.clone(),
        });
        let (keep_warm, lane_pulse) = (options.keep_warm, pulse.clone());
        let (lane_waker, lane_stop) = (waker.clone(), stop.clone());
        handles.push(team.spawn("voce-model", move |exec| {
            Lane { exec, waker: lane_waker, stop: lane_stop, pulse: lane_pulse, keep_warm }.run(&mut work);
        })?);
        Ok(Self {
            info,
            speech,
            place,
            shelf,
            store: None,
            known: Known::default(),
            requests,
            room,
            waker,
            stop,
            pulse,
            faults: options.faults.clone(),
            threads: handles,
        })
    }

    /// What was loaded.
    pub fn info(&self) -> &SpeakerInfo {
        &self.info
    }

    /// The pulse of its threads.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Tokens that a text is for this model.
    pub fn count_tokens(&self, text: &str) -> usize {
        self.speech.count_tokens(text)
    }

    /// Speaks a text.
    pub fn speak(&self, text: &str, request: &SpeakRequest) -> Result<SpeechStream, EngineError> {
        let script = self.speech.script(request)?;
        let pieces = text::whole_text(script, text, request.normalize, self.waker.clone())?;
        self.submit(request, pieces)
    }

    /// Speaks text that arrives piece by piece.
    pub fn speak_live(&self, request: &SpeakRequest) -> Result<(TextSender, SpeechStream), EngineError> {
        let script = self.speech.script(request)?;
        let markup = request.normalize.then(MarkupStream::new);
        let (sender, pieces) = TextSender::new(script, markup, self.waker.clone());
        Ok((sender, self.submit(request, pieces)?))
    }

    /// Speaks a few frames that nobody hears, so that the first request finds memory, caches and, on a device, the
    /// graphs of as many requests at once as there are slots.
    pub fn warm(&self) -> Result<(), EngineError> {
        let most = if self.place.device.is_some() { self.info.slots } else { 1 };
        let each = 1..=most.min(WARM_EACH);
        let powers = std::iter::successors(Some(2 * WARM_EACH), |n| Some(2 * n)).take_while(|n| *n <= most);
        for requests in each.chain(powers) {
            let request = SpeakRequest::default().with_max_frames(Some(WARM_FRAMES)).with_lockstep(1);
            let streams: Result<Vec<_>, _> = (0..requests).map(|_| self.speak(WARM_TEXT, &request)).collect();
            streams?.into_iter().flatten().try_for_each(|chunk| chunk.map(drop))?;
        }
        Ok(())
    }

    fn submit(&self, request: &SpeakRequest, pieces: Receiver<Piece>) -> Result<SpeechStream, EngineError> {
        let voice = self.chosen(&request.voice)?;
        let output = Output::new(self.waker.clone(), AHEAD_SECONDS * self.info.sample_rate);
        let job = NewJob { pieces, output: output.clone(), voice, request: Arc::new(request.clone()) };
        self.requests.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => EngineError::Busy(self.room),
            TrySendError::Disconnected(_) => EngineError::Stopped("its thread has ended".into()),
        })?;
        self.waker.wake();
        Ok(SpeechStream { output, sample_rate: self.info.sample_rate })
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        for handle in self.threads.drain(..).rev() {
            let _ = handle.join();
        }
    }
}
