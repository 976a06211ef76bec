//! `voce hear`: audio in, text out.

pub(crate) mod args;
pub(crate) mod hotwords;
mod inputs;
mod live;
pub(crate) mod model;
mod outputs;
mod transcript;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use voce_audio::{AudioError, RawFormat};
use voce_engine::listener::{Endpointing, ListenEvent, ListenRequest, Listener, ListenerOptions};
use voce_engine::store::Store;

use crate::console::{self, Console};
use crate::failure::{Failure, Outcome};
use crate::{device, embedded, interrupt};
use args::{Format, HearArgs};
use inputs::Input;
use outputs::Outputs;
use transcript::{How, Transcript};

/// How often somebody who waits looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);
/// Utterances without a pause end here in live use.
const LONGEST_MS: u32 = 30_000;

/// Runs the command.
pub(crate) fn run(console: Console, args: HearArgs) -> Outcome {
    let inputs = match &args.files[..] {
        [] => inputs::unnamed(args.mic)?,
        files => inputs::expand(files)?,
    };
    let live = args.stream || args.mic;
    if live && inputs.len() > 1 {
        return Err(Failure::usage("--stream shows one source at a time: give one file or `-`"));
    }
    let (outputs, format) = Outputs::choose(&args, &inputs, console.json)?;
    let progress = console.progress();
    progress.set_message("loading the model");
    let store = Store::from_env()?;
    let reference = model::reference(&store, args.model.as_deref())?;
    if reference == embedded::EAR && args.model.is_none() {
        let best = model::best();
        console.note(&format!(
            "hearing with the small built-in recogniser: `voce pull {best}` fetches a larger one"
        ));
    }
    let device = args.device.open()?;
    let options = ListenerOptions::default()
        .with_precision(Some(device::precision(args.precision, device.as_ref())))
        .with_device(device.into())
        .with_threads(args.threads)
        .with_slots(inputs.len().clamp(1, usize::from(args.streams)))
        .with_pin(args.pin);
    let listener = Listener::open(&store, &reference, &options)?;
    let request = request(&args, &listener, live)?;
    interrupt::check()?;
    if live {
        let source = live::Source { input: inputs.into_iter().next(), raw: args.raw };
        let shown = outputs.shown(format, &args, console);
        let heard = live::run(console, &listener, &request, source, shown, &progress)?;
        return outputs.live(&heard, format, &args, &listener, &request);
    }
    let hearing = Hearing { listener, request, inputs, raw: args.raw };
    hear_all(console, hearing, &args, format, &outputs, &progress)
}

/// What the flags ask of the engine.
fn request(args: &HearArgs, listener: &Listener, live: bool) -> Outcome<ListenRequest> {
    let hotwords = match &args.search.hotwords {
        Some(path) => hotwords::read(path)?,
        None => Vec::new(),
    };
    let lm = match &args.search.lm {
        Some(path) => Some(listener.language_model(path)?),
        None => None,
    };
    let endpoint = match (args.endpoint_ms, live) {
        (Some(ms), _) => {
            Endpointing::default().with_silence_ms(Some(ms)).with_max_ms(live.then_some(LONGEST_MS))
        }
        (None, true) => Endpointing::live(),
        (None, false) => Endpointing::default(),
    };
    Ok(ListenRequest::default()
        .with_chunk_ms(args.chunk)
        .with_beam(args.search.beam)
        .with_nbest(args.search.nbest)
        .with_hotwords(hotwords)
        .with_lm(lm)
        .with_lm_weight(args.search.lm_weight)
        .with_language(args.language.clone())
        .with_temperature(args.search.temperature)
        .with_seed(args.search.seed)
        .with_drawn(true)
        .with_pauses(live)
        .with_word_ends(live)
        .with_gain(args.no_hear_gain.then_some(false))
        .with_endpoint(endpoint)
        .with_partials(live))
}

/// What is heard, and by whom.
struct Hearing {
    listener: Listener,
    request: ListenRequest,
    inputs: Vec<Input>,
    raw: Option<RawFormat>,
}

/// How far all files together are.
#[derive(Default)]
struct Tally {
    /// The next file to hear.
    next: AtomicUsize,
    /// Milliseconds of audio heard.
    heard: AtomicU64,
}

fn hear_all(
    console: Console,
    hearing: Hearing,
    args: &HearArgs,
    format: Format,
    outputs: &Outputs,
    progress: &ProgressBar,
) -> Outcome {
    let (count, workers) = (hearing.inputs.len(), hearing.listener.info().slots);
    let hearing = Arc::new(hearing);
    let tally = Arc::new(Tally::default());
    let (done, results) = sync_channel(workers);
    let begun = Instant::now();
    for _ in 0..workers.min(count) {
        let (hearing, tally, done) = (hearing.clone(), tally.clone(), done.clone());
        thread("voce-hear", move || work(&hearing, &tally, &done))?;
    }
    drop(done);
    let how = How { nbest: hearing.request.nbest, chunk_ms: chunk(&hearing.listener, &hearing.request) };
    let info = hearing.listener.info();
    let mut waiting: Vec<Option<Outcome<Transcript>>> = (0..count).map(|_| None).collect();
    let (mut told, mut seconds, mut failures) = (0, 0.0, Vec::new());
    while told < count {
        let (index, result) = wait(&results, || show(progress, &tally, told, count, begun))?;
        waiting[index] = Some(result);
        // Files are told in the order they were given.
        while told < count
            && let Some(result) = waiting[told].take()
        {
            match result {
                Ok(transcript) => {
                    seconds += transcript.stats.audio;
                    let text = transcript.render(format, args.shown, info, &how)?;
                    progress.suspend(|| outputs.write(told, &hearing.inputs[told], format, &text))?;
                }
                Err(failure) if count == 1 => return Err(failure),
                Err(Failure::Interrupted) => return Err(Failure::Interrupted),
                Err(failure) => {
                    progress.suspend(|| failure.message().iter().for_each(|m| console::error(m)));
                    failures.push(failure);
                }
            }
            told += 1;
        }
    }
    progress.finish_and_clear();
    let wall = begun.elapsed().as_secs_f64();
    let files = if count == 1 { String::new() } else { format!("{} files, ", count - failures.len()) };
    console.note(&format!(
        "{files}{seconds:.2} s of audio in {wall:.2} s ({:.4}x real time), {} on {} threads",
        wall / seconds.max(1e-9),
        info.precision.name(),
        info.threads,
    ));
    match failures.len() {
        0 => Ok(()),
        n => Err(Failure::failed(format!("{n} of {count} files could not be heard"))),
    }
}

/// The next result; looks for Ctrl-C meanwhile.
fn wait<T>(results: &Receiver<T>, mut show: impl FnMut()) -> Outcome<T> {
    loop {
        interrupt::check()?;
        match results.recv_timeout(LOOK) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => show(),
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::failed("the listener has stopped")),
        }
    }
}

fn show(progress: &ProgressBar, tally: &Tally, told: usize, count: usize, begun: Instant) {
    let seconds = tally.heard.load(Ordering::Relaxed) as f64 / 1e3;
    let speed = seconds / begun.elapsed().as_secs_f64().max(1e-9);
    let files = if count == 1 { String::new() } else { format!("{told} of {count} files, ") };
    progress.set_message(format!("{files}{seconds:.0} s of audio, {speed:.1} times real time"));
}

/// Hears one file after the other until none is left.
fn work(hearing: &Hearing, tally: &Tally, done: &SyncSender<(usize, Outcome<Transcript>)>) {
    loop {
        let index = tally.next.fetch_add(1, Ordering::Relaxed);
        let Some(input) = hearing.inputs.get(index) else { return };
        if done.send((index, hear(hearing, input, tally))).is_err() {
            return;
        }
    }
}

/// Hears one file.
fn hear(hearing: &Hearing, input: &Input, tally: &Tally) -> Outcome<Transcript> {
    let begun = Instant::now();
    let rate = hearing.listener.info().sample_rate as u32;
    let audio = input.open(hearing.raw, rate).map_err(|e| bad_audio(input, e))?;
    let (sender, mut stream) = hearing.listener.listen(&hearing.request)?;
    let (failed, failure) = sync_channel(1);
    let name = input.clone();
    thread("voce-feed", move || {
        let _ = failed.send(live::feed(audio, sender).map_err(|e| bad_audio(&name, e)));
    })?;
    let mut transcript = Transcript { file: input.name(), ..Transcript::default() };
    let mut heard = 0;
    let mut broken = None;
    for event in stream.by_ref() {
        match event {
            Ok(ListenEvent::Final(segment)) => transcript.segments.push(segment),
            Ok(ListenEvent::Drawn(tokens)) => transcript.drawn.extend(tokens),
            Ok(ListenEvent::Word(word)) => {
                let now = (word.end * 1e3) as u64;
                tally.heard.fetch_add(now.saturating_sub(heard), Ordering::Relaxed);
                heard = heard.max(now);
            }
            Ok(_) => {}
            Err(error) => broken = Some(error),
        }
    }
    // What went wrong with the file says more than that its stream broke off.
    match (failure.recv(), broken) {
        (Ok(Err(failure)), _) => return Err(failure),
        (_, Some(error)) => return Err(error.into()),
        _ => {}
    }
    transcript.stats = stream.stats();
    transcript.wall = begun.elapsed().as_secs_f64();
    let all = (transcript.stats.audio * 1e3) as u64;
    tally.heard.fetch_add(all.saturating_sub(heard), Ordering::Relaxed);
    Ok(transcript)
}

/// The chunk that a request gets.
fn chunk(listener: &Listener, request: &ListenRequest) -> Option<u32> {
    request.chunk_ms.or(listener.info().default_chunk_ms)
}

/// An error that names its file.
fn bad_audio(input: &Input, error: AudioError) -> Failure {
    let (name, text) = (input.name(), error.to_string());
    if interrupt::raised() {
        Failure::Interrupted
    } else if text.contains(&name) || name == "-" {
        Failure::failed(text)
    } else {
        Failure::failed(format!("{name}: {text}"))
    }
}

pub(crate) fn thread(name: &str, f: impl FnOnce() + Send + 'static) -> Outcome {
    let made = std::thread::Builder::new().name(name.into()).spawn(f);
    made.map(drop).map_err(|e| Failure::failed(format!("cannot start a thread: {e}")))
}
