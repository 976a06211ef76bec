//! `voce say`: text in, audio out.

pub(crate) mod codes;
mod report;
pub(crate) mod sink;
mod source;

use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use voce_audio::AudioSink;
use voce_engine::speaker::{FineSampling, MODEL_TOKENS, Overlap, SpeakStats, TextMode};
use voce_engine::store::Store;
use voce_engine::{
    EngineError, SpeakRequest, Speaker, SpeakerOptions, SpeechStream, SpokenWord, VoiceChoice,
};

use crate::args::{OverlapArg, SamplingArgs, SayArgs, TextModeArg};
use crate::console::Console;
use crate::device;
use crate::embedded;
use crate::failure::{Failure, Outcome};
use crate::interrupt;
use report::{Circumstances, Progress, Report};
use source::Source;

/// Chunks of audio between the model and the writer; the engine holds more.
const QUEUE: usize = 8;
/// How often a writer that waits looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(50);

/// What the writer is told.
pub(crate) enum Heard {
    /// Audio, the codes that it was made of, and the words in it.
    Audio(Vec<f32>, Vec<Vec<u32>>, Vec<SpokenWord>),
    /// The end.
    Done(Box<SpeakStats>),
    /// Speaking failed.
    Failed(EngineError),
    /// The text could not be read.
    BadText(Failure),
}

/// What came along with audio.
#[derive(Default)]
struct Told {
    codes: Vec<Vec<u32>>,
    words: Vec<SpokenWord>,
}

/// Runs the command.
pub(crate) fn run(console: Console, args: SayArgs) -> Outcome {
    let source = Source::choose(&args)?;
    let target = sink::Target::choose(&args)?;
    let store = Store::from_env()?;
    let mut progress = Progress::new(console);
    let begun = Instant::now();
    // With a frame limit chunks run one after the other: more slots would only cost memory.
    let slots = if args.sampling.max_frames.is_some() { 1 } else { args.lockstep };
    let device = args.run.device.open()?;
    let options = SpeakerOptions::default()
        .with_precision(Some(device::precision(args.run.precision, device.as_ref())))
        .with_device(device.into())
        .with_threads(args.run.threads)
        .with_slots(slots)
        .with_overlap(match args.run.overlap {
            OverlapArg::Beside => Overlap::Beside,
            OverlapArg::InTurn => Overlap::InTurn,
            // Many chunks keep both stages busy, so that they need not wait for each other.
            OverlapArg::Auto if slots > 1 && source.is_long() => Overlap::Beside,
            OverlapArg::Auto => Overlap::Auto,
        })
        .with_pin(args.run.pin);
    progress.say("loading the model");
    let reference = args.model.reference(&store)?;
    if reference == embedded::VOICE && args.model.model.is_none() {
        let best = crate::args::best_voice();
        console.note(&format!(
            "speaking with the small built-in voice: `voce pull {best}` fetches a larger one"
        ));
    }
    let speaker = Speaker::open(&store, &reference, &options)?;
    let load = begun.elapsed();
    interrupt::check()?;
    let cloned = args.clone.as_ref().map(|clip| clip.display().to_string());
    let voice_name = cloned.or_else(|| args.voice.clone()).or_else(|| speaker.default_voice());
    let voice = match (&args.clone, &voice_name) {
        (Some(clip), _) => speaker.clone_voice(clip, args.clone_text.as_deref())?.into(),
        (None, Some(name)) => speaker.voice(name)?.into(),
        (None, None) => VoiceChoice::Nobody,
    };
    interrupt::check()?;
    let mut request = request(&args.sampling);
    request.voice = voice;
    request.language = args.model.spoken(&store);
    request.instruct = args.instruct.clone();
    request.text_mode = args.text_mode.map(|mode| match mode {
        TextModeArg::Streaming => TextMode::Streaming,
        TextModeArg::Whole => TextMode::Whole,
    });
    request.lockstep = args.lockstep;
    request.normalize = !args.no_normalize;
    request.whole_passages = !target.live();
    let seed = request.seed;

    // Audio is asked for before the output is opened: a text that cannot be spoken leaves no trace.
    let heard = listen(&speaker, source, &request)?;
    let rate = speaker.info().sample_rate;
    let mut sink = target.open(rate as u32)?;
    let mut told = Told::default();
    let stats = write(&heard, &mut *sink, target.live(), &mut progress, rate, &mut told)?;
    let silence = rate * args.trailing_silence as usize / 1000;
    sink.write(&vec![0.0; silence])?;
    sink.finish()?;
    if let Some(path) = &args.codes {
        codes::write(path, &told.codes)?;
    }
    progress.clear();
    let words = args.words.then_some(told.words);
    let circumstances =
        Circumstances { silence, seed, voice: voice_name, load, output: target.name(), words };
    Report::new(&speaker, &stats, circumstances).print(console, target.on_stdout())?;
    if stats.unended > 0 && args.sampling.max_frames.is_none() {
        return Err(Failure::Partly(format!(
            "{} of the chunks did not end by themselves, in halves neither, and were cut off: the audio is there, but \
             words may be missing; another --seed may help",
            stats.unended
        )));
    }
    Ok(())
}

/// Speaks a text to its end.
pub(crate) fn speak_into(
    console: Console,
    speaker: &Speaker,
    text: &str,
    request: &SpeakRequest,
    sink: &mut dyn AudioSink,
    live: bool,
) -> Outcome<SpeakStats> {
    let mut progress = Progress::new(console);
    let request = request.clone().with_whole_passages(!live);
    let heard = listen(speaker, Source::Whole(text.to_owned()), &request)?;
    let stats = write(&heard, sink, live, &mut progress, speaker.info().sample_rate, &mut Told::default())?;
    sink.finish()?;
    progress.clear();
    Ok(stats)
}

/// A request with the sampling flags' values.
pub(crate) fn request(args: &SamplingArgs) -> SpeakRequest {
    SpeakRequest::default()
        .with_temperature(args.temperature)
        .with_noise_clamp(args.noise_clamp)
        .with_seed(args.seed.unwrap_or_else(random_seed))
        .with_steps(args.steps)
        .with_eos_threshold(args.eos_threshold)
        .with_frames_after_eos(args.frames_after_eos)
        .with_greedy(args.greedy)
        .with_top_k(args.top_k)
        .with_top_p(args.top_p)
        .with_repetition_penalty(args.repetition_penalty)
        .with_fine(FineSampling {
            temperature: args.fine_temperature,
            top_k: args.fine_top_k,
            top_p: args.fine_top_p,
        })
        .with_guidance(args.cfg)
        .with_codebooks(args.codebooks)
        .with_max_tokens(args.max_tokens.unwrap_or(MODEL_TOKENS))
        .with_max_frames(args.max_frames)
}

/// A seed short enough to type; the standard library's hash keys are random in every process.
pub(crate) fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}

/// Starts speaking; what is heard arrives on the channel.
fn listen(speaker: &Speaker, source: Source, request: &SpeakRequest) -> Outcome<Receiver<Heard>> {
    let (sender, heard) = sync_channel(QUEUE);
    let stream = match source {
        Source::Whole(text) => speaker.speak(&text, request)?,
        Source::Live(reader) => {
            let (text, stream) = speaker.speak_live(request)?;
            let sender = sender.clone();
            thread("voce-stdin", move || source::feed(reader, text, &sender))?;
            stream
        }
    };
    thread("voce-listen", move || forward(stream, &sender))?;
    Ok(heard)
}

fn thread(name: &str, f: impl FnOnce() + Send + 'static) -> Outcome {
    let made = std::thread::Builder::new().name(name.into()).spawn(f);
    made.map(drop).map_err(|e| Failure::failed(format!("cannot start a thread: {e}")))
}

/// Passes audio on until it ends or nobody wants it; the stream is dropped either way.
fn forward(mut stream: SpeechStream, sender: &SyncSender<Heard>) {
    for chunk in stream.by_ref() {
        let (message, last) = match chunk {
            Ok(chunk) => (Heard::Audio(chunk.samples, chunk.codes, chunk.words), false),
            Err(error) => (Heard::Failed(error), true),
        };
        if sender.send(message).is_err() || last {
            return;
        }
    }
    let _ = sender.send(Heard::Done(Box::new(stream.stats())));
}

/// Writes what is heard until its end; Ctrl-C ends it early.
fn write(
    heard: &Receiver<Heard>,
    sink: &mut dyn AudioSink,
    live: bool,
    progress: &mut Progress,
    rate: usize,
    told: &mut Told,
) -> Outcome<SpeakStats> {
    let begun = Instant::now();
    let mut samples = 0;
    let mut first = None;
    loop {
        interrupt::check()?;
        match heard.recv_timeout(LOOK) {
            Ok(Heard::Audio(audio, of, words)) => {
                told.codes.extend(of);
                told.words.extend(words);
                first.get_or_insert_with(|| begun.elapsed());
                samples += audio.len();
                sink.write(&audio)?;
                if live {
                    sink.flush()?;
                }
                progress.audio(samples as f64 / rate as f64, begun.elapsed(), first.unwrap_or_default());
            }
            Ok(Heard::Done(stats)) => return Ok(*stats),
            Ok(Heard::Failed(error)) => return Err(error.into()),
            Ok(Heard::BadText(failure)) => return Err(failure),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::failed("the speaker has stopped")),
        }
    }
}
