//! `voce talk`: a conversation, between a microphone and a speaker or between files.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::FalseyValueParser;
use indicatif::ProgressBar;
use serde_json::json;
use voce_audio::{AudioSink, DecodeLimits, Decoder, MonoStream, Source};
use voce_engine::EngineError;
use voce_engine::store::{Store, Task};
use voce_engine::talker::{TalkEvent, TalkRequest, TalkSender, TalkStats, TalkStream, Talker, TalkerOptions};

use crate::args::PrecisionArg;
use crate::console::{Console, milliseconds, round};
use crate::device::{self, DeviceArgs};
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use crate::say::{codes, random_seed, sink::Target};

/// Events between the engine and the terminal; the engine holds more.
const QUEUE: usize = 64;
/// How often a writer that waits looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// Arguments of `voce talk`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  voce talk --model moshiko                           speak into the microphone, hear the answer; Ctrl-C ends it
  voce talk --model moshiko --in user.wav --out reply.wav
  voce talk --model ./moshi --temperature 0 --in a.wav --out b.wav --codes c.safetensors
  arecord -f S16_LE -r 24000 | voce talk --model moshika --in - --out - | aplay

The model hears and speaks at the same time, a frame of 80 ms at a time: its answer is as long as what it hears. What it says
is printed as it is spoken. Wear headphones: it would hear itself. A build without a sound card (feature `device`) talks
between files and pipes.")]
pub(crate) struct TalkArgs {
    /// Model: a folder, a catalogue name, owner/repo or hf://...
    #[arg(short, long, env = "VOCE_TALK_MODEL")]
    model: String,
    /// What the model hears: an audio file of any format and rate, or - for standard input [default: the microphone]
    #[arg(long, value_name = "FILE")]
    r#in: Option<PathBuf>,
    /// Where the model's speech goes: a file, or - for standard output [default: the sound card]
    #[arg(short, long, alias = "output", value_name = "FILE")]
    out: Option<PathBuf>,
    /// Format of the speech, where the file's name does not tell
    #[arg(long)]
    format: Option<String>,
    /// File for the codes of what is said (.safetensors): `codes`, 32-bit integers, codebooks by frames
    #[arg(long, value_name = "FILE")]
    codes: Option<PathBuf>,
    /// Sampling temperature of audio and, unless it has its own, of text when it is 0 [default: the model's]
    #[arg(long, value_name = "T", env = "VOCE_TEMPERATURE")]
    temperature: Option<f32>,
    /// Sampling temperature of the text [default: the model's]
    #[arg(long, value_name = "T")]
    text_temperature: Option<f32>,
    /// Audio codes that are drawn from at most [default: the model's]
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Text tokens that are drawn from at most [default: the model's]
    #[arg(long, value_name = "N")]
    text_top_k: Option<usize>,
    /// Seed of what is drawn [default: random]
    #[arg(long)]
    seed: Option<u64>,
    /// Precision of the weights
    #[arg(long, value_enum, env = "VOCE_PRECISION", default_value = "auto")]
    precision: PrecisionArg,
    /// Threads; 0 chooses
    #[arg(long, env = "VOCE_THREADS", default_value_t = 0)]
    threads: usize,
    /// Keep each thread on a core of its own (Linux)
    #[arg(long, env = "VOCE_PIN", value_parser = FalseyValueParser::new())]
    pin: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

/// What the writer is told.
enum Told {
    Event(Result<TalkEvent, EngineError>),
    /// The source failed.
    Broken(Failure),
    End(Box<TalkStats>),
}

/// What was said.
#[derive(Default)]
struct Said {
    text: String,
    samples: usize,
    /// Text tokens, and codes, of each frame.
    tokens: Vec<u32>,
    codes: Vec<Vec<u32>>,
    stats: TalkStats,
}

/// Runs the command.
pub(crate) fn run(console: Console, args: TalkArgs) -> Outcome {
    let target = Target::new(args.out.as_deref(), args.format.as_deref(), args.out.is_none())?;
    if args.r#in.is_none() && !cfg!(feature = "device") {
        return Err(Failure::usage(
            "this build knows no sound card: build with --features device, or give --in FILE and --out FILE",
        ));
    }
    let source = args.r#in.as_deref().map(open_audio).transpose()?;
    let store = Store::from_env()?;
    store.identify(&args.model)?.require(Task::Dialogue)?;
    let progress = console.progress();
    progress.set_message("loading the model");
    let begun = Instant::now();
    let gpu = args.device.open()?;
    let options = TalkerOptions::default()
        .with_precision(Some(device::precision(args.precision, gpu.as_ref())))
        .with_device(gpu.into())
        .with_threads(args.threads)
        .with_slots(1)
        .with_pin(args.pin);
    let talker = Talker::open(&store, &args.model, &options)?;
    let load = begun.elapsed();
    interrupt::check()?;
    let seed = args.seed.unwrap_or_else(random_seed);
    let request = TalkRequest::default()
        .with_temperature(args.temperature)
        .with_text_temperature(args.text_temperature)
        .with_top_k(args.top_k)
        .with_text_top_k(args.text_top_k)
        .with_seed(seed);
    // A request that the model refuses leaves no trace.
    let (sender, stream) = talker.talk(&request)?;
    let rate = talker.info().sample_rate as u32;
    let live = source.is_none();
    let (told, events) = sync_channel(QUEUE);
    start(source, sender, rate, &told)?;
    let mut sink = target.open(rate)?;
    forward(stream, told)?;
    progress.set_message(if live { "talk; Ctrl-C ends it" } else { "listening" });
    let begun = Instant::now();
    let mut shown = Shown { console, progress, text: !console.json && !target.on_stdout() };
    let said = converse(&events, &mut *sink, live, target.live(), rate, &mut shown)?;
    sink.finish()?;
    if let Some(path) = &args.codes {
        codes::write(path, &said.codes)?;
    }
    shown.end()?;
    if console.json && !target.on_stdout() {
        let seconds = said.samples as f64 / f64::from(rate);
        console.json(&json!({
            "text": said.text.trim(), "seconds": round(seconds, 4), "frames": said.stats.frames,
            "tokens": said.tokens, "seed": seed, "sample_rate": rate, "output": target.name(),
            "load_ms": milliseconds(load), "wall_seconds": round(begun.elapsed().as_secs_f64(), 4),
            "first_audio_ms": said.stats.first_audio.map(milliseconds),
            "step_ms": milliseconds(said.stats.busy / said.stats.frames.max(1) as u32),
        }))?;
    }
    Ok(())
}

fn open_audio(path: &std::path::Path) -> Outcome<Decoder> {
    let named = |e| Failure::failed(format!("{}: {e}", path.display()));
    let stdin = path == std::path::Path::new("-");
    let source = if stdin { Source::reader(std::io::stdin()) } else { Source::file(path).map_err(named)? };
    let hint = path.extension().and_then(|e| e.to_str());
    Decoder::open(source, hint, &DecodeLimits::local()).map_err(named)
}

fn thread(name: &str, f: impl FnOnce() + Send + 'static) -> Outcome {
    let made = std::thread::Builder::new().name(name.into()).spawn(f);
    made.map(drop).map_err(|e| Failure::failed(format!("cannot start a thread: {e}")))
}

/// Feeds the model from a file or the microphone.
fn start(source: Option<Decoder>, mut sender: TalkSender, rate: u32, told: &SyncSender<Told>) -> Outcome {
    let told = told.clone();
    let Some(decoder) = source else { return microphone(sender, rate, told) };
    thread("voce-feed", move || {
        let mut audio = MonoStream::new(decoder, rate);
        loop {
            match audio.next_block() {
                Ok(Some(block)) if !interrupt::raised() && sender.push(block).is_ok() => {}
                Ok(_) => return,
                Err(error) => {
                    let _ = told.send(Told::Broken(error.into()));
                    return;
                }
            }
        }
    })
}

#[cfg(feature = "device")]
fn microphone(mut sender: TalkSender, rate: u32, told: SyncSender<Told>) -> Outcome {
    let (opened, ready) = sync_channel(1);
    // The sound card's handle stays on the thread that opened it.
    thread("voce-mic", move || {
        let mut mic = match voce_audio::device::Mic::open(rate) {
            Ok(mic) => mic,
            Err(e) => {
                let _ = opened.send(Err(Failure::from(e)));
                return;
            }
        };
        let _ = opened.send(Ok(()));
        let mut block = Vec::new();
        while !interrupt::raised() {
            block.clear();
            if let Err(e) = mic.read(&mut block) {
                let _ = told.send(Told::Broken(e.into()));
                return;
            }
            if sender.push(&block).is_err() {
                return;
            }
        }
    })?;
    ready.recv().unwrap_or_else(|_| Err(Failure::failed("the microphone's thread has ended")))
}

#[cfg(not(feature = "device"))]
fn microphone(_: TalkSender, _: u32, _: SyncSender<Told>) -> Outcome {
    Err(Failure::usage("this build knows no sound card: give --in FILE"))
}

/// Passes events on until they end or nobody wants them.
fn forward(mut stream: TalkStream, told: SyncSender<Told>) -> Outcome {
    thread("voce-events", move || {
        for event in stream.by_ref() {
            if told.send(Told::Event(event)).is_err() {
                return;
            }
        }
        let _ = told.send(Told::End(Box::new(stream.stats())));
    })
}

/// Text as it is spoken.
struct Shown {
    console: Console,
    progress: ProgressBar,
    text: bool,
}

impl Shown {
    fn text(&mut self, piece: &str) -> Outcome {
        if self.text {
            self.progress.suspend(|| -> Outcome {
                let mut out = std::io::stdout().lock();
                write!(out, "{piece}")?;
                Ok(out.flush()?)
            })?;
        }
        Ok(())
    }

    fn end(self) -> Outcome {
        self.progress.finish_and_clear();
        if self.text { self.console.result("") } else { Ok(()) }
    }
}

/// Writes what is said until the end. Ctrl-C ends a live conversation, and breaks one between files off.
fn converse(
    events: &Receiver<Told>,
    sink: &mut dyn AudioSink,
    live: bool,
    flush: bool,
    rate: u32,
    shown: &mut Shown,
) -> Outcome<Said> {
    let mut said = Said::default();
    loop {
        if interrupt::raised() {
            return if live { Ok(said) } else { Err(Failure::Interrupted) };
        }
        match events.recv_timeout(LOOK) {
            Ok(Told::Event(Ok(TalkEvent::Text(text)))) => {
                shown.text(&text)?;
                said.text += &text;
            }
            Ok(Told::Event(Ok(TalkEvent::Audio(samples)))) => {
                said.samples += samples.len();
                sink.write(&samples)?;
                if flush {
                    sink.flush()?;
                }
                let seconds = said.samples as f64 / f64::from(rate);
                shown.progress.set_message(format!("{seconds:.1} s said"));
            }
            Ok(Told::Event(Ok(TalkEvent::Tokens(tokens)))) => {
                if let Some((text, audio)) = tokens.split_first() {
                    said.tokens.push(*text);
                    said.codes.push(audio.to_vec());
                }
            }
            Ok(Told::Event(Ok(_))) => {}
            Ok(Told::Event(Err(error))) => return Err(error.into()),
            Ok(Told::Broken(failure)) => return Err(failure),
            Ok(Told::End(stats)) => {
                said.stats = *stats;
                return Ok(said);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::failed("the model has stopped")),
        }
    }
}
