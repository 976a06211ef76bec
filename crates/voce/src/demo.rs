//! `voce demo`: says a sentence, hears it back, and tells what became of it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use voce_audio::{AudioError, AudioSink, resample};
use voce_engine::listener::{ListenEvent, ListenRequest, Listener, ListenerOptions};
use voce_engine::store::Store;
use voce_engine::{SpeakRequest, Speaker, SpeakerOptions, VoiceChoice};
use voce_text::{Segment, parse_pauses};

use crate::args::{ModelArgs, PrecisionArg};
use crate::console::{Console, milliseconds, round};
use crate::device::{self, DeviceArgs};
use crate::failure::{Failure, Outcome};
use crate::say::sink::Target;
use crate::say::speak_into;
use crate::word_errors::{errors, words};
use crate::{hear, interrupt};

/// What is said when nothing is given.
const SENTENCE: &str = "The old man walked slowly along the river, and the water was cold and clear.";

/// Arguments of `voce demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  voce demo                                           the models in the binary, nothing to fetch
  voce demo \"How are you today?\" -o demo.wav          your own words, and the sound to listen to
  voce demo --speak pocket --hear nemotron            larger models, once they were pulled
  voce demo --json -q && echo works                   in a script

What was said and what was heard are compared word by word: in lower case, without punctuation, with numbers read out.
The real-time factor is seconds of work for a second of sound: 0.01 is a hundred times faster than speech.
Exit code 0: words came back, some of them perhaps wrong. Exit code 1: nothing was heard, or something failed.")]
pub(crate) struct DemoArgs {
    /// What to say [default: a sentence about a river]
    text: Vec<String>,
    /// Keep the sound in a file, by its extension as wav, mp3, flac, opus, ...
    #[arg(short, long, visible_alias = "out", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Play it through the sound card
    #[arg(short, long, env = "VOCE_PLAY", value_parser = FalseyValueParser::new())]
    play: bool,
    /// The voice's model [default: as for `voce say`]
    #[arg(long, value_name = "MODEL", env = "VOCE_MODEL")]
    speak: Option<String>,
    /// The recogniser [default: as for `voce hear`]
    #[arg(long, value_name = "MODEL", env = "VOCE_HEAR_MODEL")]
    hear: Option<String>,
    /// Precision of the weights
    #[arg(long, value_enum, env = "VOCE_PRECISION", default_value = "auto")]
    precision: PrecisionArg,
    /// Threads; 0 chooses
    #[arg(long, env = "VOCE_THREADS", default_value_t = 0)]
    threads: usize,
    /// Seed of the voice: another one says it a little differently
    #[arg(long, env = "VOCE_SEED", default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    device: DeviceArgs,
}

/// The facts of one `voce demo`; scripts rely on the names.
#[derive(Debug, Serialize)]
struct Report {
    said: String,
    heard: String,
    words: usize,
    word_errors: usize,
    word_error_rate: f64,
    audio_seconds: f64,
    speak: Spoken,
    hear: Heard,
    total_ms: f64,
    output: Option<String>,
}

#[derive(Debug, Serialize)]
struct Spoken {
    model: String,
    precision: &'static str,
    threads: usize,
    load_ms: f64,
    first_audio_ms: Option<f64>,
    wall_ms: f64,
    rtf: f64,
}

#[derive(Debug, Serialize)]
struct Heard {
    model: String,
    precision: &'static str,
    threads: usize,
    chunk_ms: Option<u32>,
    load_ms: f64,
    wall_ms: f64,
    rtf: f64,
}

/// Runs the command.
pub(crate) fn run(console: Console, args: DemoArgs) -> Outcome {
    let begun = Instant::now();
    let text = if args.text.is_empty() { SENTENCE.to_owned() } else { args.text.join(" ") };
    let target = Target::new(args.output.as_deref(), None, args.play)?;
    if target.on_stdout() {
        return Err(Failure::usage("standard output is for the result: give a file with -o"));
    }
    let store = Store::from_env()?;
    let device = args.device.open()?;
    let precision = device::precision(args.precision, device.as_ref());
    let threads = args.threads;
    let progress = console.progress();
    progress.set_message("loading the models");
    let start = Instant::now();
    let reference = ModelArgs { model: args.speak, language: None }.reference(&store)?;
    let options = SpeakerOptions::default()
        .with_precision(Some(precision))
        .with_threads(threads)
        .with_slots(1)
        .with_device(device.clone().into());
    let speaker = Speaker::open(&store, &reference, &options)?;
    let voice = match speaker.default_voice() {
        Some(name) => speaker.voice(&name)?.into(),
        None => VoiceChoice::Nobody,
    };
    let speaker_load = start.elapsed();
    interrupt::check()?;
    let start = Instant::now();
    let reference = hear::model::reference(&store, args.hear.as_deref())?;
    let options = ListenerOptions::default()
        .with_precision(Some(precision))
        .with_threads(threads)
        .with_slots(1)
        .with_device(device.into());
    let listener = Listener::open(&store, &reference, &options)?;
    let listener_load = start.elapsed();
    interrupt::check()?;
    progress.finish_and_clear();

    let request = SpeakRequest::default().with_voice(voice).with_seed(args.seed).with_lockstep(1);
    let from = speaker.info().sample_rate;
    let mut kept = Kept { samples: Vec::new(), sink: target.open(from as u32)? };
    let stats = speak_into(console, &speaker, &text, &request, &mut kept, target.live())?;
    let seconds = kept.samples.len() as f64 / from as f64;
    let start = Instant::now();
    let heard = listen(&listener, kept.samples, from)?;
    let hearing = start.elapsed();

    let (said, got) = (words(&spoken_part(&text)), words(&heard));
    let wrong = errors(&said, &got);
    let rtf = |time: Duration| round(time.as_secs_f64() / seconds.max(1e-9), 5);
    let (mouth, ear) = (speaker.info(), listener.info());
    let report = Report {
        words: said.len(),
        word_errors: wrong,
        word_error_rate: round(wrong as f64 / said.len().max(1) as f64, 4),
        audio_seconds: round(seconds, 4),
        speak: Spoken {
            model: mouth.id.clone(),
            precision: mouth.precision.name(),
            threads: mouth.threads,
            load_ms: milliseconds(speaker_load),
            first_audio_ms: stats.first_audio.map(milliseconds),
            wall_ms: milliseconds(stats.total),
            rtf: rtf(stats.total),
        },
        hear: Heard {
            model: ear.id.clone(),
            precision: ear.precision.name(),
            threads: ear.threads,
            chunk_ms: ear.default_chunk_ms,
            load_ms: milliseconds(listener_load),
            wall_ms: milliseconds(hearing),
            rtf: rtf(hearing),
        },
        total_ms: milliseconds(begun.elapsed()),
        output: target.name(),
        said: text,
        heard,
    };
    if console.json {
        console.json(&report)?
    } else {
        console.result(&report.lines())?
    }
    if got.is_empty() {
        return Err(Failure::failed(format!(
            "nothing was heard of {:.1} s of speech: keep it with -o demo.wav and listen to it; `voce doctor` tells what runs here",
            report.audio_seconds
        )));
    }
    Ok(())
}

/// The text without its pause tags.
fn spoken_part(text: &str) -> String {
    let Ok(parts) = parse_pauses(text) else { return text.to_owned() };
    let texts = parts.into_iter().filter_map(|part| match part {
        Segment::Text(text) => Some(text),
        Segment::Pause(_) => None,
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// What the recogniser makes of mono samples.
fn listen(listener: &Listener, samples: Vec<f32>, from: usize) -> Outcome<String> {
    let rate = listener.info().sample_rate;
    let samples = resample(&samples, from as u32, rate as u32);
    let (mut sender, stream) = listener.listen(&ListenRequest::default())?;
    hear::thread("voce-feed", move || {
        // An error means that the stream has ended, which its reader sees.
        if sender.push(&samples).is_ok() {
            sender.finish();
        }
    })?;
    let mut heard = Vec::new();
    for event in stream {
        interrupt::check()?;
        if let ListenEvent::Final(segment) = event?
            && !segment.text.is_empty()
        {
            heard.push(segment.text);
        }
    }
    Ok(heard.join(" "))
}

/// Keeps samples beside passing them on.
struct Kept {
    samples: Vec<f32>,
    sink: Box<dyn AudioSink>,
}

impl AudioSink for Kept {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        self.samples.extend_from_slice(samples);
        self.sink.write(samples)
    }
    fn flush(&mut self) -> Result<(), AudioError> {
        self.sink.flush()
    }
    fn finish(&mut self) -> Result<(), AudioError> {
        self.sink.finish()
    }
}

impl Report {
    fn lines(&self) -> String {
        let (s, h) = (&self.speak, &self.hear);
        let first = s.first_audio_ms.map_or_else(String::new, |ms| format!("first audio after {ms:.0} ms, "));
        let threads = |n: usize| if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") };
        let kept = self.output.as_ref().map_or_else(String::new, |o| format!("\nkept     {o}"));
        format!(
            "said     {}\nheard    {}\nwrong    {} of {} words ({:.1} %)\n\
             speaking {}, {} on {}: loaded in {:.0} ms, {first}{:.2} s of audio in {:.0} ms ({:.3}x real time)\n\
             hearing  {}, {} on {}: loaded in {:.0} ms, heard in {:.0} ms ({:.3}x real time)\n\
             total    {:.0} ms{kept}",
            self.said,
            if self.heard.is_empty() { "(nothing)" } else { &self.heard },
            self.word_errors,
            self.words,
            100.0 * self.word_error_rate,
            s.model,
            s.precision,
            threads(s.threads),
            s.load_ms,
            self.audio_seconds,
            s.wall_ms,
            s.rtf,
            h.model,
            h.precision,
            threads(h.threads),
            h.load_ms,
            h.wall_ms,
            h.rtf,
            self.total_ms,
        )
    }
}
