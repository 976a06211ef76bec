//! Audio on its way from the model to a reader.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::mailbox::Mailbox;
use crate::wake::Waker;
use crate::{EngineError, StageTime};

/// A piece of audio, mono, at the speaker's sample rate.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioChunk {
    /// Samples in -1..1, not clamped.
    pub samples: Vec<f32>,
}

/// The model's side of a stream.
pub(super) struct Output(Mailbox<AudioChunk, SpeakStats>);

impl Output {
    /// A stream whose model stops making more when `high` samples wait.
    pub(super) fn new(waker: Arc<Waker>, high: usize) -> Arc<Self> {
        Arc::new(Self(Mailbox::new(waker, high, |chunk| chunk.samples.len())))
    }

    pub(super) fn push(&self, samples: Vec<f32>) {
        if samples.is_empty() {
            return;
        }
        self.0.put(|q| {
            let elapsed = q.elapsed;
            q.stats.first_audio.get_or_insert(elapsed);
            q.stats.samples += samples.len();
            q.push(AudioChunk { samples });
        });
    }

    /// Ends the stream; the first word counts.
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
    /// Chunks of text.
    pub chunks: usize,
    /// Tokens of text.
    pub tokens: usize,
    /// Time in text prefill.
    pub prefill: Duration,
    /// Time in the backbone.
    pub backbone: Duration,
    /// Time in the sampler head.
    pub head: Duration,
    /// Time in the codec.
    pub codec: Duration,
    /// From the request until the model took up its text.
    pub queue: Duration,
    /// The prefill of its text, over time.
    pub prefill_span: StageTime,
    /// Backbone and head, over time.
    pub synth_span: StageTime,
    /// The codec, over time.
    pub codec_span: StageTime,
    /// Chunks that reached their frame limit without an end.
    pub unended: usize,
}

impl SpeakStats {
    /// Time in the stage of this name, of those in [`stages`](super::SpeakerInfo::stages).
    pub fn stage(&self, name: &str) -> Duration {
        match name {
            "backbone" => self.backbone,
            "head" => self.head,
            "codec" => self.codec,
            _ => Duration::ZERO,
        }
    }
}

/// The reader's side: an iterator of audio chunks. Dropping it stops the work within a frame.
pub struct SpeechStream {
    pub(super) output: Arc<Output>,
}

impl SpeechStream {
    /// Times and counts so far.
    pub fn stats(&self) -> SpeakStats {
        self.output.0.stats()
    }

    /// The next chunk for a task that must not block; its waker is called when there is one, or the end.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AudioChunk, EngineError>>> {
        self.output.0.poll(cx)
    }
}

impl Iterator for SpeechStream {
    type Item = Result<AudioChunk, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.output.0.next()
    }
}

impl Drop for SpeechStream {
    fn drop(&mut self) {
        self.output.0.cancel();
    }
}
