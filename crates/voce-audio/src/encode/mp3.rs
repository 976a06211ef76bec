//! MP3 out, streaming, behind the `mp3` feature: 64 kbit/s mono. A file gets the tag with its exact length; a pipe
//! cannot go back to write it and has none.

use rusty_mp3::{Mp3Encoder, Mp3EncoderConfig};

use super::AudioSink;
use crate::output::Output;
use crate::{AudioError, Resampler};

/// Rates that MP3 has; other inputs are resampled to the next one up.
const RATES: [u32; 9] = [8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];
/// Kilobits per second; enough for mono speech.
const BITRATE: u32 = 64;

/// Writes mono speech as MP3.
pub struct Mp3Writer<O: Output> {
    output: O,
    encoder: Mp3Encoder,
    rate: u32,
    resampler: Resampler,
    resampled: Vec<f32>,
    packets: u64,
}

impl<O: Output> Mp3Writer<O> {
    /// Writes to `output`; any rate is taken.
    pub fn new(output: O, sample_rate: u32) -> Result<Self, AudioError> {
        if sample_rate == 0 {
            return Err(AudioError::Encode { detail: "mp3: a rate of 0 Hz".into() });
        }
        let rate = RATES.into_iter().find(|&rate| rate >= sample_rate).unwrap_or(48_000);
        let config = Mp3EncoderConfig { bitrate_kbps: BITRATE, vbr_quality: None };
        Ok(Self {
            output,
            encoder: Mp3Encoder::new(config),
            rate,
            resampler: Resampler::new(sample_rate, rate),
            resampled: Vec::new(),
            packets: 0,
        })
    }

    fn encode(&mut self) -> Result<(), AudioError> {
        let refuse = |e: rusty_mp3::Error| AudioError::Encode { detail: format!("mp3: {e}") };
        self.encoder.push_pcm_f32(&self.resampled, 1, self.rate).map_err(refuse)?;
        self.resampled.clear();
        self.drain()
    }

    fn drain(&mut self) -> Result<(), AudioError> {
        while let Ok(packet) = self.encoder.next_packet() {
            // The first packet is the place of the tag, which only the end can fill in.
            if self.packets > 0 || self.output.patches() {
                self.output.put(&packet)?;
            }
            self.packets += 1;
        }
        Ok(())
    }
}

impl<O: Output> AudioSink for Mp3Writer<O> {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        self.resampler.process(samples, &mut self.resampled);
        self.encode()
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        self.output.flush()
    }

    fn finish(&mut self) -> Result<(), AudioError> {
        self.resampler.finish(&mut self.resampled);
        self.encode()?;
        self.encoder.finish();
        self.drain()?;
        if let Some(tag) = self.encoder.lame_tag_frame().filter(|_| self.output.patches()) {
            self.output.patch(0, tag)?;
        }
        self.output.commit()
    }
}
