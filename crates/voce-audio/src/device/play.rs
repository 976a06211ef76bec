//! Plays mono audio on the default sound card.

use std::sync::Arc;

use cpal::traits::{DeviceTrait, HostTrait};

use super::ring::Ring;
use super::{RING_SECONDS, no_device, start_output};
use crate::{AudioError, AudioSink, Resampler};

/// A sound card playing: `write` waits while two seconds are queued, `finish` until all is heard; dropping
/// it stops at once.
pub struct Player {
    ring: Arc<Ring>,
    resampler: Resampler,
    block: Vec<f32>,
    _stream: cpal::Stream,
}

impl Player {
    /// Opens the default output for audio at `sample_rate`.
    pub fn open(sample_rate: u32) -> Result<Self, AudioError> {
        let device =
            cpal::default_host().default_output_device().ok_or_else(|| no_device("output", "none found"))?;
        let config = device.default_output_config().map_err(|e| no_device("output", e))?;
        let rate = config.sample_rate();
        let ring = Arc::new(Ring::new("output", rate as usize * RING_SECONDS));
        let stream = start_output(&device, config, ring.clone())?;
        Ok(Self { ring, resampler: Resampler::new(sample_rate, rate), block: Vec::new(), _stream: stream })
    }
}

impl AudioSink for Player {
    fn write(&mut self, samples: &[f32]) -> Result<(), AudioError> {
        self.block.clear();
        self.resampler.process(samples, &mut self.block);
        self.ring.push(&self.block)
    }

    fn flush(&mut self) -> Result<(), AudioError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), AudioError> {
        self.block.clear();
        self.resampler.finish(&mut self.block);
        self.ring.push(&self.block)?;
        self.ring.drain()
    }
}
