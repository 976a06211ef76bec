//! A whole recording, heard event by event: a thread of its own reads it, and the caller reads what was heard.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::task::{Context, Poll};

use voce_audio::{DecodeLimits, Decoder, MonoStream, Resampler, Source};

use super::rated::check_rate;
use super::{AudioSender, ListenEvent, ListenRequest, ListenStats, Listener, TranscriptStream};
use crate::EngineError;

/// Samples that are resampled and pushed at a time.
const PIECE: usize = 1 << 14;

/// A recording to hear.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Recording {
    /// A file of any format that `voce hear` takes.
    File(PathBuf),
    /// Such a file in memory.
    Bytes(Vec<u8>),
    /// Samples, mono, -1..1.
    Samples {
        /// The samples.
        samples: Vec<f32>,
        /// How many of them are a second.
        sample_rate: u32,
    },
}

/// How much was fed, or why no more.
type Fed = Result<f64, EngineError>;

/// The events of a recording: an iterator that ends with it. Dropping it stops the reading and frees the slot.
pub struct RecordingStream {
    events: TranscriptStream,
    fed: Receiver<Fed>,
    seconds: f64,
}

impl Listener {
    /// Hears a recording; [`EngineError::Busy`] when every slot is taken. A file that cannot be read to its end ends the
    /// events with the error.
    pub fn play(
        &self,
        recording: Recording,
        request: &ListenRequest,
    ) -> Result<RecordingStream, EngineError> {
        let rate = self.info().sample_rate as u32;
        let feed = Feed::open(recording, rate)?;
        let (sender, events) = self.listen(request)?;
        let (tell, fed) = sync_channel(1);
        std::thread::Builder::new()
            .name("voce-feed".into())
            .spawn(move || {
                let (mut sender, mut feed) = (sender, feed);
                // What went wrong is told before the sender goes: whoever sees the events end finds out why.
                let done = feed.run(&mut sender).map(|()| sender.seconds());
                let whole = done.is_ok();
                let _ = tell.send(done);
                if whole {
                    sender.finish();
                }
            })
            .map_err(|e| EngineError::Stopped(e.to_string()))?;
        Ok(RecordingStream { events, fed, seconds: 0.0 })
    }
}

/// What a feeding thread reads.
enum Feed {
    Decoded(Box<MonoStream>, PathBuf),
    Samples { samples: Vec<f32>, resampler: Resampler },
}

impl Feed {
    fn open(recording: Recording, rate: u32) -> Result<Self, EngineError> {
        let decoded = |source: Result<Source, _>, extension: Option<&str>, path: &Path| {
            let wrap = |source| EngineError::Audio { path: path.to_owned(), source };
            let decoder =
                Decoder::open(source.map_err(wrap)?, extension, &DecodeLimits::local()).map_err(wrap)?;
            Ok(Self::Decoded(Box::new(MonoStream::new(decoder, rate)), path.to_owned()))
        };
        match recording {
            Recording::File(path) => {
                let extension = path.extension().and_then(|e| e.to_str());
                decoded(Source::file(&path), extension, &path)
            }
            Recording::Bytes(bytes) => decoded(Ok(Source::bytes(bytes)), None, Path::new("the audio")),
            Recording::Samples { samples, sample_rate } => {
                check_rate(sample_rate)?;
                Ok(Self::Samples { samples, resampler: Resampler::new(sample_rate, rate) })
            }
        }
    }

    /// Pushes all of it, or as much as somebody wants.
    fn run(&mut self, sender: &mut AudioSender) -> Result<(), EngineError> {
        match self {
            Self::Decoded(audio, path) => {
                let wrap = |source| EngineError::Audio { path: path.clone(), source };
                while let Some(block) = audio.next_block().map_err(wrap)? {
                    if sender.push(block).is_err() {
                        break;
                    }
                }
            }
            Self::Samples { samples, resampler } => {
                let mut out = Vec::new();
                for piece in samples.chunks(PIECE) {
                    out.clear();
                    resampler.process(piece, &mut out);
                    if sender.push(&out).is_err() {
                        return Ok(());
                    }
                }
                out.clear();
                resampler.finish(&mut out);
                // Nobody listens any more: the events say why.
                let _ = sender.push(&out);
            }
        }
        Ok(())
    }
}

impl RecordingStream {
    /// Times and counts so far.
    pub fn stats(&self) -> ListenStats {
        self.events.stats()
    }

    /// Seconds of audio in it; 0 before its end.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The next event for a caller that must not block; its waker is called when there is one, or the end.
    pub fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, EngineError>>> {
        self.events.poll_event(cx).map(|event| self.end(event))
    }

    /// Looks, where the events end, for how the reading went: what is wrong with a file says more than that it broke off.
    fn end(
        &mut self,
        event: Option<Result<ListenEvent, EngineError>>,
    ) -> Option<Result<ListenEvent, EngineError>> {
        if matches!(event, Some(Ok(_))) {
            return event;
        }
        match self.fed.try_recv() {
            Ok(Ok(seconds)) => self.seconds = seconds,
            Ok(Err(error)) => return Some(Err(error)),
            Err(_) => {}
        }
        event
    }
}

impl Iterator for RecordingStream {
    type Item = Result<ListenEvent, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        let event = self.events.next();
        self.end(event)
    }
}
