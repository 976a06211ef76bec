//! A talker: one loaded model that holds conversations, its thread and its slots. Audio goes in and comes out at once.

mod stream;
mod work;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use voce_models::dialogue::Dialogue;
use voce_nn::Precision;
use voce_runtime::cuda::Device;
use voce_runtime::{Exec, Isa};

pub use stream::{HungUp, TalkEvent, TalkSender, TalkStats, TalkStream};
pub use voce_models::dialogue::{DialogueInfo, TalkRequest};

use crate::device::{Place, Placement, has_room};
use crate::fault::Faults;
use crate::lane::{Lane, Team, default_threads};
use crate::packed;
use crate::pulse::Pulse;
use crate::store::{Store, Task};
use crate::trace::{Trace, Tracer};
use crate::wake::Waker;
use crate::{EngineError, family};
use stream::Line;
use work::{NewTalk, TalkWork};

/// Conversations side by side by default, and at most.
const DEFAULT_SLOTS: usize = 4;
const MAX_SLOTS: usize = 1024;

/// How a talker is set up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TalkerOptions {
    /// Precision of the weights; the fastest that sounds the same where absent.
    pub precision: Option<Precision>,
    /// Threads; 0 chooses.
    pub threads: usize,
    /// Conversations that run side by side.
    pub slots: usize,
    /// Instruction set; the best, or `VOCE_CPU`'s, when absent.
    pub isa: Option<Isa>,
    /// Where the model runs.
    pub device: Placement,
    /// Where to record what the stages do.
    pub trace: Option<Trace>,
    /// Keep each thread on a core of its own, where there are enough.
    pub pin: bool,
    /// A step of an idle model this often keeps its caches and the CPU's clocks warm; none when absent.
    pub keep_warm: Option<Duration>,
    /// Faults that tests plant.
    pub faults: Faults,
}

voce_models::setters! { TalkerOptions {
    with_precision(precision: Option<Precision>),
    with_threads(threads: usize),
    with_slots(slots: usize),
    with_isa(isa: Option<Isa>),
    with_device(device: Placement),
    with_trace(trace: Option<Trace>),
    with_pin(pin: bool),
    with_keep_warm(keep_warm: Option<Duration>),
    with_faults(faults: Faults),
} }

impl Default for TalkerOptions {
    fn default() -> Self {
        Self {
            precision: None,
            threads: 0,
            slots: DEFAULT_SLOTS,
            isa: None,
            device: Placement::Auto,
            trace: None,
            pin: false,
            keep_warm: None,
            faults: Faults::default(),
        }
    }
}

/// A loaded model that holds conversations.
pub struct Talker {
    dialogue: Arc<dyn Dialogue>,
    slots: usize,
    /// Conversations that have a slot, or will.
    live: Arc<AtomicUsize>,
    requests: SyncSender<NewTalk>,
    waker: Arc<Waker>,
    stop: Arc<AtomicBool>,
    pulse: Arc<Pulse>,
    device: Option<Arc<Device>>,
    thread: Option<JoinHandle<()>>,
    /// Writes packed weights.
    keeping: Option<JoinHandle<()>>,
}

impl Talker {
    /// Opens a model all of whose files are here.
    pub fn open(store: &Store, reference: &str, options: &TalkerOptions) -> Result<Self, EngineError> {
        let place = Place::new(&options.device, options.isa)?;
        let precision = place.precision(options.precision);
        let opened = family::open_dialogue(store, reference, &place, precision)?;
        let mut talker = Self::at(opened.dialogue, place, options)?;
        talker.keeping = opened.packed.and_then(|cache| packed::keep(cache, store.packed_dir()));
        Ok(talker)
    }

    /// A talker over a model that is loaded.
    pub fn new(dialogue: Arc<dyn Dialogue>, options: &TalkerOptions) -> Result<Self, EngineError> {
        Self::at(dialogue, Place::new(&options.device, options.isa)?, options)
    }

    fn at(dialogue: Arc<dyn Dialogue>, place: Place, options: &TalkerOptions) -> Result<Self, EngineError> {
        let slots = options.slots.clamp(1, MAX_SLOTS);
        let threads = if options.threads == 0 { default_threads() } else { options.threads };
        let info = dialogue.info();
        let frame = Duration::from_secs_f64(info.frame_size as f64 / info.sample_rate as f64);
        let pulse = Pulse::new(frame, 1);
        let mut partner = dialogue.partner(slots);
        let mut team = Team::at(&place, threads, options.pin, true)?;
        has_room(partner.reserve(&mut team.exec)?, slots)?;
        let (requests, taken) = sync_channel(slots);
        let (waker, stop) = <(Arc<Waker>, Arc<AtomicBool>)>::default();
        let live = Arc::<AtomicUsize>::default();
        let tracer = Tracer::new(options.trace.clone(), "model");
        let faults = options.faults.clone();
        let mut work = TalkWork {
            partner,
            frame: info.frame_size,
            requests: taken,
            live: live.clone(),
            tracer,
            pulse: pulse.clone(),
            faults,
            slots: (0..slots).map(|_| None).collect(),
            stepped: Vec::with_capacity(slots),
            samples: Vec::new(),
            uttered: Vec::with_capacity(slots),
        };
        let (keep_warm, lane_pulse) = (options.keep_warm, pulse.clone());
        let (lane_waker, lane_stop) = (waker.clone(), stop.clone());
        let thread = team.spawn("voce-talk", move |exec| {
            Lane { exec, waker: lane_waker, stop: lane_stop, pulse: lane_pulse, keep_warm }.run(&mut work);
        })?;
        let device = place.device;
        let thread = Some(thread);
        Ok(Self { dialogue, slots, live, requests, waker, stop, pulse, device, thread, keeping: None })
    }

    /// What was loaded.
    pub fn info(&self) -> &DialogueInfo {
        self.dialogue.info()
    }

    /// The device it runs on; none is the CPU.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// The pulse of its thread.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Begins a conversation; [`EngineError::Busy`] when every slot is taken.
    pub fn talk(&self, request: &TalkRequest) -> Result<(TalkSender, TalkStream), EngineError> {
        self.dialogue.check(request)?;
        if !self.pulse.is_alive() {
            return Err(EngineError::Stopped("its thread has ended".into()));
        }
        let mine = |n: usize| (n < self.slots).then_some(n + 1);
        if self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, mine).is_err() {
            return Err(EngineError::Busy(self.slots));
        }
        let line = Line::new(self.waker.clone(), self.info().sample_rate);
        let new = NewTalk { line: line.clone(), request: request.clone() };
        if let Err(e) = self.requests.try_send(new) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return Err(match e {
                TrySendError::Full(_) => EngineError::Busy(self.slots),
                TrySendError::Disconnected(_) => EngineError::Stopped("its thread has ended".into()),
            });
        }
        self.waker.wake();
        Ok((TalkSender { line: line.clone() }, TalkStream { line }))
    }
}

/// A model of a published size with random weights and an executor of where it runs, for measurements without threads of
/// the engine's own.
pub fn random_dialogue(
    shape: &str,
    seed: u64,
    options: &TalkerOptions,
) -> Result<(Arc<dyn Dialogue>, Exec), EngineError> {
    let place = Place::new(&options.device, options.isa)?;
    let shape = crate::shape(Task::Dialogue, shape)?;
    let opened = family::random_dialogue(shape, seed, &place, place.precision(options.precision))?;
    let threads = if options.threads == 0 { default_threads() } else { options.threads };
    Ok((opened.dialogue, place.exec(threads)?))
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        for thread in [self.thread.take(), self.keeping.take()].into_iter().flatten() {
            let _ = thread.join();
        }
    }
}
