//! A speaker: one loaded text-to-speech model, its threads and its voices.

mod codec;
mod files;
mod model_thread;
mod noise;
mod pieces;
mod request;
mod stream;
mod trace;
mod voices;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use voce_models::mimi::MimiDecoder;
use voce_models::pocket::{FlowLm, PocketConfig, Voice, VoiceEncoder, random_weights};
use voce_models::stage::{Per, StageInfo};
use voce_nn::{Formats, Loader, Precision, Weights};
use voce_runtime::cuda::Device;
use voce_runtime::{Cores, Exec, Isa};
use voce_text::{PromptRules, Tokenizer};

pub use pieces::{HungUp, TextSender};
pub use request::{MAX_FRAMES, MAX_STEPS, MAX_TOKENS, SpeakRequest};
pub use stream::{AudioChunk, SpeakStats, SpeechStream};
pub use trace::{Trace, TraceEvent};

use crate::EngineError;
use crate::device::Place;
use crate::fault::Faults;
use crate::packed;
use crate::pulse::{Life, Pulse};
use crate::store::{Store, catalogue};
use crate::wake::Waker;
use codec::{CodecStage, Message};
use files::Files;
pub(crate) use files::plain_tokenizer;
use model_thread::{Codec, ModelThread, NewJob};
use pieces::TextPlan;
use stream::Output;
pub(crate) use trace::Tracer;

/// Requests that wait for the model thread to take them, unless it has more slots.
const REQUESTS: usize = 64;
/// Steps that the language model may be ahead of the codec.
const AHEAD_STEPS: usize = 8;
/// Seconds of audio that a stream holds before its request pauses.
const AHEAD_SECONDS: usize = 20;
/// Threads by default at most: more only wait for each other.
const DEFAULT_THREADS: usize = 4;
/// Chunks side by side at most, on a CPU and on a device.
const MAX_SLOTS: usize = 256;
const MAX_DEVICE_SLOTS: usize = 1024;
/// Chunks side by side by default.
const DEFAULT_SLOTS: usize = 8;

/// How the two stages of a speaker share the threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// In turn up to two threads, side by side above.
    #[default]
    Auto,
    /// Codec and language model side by side, on threads of their own.
    Beside,
    /// In turn, each with all threads.
    InTurn,
}

/// How a speaker is set up.
#[derive(Clone, Debug)]
pub struct SpeakerOptions {
    /// Precision of the weights.
    pub precision: Precision,
    /// Threads; 0 chooses.
    pub threads: usize,
    /// Chunks and requests that run side by side.
    pub slots: usize,
    /// How the stages share the threads.
    pub overlap: Overlap,
    /// Instruction set; the best, or `VOCE_CPU`'s, when absent.
    pub isa: Option<Isa>,
    /// The device; none is the CPU.
    pub device: Option<Arc<Device>>,
    /// Where to record what the stages do.
    pub trace: Option<Trace>,
    /// Keep each thread on a core of its own, where there are enough.
    pub pin: bool,
    /// A step of an idle model this often keeps its caches and the CPU's clocks warm; none when absent.
    pub keep_warm: Option<Duration>,
    /// Faults that tests plant.
    pub faults: Faults,
}

impl Default for SpeakerOptions {
    fn default() -> Self {
        Self {
            precision: Precision::Int8,
            threads: 0,
            slots: DEFAULT_SLOTS,
            overlap: Overlap::Auto,
            isa: None,
            device: None,
            trace: None,
            pin: false,
            keep_warm: None,
            faults: Faults::default(),
        }
    }
}

/// What a loaded model is.
#[derive(Clone, Debug)]
pub struct SpeakerInfo {
    /// The reference it was opened by.
    pub id: String,
    /// Samples per second.
    pub sample_rate: usize,
    /// Frames per second.
    pub frame_rate: f64,
    /// Precision of the weights.
    pub precision: Precision,
    /// Threads in use.
    pub threads: usize,
    /// Instruction set in use.
    pub isa: Isa,
    /// The GPU in use, if the model runs on one.
    pub device: Option<String>,
    /// Whether the stages run side by side.
    pub beside: bool,
    /// What the model is made of, in the order in which a frame passes.
    pub stages: Vec<StageInfo>,
    /// Sampling temperature of the model.
    pub temperature: f32,
    /// Language of the model, where known.
    pub language: Option<String>,
}

/// A loaded model that speaks.
pub struct Speaker {
    info: SpeakerInfo,
    config: PocketConfig,
    place: Place,
    formats: Formats,
    lm: Arc<FlowLm>,
    tokenizer: Tokenizer,
    rules: Arc<PromptRules>,
    files: Option<Files>,
    source: Arc<dyn Weights>,
    encoder: Mutex<Option<Arc<VoiceEncoder>>>,
    requests: SyncSender<NewJob>,
    /// Requests there is room for before they are taken.
    room: usize,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    threads: Vec<JoinHandle<()>>,
}

impl Speaker {
    /// Opens a model by reference (a folder, a catalogue name, `owner/repo`), all of whose files are here.
    pub fn open(store: &Store, reference: &str, options: &SpeakerOptions) -> Result<Self, EngineError> {
        let files = Files::find(store, reference)?;
        let tokenizer = files.tokenizer()?;
        let expected = files.config.flow_lm.lookup_table.n_bins;
        if tokenizer.vocab_size() != expected {
            return Err(EngineError::TokenizerSize { expected, got: tokenizer.vocab_size() });
        }
        let (source, paths) = files.weights()?;
        let config = files.config.clone();
        let place = Place::new(options.device.as_ref(), options.isa)?;
        let formats = place.formats(options.precision)?;
        let packed = packed::cache(store, &paths, formats).filter(|_| place.device.is_none());
        let mut loader = Loader::new(source);
        if let Some(cache) = &packed {
            loader = loader.with_cache(cache.clone());
        }
        let mut speaker = Self::start(reference.to_owned(), config, loader, tokenizer, Some(files), options)?;
        speaker.threads.extend(packed.and_then(|cache| packed::keep(cache, store.packed_dir())));
        Ok(speaker)
    }

    /// A model of a published size with random weights: `pocket-100m`, `pocket-24l`, `pocket-18m`, ...
    pub fn random(shape: &str, seed: u64, options: &SpeakerOptions) -> Result<Self, EngineError> {
        let Some((_, entry)) = SHAPES.iter().find(|(name, _)| *name == shape) else {
            return Err(EngineError::BadRequest {
                what: "shape",
                value: shape.to_owned(),
                rule: "use pocket-100m, pocket-24l, pocket-18m, pocket-7m or pocket-2m",
            });
        };
        let entry = catalogue::find(entry).expect("the catalogue has every shape");
        let config = PocketConfig::from_yaml(&entry.config_yaml())
            .map_err(|source| EngineError::Config { path: shape.into(), source })?;
        let tokenizer = plain_tokenizer(config.flow_lm.lookup_table.n_bins);
        let loader = Loader::new(random_weights(seed));
        Self::start(shape.to_owned(), config, loader, tokenizer, None, options)
    }

    fn start(
        id: String,
        config: PocketConfig,
        loader: Loader,
        tokenizer: Tokenizer,
        files: Option<Files>,
        options: &SpeakerOptions,
    ) -> Result<Self, EngineError> {
        let place = Place::new(options.device.as_ref(), options.isa)?;
        let loader = place.loader(loader);
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
        let formats = place.formats(options.precision)?;
        let lm = Arc::new(FlowLm::load(&loader.sub("flow_lm"), &config, formats)?);
        let decoder =
            Arc::new(MimiDecoder::load(&loader.sub("mimi"), &config.mimi, formats, Some(lm.latent_scale()))?);
        // Weights that found no room are known now, before anybody waits for a word.
        if let Some(device) = &place.device {
            device.status()?;
        }
        let info = SpeakerInfo {
            id,
            sample_rate: config.mimi.sample_rate,
            frame_rate: config.mimi.frame_rate,
            precision: options.precision,
            threads,
            isa: place.isa,
            device: place.device.as_ref().map(|d| d.info().to_string()),
            beside,
            stages: stages(&lm, &decoder, &config, formats),
            temperature: config.default_temperature,
            language: files.as_ref().and_then(|f| f.language.clone()),
        };
        let waker = Arc::new(Waker::default());
        let stop = Arc::new(AtomicBool::new(false));
        let room = REQUESTS.max(options.slots);
        let (requests, taken) = sync_channel(room);
        let mut handles = Vec::new();
        let trace = |thread| Tracer::new(options.trace.clone(), thread);
        let codec_threads = if beside { (threads / 2).clamp(1, 2) } else { threads };
        let pulse = Pulse::new(Duration::from_secs_f64(1.0 / config.mimi.frame_rate), 2);
        let tracer = trace(if beside { "codec" } else { "model" });
        let stage = CodecStage::new(decoder, slots, tracer, pulse.clone(), options.faults.clone());
        let codec = if beside {
            let (sender, messages) = sync_channel(AHEAD_STEPS);
            let (exec, cores) = team(codec_threads, &place, options.pin, false)?;
            let life = Life(pulse.clone());
            handles.push(spawn("voce-codec", cores, move || codec_thread(stage, exec, messages, life))?);
            Codec::Beside { sender, held: Vec::new() }
        } else {
            Codec::InLine(Box::new(stage))
        };
        let lm_threads = if beside { threads - codec_threads } else { threads };
        // The model makes what the codec waits for, in many small steps.
        let (exec, cores) = team(lm_threads, &place, options.pin, true)?;
        let model = ModelThread {
            lm: lm.clone(),
            exec,
            codec,
            requests: taken,
            waker: waker.clone(),
            stop: stop.clone(),
            tracer: trace("model"),
            frame_rate: config.mimi.frame_rate,
            sample_rate: config.mimi.sample_rate,
            slots,
            pulse: pulse.clone(),
            keep_warm: options.keep_warm,
            faults: options.faults.clone(),
        };
        handles.push(spawn("voce-model", cores, move || model.run())?);
        Ok(Self {
            info,
            place,
            formats,
            lm,
            tokenizer,
            rules: Arc::new(config.prompt_rules()),
            config,
            files,
            source: loader.source(),
            encoder: Mutex::new(None),
            requests,
            room,
            waker,
            stop,
            pulse,
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

    /// The tokeniser, for those who count tokens.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Speaks a text.
    pub fn speak(&self, text: &str, request: &SpeakRequest) -> Result<SpeechStream, EngineError> {
        request.check()?;
        let pieces = pieces::whole_text(self.plan(request), text, self.waker.clone())?;
        self.submit(request, pieces)
    }

    /// Speaks text that arrives piece by piece.
    pub fn speak_live(&self, request: &SpeakRequest) -> Result<(TextSender, SpeechStream), EngineError> {
        request.check()?;
        let (sender, pieces) = TextSender::new(self.plan(request), self.waker.clone());
        Ok((sender, self.submit(request, pieces)?))
    }

    fn plan(&self, request: &SpeakRequest) -> TextPlan {
        TextPlan {
            tokenizer: self.tokenizer.clone(),
            rules: self.rules.clone(),
            max_tokens: request.max_tokens,
            normalize: request.normalize,
            frames_after_eos: request.frames_after_eos.or(self.config.model_recommended_frames_after_eos),
        }
    }

    fn submit(
        &self,
        request: &SpeakRequest,
        pieces: std::sync::mpsc::Receiver<pieces::Piece>,
    ) -> Result<SpeechStream, EngineError> {
        let output = Output::new(self.waker.clone(), AHEAD_SECONDS * self.info.sample_rate);
        let voice = match &request.voice {
            Some(voice) if voice.fits(&self.lm) => voice.clone(),
            Some(_) => {
                return Err(EngineError::BadRequest {
                    what: "voice",
                    value: "of another model or precision".into(),
                    rule: "use a voice that this speaker has loaded",
                });
            }
            None => Arc::new(Voice::empty(&self.lm)),
        };
        let job = NewJob {
            pieces,
            output: output.clone(),
            voice,
            temperature: request.temperature.unwrap_or(self.config.default_temperature),
            noise_clamp: request.noise_clamp,
            seed: request.seed,
            steps: request.steps,
            eos_threshold: request.eos_threshold.unwrap_or(self.config.default_eos_threshold),
            max_frames: request.max_frames,
            lockstep: request.lockstep,
        };
        self.requests.try_send(job).map_err(|e| match e {
            TrySendError::Full(_) => EngineError::Busy(self.room),
            TrySendError::Disconnected(_) => EngineError::Stopped("its thread has ended".into()),
        })?;
        self.waker.wake();
        Ok(SpeechStream { output })
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

/// Sizes that can be had with random weights, and their catalogue entries.
const SHAPES: [(&str, &str); 5] = [
    ("pocket-100m", "pocket"),
    ("pocket-24l", "pocket-24l"),
    ("pocket-18m", "pocket-18m"),
    ("pocket-7m", "pocket-7m"),
    ("pocket-2m", "pocket-2m"),
];

/// Names of [`Speaker::random`]'s shapes.
pub fn shapes() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|(name, _)| *name)
}

/// Threads when none are asked for.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(DEFAULT_THREADS)
}

/// What a frame goes through.
fn stages(lm: &FlowLm, codec: &MimiDecoder, config: &PocketConfig, formats: Formats) -> Vec<StageInfo> {
    let backbone = StageInfo {
        name: "backbone",
        bytes: lm.backbone_bytes(),
        macs: lm.backbone_macs(),
        per: Per::Frame,
        per_second: Some(config.mimi.frame_rate),
        together: 1,
        format: formats.backbone,
        prompts: true,
    };
    let head = StageInfo {
        name: "head",
        bytes: lm.head_bytes(),
        macs: lm.head_macs(),
        per: Per::SamplerStep,
        format: formats.linear,
        prompts: false,
        ..backbone
    };
    let codec = StageInfo {
        name: "codec",
        bytes: codec.bytes(),
        macs: codec.macs_per_frame(),
        per: Per::Frame,
        together: codec::GROUP,
        format: formats.conv,
        ..head
    };
    vec![backbone, head, codec]
}

/// An executor, and the cores of its threads where they are to be pinned.
fn team(threads: usize, place: &Place, pin: bool, first: bool) -> Result<(Exec, Option<Cores>), EngineError> {
    let cores = if pin { Cores::take(threads) } else { None };
    let make = || place.exec_with(threads, first);
    Ok((cores.as_ref().map_or_else(make, |cores| cores.hold(make))?, cores))
}

fn spawn(
    name: &str,
    cores: Option<Cores>,
    f: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, EngineError> {
    std::thread::Builder::new()
        .name(name.into())
        .spawn(move || {
            if let Some(cores) = cores {
                cores.pin_caller();
            }
            f();
        })
        .map_err(|e| EngineError::Stopped(format!("cannot start a thread: {e}")))
}

/// Runs the codec stage until the model thread is gone.
fn codec_thread(
    mut stage: CodecStage,
    mut exec: Exec,
    messages: std::sync::mpsc::Receiver<Vec<Message>>,
    life: Life,
) {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        while let Some(step) = messages.try_recv().ok().or_else(|| {
            // The device has nothing to do beside it: what is held goes out before the wait.
            stage.hand_over();
            messages.recv().ok()
        }) {
            // No more than the channel holds, or what is ready would wait for a model that is faster.
            for message in std::iter::once(step).chain(messages.try_iter().take(AHEAD_STEPS)).flatten() {
                // A slot's next chunk may come before the frames of its last one are decoded.
                if matches!(message, Message::Begin { slot, .. } if stage.is_busy(slot)) {
                    stage.work(&mut exec);
                }
                stage.handle(message);
            }
            stage.work(&mut exec);
            if exec.status().is_err() {
                break;
            }
        }
    }));
    drop(life);
    let reason = match (result, exec.status()) {
        (Err(_), _) => "the codec thread panicked".to_owned(),
        (Ok(()), Err(e)) => e.to_string(),
        (Ok(()), Ok(())) => "it was closed".to_owned(),
    };
    stage.fail(&reason);
    // Requests that the stage has not met yet; the model thread finds the channel closed and ends the others.
    for message in messages.try_iter().flatten() {
        if let Message::Open { output, .. } = message {
            output.finish(Err(EngineError::Stopped(reason.clone())));
        }
    }
}

/// Opens a model and says what it is, without weights: for `voce show`.
pub fn describe(store: &Store, reference: &str) -> Result<PocketConfig, EngineError> {
    Ok(Files::find(store, reference)?.config)
}

/// Whether a path names an audio or voice file rather than a voice by name.
fn looks_like_path(name: &str) -> bool {
    name.contains(['/', '\\', '.']) || Path::new(name).exists()
}
