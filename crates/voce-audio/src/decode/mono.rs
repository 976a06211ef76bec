//! A decoder's stream as mono at a wanted rate, in bounded memory: what recognisers and codecs take.

use super::{Decoder, mix_to_mono};
use crate::{AudioError, Resampler};

/// Mono blocks at one rate from any source.
pub struct MonoStream {
    decoder: Decoder,
    resampler: Resampler,
    mono: Vec<f32>,
    out: Vec<f32>,
    ended: bool,
}

impl MonoStream {
    /// Mixes and resamples what `decoder` gives.
    pub fn new(decoder: Decoder, sample_rate: u32) -> Self {
        let resampler = Resampler::new(decoder.sample_rate(), sample_rate);
        Self { decoder, resampler, mono: Vec::new(), out: Vec::new(), ended: false }
    }

    /// The next block, never empty; `None` at the end.
    pub fn next_block(&mut self) -> Result<Option<&[f32]>, AudioError> {
        self.out.clear();
        let channels = self.decoder.channels();
        while self.out.is_empty() && !self.ended {
            self.mono.clear();
            match self.decoder.next_block()? {
                Some(block) => {
                    mix_to_mono(block, channels, &mut self.mono);
                    self.resampler.process(&self.mono, &mut self.out);
                }
                None => {
                    self.ended = true;
                    self.resampler.finish(&mut self.out);
                }
            }
        }
        Ok(if self.out.is_empty() { None } else { Some(&self.out) })
    }

    /// The rest, held whole.
    pub fn read_all(mut self) -> Result<Vec<f32>, AudioError> {
        let mut samples = Vec::new();
        while let Some(block) = self.next_block()? {
            samples.extend_from_slice(block);
        }
        Ok(samples)
    }

    /// The decoder behind it, for its report.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }
}
