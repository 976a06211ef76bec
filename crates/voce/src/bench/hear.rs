//! `voce bench hear`: how many streams a core hears, how long a chunk takes, and what the machine could do.

use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use voce_audio::{DecodeLimits, Decoder, MonoStream, Source};
use voce_engine::listener::{
    AudioSender, ListenEvent, ListenRequest, Listener, ListenerOptions, ListenerStats, MAX_LANES,
    TranscriptStream,
};
use voce_engine::speaker::Trace;
use voce_engine::store::{Store, Task};
use voce_nn::Precision;
use voce_runtime::cuda::Device;

use super::args::Threads;
use super::hear_args::BenchHearArgs;
use super::hear_report::HearReport;
use super::hear_window::{Seen, Window};
use super::limits::Rates;
use super::{SEED, hear_peers, nothing_to_measure, trace};
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::{device, embedded, interrupt, machine};

/// Seconds of audio that warm caches and buffers up.
const WARM_UP: f64 = 3.0;
/// Samples per push: about what the streams' queues are kept ahead by.
const PIECE: usize = 16_000;
/// Chunks that wait for a device, so that it need not: live streams have no more.
const CHUNKS_AHEAD: usize = 2;
/// How long a feeder rests when all of its streams are ahead.
const REST: Duration = Duration::from_micros(200);

/// Runs the command.
pub(super) fn run(console: Console, args: &BenchHearArgs) -> Outcome {
    if args.streams.contains(&0) || args.repeat == 0 || args.utterances == 0 {
        return Err(Failure::usage("use at least one stream, one utterance and one run"));
    }
    if !(0.5..=36_000.0).contains(&args.seconds) {
        return Err(Failure::usage("use 0.5 to 36000 seconds"));
    }
    if args.warm.is_some_and(|warm| !(0.0..args.seconds).contains(&warm)) {
        return Err(Failure::usage("use fewer seconds with --warm than with --seconds"));
    }
    if args.lanes > MAX_LANES {
        return Err(Failure::usage(format!("use up to {MAX_LANES} lanes")));
    }
    if let Some(path) = &args.audio {
        // Before a model is loaded for it.
        Source::file(path)?;
    }
    let device = args.device.open()?;
    for precision in &args.precision {
        // A GPU's recogniser chooses by itself how many do the host's part.
        let chosen = matches!(args.threads, Threads::Fixed(0)) && device.is_some();
        for threads in if chosen { vec![0] } else { args.threads.counts() } {
            let precision = device::precision(*precision, device.as_ref());
            one(console, args, precision, threads, device.clone())?;
        }
    }
    Ok(())
}

/// What one run took.
pub(super) struct Run {
    pub(super) wall: f64,
    pub(super) cpu: Option<f64>,
    pub(super) mel: Duration,
    pub(super) words: usize,
    /// Seconds to the first word of each stream that had one.
    pub(super) first_words: Vec<f64>,
    pub(super) stats: ListenerStats,
    /// The part after the seconds of `--warm`, where that is timed by itself.
    pub(super) seen: Option<Seen>,
}

impl Run {
    /// Frames of all of it.
    pub(super) fn frames(&self) -> usize {
        self.stats.frames + self.seen.as_ref().map_or(0, |seen| seen.before)
    }
}

fn one(
    console: Console,
    args: &BenchHearArgs,
    precision: Precision,
    threads: usize,
    device: Option<Arc<Device>>,
) -> Outcome {
    let trace = args.trace.as_ref().map(|_| Trace::default());
    let slots = args.streams.iter().copied().max().unwrap_or(1);
    let options = ListenerOptions::default()
        .with_precision(Some(precision))
        .with_threads(threads)
        .with_slots(slots)
        .with_lanes(args.lanes)
        .with_device(device.clone().into())
        .with_trace(trace.clone())
        .with_pin(args.pin);
    let progress = console.progress();
    progress.set_message(format!("loading {precision}"));
    machine::reset_peak_rss();
    // Copying the audio of a GPU's streams needs more than one core; on a CPU the model has the others.
    let feeders = if device.is_some() { machine::cores() } else { 1 };
    let begun = Instant::now();
    let listener = match (&args.shape, &args.model) {
        (Some(shape), _) => Listener::random(shape, SEED, &options)?,
        (None, Some(model)) => {
            let store = Store::from_env()?;
            embedded::provide(&store, model)?;
            Listener::open(&store, model, &options)?
        }
        (None, None) => return Err(nothing_to_measure(Task::Hearing)),
    };
    let load = begun.elapsed();
    progress.finish_and_clear();
    let info = listener.info();
    let audio = &audio(args, info.sample_rate as u32)?;
    let rates = Rates::measure(&info.stages, info.threads, info.isa, device.as_ref())?;
    let subject = Subject { console, args, audio, listener: &listener, device: device.as_ref(), rates, load };
    let chunks: Vec<Option<u32>> =
        if args.chunk.is_empty() { vec![None] } else { args.chunk.iter().copied().map(Some).collect() };
    let mut per_core = None;
    for &chunk in &chunks {
        for &beam in &args.beam {
            for &streams in &args.streams {
                per_core = subject.measure(Case { streams, chunk, beam }, feeders)?;
            }
        }
    }
    if let Some(python) = &args.peer {
        let info = listener.info().clone();
        // The others get the whole machine.
        drop(listener);
        hear_peers::compare(console, args, &info, python, per_core)?;
    }
    match (&args.trace, trace) {
        (Some(path), Some(recorded)) => trace::write(path, &recorded),
        _ => Ok(()),
    }
}

/// A setting that one loaded model is measured in.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) streams: usize,
    pub(super) chunk: Option<u32>,
    pub(super) beam: usize,
}

/// A model that was loaded, and what the machine can do.
pub(super) struct Subject<'a> {
    console: Console,
    pub(super) args: &'a BenchHearArgs,
    audio: &'a [f32],
    pub(super) listener: &'a Listener,
    pub(super) device: Option<&'a Arc<Device>>,
    pub(super) rates: Rates,
    pub(super) load: Duration,
}

impl Subject<'_> {
    /// Measures and prints one setting; tells how many streams a core hears.
    fn measure(&self, case: Case, feeders: usize) -> Outcome<Option<f64>> {
        let Subject { args, audio, listener, device, .. } = *self;
        let request = ListenRequest::default()
            .with_chunk_ms(case.chunk)
            .with_beam(case.beam)
            .with_chunks_per_step(usize::from(!args.burst));
        let progress = self.console.progress();
        progress.set_message(format!("hearing {} streams", case.streams));
        let warm = audio.len().min((WARM_UP * listener.info().sample_rate as f64) as usize);
        hear(listener, &request, Sound { audio: &audio[..warm], times: 1 }, (case.streams, feeders), None)?;
        if listener.info().offline {
            // The lengths that are measured, too: a device chooses how to run each, and sees it twice before it is recorded.
            let sound = Sound { audio, times: args.utterances.min(3) };
            hear(listener, &request, sound, (case.streams, feeders), None)?;
        }
        let _ = device.map(|d| d.timings());
        let mut best: Option<Run> = None;
        for _ in 0..args.repeat {
            let sound = Sound { audio, times: args.utterances };
            let window =
                args.warm.map(|after| Window::new(listener, device, after, audio.len(), case.streams));
            let run = hear(listener, &request, sound, (case.streams, feeders), window)?;
            let cost = |r: &Run| if device.is_some() { r.wall } else { r.cpu.unwrap_or(r.wall) };
            if best.as_ref().is_none_or(|b| cost(&run) < cost(b)) {
                best = Some(run);
            }
        }
        let Some(best) = best else { return Ok(None) };
        let peak = machine::peak_rss_mb();
        let seconds = (audio.len() * args.utterances) as f64 / listener.info().sample_rate as f64;
        let report = HearReport::new(self, case, &best, seconds, peak);
        progress.finish_and_clear();
        report.print(self.console)?;
        Ok(report.streams_per_core())
    }
}

/// What every stream hears: an utterance, repeated.
#[derive(Clone, Copy)]
struct Sound<'a> {
    audio: &'a [f32],
    times: usize,
}

/// All streams hear the same at once; `feeders` threads share them.
fn hear(
    listener: &Listener,
    request: &ListenRequest,
    sound: Sound<'_>,
    (streams, feeders): (usize, usize),
    window: Option<Window<'_>>,
) -> Outcome<Run> {
    let mut opened = (0..streams).map(|_| listener.listen(request)).collect::<Result<Vec<_>, _>>()?;
    // Utterances that are heard whole are given whole, the next as soon as the model has taken one. A device gets the
    // first of all streams as one batch: none ends before all are there.
    let chunk = request.chunk_ms.or(listener.info().default_chunk_ms);
    let on_device = listener.info().device.is_some();
    let (piece, ahead) = match chunk {
        None => (sound.audio.len(), usize::MAX),
        Some(ms) if on_device => {
            let samples = ms as usize * listener.info().sample_rate / 1000;
            (samples.min(PIECE), CHUNKS_AHEAD * samples)
        }
        Some(_) => (PIECE, usize::MAX),
    };
    let together = chunk.is_none() && on_device;
    let unsent = AtomicIsize::new(if together { streams as isize } else { 0 });
    let (unsent, timed) = (&unsent, window.as_ref());
    listener.take_stats();
    let (begun, cpu) = (Instant::now(), machine::cpu_time());
    let parts = std::thread::scope(|scope| {
        let share = streams.div_ceil(feeders.max(1));
        let mut parts = Vec::new();
        while !opened.is_empty() {
            let part = opened.split_off(opened.len().saturating_sub(share));
            parts.push(scope.spawn(move || {
                let fed = feed(part, sound, (piece, ahead), unsent, timed);
                if fed.is_err() {
                    // The others do not wait for what will not come.
                    unsent.store(isize::MIN / 2, Ordering::Relaxed);
                }
                fed
            }));
        }
        parts.into_iter().map(|p| p.join().expect("a feeder does not panic")).collect::<Outcome<Vec<_>>>()
    })?;
    let wall = begun.elapsed().as_secs_f64();
    let cpu = cpu.zip(machine::cpu_time()).map(|(a, b)| b.saturating_sub(a).as_secs_f64());
    let (mut mel, mut words, mut first_words) = (Duration::ZERO, 0, Vec::new());
    for part in parts {
        mel += part.mel;
        words += part.words;
        first_words.extend(part.first_words);
    }
    let seen = window.and_then(Window::seen);
    Ok(Run { wall, cpu, mel, words, first_words, stats: listener.take_stats(), seen })
}

/// What the streams of one feeder came to.
struct Fed {
    mel: Duration,
    words: usize,
    first_words: Vec<f64>,
}

/// Keeps some streams `ahead` of the model until they have heard it all, a piece at a time; none is finished while others, on whatever thread,
/// are `unsent`.
fn feed(
    opened: Vec<(AudioSender, TranscriptStream)>,
    Sound { audio, times }: Sound<'_>,
    (piece, ahead): (usize, usize),
    unsent: &AtomicIsize,
    window: Option<&Window<'_>>,
) -> Outcome<Fed> {
    let together = unsent.load(Ordering::Relaxed) > 0;
    let (mut senders, mut readers): (Vec<Option<AudioSender>>, Vec<TranscriptStream>) =
        opened.into_iter().map(|(sender, reader)| (Some(sender), reader)).unzip();
    let (mut sent, mut ended) = (vec![0usize; senders.len()], vec![0; senders.len()]);
    let mut is_in = vec![false; senders.len()];
    let (mut mel, mut words) = (Duration::ZERO, 0);
    while senders.iter().any(Option::is_some) {
        interrupt::check()?;
        let mut any = false;
        for (i, slot) in senders.iter_mut().enumerate() {
            let Some(sender) = slot else { continue };
            let is_next = sent[i] == 0 && ended[i] > 0;
            let waiting = sender.waiting();
            if let Some(window) = window.filter(|_| ended[i] == 0) {
                window.pass(sent[i].saturating_sub(waiting), &mut is_in[i]);
            }
            if waiting >= if is_next { ahead.min(1) } else { ahead } {
                continue;
            }
            let part = &audio[sent[i]..(sent[i] + piece).min(audio.len())];
            let taken = sender.try_push(part).map_err(|e| Failure::failed(e.to_string()))?;
            sent[i] += taken;
            any |= taken > 0;
            if together && ended[i] == 0 && taken > 0 && sent[i] == audio.len() {
                unsent.fetch_sub(1, Ordering::Relaxed);
            }
            if sent[i] < audio.len() || unsent.load(Ordering::Relaxed) > 0 {
                continue;
            }
            ended[i] += 1;
            if ended[i] < times {
                sender.end_utterance();
                sent[i] = 0;
            } else if let Some(sender) = slot.take() {
                mel += sender.front_time();
                sender.finish();
            }
        }
        readers.iter_mut().try_for_each(|reader| drain(reader, &mut words))?;
        // All are ahead: waits for the first that is not done.
        let behind = |(i, s): &(usize, &mut Option<AudioSender>)| s.is_some() && sent[*i] < audio.len();
        if !any && (ahead < usize::MAX || times > 1) {
            std::thread::sleep(REST);
        } else if !any && let Some((i, Some(sender))) = senders.iter_mut().enumerate().find(behind) {
            let end = (sent[i] + PIECE / 4).min(audio.len());
            sender.push(&audio[sent[i]..end]).map_err(|e| Failure::failed(e.to_string()))?;
            sent[i] = end;
            if together && end == audio.len() {
                unsent.fetch_sub(1, Ordering::Relaxed);
            }
        } else if !any {
            std::thread::yield_now();
        }
    }
    let mut first_words = Vec::new();
    for reader in &mut readers {
        for event in reader.by_ref() {
            words += usize::from(matches!(event?, ListenEvent::Word(_)));
        }
        first_words.extend(reader.stats().first_word.map(|d| d.as_secs_f64()));
    }
    Ok(Fed { mel, words, first_words })
}

/// Reads what is there, so that no stream pauses.
fn drain(reader: &mut TranscriptStream, words: &mut usize) -> Outcome {
    let mut cx = Context::from_waker(Waker::noop());
    while let std::task::Poll::Ready(Some(event)) = reader.poll_event(&mut cx) {
        *words += usize::from(matches!(event?, ListenEvent::Word(_)));
    }
    Ok(())
}

/// The audio of a stream at the model's rate: a file over and over, or noise that comes and goes like syllables.
fn audio(args: &BenchHearArgs, rate: u32) -> Outcome<Vec<f32>> {
    let samples = (args.seconds * f64::from(rate)) as usize;
    let Some(path) = &args.audio else { return Ok(syllables(samples, rate)) };
    let hint = path.extension().and_then(|e| e.to_str());
    let decoder = Decoder::open(Source::file(path)?, hint, &DecodeLimits::local())?;
    let mut stream = MonoStream::new(decoder, rate);
    let mut audio = Vec::new();
    while audio.len() < samples
        && let Some(block) = stream.next_block()?
    {
        audio.extend_from_slice(block);
    }
    if audio.is_empty() {
        return Err(Failure::usage(format!("{}: no audio in it", path.display())));
    }
    let length = audio.len();
    (length..samples).for_each(|i| audio.push(audio[i % length]));
    audio.truncate(samples);
    Ok(audio)
}

fn syllables(samples: usize, rate: u32) -> Vec<f32> {
    let mut state = 0x2545_f491u32;
    let mut low = 0.0f32;
    (0..samples)
        .map(|i| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            let white = state as f32 / u32::MAX as f32 - 0.5;
            low = 0.9 * low + white;
            let t = i as f32 / rate as f32;
            let loud = (t * 4.0 * std::f32::consts::TAU).sin().max(0.0) * (t * 0.7).sin().abs();
            low * loud * 0.1
        })
        .collect()
}
