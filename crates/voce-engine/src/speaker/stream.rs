//! Audio on its way from the model to a reader.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use voce_audio::{AudioFormat, open_sink};
use voce_models::speech::SpokenWord;

use crate::mailbox::Mailbox;
use crate::wake::Waker;
use crate::{EngineError, StageTime};

/// Samples of silence that a reader gets at once.
const SILENCE_PIECE: usize = 4096;

/// A piece of audio, mono, at the speaker's sample rate.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AudioChunk {
    /// Samples in -1..1, not clamped.
    pub samples: Vec<f32>,
    /// Words that this audio begins or completes, with times that count from the request's first sample; none from
    /// models that do not tell them.
    pub words: Vec<SpokenWord>,
    /// The codes of each frame that this audio was made of; none from models that speak in other frames.
    pub codes: Vec<Vec<u32>>,
}

/// What waits for a reader. Silence takes no memory until it is read.
#[derive(Debug)]
pub(super) enum Sound {
    Audio(AudioChunk),
    Silence(usize),
}

impl Sound {
    /// Its length.
    pub(super) fn samples(&self) -> usize {
        match self {
            Self::Audio(chunk) => chunk.samples.len(),
            Self::Silence(samples) => *samples,
        }
    }

    fn cut(&mut self) -> Option<Self> {
        match self {
            Self::Silence(left) if *left > SILENCE_PIECE => {
                *left -= SILENCE_PIECE;
                Some(Self::Silence(SILENCE_PIECE))
            }
            _ => None,
        }
    }

    fn read(self) -> AudioChunk {
        match self {
            Self::Audio(chunk) => chunk,
            Self::Silence(samples) => AudioChunk { samples: vec![0.0; samples], ..AudioChunk::default() },
        }
    }
}

/// The model's side of a stream.
pub(super) struct Output(Mailbox<Sound, SpeakStats>);

impl Output {
    /// A stream whose model stops making more when `high` samples wait.
    pub(super) fn new(waker: Arc<Waker>, high: usize) -> Arc<Self> {
        Arc::new(Self(Mailbox::with_cut(waker, high, Sound::samples, Sound::cut)))
    }

    /// There is audio that waits for the rest of its passage.
    pub(super) fn begin(&self) {
        self.0.put(|q| {
            let elapsed = q.elapsed;
            q.stats.first_audio.get_or_insert(elapsed);
        });
    }

    pub(super) fn push(&self, sound: Sound) {
        if sound.samples() == 0 {
            return;
        }
        self.0.put(|q| {
            let elapsed = q.elapsed;
            q.stats.first_audio.get_or_insert(elapsed);
            q.stats.samples += sound.samples();
            q.push(sound);
        });
    }

    /// Ends the stream; only the first call has an effect.
    pub(super) fn finish(&self, result: Result<(), EngineError>) {
        self.0.finish(result, |stats, elapsed| stats.total = elapsed);
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.is_full()
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// How long after the request a moment is.
    pub(super) fn since(&self, moment: Instant) -> Duration {
        self.0.since(moment)
    }

    pub(super) fn record(&self, f: impl FnOnce(&mut SpeakStats)) {
        self.0.record(f);
    }
}

/// Times and counts of one request.
#[derive(Clone, Debug, Default)]
pub struct SpeakStats {
    /// From the request to its first audio.
    pub first_audio: Option<Duration>,
    /// From the request to its last audio.
    pub total: Duration,
    /// Samples made.
    pub samples: usize,
    /// Frames made.
    pub frames: usize,
    /// Passages of text.
    pub passages: usize,
    /// Tokens of text.
    pub tokens: usize,
    /// Time in text prefill.
    pub prefill: Duration,
    /// Time in each stage, by the names of [`stages`](super::SpeakerInfo::stages).
    pub stages: Vec<(&'static str, Duration)>,
    /// From the request until the model took up its text.
    pub queue: Duration,
    /// The prefill of its text, over time.
    pub prefill_span: StageTime,
    /// Every stage but the codec, over time.
    pub synth_span: StageTime,
    /// The codec, over time.
    pub codec_span: StageTime,
    /// Passages that reached their frame limit without an end, and were not spoken again or failed again: words of them
    /// may be missing.
    pub unended: usize,
    /// Passages that reached it and were spoken again in halves.
    pub respoken: usize,
}

impl SpeakStats {
    /// Time in the stage of this name.
    pub fn stage(&self, name: &str) -> Duration {
        self.stages.iter().find(|(n, _)| *n == name).map_or(Duration::ZERO, |(_, time)| *time)
    }

    /// Adds to the time of a stage.
    pub(super) fn add(&mut self, name: &'static str, time: Duration) {
        match self.stages.iter_mut().find(|(n, _)| *n == name) {
            Some((_, total)) => *total += time,
            None => self.stages.push((name, time)),
        }
    }
}

/// The reader's side: an iterator of audio chunks. Dropping it stops the work within a frame.
pub struct SpeechStream {
    pub(super) output: Arc<Output>,
    pub(super) sample_rate: usize,
}

impl SpeechStream {
    /// Times and counts so far.
    pub fn stats(&self) -> SpeakStats {
        self.output.0.stats()
    }

    /// Samples per second of its audio.
    pub fn sample_rate(&self) -> usize {
        self.sample_rate
    }

    /// Writes what is left to a file, in the format of its extension (`wav`, `flac`, `opus`, ...). The file appears under
    /// its name when it is whole.
    pub fn save(mut self, path: impl AsRef<Path>) -> Result<SpeakStats, EngineError> {
        let path = path.as_ref();
        let wrap = |source| EngineError::Audio { path: path.to_owned(), source };
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let format = AudioFormat::from_name(extension).ok_or_else(|| EngineError::BadRequest {
            what: "output",
            value: path.display().to_string(),
            rule: "end its name in .wav, .mp3, .flac, .opus or .pcm",
        })?;
        let mut sink = open_sink(path, format, self.sample_rate as u32).map_err(wrap)?;
        for chunk in &mut self {
            sink.write(&chunk?.samples).map_err(wrap)?;
        }
        sink.finish().map_err(wrap)?;
        Ok(self.stats())
    }

    /// The next chunk for a task that must not block; its waker is called when there is one, or the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AudioChunk, EngineError>>> {
        self.output.0.poll(cx).map(|taken| taken.map(|sound| sound.map(Sound::read)))
    }
}

impl Iterator for SpeechStream {
    type Item = Result<AudioChunk, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.output.0.next().map(|sound| sound.map(Sound::read))
    }
}

#[cfg(feature = "futures")]
impl futures_core::Stream for SpeechStream {
    type Item = Result<AudioChunk, EngineError>;

    fn poll_next(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Self::poll_next(self.get_mut(), cx)
    }
}

impl Drop for SpeechStream {
    fn drop(&mut self) {
        self.output.0.cancel();
    }
}
