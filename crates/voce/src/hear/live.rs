//! Live use: partial text as a line that changes, utterances as lines, from a file, a pipe or a microphone.

use std::sync::mpsc::sync_channel;
use std::time::Instant;

use indicatif::ProgressBar;
use serde_json::{Value, json};
use voce_audio::{AudioError, MonoStream, RawFormat};
use voce_engine::EngineError;
use voce_engine::listener::{AudioSender, ListenEvent, ListenRequest, ListenStats, Listener, Segment};

use super::args::{Format, HearArgs};
use super::inputs::Input;
use super::transcript::{Transcript, line};
use super::{bad_audio, thread, wait};
use crate::console::{Console, round};
use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// Events between the engine and the terminal; the engine holds more.
const QUEUE: usize = 64;
/// Letters of partial text that are shown.
const LINE: usize = 76;

/// Where the sound comes from.
pub(super) struct Source {
    /// A file or a pipe; the microphone when absent.
    pub(super) input: Option<Input>,
    pub(super) raw: Option<RawFormat>,
}

enum Told {
    Event(Result<ListenEvent, EngineError>),
    /// The source failed.
    Broken(Failure),
    End(Box<ListenStats>),
}

/// Hears one source to its end.
pub(super) fn run(
    console: Console,
    listener: &Listener,
    request: &ListenRequest,
    source: Source,
    args: &HearArgs,
    progress: &ProgressBar,
) -> Outcome<Transcript> {
    let info = listener.info();
    if info.offline {
        return Err(EngineError::Chunk { asked: args.chunk.unwrap_or(info.frame_ms), has: Vec::new() }.into());
    }
    let (told, events) = sync_channel(QUEUE);
    let begun = Instant::now();
    let rate = info.sample_rate as u32;
    let file = source.input.as_ref().map_or_else(|| "microphone".into(), Input::name);
    let (sender, mut stream) = match source.input {
        Some(input) => {
            let audio = input.open(source.raw, rate).map_err(|e| bad_audio(&input, e))?;
            let (sender, stream) = listener.listen(request)?;
            let told = told.clone();
            thread("voce-feed", move || {
                if let Err(e) = feed(audio, sender) {
                    let _ = told.send(Told::Broken(bad_audio(&input, e)));
                }
            })?;
            (None, stream)
        }
        None => {
            let (sender, stream) = listener.listen(request)?;
            (Some(sender), stream)
        }
    };
    if let Some(sender) = sender {
        microphone(sender, rate, told.clone())?;
    }
    thread("voce-events", move || {
        for event in stream.by_ref() {
            if told.send(Told::Event(event)).is_err() {
                return;
            }
        }
        let _ = told.send(Told::End(Box::new(stream.stats())));
    })?;
    progress.set_message("listening");
    let json = console.json || args.format == Some(Format::Json);
    let mut transcript = Transcript { file, ..Transcript::default() };
    let mut broken = false;
    loop {
        match wait(&events, || {})? {
            Told::Event(Ok(event)) => {
                match &event {
                    ListenEvent::Partial(s) => progress.set_message(tail(&s.text)),
                    ListenEvent::Final(_) => progress.set_message(""),
                    _ => {}
                }
                if json {
                    console.json(&event_json(&event))?;
                } else if let ListenEvent::Final(s) = &event
                    && !s.text.is_empty()
                {
                    progress.suspend(|| console.result(&line(s, args.shown)))?;
                }
                match event {
                    ListenEvent::Final(segment) => transcript.segments.push(segment),
                    ListenEvent::Drawn(tokens) => transcript.drawn.extend(tokens),
                    _ => {}
                }
            }
            // The source says why, if not yet then soon.
            Told::Event(Err(EngineError::Abandoned)) => broken = true,
            Told::End(_) if broken => {}
            Told::Event(Err(error)) => return Err(error.into()),
            Told::Broken(failure) => return Err(failure),
            Told::End(stats) => {
                transcript.stats = *stats;
                transcript.wall = begun.elapsed().as_secs_f64();
                progress.finish_and_clear();
                return Ok(transcript);
            }
        }
    }
}

/// The end of a text, so that it stays one line.
fn tail(text: &str) -> String {
    let gone = text.chars().count().saturating_sub(LINE);
    if gone == 0 { text.to_owned() } else { text.chars().skip(gone).collect() }
}

/// Sends a file's samples until its end or until nobody listens.
pub(super) fn feed(mut audio: MonoStream, mut sender: AudioSender) -> Result<(), AudioError> {
    while let Some(block) = audio.next_block()? {
        // A sender that is not finished breaks its stream off.
        if interrupt::raised() || sender.push(block).is_err() {
            return Ok(());
        }
    }
    sender.finish();
    Ok(())
}

#[cfg(feature = "device")]
fn microphone(mut sender: AudioSender, rate: u32, told: std::sync::mpsc::SyncSender<Told>) -> Outcome {
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
        loop {
            block.clear();
            if let Err(e) = mic.read(&mut block) {
                let _ = told.send(Told::Broken(e.into()));
                return;
            }
            if interrupt::raised() || sender.push(&block).is_err() {
                return;
            }
        }
    })?;
    ready.recv().unwrap_or_else(|_| Err(Failure::failed("the microphone's thread has ended")))
}

#[cfg(not(feature = "device"))]
fn microphone(_: AudioSender, _: u32, _: std::sync::mpsc::SyncSender<Told>) -> Outcome {
    Err(Failure::usage(
        "this build knows no sound card: build with --features device, or pipe audio to `voce hear -`",
    ))
}

fn event_json(event: &ListenEvent) -> Value {
    let segment = |kind: &str, s: &Segment| {
        let word = |w: &voce_engine::listener::Word| json!({"word": w.text, "start": w.start, "end": w.end, "confidence": round(f64::from(w.confidence), 4)});
        let words: Vec<Value> = s.words.iter().map(word).collect();
        json!({"type": kind, "text": s.text, "start": s.start, "end": s.end, "words": words})
    };
    match event {
        ListenEvent::Partial(s) => segment("partial", s),
        ListenEvent::Final(s) => segment("final", s),
        ListenEvent::Word(w) => {
            json!({"type": "word", "word": w.text, "start": w.start, "end": w.end,
                   "confidence": round(f64::from(w.confidence), 4)})
        }
        ListenEvent::Endpoint { at, reason } => {
            json!({"type": "endpoint", "at": at, "reason": reason.name()})
        }
        ListenEvent::Progress { at, spoken } => json!({"type": "progress", "at": at, "spoken": spoken}),
        ListenEvent::Pause { at, probabilities } => {
            json!({"type": "pause", "at": at, "probabilities": probabilities})
        }
        ListenEvent::WordEnd { at } => json!({"type": "word_end", "at": at}),
        ListenEvent::Drawn(tokens) => json!({"type": "tokens", "tokens": tokens}),
        _ => Value::Null,
    }
}
