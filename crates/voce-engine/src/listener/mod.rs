//! A listener: one loaded recogniser, its threads and its slots. Audio goes in, events come out.

mod ahead;
#[cfg(test)]
mod double;
mod early;
mod event;
mod flight;
mod gain;
mod histogram;
mod info;
mod inlet;
mod options;
mod outlet;
mod quiet;
mod rated;
mod recording;
mod request;
mod room;
mod sender;
mod share;
mod slot;
mod snapshot;
mod stats;
mod streams;
pub mod subtitles;
#[cfg(test)]
mod tests;
mod told;
mod transcript;
mod utterance;
mod words;
mod work;

use std::collections::VecDeque;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use voce_models::hearing::{Ear, EarRoom, Hearing, Track};
use voce_models::transducer::Ngram;
use voce_runtime::cuda::Reserved;
use voce_text::Tokenizer;

pub use crate::lane::MAX_LANES;
pub use event::{Alternative, EndReason, ListenEvent, Segment, Word};
pub use histogram::Histogram;
pub use info::ListenerInfo;
pub use inlet::{HungUp, Report};
pub use options::{ListenerOptions, MAX_SLOTS};
pub use outlet::{ListenStats, MAX_EVENTS, TranscriptStream};
pub use rated::RatedSender;
pub use recording::{Recording, RecordingStream};
pub use request::{Endpointing, Hotword, ListenRequest, MAX_BEAM, MAX_HOTWORDS};
pub use sender::AudioSender;
pub use stats::ListenerStats;
pub use transcript::Transcript;
pub use voce_models::hearing::language;

use crate::EngineError;
use crate::device::{Place, has_room};
use crate::family::{self, OpenedHearing};
use crate::lane::{self, Lane, Lanes, Team, Turn};
use crate::packed;
use crate::pulse::Pulse;
use crate::store::{Store, Task};
use crate::trace::Tracer;
use crate::wake::lock;
use gain::Gain;
use inlet::Inlet;
use outlet::Outlet;
use quiet::Meter;
use room::Asked;
use sender::Intake;
use slot::{Ask, NewStream, Tells};
use snapshot::Saved;
use streams::Streams;
use told::Scribe;
use utterance::Rules;
use words::Speller;
use work::{DEVICE_STEP_FRAMES, Hear, Planning, STEP_FRAMES};

/// Seconds of audio that a stream holds before its sender must wait.
const AHEAD_SECONDS: usize = 10;
/// Seconds of silence that warm a model up: a chunk or two of every model.
const WARM_SECONDS: usize = 2;
/// Milliseconds after which an utterance is cut between two words where no other rule has ended it.
const LONGEST_MS: u32 = 600_000;
/// Milliseconds of a quiet signal, and without a token, short of which silence ends no utterance: tokens come after their
/// audio, and the last word is told by then. Models that tell words late are through with them as it is.
const SETTLED_MS: u32 = 320;
/// Milliseconds without a token beyond the silence asked for, after which an utterance ends although the signal is not quiet:
/// in music or noise.
const LOUD_MS: u32 = 2_000;
/// What traces call the lanes' threads.
const TRACES: [&str; MAX_LANES] = ["model", "model 2", "model 3", "model 4"];
/// Live streams that share the first lane of a device: so few take hardly longer together than one of them.
const FEW: usize = 8;

/// A loaded recogniser that listens.
pub struct Listener {
    info: ListenerInfo,
    hearing: Arc<dyn Hearing>,
    speller: Arc<Speller>,
    lanes: Lanes<Ask>,
    stats: Arc<Mutex<ListenerStats>>,
    pulse: Arc<Pulse>,
    /// Whether soft speech is raised where a request leaves that open.
    gains: bool,
    /// Writes packed weights.
    keeping: Option<JoinHandle<()>>,
}

impl Listener {
    /// Opens a recogniser by reference (a folder, a `.nemo` file, a catalogue name), all of whose files are here.
    pub fn open(store: &Store, reference: &str, options: &ListenerOptions) -> Result<Self, EngineError> {
        let place = Place::new(&options.device, options.isa)?;
        let OpenedHearing { hearing, packed } =
            family::open_hearing(store, reference, &place, place.precision(options.precision))?;
        let mut listener = Self::start(reference.to_owned(), hearing, &place, options)?;
        listener.keeping = packed.and_then(|cache| packed::keep(cache, store.packed_dir()));
        Ok(listener)
    }

    /// A recogniser of a published size with random weights; [`shapes`](crate::shapes) names them.
    pub fn random(shape: &str, seed: u64, options: &ListenerOptions) -> Result<Self, EngineError> {
        let place = Place::new(&options.device, options.isa)?;
        let shape = crate::shape(Task::Hearing, shape)?;
        let opened = family::random_hearing(shape, seed, &place, place.precision(options.precision))?;
        Self::start(shape.name.to_owned(), opened.hearing, &place, options)
    }

    fn start(
        id: String,
        hearing: Arc<dyn Hearing>,
        place: &Place,
        options: &ListenerOptions,
    ) -> Result<Self, EngineError> {
        let slots = options.slots.clamp(1, MAX_SLOTS);
        let lanes = lane::count(options.lanes, slots, place, hearing.info().one_lane);
        let threads = lane::threads(options.threads, lanes, place);
        let about = hearing.info();
        let slot_frames =
            if about.offline() { about.most_frames } else { slot_frames(slots, about.most_frames) };
        let most = if place.device.is_some() { DEVICE_STEP_FRAMES / lanes } else { STEP_FRAMES };
        let asked = Asked { slots, lanes, slot_frames, most };
        let (manned, frames) = ears(hearing.as_ref(), place, options, asked, threads)?;
        let slot_bytes = hearing.footprint(asked.lane(frames)).slot;
        let info = ListenerInfo::new(id, about, place, options, [threads, slots, lanes], slot_bytes);
        let plain = ListenRequest::default();
        let shortest = ListenRequest { chunk_ms: about.chunks_ms.iter().min().copied(), ..plain.clone() };
        let usual_track = hearing.track(&plain.track(), None)?;
        let warm_track = hearing.track(&shortest.track(), None)?;
        let frame = Duration::from_secs_f64(about.frame_seconds());
        let (stats, pulse) = (ListenerStats::of(about.phases), Pulse::new(frame, lanes));
        let stats = Arc::new(Mutex::new(stats));
        let speller = Arc::new(Speller::new(hearing.clone()));
        let few = if place.device.is_some() && !about.offline() { FEW } else { 0 };
        let mut all = Lanes::new(lanes, few);
        let turn = Turn::new(lanes, place);
        for (team, (slots, ear)) in manned {
            let room = EarRoom { slots, ..asked.lane(frames) };
            all.add(slots, |seat| {
                let (waker, stop, lane) = (seat.waker.clone(), seat.stop.clone(), seat.lane);
                let mut work = Hear {
                    hearing: hearing.clone(),
                    ear,
                    streams: Streams::new(
                        seat,
                        speller.clone(),
                        about.frame_seconds(),
                        options.faults.clone(),
                    ),
                    stats: stats.clone(),
                    tracer: Tracer::new(options.trace.clone(), TRACES[lane]),
                    turn: turn.clone(),
                    room,
                    pulse: pulse.clone(),
                    faults: options.faults.clone(),
                    planning: Planning::default(),
                    flights: VecDeque::new(),
                    landed: None,
                    warm_track: warm_track.clone(),
                    usual_track: usual_track.clone(),
                };
                let (pulse, keep_warm) = (pulse.clone(), options.keep_warm);
                team.spawn("voce-listen", move |exec| {
                    Lane { exec, waker, stop, pulse, keep_warm }.run(&mut work);
                })
            })?;
        }
        Ok(Self { info, hearing, speller, lanes: all, stats, pulse, gains: options.gain, keeping: None })
    }

    /// What was loaded.
    pub fn info(&self) -> &ListenerInfo {
        &self.info
    }

    /// The work of all model threads so far.
    pub fn stats(&self) -> ListenerStats {
        lock(&self.stats).clone()
    }

    /// The work since the last call, or since the start.
    pub fn take_stats(&self) -> ListenerStats {
        lock(&self.stats).take()
    }

    /// The pulse of its threads: it is dead when one of them is.
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Runs every lane once from end to end, so that the first stream finds memory and caches as the second one does, and a
    /// device has its graphs and algorithms ready for every number of streams.
    pub fn warm(&self) -> Result<(), EngineError> {
        if self.info.device.is_some() {
            self.prepare()?;
        }
        let request = ListenRequest::default();
        let track = self.track(&request, None)?;
        // One after the other: a device chooses its algorithms meanwhile, by how long they take.
        for lane in 0..self.lanes.len() {
            let (mut audio, mut events) = self.submit(&request, track.clone(), None, Some(lane))?;
            // A sender that finds nobody learns why by the events.
            let _ = audio.push(&vec![0.0; WARM_SECONDS * self.info.sample_rate]);
            audio.finish();
            events.try_for_each(|event| event.map(drop))?;
        }
        Ok(())
    }

    /// Lets the lanes of a device make steps of every size, one lane after the other: algorithms are chosen by how long they
    /// take.
    fn prepare(&self) -> Result<(), EngineError> {
        for lane in 0..self.lanes.len() {
            let (done, wait) = sync_channel(1);
            self.lanes.tell(lane, Ask::Prepare(done))?;
            // Whoever goes without an answer has ended, and its pulse says so.
            let _ = wait.recv();
        }
        Ok(())
    }

    /// The tokeniser.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.hearing.tokenizer()
    }

    /// Reads an ARPA language model over this model's tokens.
    pub fn language_model(&self, path: &Path) -> Result<Arc<Ngram>, EngineError> {
        let file = File::open(path).map_err(|source| EngineError::Io { path: path.to_owned(), source })?;
        let bad = |e| EngineError::Search(format!("{}: {e}", path.display()));
        self.hearing.language_model(&mut BufReader::new(file)).map_err(bad)
    }

    /// Listens to a stream; [`EngineError::Busy`] when every slot is taken.
    pub fn listen(&self, request: &ListenRequest) -> Result<(AudioSender, TranscriptStream), EngineError> {
        let track = self.track(request, None)?;
        self.submit(request, track, None, None)
    }

    /// Goes on with a stream that was saved by [`AudioSender::snapshot`], here or on another machine with the same
    /// model at the same precision. The search options are the request's.
    pub fn resume(
        &self,
        snapshot: &[u8],
        request: &ListenRequest,
    ) -> Result<(AudioSender, TranscriptStream), EngineError> {
        let about = self.hearing.info();
        let saved = Saved::from_bytes(snapshot, self.hearing.fingerprint(), about, self.info.vocab)?;
        let track = self.track(request, Some(&saved.ear))?;
        self.submit(request, track, Some(saved), None)
    }

    /// Checks a request without taking a slot: what the model cannot do is refused by name.
    pub fn check(&self, request: &ListenRequest) -> Result<(), EngineError> {
        self.track(request, None).map(drop)
    }

    fn track(&self, request: &ListenRequest, saved: Option<&[u8]>) -> Result<Track, EngineError> {
        request.check()?;
        Ok(self.hearing.track(&request.track(), saved)?)
    }

    /// Rows that a stream holds.
    fn capacity(&self) -> usize {
        let about = self.hearing.info();
        let window = if about.offline() { about.window } else { 0 };
        window + AHEAD_SECONDS * about.sample_rate / about.layout.hop
    }

    fn submit(
        &self,
        request: &ListenRequest,
        track: Track,
        saved: Option<Saved>,
        lane: Option<usize>,
    ) -> Result<(AudioSender, TranscriptStream), EngineError> {
        let about = self.hearing.info();
        // What a saved stream had, it keeps.
        let raises = request.gain.unwrap_or(self.gains && about.raises);
        let intake = match &saved {
            Some(Saved { front, meter, gain, samples, .. }) => Intake {
                front: self.hearing.resume_front(front)?,
                meter: meter.clone(),
                gain: gain.clone(),
                samples: *samples,
            },
            None => Intake {
                front: self.hearing.front(),
                meter: Meter::new(about.frame_size),
                gain: raises.then(|| Gain::new(about.sample_rate)),
                samples: 0,
            },
        };
        if !self.pulse.is_alive() {
            return Err(EngineError::Stopped("one of its threads has ended".into()));
        }
        let frames = |ms: u32| (ms as usize).div_ceil(self.info.frame_ms as usize).max(1);
        let foreseen = |ms: u32| about.pauses.iter().position(|s| s * 1e3 >= ms as f32);
        let pause_ms = request.endpoint.pause_ms;
        let last = about.pauses.len().checked_sub(1);
        // Silence stands for a pause that a model does not foresee.
        let silence_ms = request.endpoint.silence_ms.or(pause_ms.filter(|_| last.is_none()));
        let rules = Rules {
            pause: pause_ms.and_then(|ms| foreseen(ms).or(last)),
            silence: silence_ms.map(frames),
            settled: if about.delay > 0 { 0 } else { frames(SETTLED_MS) },
            loud: frames(LOUD_MS),
            longest: request.endpoint.max_ms.map(frames),
            // Whoever names a longest length gets that.
            cut: request.endpoint.max_ms.map_or(frames(LONGEST_MS), |_| usize::MAX),
        };
        let ListenRequest { partials, progress, pauses, word_ends, drawn, .. } = *request;
        let lane = self.lanes.take(lane)?;
        let waker = self.lanes.waker(lane);
        let inlet = Inlet::new(waker.clone(), about.layout, self.capacity(), about.sample_rate);
        let outlet = Outlet::new(waker.clone());
        let new = NewStream {
            inlet: inlet.clone(),
            outlet: outlet.clone(),
            track,
            rules,
            tells: Tells { partials, progress, pauses, word_ends, drawn },
            chunks_per_step: request.chunks_per_step,
            saved,
        };
        self.lanes.send(lane, Ask::Hear(Box::new(new)))?;
        let sender = AudioSender::new(inlet.clone(), intake, about);
        Ok((sender, TranscriptStream::new(outlet, inlet, Scribe::new(self.speller.clone()))))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(thread) = self.keeping.take() {
            let _ = thread.join();
        }
    }
}

/// Frames that a step may take of one stream, where streams come in chunks of up to `longest` frames.
fn slot_frames(slots: usize, longest: usize) -> usize {
    (STEP_FRAMES / slots).max(longest)
}

/// A lane before it runs: its executor, its slots and their ear.
type Manned = (Team, (usize, Box<dyn Ear>));

/// The lanes of a listener, with all the memory that they will need, and the frames that their steps may have. A device
/// that has too little is asked for smaller steps before slots are refused.
fn ears(
    hearing: &dyn Hearing,
    place: &Place,
    options: &ListenerOptions,
    asked: Asked,
    threads: usize,
) -> Result<(Vec<Manned>, usize), EngineError> {
    let mut frames = match &place.device {
        Some(device) => asked.frames(|room| hearing.footprint(room), device.memory()?.0)?,
        None => asked.most,
    };
    loop {
        let mut manned = Vec::with_capacity(asked.lanes);
        let mut reserved = Reserved::default();
        for slots in lane::shares(asked.slots, asked.lanes) {
            let mut team = team(threads, place, options.pin, hearing.info().one_lane)?;
            let mut ear = hearing.ear(EarRoom { slots, ..asked.lane(frames) });
            let more = ear.reserve(&mut team.exec)?;
            reserved.given += more.given;
            reserved.missing += more.missing;
            reserved.free = more.free;
            manned.push((team, (slots, ear)));
        }
        match has_room(reserved, asked.slots) {
            Ok(()) => return Ok((manned, frames)),
            Err(_) if frames > asked.least() => frames = (frames / 2).max(asked.least()),
            Err(e) => return Err(e),
        }
    }
}

/// A lane's executor with its threads, which on a device do the host's part; `first` is whether it goes before others there.
fn team(threads: usize, place: &Place, pin: bool, first: bool) -> Result<Team, EngineError> {
    Team::new(threads, pin, || {
        let exec = place.exec_with(threads, first)?;
        Ok(if place.device.is_some() { exec.with_threads(threads)? } else { exec })
    })
}
