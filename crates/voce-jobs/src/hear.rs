//! One recording, heard by one thread: it feeds the stream, reads its events, and keeps checkpoints.

use std::task::{Context, Poll};
use std::time::Duration;

use voce_audio::{DecodeLimits, Decoder, MonoStream, Source};
use voce_engine::listener::{AudioSender, ListenEvent, ListenRequest, Listener, TranscriptStream};
use voce_engine::{EngineError, unpark_waker};

use crate::checkpoint::Checkpoint;
use crate::error::JobError;
use crate::formats::{Heard, HeardSegment};
use crate::unit::{Input, Unit};

/// How often somebody who waits for the model looks whether to go on.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// How long to wait for an engine that is busy.
const BUSY: Duration = Duration::from_millis(1);

/// Whoever watches over a unit of work.
pub trait Watch: Sync {
    /// Whether to end now, without a result.
    fn stop(&self) -> bool {
        false
    }
    /// Seconds of audio that the model has taken or made so far.
    fn at(&self, _seconds: f64) {}
    /// Whether it is time for a checkpoint.
    fn wants_checkpoint(&self) -> bool {
        false
    }
    /// Takes a checkpoint.
    fn keep(&self, _checkpoint: &Checkpoint) {}
    /// Where to go on, if this unit was begun before.
    fn found(&self) -> Option<Checkpoint> {
        None
    }
}

/// Opens the recording of a unit as mono samples at a rate.
pub fn open_audio(unit: &Unit, rate: u32) -> Result<MonoStream, JobError> {
    let Some(path) = unit.path() else {
        return Err(JobError::Refused("this is a text, and a recording is asked for".into()));
    };
    let wrap = |source| JobError::Audio { name: path.display().to_string(), source };
    let source = Source::file(path).map_err(wrap)?;
    let extension = path.extension().and_then(|e| e.to_str());
    let decoder = Decoder::open(source, extension, &DecodeLimits::local()).map_err(wrap)?;
    Ok(MonoStream::new(decoder, rate))
}

/// The samples of a unit, from one on.
struct Samples<'a> {
    audio: MonoStream,
    name: &'a str,
    /// Samples that go by first.
    skip: u64,
    /// Samples that are left.
    left: u64,
}

impl<'a> Samples<'a> {
    fn new(unit: &'a Unit, audio: MonoStream, rate: usize) -> Self {
        let samples = |seconds: f64| (seconds * rate as f64).round() as u64;
        let (offset, duration) = match unit.input {
            Input::Audio { offset, duration, .. } => (offset, duration),
            Input::Text { .. } => (None, None),
        };
        let (skip, left) = (offset.map_or(0, samples), duration.map_or(u64::MAX, samples));
        Self { audio, name: &unit.id, skip, left }
    }

    /// Goes on after samples that were heard before.
    fn go_on_after(&mut self, heard: u64) {
        self.skip += heard;
        self.left = self.left.saturating_sub(heard);
    }

    /// The next samples; none at the end.
    fn next(&mut self, into: &mut Vec<f32>) -> Result<bool, JobError> {
        into.clear();
        while self.left > 0 {
            let bad = |source| JobError::Audio { name: self.name.to_owned(), source };
            let block = self.audio.next_block().map_err(bad)?;
            let Some(mut block) = block else { return Ok(false) };
            let skipped = (block.len() as u64).min(self.skip);
            self.skip -= skipped;
            block = &block[skipped as usize..];
            if !block.is_empty() {
                let taken = (block.len() as u64).min(self.left) as usize;
                self.left = self.left.saturating_sub(taken as u64);
                into.extend_from_slice(&block[..taken]);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Hears the recording of a unit to its end, from its last checkpoint on if there is one that fits.
pub fn hear(
    listener: &Listener,
    unit: &Unit,
    request: &ListenRequest,
    audio: MonoStream,
    watch: &dyn Watch,
) -> Result<Heard, JobError> {
    let rate = listener.info().sample_rate;
    let mut samples = Samples::new(unit, audio, rate);
    let offset = samples.skip as f64 / rate as f64;
    let (stream, segments, heard) = begin(listener, request, watch)?;
    samples.go_on_after(heard);
    let (sender, events) = stream;
    let resumed = heard > 0;
    let mut work =
        Work { watch, rate, offset, resumed, segments, events, broken: None, ended: false, at: 0.0 };
    work.run(sender, samples)?;
    // What was sent to the stream, whoever sent it.
    Ok(Heard { seconds: work.events.stats().audio + heard as f64 / rate as f64, segments: work.segments })
}

type Begun = ((AudioSender, TranscriptStream), Vec<HeardSegment>, u64);

/// A new stream, or one that goes on where a checkpoint was kept.
fn begin(listener: &Listener, request: &ListenRequest, watch: &dyn Watch) -> Result<Begun, JobError> {
    if let Some(found) = watch.found() {
        match patiently(watch, || listener.resume(&found.snapshot, request)) {
            Ok(stream) => return Ok((stream, found.segments, found.samples)),
            Err(JobError::Stopped) => return Err(JobError::Stopped),
            // Of another version or precision: all of it is heard again.
            Err(error) => tracing::warn!(%error, "a checkpoint cannot be used: starting over"),
        }
    }
    Ok((patiently(watch, || listener.listen(request))?, Vec::new(), 0))
}

/// Asks the engine until it is not busy: a slot is free a moment after its stream has told its end, and others may share it.
pub(crate) fn patiently<T>(
    watch: &dyn Watch,
    mut ask: impl FnMut() -> Result<T, EngineError>,
) -> Result<T, JobError> {
    loop {
        match ask() {
            Err(EngineError::Busy(_)) if !watch.stop() => std::thread::sleep(BUSY),
            Err(EngineError::Busy(_)) => return Err(JobError::Stopped),
            other => return Ok(other?),
        }
    }
}

struct Work<'a> {
    watch: &'a dyn Watch,
    rate: usize,
    offset: f64,
    /// Whether the first utterance of a stream that goes on is yet to come.
    resumed: bool,
    segments: Vec<HeardSegment>,
    events: TranscriptStream,
    broken: Option<JobError>,
    ended: bool,
    at: f64,
}

impl Work<'_> {
    fn run(&mut self, sender: AudioSender, mut samples: Samples<'_>) -> Result<(), JobError> {
        let waker = unpark_waker();
        let mut cx = Context::from_waker(&waker);
        let (mut block, mut sent) = (Vec::new(), 0);
        let mut sender = Some(sender);
        loop {
            if self.watch.stop() {
                return Err(JobError::Stopped);
            }
            self.read(&mut cx);
            if self.ended {
                return self.broken.take().map_or(Ok(()), Err);
            }
            if let Some(audio) = &mut sender {
                if self.watch.wants_checkpoint() {
                    self.checkpoint(audio, &mut cx);
                }
                if sent == block.len() {
                    sent = 0;
                    if !samples.next(&mut block)? {
                        sender.take().into_iter().for_each(AudioSender::finish);
                        continue;
                    }
                }
                match audio.poll_ready(&mut cx) {
                    Poll::Ready(Ok(())) => match audio.try_push(&block[sent..]) {
                        Ok(taken) => {
                            sent += taken;
                            let at = audio.seconds() - audio.waiting() as f64 / self.rate as f64;
                            self.tell(at);
                            continue;
                        }
                        // The events say why nobody listens any more.
                        Err(_) => sender = None,
                    },
                    Poll::Ready(Err(_)) => sender = None,
                    Poll::Pending => {}
                }
            }
            std::thread::park_timeout(LOOK);
        }
    }

    fn tell(&mut self, at: f64) {
        if at > self.at {
            self.at = at;
            self.watch.at(at);
        }
    }

    /// Reads the events that are there.
    fn read(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(event) = self.events.poll_event(cx) {
            match event {
                None => {
                    self.ended = true;
                    return;
                }
                Some(Ok(ListenEvent::Final(segment))) => {
                    let segment = HeardSegment::new(segment, self.offset);
                    if std::mem::take(&mut self.resumed) {
                        // Utterances that ended between the snapshot and its checkpoint are told again.
                        self.segments.retain(|s| s.start < segment.start);
                    }
                    self.segments.push(segment);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => self.broken = Some(error.into()),
            }
        }
    }

    /// Keeps a checkpoint. A stream that cannot be saved goes on without.
    fn checkpoint(&mut self, audio: &mut AudioSender, cx: &mut Context<'_>) {
        // A stream that goes on is as good as its last checkpoint until it tells something.
        if self.resumed {
            return;
        }
        let samples = (audio.seconds() * self.rate as f64).round() as u64;
        let snapshot = match audio.snapshot() {
            Ok(snapshot) => snapshot,
            Err(error) => return tracing::debug!(%error, "no checkpoint"),
        };
        // Utterances that were told before the snapshot are here by now; those told since are told again.
        self.read(cx);
        self.watch.keep(&Checkpoint { segments: self.segments.clone(), samples, snapshot });
    }
}
