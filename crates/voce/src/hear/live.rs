//! Live use: partial text as a line that changes, utterances as lines, from a file, a pipe or a microphone.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use serde_json::{Value, json};
use voce_audio::{AudioError, MonoStream, RawFormat};
use voce_engine::EngineError;
use voce_engine::listener::{AudioSender, ListenEvent, ListenRequest, ListenStats, Listener, Segment};

use super::args::ShownArgs;
use super::inputs::Input;
use super::transcript::{Transcript, line, word_line};
use super::{LOOK, bad_audio, thread};
use crate::console::{Console, round};
use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// Events between the engine and the terminal; the engine holds more.
const QUEUE: usize = 64;
/// Letters of partial text that are shown.
const LINE: usize = 76;
/// How long the last words may take after Ctrl-C.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Where the sound comes from.
pub(super) struct Source {
    /// A file or a pipe; the microphone when absent.
    pub(super) input: Option<Input>,
    pub(super) raw: Option<RawFormat>,
}

impl Source {
    /// Whether it may go on for ever, so that Ctrl-C is its end.
    fn is_endless(&self) -> bool {
        !matches!(&self.input, Some(Input::File(path)) if path.is_file())
    }
}

/// What is shown on standard output.
#[derive(Clone, Copy)]
pub(super) enum Shown {
    /// An utterance a line.
    Lines(ShownArgs),
    /// A word a line.
    Words,
    /// Every event, as JSON.
    Events,
}

impl Shown {
    fn show(self, console: Console, progress: &ProgressBar, event: &ListenEvent) -> Outcome {
        match (self, event) {
            (Shown::Events, event) => console.json(&event_json(event)),
            (_, ListenEvent::Final(s)) if s.text.is_empty() => Ok(()),
            (Shown::Lines(shown), ListenEvent::Final(s)) => {
                progress.suspend(|| console.result(&line(s, shown)))
            }
            (Shown::Words, ListenEvent::Final(s)) => {
                let words: String = s.words.iter().map(word_line).collect();
                progress.suspend(|| console.result(&words))
            }
            _ => Ok(()),
        }
    }
}

enum Told {
    Event(Result<ListenEvent, EngineError>),
    /// The source failed.
    Broken(Failure),
    End(Box<ListenStats>),
}

/// A stream's sender, which Ctrl-C finishes even while its source has nothing to give.
#[derive(Clone)]
struct Feed(Arc<Mutex<Option<AudioSender>>>);

impl Feed {
    fn new(sender: AudioSender) -> Self {
        Self(Arc::new(Mutex::new(Some(sender))))
    }

    /// Sends samples; `false` where nobody wants more.
    fn push(&self, samples: &[f32]) -> bool {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_mut().is_some_and(|sender| sender.push(samples).is_ok())
    }

    fn take(&self) -> Option<AudioSender> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Ends the stream: what is in flight is heard.
    fn finish(&self) {
        if let Some(sender) = self.take() {
            sender.finish();
        }
    }

    /// Breaks the stream off.
    fn abandon(&self) {
        drop(self.take());
    }
}

/// What Ctrl-C does: a file is broken off; anything else ends, and its last words have some seconds to come.
struct Stop {
    endless: bool,
    feed: Feed,
    since: Option<Instant>,
}

impl Stop {
    fn check(&mut self) -> Outcome {
        if !self.endless {
            return interrupt::check();
        }
        match self.since {
            None if interrupt::raised() => {
                self.since = Some(Instant::now());
                // Its source may hold the sender while the model is busy.
                let feed = self.feed.clone();
                thread("voce-finish", move || feed.finish())
            }
            Some(since) if since.elapsed() > LAST_WORDS => {
                Err(Failure::failed(format!("the last words did not come within {} s", LAST_WORDS.as_secs())))
            }
            _ => Ok(()),
        }
    }

    /// The next thing that is told; looks for Ctrl-C meanwhile.
    fn wait(&mut self, events: &Receiver<Told>) -> Outcome<Told> {
        loop {
            self.check()?;
            match events.recv_timeout(LOOK) {
                Ok(told) => return Ok(told),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::failed("the listener has stopped"));
                }
            }
        }
    }
}

/// Hears one source to its end.
pub(super) fn run(
    console: Console,
    listener: &Listener,
    request: &ListenRequest,
    source: Source,
    shown: Shown,
    progress: &ProgressBar,
) -> Outcome<Transcript> {
    let info = listener.info();
    if info.offline {
        let asked = request.chunk_ms.unwrap_or(info.frame_ms);
        return Err(EngineError::Chunk { asked, has: Vec::new() }.into());
    }
    let (told, events) = sync_channel(QUEUE);
    let begun = Instant::now();
    let rate = info.sample_rate as u32;
    let file = source.input.as_ref().map_or_else(|| "microphone".into(), Input::name);
    let endless = source.is_endless();
    let (sender, mut stream) = listener.listen(request)?;
    let feed = Feed::new(sender);
    match source.input {
        Some(input) => {
            let (feed, told) = (feed.clone(), told.clone());
            thread("voce-feed", move || pour(&input, source.raw, rate, endless, &feed, &told))?;
        }
        None => microphone(feed.clone(), rate, told.clone())?,
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
    let mut transcript = Transcript { file, ..Transcript::default() };
    let mut broken = false;
    let mut stop = Stop { endless, feed, since: None };
    loop {
        match stop.wait(&events)? {
            Told::Event(Ok(event)) => {
                match &event {
                    ListenEvent::Partial(s) => progress.set_message(tail(&s.text)),
                    ListenEvent::Final(_) => progress.set_message(""),
                    _ => {}
                }
                shown.show(console, progress, &event)?;
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

/// Sends a source's samples until its end or until nobody listens, and tells what is wrong with it.
fn pour(
    input: &Input,
    raw: Option<RawFormat>,
    rate: u32,
    endless: bool,
    feed: &Feed,
    told: &SyncSender<Told>,
) {
    let all = || -> Result<(), AudioError> {
        let mut audio = input.open(raw, rate)?;
        while let Some(block) = audio.next_block()? {
            if !feed.push(block) {
                return Ok(());
            }
        }
        Ok(())
    };
    match all() {
        // A pipe that Ctrl-C has cut may end in the middle of something.
        Err(_) if endless && interrupt::raised() => feed.finish(),
        Err(error) => {
            feed.abandon();
            let _ = told.send(Told::Broken(bad_audio(input, error)));
        }
        Ok(()) => feed.finish(),
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
fn microphone(feed: Feed, rate: u32, told: SyncSender<Told>) -> Outcome {
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
            if !feed.push(&block) {
                return;
            }
        }
    })?;
    ready.recv().unwrap_or_else(|_| Err(Failure::failed("the microphone's thread has ended")))
}

#[cfg(not(feature = "device"))]
fn microphone(_: Feed, _: u32, _: SyncSender<Told>) -> Outcome {
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
