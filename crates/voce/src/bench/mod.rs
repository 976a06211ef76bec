//! `voce bench`: how fast a model speaks or hears here, against what the machine could do and other programs.

pub(crate) mod args;
mod clone;
mod codec;
mod compare;
mod crowd;
mod decode;
mod decode_args;
mod hear;
mod hear_args;
mod hear_peers;
mod hear_report;
mod hear_window;
pub(crate) mod limits;
mod measure;
mod report;
mod serve;
mod talk;
mod texts;
mod trace;
mod voice;

use std::sync::Arc;
use std::time::Instant;

use voce_engine::speaker::{Trace, default_threads};
use voce_engine::store::{Store, Task};
use voce_engine::{SpeakRequest, Speaker, SpeakerOptions, VoiceChoice};
use voce_nn::Precision;
use voce_runtime::cuda::Device;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::{device, embedded, interrupt, machine};
use args::{BenchCommand, BenchSayArgs, Threads};
use limits::Rates;
use measure::Runs;
use report::{FramesReport, Head, TextRow, TextsReport};

/// Seed of random weights and of noise.
const SEED: u64 = 1;

/// Runs the command.
pub(crate) fn run(console: Console, command: BenchCommand) -> Outcome {
    let args = match command {
        BenchCommand::Say(args) => args,
        BenchCommand::Hear(args) => return hear::run(console, &args),
        BenchCommand::Codec(args) => return codec::run(console, &args),
        BenchCommand::Talk(args) => return talk::run(console, &args),
        BenchCommand::Decode(args) => return decode::run(console, &args),
        BenchCommand::Serve(args) => return serve::run(console, &args),
    };
    let subject = Subject::choose(&args)?;
    if let Some(python) = &args.peer {
        return compare::peers(console, &args, &subject, python);
    }
    if args.compare.is_some() && args.frames.is_some() {
        return Err(Failure::usage("--compare times texts: leave --frames out"));
    }
    let thread_counts = args.threads.counts();
    let device = args.device.open()?;
    for precision in &args.precision {
        for &threads in &thread_counts {
            let precision = device::precision(*precision, device.as_ref());
            one(console, &args, &subject, precision, threads, device.clone())?;
        }
    }
    Ok(())
}

impl Threads {
    /// The numbers of threads to measure with.
    fn counts(self) -> Vec<usize> {
        match self {
            Threads::Fixed(0) => vec![default_threads()],
            Threads::Fixed(n) => vec![n],
            Threads::Sweep => (1..=machine::cores()).collect(),
        }
    }
}

fn nothing_to_measure(task: Task) -> Failure {
    let shape = voce_engine::shapes(task).next().unwrap_or_default();
    Failure::usage(format!(
        "nothing to measure: give --model DIR, or a --shape such as {shape} for random weights"
    ))
}

/// What is measured.
pub(crate) enum Subject {
    /// A model's files.
    Model(String),
    /// Random weights.
    Shape(String),
}

impl Subject {
    fn choose(args: &BenchSayArgs) -> Outcome<Self> {
        match (&args.shape, &args.model) {
            (Some(shape), _) => Ok(Subject::Shape(shape.clone())),
            (None, Some(model)) => Ok(Subject::Model(model.clone())),
            (None, None) => Err(nothing_to_measure(Task::Speech)),
        }
    }

    fn open(&self, store: &Store, options: &SpeakerOptions) -> Outcome<Speaker> {
        Ok(match self {
            Subject::Model(model) => {
                embedded::provide(store, model)?;
                Speaker::open(store, model, options)?
            }
            Subject::Shape(shape) => Speaker::random(shape, SEED, options)?,
        })
    }
}

/// What the machine reaches in the speaker's formats and threads, or its device.
fn rates(speaker: &Speaker, device: Option<&Arc<Device>>) -> Outcome<Rates> {
    let info = speaker.info();
    Rates::measure(&info.stages, info.threads, info.isa, device)
}

fn one(
    console: Console,
    args: &BenchSayArgs,
    subject: &Subject,
    precision: Precision,
    threads: usize,
    device: Option<Arc<Device>>,
) -> Outcome {
    let store = Store::from_env()?;
    let trace = args.trace.as_ref().map(|_| Trace::default());
    let slots =
        if args.frames.is_some() { args.streams.iter().copied().max().unwrap_or(1) } else { args.lockstep };
    let (trace_to, pin) = (trace.clone(), args.pin);
    let options = SpeakerOptions::default()
        .with_precision(Some(precision))
        .with_threads(threads)
        .with_slots(slots)
        .with_device(device.clone().into())
        .with_trace(trace_to)
        .with_pin(pin);
    let progress = console.progress();
    progress.set_message(format!("loading {precision} on {threads} threads"));
    // The voice of random weights comes from a speaker of its own, so that its encoder counts in no figure.
    let made = match (subject, &args.voice, &args.clone) {
        (Subject::Shape(shape), None, None) => voice::random(shape, SEED, &options)?,
        _ => None,
    };
    machine::reset_peak_rss();
    let begun = Instant::now();
    let speaker = subject.open(&store, &options)?;
    let load = begun.elapsed();
    interrupt::check()?;
    let mut cloned = None;
    let made = match &args.clone {
        Some(clip) => {
            progress.set_message("cloning a voice");
            let (voice, took) = clone::measure(&speaker, clip, args.repeat.unwrap_or(5))?;
            cloned = Some(took);
            Some(voice)
        }
        None => made,
    };
    let name = match &made {
        Some(_) => None,
        None => args.voice.clone().or_else(|| speaker.default_voice()),
    };
    let voice = match (&name, made) {
        (Some(name), _) => Some(speaker.voice(name)?),
        (None, made) => made,
    };
    let voice_name = name.or_else(|| voice.as_ref().map(|voice| format!("{voice:?}").to_lowercase()));
    let request = SpeakRequest::default()
        .with_voice(voice.map_or(VoiceChoice::Nobody, VoiceChoice::Ready))
        .with_seed(SEED)
        .with_steps(args.steps)
        .with_max_frames(args.frames)
        .with_lockstep(args.lockstep)
        // Random weights end by chance; a run of stated length must not.
        .with_eos_threshold(args.frames.map(|_| f32::INFINITY));
    let head = Head::new(&speaker, voice_name, load, cloned);
    let device = device.as_ref();
    progress.set_message(format!("speaking: {precision} on {threads} threads"));
    if args.streams != [1] {
        let text = texts::of_tokens(|text| speaker.count_tokens(text), args.tokens as usize);
        for &streams in &args.streams {
            let head = head.clone();
            crowd::Crowd::measure(&speaker, &text, &request, args, streams.max(1), device, head)?
                .print(console)?;
        }
        progress.finish_and_clear();
    } else if args.frames.is_some() {
        let text = texts::of_tokens(|text| speaker.count_tokens(text), args.tokens as usize);
        let runs = Runs::take(&speaker, &text, &request, args.repeat.unwrap_or(5))?;
        let kernels = device.map(limits::kernel_times).unwrap_or_default();
        let peak = machine::peak_rss_mb();
        progress.set_message("measuring the machine");
        let rates = rates(&speaker, device)?;
        progress.finish_and_clear();
        let stages = limits::stages(speaker.info(), &runs, &rates, args.steps);
        FramesReport::new(head, &runs, stages, rates, peak, kernels).print(console)?;
    } else {
        let mut rows = Vec::new();
        let mut stages = None;
        let texts = texts::texts(args.text);
        let mut all = Vec::new();
        for text in &texts {
            progress
                .set_message(format!("speaking the {} text: {precision} on {threads} threads", text.name));
            all.push(Runs::take(&speaker, text.text, &request, args.repeat.unwrap_or(3))?);
        }
        let peak = machine::peak_rss_mb();
        progress.set_message("measuring the machine");
        let rates = rates(&speaker, device)?;
        for (text, runs) in texts.iter().zip(&all) {
            rows.push(TextRow::new(text.name, text.words(), speaker.info(), runs, peak));
            stages = Some(limits::stages(speaker.info(), runs, &rates, args.steps));
        }
        progress.finish_and_clear();
        let lockstep = args.lockstep;
        TextsReport { head, lockstep, texts: rows, stages, rates }.print(console, speaker.info())?;
        if args.compare.is_some() {
            for (text, runs) in texts.iter().zip(&all) {
                compare::command(console, args, subject, text, runs)?;
            }
        }
    }
    match (&args.trace, trace) {
        (Some(path), Some(trace)) => trace::write(path, &trace),
        _ => Ok(()),
    }
}
