//! Samples to bytes in whatever format a client asked for, piece by piece.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use voce_audio::encode::{OpusOptions, OpusWriter, sink_to};
use voce_audio::output::Output;
use voce_audio::{AudioError, AudioFormat, AudioSink, RawEncoding, Resampler};

use super::trace::{Meter, Stage};

/// Packets of 20 ms in a page of streamed Opus: less delay than the default of files.
const OPUS_PAGE: u32 = 2;
/// The rate of headerless PCM, as OpenAI has it.
const PCM: u32 = 24_000;
/// The rate of the telephone's formats.
const TELEPHONE: u32 = 8_000;

/// What a response says of its format.
pub(crate) fn media_type(format: AudioFormat) -> String {
    match format {
        AudioFormat::Raw(_) => format!("{};rate={};channels=1", format.media_type(), rate(format, 0)),
        _ => format.media_type().into(),
    }
}

/// The rate of the output: headerless formats have the one that everybody expects, the others the model's.
fn rate(format: AudioFormat, model: u32) -> u32 {
    match format {
        AudioFormat::Raw(RawEncoding::Mulaw | RawEncoding::Alaw) => TELEPHONE,
        AudioFormat::Raw(_) => PCM,
        _ => model,
    }
}

/// Keeps a task that always has samples to encode from holding its worker.
#[derive(Default)]
pub(crate) struct Breath {
    encoded: usize,
}

impl Breath {
    /// Most samples that are encoded before other tasks have their turn: a tenth of a second of speech.
    pub(crate) const MOST: usize = 2_400;

    /// Counts samples that were encoded.
    pub(crate) fn spend(&mut self, samples: usize) {
        self.encoded += samples;
    }

    /// Ready, unless it is the turn of others; then it is ready when they have had it.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.encoded < Self::MOST {
            return Poll::Ready(());
        }
        self.encoded = 0;
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The same, to be waited for.
    pub(crate) async fn rest(&mut self) {
        std::future::poll_fn(|cx| self.poll(cx)).await;
    }
}

/// An encoder whose bytes are taken as they come.
pub(crate) struct Encoder {
    sink: Box<dyn AudioSink>,
    made: Made,
    resampler: Resampler,
    resampled: Vec<f32>,
    meter: Meter,
}

impl Encoder {
    pub(crate) fn new(format: AudioFormat, model_rate: u32) -> Result<Self, AudioError> {
        let made = Made::default();
        let rate = rate(format, model_rate);
        let resampler = Resampler::new(model_rate, rate);
        let sink: Box<dyn AudioSink> = match format {
            AudioFormat::OggOpus => {
                let options = OpusOptions { packets_per_page: OPUS_PAGE, ..OpusOptions::default() };
                Box::new(OpusWriter::new(made.clone(), rate, options)?)
            }
            format => sink_to(made.clone(), format, rate)?,
        };
        Ok(Self { sink, made, resampler, resampled: Vec::new(), meter: Meter::new(Stage::EncodeOut) })
    }

    /// Bytes that are ready, which may be none; the header comes with the first call.
    pub(crate) fn write(&mut self, samples: &[f32]) -> Result<Bytes, AudioError> {
        let begun = self.meter.begin();
        self.resampled.clear();
        self.resampler.process(samples, &mut self.resampled);
        self.sink.write(&self.resampled)?;
        self.meter.end(begun);
        Ok(self.made.take())
    }

    /// The last bytes.
    pub(crate) fn finish(&mut self) -> Result<Bytes, AudioError> {
        self.resampled.clear();
        self.resampler.finish(&mut self.resampled);
        self.sink.write(&self.resampled)?;
        self.sink.finish()?;
        Ok(self.made.take())
    }
}

/// Bytes that an encoder has made and nobody has taken yet.
#[derive(Clone, Default)]
pub(crate) struct Made(Arc<Mutex<Vec<u8>>>);

impl Made {
    fn take(&self) -> Bytes {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)).into()
    }
}

impl Output for Made {
    fn put(&mut self, bytes: &[u8]) -> Result<(), AudioError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        Ok(())
    }

    fn patch(&mut self, _: u64, _: &[u8]) -> Result<bool, AudioError> {
        Ok(false)
    }

    fn commit(&mut self) -> Result<(), AudioError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_their_turn_after_a_tenth_of_a_second() {
        let mut breath = Breath::default();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        breath.spend(Breath::MOST - 1);
        assert!(breath.poll(&mut cx).is_ready());
        breath.spend(1);
        assert!(breath.poll(&mut cx).is_pending());
        assert!(breath.poll(&mut cx).is_ready());
    }
}
