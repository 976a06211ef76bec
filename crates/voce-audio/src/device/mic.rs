//! Records mono audio from the default sound card.

use std::sync::Arc;

use cpal::traits::{DeviceTrait, HostTrait};

use super::ring::Ring;
use super::{RING_SECONDS, no_device, start_input};
use crate::{AudioError, Resampler};

/// A microphone: holds two seconds, then drops and counts what nobody reads.
pub struct Mic {
    ring: Arc<Ring>,
    resampler: Resampler,
    block: Vec<f32>,
    _stream: cpal::Stream,
}

impl Mic {
    /// Opens the default input, to be read at `sample_rate`.
    pub fn open(sample_rate: u32) -> Result<Self, AudioError> {
        let device =
            cpal::default_host().default_input_device().ok_or_else(|| no_device("input", "none found"))?;
        let config = device.default_input_config().map_err(|e| no_device("input", e))?;
        let rate = config.sample_rate();
        let ring = Arc::new(Ring::new("input", rate as usize * RING_SECONDS));
        let stream = start_input(&device, config, ring.clone())?;
        Ok(Self { ring, resampler: Resampler::new(rate, sample_rate), block: Vec::new(), _stream: stream })
    }

    /// Waits for sound and appends all there is; at times nothing is appended yet.
    pub fn read(&mut self, out: &mut Vec<f32>) -> Result<(), AudioError> {
        self.block.clear();
        self.ring.take(&mut self.block)?;
        self.resampler.process(&self.block, out);
        Ok(())
    }

    /// Samples of the card dropped so far because nobody read in time.
    pub fn lost(&self) -> u64 {
        self.ring.lost()
    }
}
