//! The published `speaker_encoder_config`, field by field.

use serde::Deserialize;
use voce_audio::magnitude_mel::MAGNITUDE_MEL_RATE;

/// Mel bands that the published front end makes.
pub(super) const MEL_BANDS: usize = 128;

/// What any of its sizes may be.
const MAX_SIZE: usize = 1 << 16;
/// Layers that it may have.
const MAX_LAYERS: usize = 64;

/// `speaker_encoder_config` of a Base model's `config.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct SpeakerConfig {
    /// Mel bands.
    pub mel_dim: usize,
    /// Width of the embedding.
    pub enc_dim: usize,
    /// Channels of the first layer, of each block, and of what follows the blocks.
    pub enc_channels: Vec<usize>,
    /// Kernels of the same.
    pub enc_kernel_sizes: Vec<usize>,
    /// Dilations of the same.
    pub enc_dilations: Vec<usize>,
    /// Width of the attention that pools.
    pub enc_attention_channels: usize,
    /// Groups of channels in a block.
    pub enc_res2net_scale: usize,
    /// Width of a block's squeeze.
    pub enc_se_channels: usize,
    /// Samples per second.
    pub sample_rate: u32,
}

impl Default for SpeakerConfig {
    fn default() -> Self {
        Self {
            mel_dim: 128,
            enc_dim: 1024,
            enc_channels: vec![512, 512, 512, 512, 1536],
            enc_kernel_sizes: vec![5, 3, 3, 3, 1],
            enc_dilations: vec![1, 2, 3, 4, 1],
            enc_attention_channels: 128,
            enc_res2net_scale: 8,
            enc_se_channels: 128,
            sample_rate: MAGNITUDE_MEL_RATE,
        }
    }
}

impl SpeakerConfig {
    /// Why it cannot be run, if it cannot.
    pub fn check(&self) -> Result<(), String> {
        let layers = self.enc_channels.len();
        if layers < 3 || self.enc_kernel_sizes.len() != layers || self.enc_dilations.len() != layers {
            return Err(
                "a speaker encoder has channels, kernels and dilations of at least three layers".into()
            );
        }
        if self.mel_dim != MEL_BANDS || self.sample_rate != MAGNITUDE_MEL_RATE {
            return Err(format!(
                "a speaker encoder of {} bands at {} Hz: {MEL_BANDS} at {MAGNITUDE_MEL_RATE} Hz are known",
                self.mel_dim, self.sample_rate
            ));
        }
        let sizes = [self.enc_dim, self.enc_attention_channels, self.enc_res2net_scale, self.enc_se_channels];
        let all =
            sizes.iter().chain(&self.enc_channels).chain(&self.enc_kernel_sizes).chain(&self.enc_dilations);
        if all.clone().any(|&n| n > MAX_SIZE) || layers > MAX_LAYERS {
            return Err(format!(
                "a speaker encoder of more than {MAX_LAYERS} layers or of a size above {MAX_SIZE}"
            ));
        }
        if all.into_iter().any(|&n| n == 0) || self.enc_kernel_sizes.iter().any(|k| k.is_multiple_of(2)) {
            return Err("a size of the speaker encoder is zero, or a kernel is even".into());
        }
        let blocks = &self.enc_channels[..layers - 1];
        if blocks.iter().any(|&c| c != blocks[0] || !c.is_multiple_of(self.enc_res2net_scale)) {
            return Err(
                "blocks of the speaker encoder differ in width, or do not split into their groups".into()
            );
        }
        if blocks[0] * (layers - 2) != self.enc_channels[layers - 1] {
            return Err("what follows the blocks is not as wide as all of them together".into());
        }
        Ok(())
    }

    /// Mel rows that a recording has at least: convolutions mirror its ends.
    pub(super) fn least_rows(&self) -> usize {
        let reach = self.enc_kernel_sizes.iter().zip(&self.enc_dilations).map(|(k, d)| (k - 1) * d / 2);
        reach.max().unwrap_or(0) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_named() {
        let good = SpeakerConfig::default();
        good.check().unwrap();
        assert_eq!(good.least_rows(), 5);
        let with = |change: fn(&mut SpeakerConfig)| {
            let mut c = good.clone();
            change(&mut c);
            c.check().unwrap_err()
        };
        for (text, says) in [
            (with(|c| c.mel_dim = 80), "80 bands"),
            (with(|c| c.sample_rate = 16_000), "16000 Hz"),
            (with(|c| c.enc_channels = vec![512, 1536]), "three layers"),
            (with(|c| c.enc_kernel_sizes[1] = 4), "even"),
            (with(|c| c.enc_res2net_scale = 0), "zero"),
            (with(|c| c.enc_res2net_scale = 7), "groups"),
            (with(|c| c.enc_channels[4] = 1024), "all of them together"),
            (with(|c| c.enc_dim = MAX_SIZE + 1), "above 65536"),
            (with(|c| c.enc_dilations[0] = usize::MAX), "above 65536"),
        ] {
            assert!(text.contains(says), "{text}");
        }
    }
}
