//! A listener: one loaded recogniser, its threads and its slots. Audio goes in, events come out.

mod device_mel;
mod event;
mod files;
mod histogram;
mod inlet;
mod lanes;
mod mel_tail;
mod model_thread;
mod outlet;
mod phrases;
mod request;
mod sender;
mod slot;
mod snapshot;
mod step_room;
pub mod subtitles;
mod utterance;
mod windows;
mod words;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use voce_models::fastconformer::{Attention, Encoder, FastConformerConfig, Head, StreamShape};
use voce_models::stage::{Per, StageInfo};
use voce_models::transducer::{Decoder, Ngram, SearchState};
use voce_nn::{Formats, Loader, PackedCache, Precision};
use voce_runtime::Isa;
use voce_runtime::cuda::Device;
use voce_text::Tokenizer;

pub use event::{Alternative, EndReason, ListenEvent, Segment, Word};
pub use histogram::Histogram;
pub use inlet::HungUp;
pub use lanes::MAX_LANES;
pub use model_thread::ListenerStats;
pub use outlet::{ListenStats, MAX_EVENTS, TranscriptStream};
pub use request::{Endpointing, Hotword, ListenRequest, MAX_BEAM, MAX_HOTWORDS};
pub use sender::AudioSender;

use crate::EngineError;
use crate::device::Place;
use crate::fault::Faults;
use crate::packed;
use crate::pulse::Pulse;
use crate::store::{Store, Task};
use crate::trace::{Trace, Tracer};
use crate::wake::{Waker, lock};
use device_mel::DeviceMel;
use files::Files;
use inlet::{Inlet, Layout, SAMPLE_RATE};
use lanes::{Lane, Lanes, Live};
use mel_tail::Mel;
use model_thread::{Model, ModelThread, frames_per_stream};
use outlet::Outlet;
use slot::NewStream;
use snapshot::{Expected, Saved};
use utterance::Rules;
use words::Speller;

/// Mel rows per second.
const ROW_RATE: usize = 100;
/// Seconds of audio that a stream holds before its sender must wait.
const AHEAD_SECONDS: usize = 10;
/// Silence that warms a model up: a chunk or two of every model.
const WARM_SAMPLES: usize = 2 * SAMPLE_RATE;
/// What traces call the lanes' threads.
const TRACES: [&str; MAX_LANES] = ["model", "model 2", "model 3", "model 4"];
/// Streams side by side by default.
const DEFAULT_SLOTS: usize = 8;
/// Streams side by side at most.
pub const MAX_SLOTS: usize = 16_384;

/// How a listener is set up.
#[derive(Clone, Debug)]
pub struct ListenerOptions {
    /// Precision of the weights.
    pub precision: Precision,
    /// Threads; 0 chooses. On a device those of all lanes together, for what the host does.
    pub threads: usize,
    /// Streams that run side by side.
    pub slots: usize,
    /// Model threads that share them, up to [`MAX_LANES`]: 0 chooses two on a device, one on a CPU.
    pub lanes: usize,
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

impl Default for ListenerOptions {
    fn default() -> Self {
        Self {
            precision: Precision::Int8,
            threads: 0,
            slots: DEFAULT_SLOTS,
            lanes: 0,
            isa: None,
            device: None,
            trace: None,
            pin: false,
            keep_warm: None,
            faults: Faults::default(),
        }
    }
}

/// What a loaded recogniser is.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    /// The reference it was opened by.
    pub id: String,
    /// Samples per second that it takes.
    pub sample_rate: usize,
    /// Milliseconds of an encoder frame.
    pub frame_ms: u32,
    /// Chunks in milliseconds that streams may choose from, the model's own first; none for offline models.
    pub chunks_ms: Vec<u32>,
    /// The chunk of streams that do not choose; none for offline models.
    pub default_chunk_ms: Option<u32>,
    /// Whether it takes whole utterances only.
    pub offline: bool,
    /// Languages that it can be told; empty where it takes none.
    pub languages: Vec<String>,
    /// What turns frames into labels: `rnnt`, `tdt` or `ctc`.
    pub head: &'static str,
    /// Labels.
    pub vocab: usize,
    /// Precision of the weights.
    pub precision: Precision,
    /// Threads in use.
    pub threads: usize,
    /// Instruction set in use.
    pub isa: Isa,
    /// The GPU in use, if the model runs on one.
    pub device: Option<String>,
    /// Streams that run side by side.
    pub slots: usize,
    /// Model threads that share them.
    pub lanes: usize,
    /// What the model is made of, in the order in which a frame passes.
    pub stages: Vec<StageInfo>,
    /// Bytes of encoder state that each slot takes.
    pub state_bytes: usize,
}

/// A loaded recogniser that listens.
pub struct Listener {
    info: ListenerInfo,
    config: FastConformerConfig,
    model: Arc<Model>,
    lanes: Lanes,
    stats: Arc<Mutex<ListenerStats>>,
    pulse: Arc<Pulse>,
    /// Writes packed weights.
    keeping: Option<JoinHandle<()>>,
}

impl Listener {
    /// Opens a recogniser by reference (a folder, a `.nemo` file, a catalogue name), all of whose files are here.
    pub fn open(store: &Store, reference: &str, options: &ListenerOptions) -> Result<Self, EngineError> {
        store.identify(reference)?.require(Task::Hearing)?;
        let files = Files::find(store, reference)?;
        let place = Place::new(options.device.as_ref(), options.isa)?;
        let formats = place.formats(options.precision)?;
        let cache = packed::cache(store, &files.paths, formats).filter(|_| place.device.is_none());
        let mut listener = Self::start(reference.to_owned(), files, cache.clone(), options)?;
        listener.keeping = cache.and_then(|cache| packed::keep(cache, store.packed_dir()));
        Ok(listener)
    }

    /// A recogniser of a published size with random weights; [`shapes`](crate::shapes) names them.
    pub fn random(shape: &str, seed: u64, options: &ListenerOptions) -> Result<Self, EngineError> {
        let (config, weights, tokenizer) = files::random(shape, seed)?;
        let files = Files { config, weights, tokenizer, paths: Vec::new() };
        Self::start(shape.to_owned(), files, None, options)
    }

    fn start(
        id: String,
        files: Files,
        cache: Option<Arc<PackedCache>>,
        options: &ListenerOptions,
    ) -> Result<Self, EngineError> {
        let languages = files.languages();
        let Files { config, weights, tokenizer, .. } = files;
        let place = Place::new(options.device.as_ref(), options.isa)?;
        let isa = place.isa;
        let slots = options.slots.clamp(1, MAX_SLOTS);
        let lanes = lanes::count(options.lanes, slots, &place);
        let threads = lanes::threads(options.threads, lanes, &place);
        let formats = place.formats(options.precision)?;
        let mut loader = place.loader(Loader::new(weights));
        if let Some(cache) = cache {
            loader = loader.with_cache(cache);
        }
        let mut teams =
            (0..lanes).map(|_| lanes::team(threads, &place, options.pin)).collect::<Result<Vec<_>, _>>()?;
        let encoder = Encoder::load(&loader, &config, formats, &mut teams[0].0)?;
        let decoder = Decoder::load(&loader, &config, formats)?;
        let room = frames_per_stream(&encoder, slots);
        let mut states: Vec<_> = lanes::shares(slots, lanes).map(|n| encoder.state(n, room)).collect();
        let state_bytes = states[0].bytes_per_slot();
        place.holds(slots, state_bytes)?;
        for ((exec, _), state) in teams.iter_mut().zip(&mut states) {
            encoder.reserve(exec, state)?;
            exec.status()?;
        }
        let factor = config.encoder.subsampling_factor;
        let frame_ms = (factor * 1000 / ROW_RATE) as u32;
        let chunks_ms: Vec<u32> = match &config.encoder.attention {
            Attention::Full => Vec::new(),
            Attention::Chunked { look_aheads, .. } => {
                look_aheads.iter().map(|&n| (n as u32 + 1) * frame_ms).collect()
            }
        };
        let together = chunks_ms.first().map_or(windows::WINDOW, |ms| (ms / frame_ms) as usize);
        let stages = stages(&encoder, &decoder, frame_ms, together, formats);
        let info = ListenerInfo {
            id,
            sample_rate: SAMPLE_RATE,
            frame_ms,
            default_chunk_ms: chunks_ms.first().copied(),
            offline: chunks_ms.is_empty(),
            chunks_ms,
            languages,
            head: decoder.name(),
            vocab: config.vocab,
            precision: options.precision,
            threads: threads * lanes,
            isa,
            device: place.device.as_ref().map(|d| d.info().to_string()),
            slots,
            lanes,
            stages,
            state_bytes,
        };
        let durations = matches!(config.head, Head::Tdt { .. });
        let model = Arc::new(Model {
            encoder,
            decoder,
            speller: Arc::new(Speller::new(tokenizer, config.vocab, durations)),
            bins: config.mel.bins,
            normalize: config.mel.normalize,
            frame_seconds: f64::from(frame_ms) / 1e3,
            fingerprint: fingerprint(&config, options.precision, isa),
        });
        let stats = Arc::<Mutex<ListenerStats>>::default();
        let pulse = Pulse::new(Duration::from_millis(u64::from(frame_ms)), lanes);
        let mut all = Lanes {
            lanes: Vec::with_capacity(lanes),
            live: (0..lanes).map(|_| AtomicUsize::new(0)).collect::<Live>(),
            few: lanes::few(info.offline, &place),
            stop: Arc::<AtomicBool>::default(),
            placing: Mutex::default(),
        };
        let turn = (lanes > 1 && place.device.is_some()).then(Arc::default);
        for (lane, ((exec, cores), (slots, state))) in
            teams.into_iter().zip(lanes::shares(slots, lanes).zip(states)).enumerate()
        {
            let (requests, taken) = sync_channel(slots);
            let waker = Arc::<Waker>::default();
            let thread = ModelThread {
                model: model.clone(),
                state: Some(state),
                exec,
                front: place.device.as_ref().map(|_| DeviceMel::new(&config.mel)),
                requests: taken,
                waker: waker.clone(),
                stop: all.stop.clone(),
                live: all.live.clone(),
                stats: stats.clone(),
                tracer: Tracer::new(options.trace.clone(), TRACES[lane]),
                lane,
                turn: turn.clone(),
                slots,
                first_slot: all.slots(),
                room,
                pulse: pulse.clone(),
                keep_warm: options.keep_warm,
                faults: options.faults.clone(),
            };
            let thread = std::thread::Builder::new()
                .name("voce-listen".into())
                .spawn(move || {
                    if let Some(cores) = cores {
                        cores.pin_caller();
                    }
                    thread.run();
                })
                .map_err(|e| EngineError::Stopped(format!("cannot start a thread: {e}")))?;
            all.lanes.push(Lane { requests, waker, slots, thread: Some(thread) });
        }
        Ok(Self { info, config, model, lanes: all, stats, pulse, keeping: None })
    }

    /// What was loaded.
    pub fn info(&self) -> &ListenerInfo {
        &self.info
    }

    /// The work of all model threads so far.
    pub fn stats(&self) -> ListenerStats {
        lock(&self.stats).clone()
    }

    /// The work since the last call, or since the begin.
    pub fn take_stats(&self) -> ListenerStats {
        std::mem::take(&mut lock(&self.stats))
    }

    /// The pulse of its threads: it is dead when one of them is.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Runs every lane once from end to end, so that the first stream finds memory and caches as the second one does.
    pub fn warm(&self) -> Result<(), EngineError> {
        let request = ListenRequest::default();
        let shape = self.shape(&request)?;
        // One after the other: a device chooses its algorithms meanwhile, by how long they take.
        for lane in 0..self.lanes.len() {
            let (mut audio, mut events) = self.submit(&request, shape, None, Some(lane))?;
            // A sender that finds nobody learns why by the events.
            let _ = audio.push(&vec![0.0; WARM_SAMPLES]);
            audio.finish();
            events.try_for_each(|event| event.map(drop))?;
        }
        Ok(())
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.model.speller.tokenizer()
    }

    /// Reads an ARPA language model over this model's tokens.
    pub fn language_model(&self, path: &Path) -> Result<Arc<Ngram>, EngineError> {
        phrases::language_model(path, self.tokenizer(), self.info.vocab)
    }

    /// Listens to a stream; [`EngineError::Busy`] when every slot is taken.
    pub fn listen(&self, request: &ListenRequest) -> Result<(AudioSender, TranscriptStream), EngineError> {
        let shape = self.shape(request)?;
        self.submit(request, shape, None, None)
    }

    /// Goes on with a stream that was saved by [`AudioSender::snapshot`], here or on another machine with the same
    /// model at the same precision. The search options are the request's.
    pub fn resume(
        &self,
        snapshot: &[u8],
        request: &ListenRequest,
    ) -> Result<(AudioSender, TranscriptStream), EngineError> {
        let shape = self.shape(request)?;
        let expected = Expected {
            fingerprint: self.model.fingerprint,
            bins: self.model.bins,
            capacity: self.capacity() + windows::WINDOW * self.config.encoder.subsampling_factor,
            vocab: self.info.vocab,
        };
        let saved = Saved::from_bytes(snapshot, &expected)?;
        let [look_ahead, language] = saved.shape;
        let same = |asked: bool, was, is| !asked || was == is;
        if !same(request.chunk_ms.is_some(), look_ahead, shape.look_ahead)
            || !same(request.language.is_some(), language, shape.language)
        {
            return Err(EngineError::Snapshot("it has another chunk or language than the request".into()));
        }
        self.submit(request, StreamShape { look_ahead, language }, Some(saved), None)
    }

    /// Chunk and language of a request.
    fn shape(&self, request: &ListenRequest) -> Result<StreamShape, EngineError> {
        request.check()?;
        let info = &self.info;
        let look_ahead = match request.chunk_ms.or(info.default_chunk_ms) {
            None => 0,
            Some(ms) if info.chunks_ms.contains(&ms) => (ms / info.frame_ms) as usize - 1,
            Some(ms) => return Err(EngineError::Chunk { asked: ms, has: info.chunks_ms.clone() }),
        };
        let language = match (&request.language, &self.config.prompt) {
            (None, None) => 0,
            (None, Some(p)) => p.default,
            (Some(name), Some(p)) => {
                let found = p.languages.iter().find(|(code, _)| code.eq_ignore_ascii_case(name));
                let known = || p.languages.iter().map(|(code, _)| code.clone()).collect();
                found.ok_or_else(|| EngineError::Language { asked: name.clone(), has: known() })?.1
            }
            // A model that knows one language needs not be told which.
            (Some(name), None) => {
                return Err(EngineError::Language { asked: name.clone(), has: Vec::new() });
            }
        };
        Ok(StreamShape { look_ahead, language })
    }

    /// Mel rows that a stream holds.
    fn capacity(&self) -> usize {
        let window =
            if self.info.offline { windows::WINDOW * self.config.encoder.subsampling_factor } else { 0 };
        window + AHEAD_SECONDS * ROW_RATE
    }

    fn submit(
        &self,
        request: &ListenRequest,
        shape: StreamShape,
        saved: Option<Saved>,
        lane: Option<usize>,
    ) -> Result<(AudioSender, TranscriptStream), EngineError> {
        let options = phrases::search_options(request, &self.model)?;
        let fresh = SearchState::new(&self.model.decoder, &options)
            .map_err(|e| EngineError::Search(e.to_string()))?;
        let frames = |ms: u32| (ms as usize).div_ceil(self.info.frame_ms as usize).max(1);
        if !self.pulse.is_alive() {
            return Err(EngineError::Stopped("one of its threads has ended".into()));
        }
        let lane = self.lanes.take(lane)?;
        let waker = &self.lanes.lanes[lane].waker;
        let on_device = self.info.device.is_some();
        let layout = if on_device { Layout::windows } else { Layout::rows };
        let inlet = Inlet::new(waker.clone(), layout(self.model.bins), self.capacity());
        let outlet = Outlet::new(waker.clone());
        let (mel, samples) = match &saved {
            Some(saved) => {
                inlet.give(&saved.rows);
                (Mel::resume(&self.config.mel, on_device, saved.tail.clone()), saved.samples)
            }
            None => (Mel::new(&self.config.mel, on_device), 0),
        };
        let new = NewStream {
            inlet: inlet.clone(),
            outlet: outlet.clone(),
            shape,
            fresh,
            rules: Rules {
                silence: request.endpoint.silence_ms.map(frames),
                longest: request.endpoint.max_ms.map(frames),
            },
            partials: request.partials,
            progress: request.progress,
            nbest: request.nbest,
            chunks_per_step: request.chunks_per_step,
            saved,
        };
        self.lanes.send(lane, new)?;
        let sender = AudioSender::new(inlet.clone(), outlet.clone(), mel, samples);
        Ok((sender, TranscriptStream { outlet, inlet }))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(thread) = self.keeping.take() {
            let _ = thread.join();
        }
    }
}

/// Opens a recogniser's files and says what it is, without packing weights: for `voce show`.
pub fn describe(store: &Store, reference: &str) -> Result<FastConformerConfig, EngineError> {
    Ok(Files::find(store, reference)?.config)
}

/// What a frame goes through; `together` of them are a step of a stream that is served alone.
fn stages(
    encoder: &Encoder,
    decoder: &Decoder,
    frame_ms: u32,
    together: usize,
    formats: Formats,
) -> Vec<StageInfo> {
    let encoder = StageInfo {
        name: "encoder",
        bytes: encoder.bytes(),
        macs: encoder.macs(),
        per: Per::Frame,
        per_second: Some(1e3 / f64::from(frame_ms)),
        together,
        format: formats.backbone,
        prompts: false,
    };
    let search = StageInfo {
        name: "search",
        bytes: decoder.frame_bytes(),
        macs: decoder.frame_macs(),
        format: formats.linear,
        ..encoder
    };
    let labels = StageInfo {
        name: "labels",
        bytes: decoder.label_bytes(),
        macs: decoder.label_macs(),
        per: Per::Label,
        per_second: None,
        together: 1,
        ..search
    };
    let has_labels = labels.macs > 0;
    [encoder, search].into_iter().chain(has_labels.then_some(labels)).collect()
}

/// A number that tells models and precisions apart, the same in every process of this version.
fn fingerprint(config: &FastConformerConfig, precision: Precision, isa: Isa) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{config:?}").hash(&mut hasher);
    precision.name().hash(&mut hasher);
    // Keys and values are kept as bf16 or f32 by what the instruction set has.
    format!("{:?}", Formats::new(precision, isa).kv).hash(&mut hasher);
    hasher.finish()
}
