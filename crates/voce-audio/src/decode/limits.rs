//! What a decode may cost: every limit is a named constant and is counted while decoding, so that a header
//! that lies cannot pass it.

use crate::AudioError;

/// Default most input bytes: 25 MiB, as the common HTTP speech services take.
pub const MAX_INPUT_BYTES: u64 = 25 * 1024 * 1024;
/// Default longest audio, in seconds.
pub const MAX_SECONDS: u32 = 600;
/// Default most decoded bytes, counted as `f32` over all channels: 256 MiB.
pub const MAX_PCM_BYTES: u64 = 256 * 1024 * 1024;
/// Most channels.
pub const MAX_CHANNELS: usize = 8;
/// Lowest sample rate.
pub const MIN_SAMPLE_RATE: u32 = 4_000;
/// Highest sample rate.
pub const MAX_SAMPLE_RATE: u32 = 192_000;
/// Default most bytes of one packet and of what is kept until it is whole: 1 MiB, far more than any codec's packet.
pub const MAX_PACKET_BYTES: u64 = 1024 * 1024;
/// Most bytes of a live stream that may pass without a sample: 4 MiB.
pub const LIVE_MAX_GAP_BYTES: u64 = 4 * 1024 * 1024;
/// Most bytes of a live mp4 stream: 32 MiB, because its reader keeps the index of every fragment.
pub const LIVE_MAX_MP4_BYTES: u64 = 32 * 1024 * 1024;
/// Most bytes of one packet of a local file: 64 MiB, as a frame of video beside the sound may have.
pub const LOCAL_MAX_PACKET_BYTES: u64 = 64 * 1024 * 1024;
/// Most input bytes of a local file: 16 GiB.
pub const LOCAL_MAX_INPUT_BYTES: u64 = 16 << 30;
/// Longest local file, in seconds: 48 hours.
pub const LOCAL_MAX_SECONDS: u32 = 48 * 3600;
/// Most decoded bytes of a local file: 256 GiB, which only the streaming [`super::Decoder`] can reach.
pub const LOCAL_MAX_PCM_BYTES: u64 = 256 << 30;

/// The budget of one decode; `default()` suits uploads, [`DecodeLimits::live`] sockets, [`DecodeLimits::local`] a
/// user's own files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// Most input bytes.
    pub max_input_bytes: u64,
    /// Longest audio, in seconds.
    pub max_seconds: u32,
    /// Most decoded bytes, as `f32` over all channels.
    pub max_pcm_bytes: u64,
    /// Most channels.
    pub max_channels: usize,
    /// Lowest sample rate.
    pub min_sample_rate: u32,
    /// Highest sample rate.
    pub max_sample_rate: u32,
    /// Most bytes of one packet, and of the pages, elements or headers that are kept until it is whole.
    pub max_packet_bytes: u64,
    /// Most input bytes that may pass without a sample.
    pub max_gap_bytes: u64,
    /// Most input bytes of an mp4 that comes as a stream.
    pub max_mp4_stream_bytes: u64,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        Self {
            max_input_bytes: MAX_INPUT_BYTES,
            max_seconds: MAX_SECONDS,
            max_pcm_bytes: MAX_PCM_BYTES,
            max_channels: MAX_CHANNELS,
            min_sample_rate: MIN_SAMPLE_RATE,
            max_sample_rate: MAX_SAMPLE_RATE,
            max_packet_bytes: MAX_PACKET_BYTES,
            max_gap_bytes: u64::MAX,
            max_mp4_stream_bytes: LIVE_MAX_MP4_BYTES,
        }
    }
}

impl DecodeLimits {
    /// Wide limits for files the user named on the command line.
    pub fn local() -> Self {
        Self {
            max_input_bytes: LOCAL_MAX_INPUT_BYTES,
            max_seconds: LOCAL_MAX_SECONDS,
            max_pcm_bytes: LOCAL_MAX_PCM_BYTES,
            max_packet_bytes: LOCAL_MAX_PACKET_BYTES,
            max_mp4_stream_bytes: u64::MAX,
            ..Self::default()
        }
    }

    /// For a stream that may last hours and whose sender is a stranger: as long as a local file, in the memory of an
    /// upload's packet.
    pub fn live() -> Self {
        Self {
            max_packet_bytes: MAX_PACKET_BYTES,
            max_gap_bytes: LIVE_MAX_GAP_BYTES,
            max_mp4_stream_bytes: LIVE_MAX_MP4_BYTES,
            ..Self::local()
        }
    }

    pub(super) fn check_spec(&self, rate: u32, channels: usize) -> Result<(), AudioError> {
        if channels == 0 || channels > self.max_channels {
            return Err(AudioError::Channels { got: channels, max: self.max_channels });
        }
        if rate < self.min_sample_rate || rate > self.max_sample_rate {
            return Err(AudioError::SampleRate {
                got: rate,
                min: self.min_sample_rate,
                max: self.max_sample_rate,
            });
        }
        Ok(())
    }

    pub(super) fn check_length(&self, frames: u64, rate: u32, channels: usize) -> Result<(), AudioError> {
        if frames > u64::from(self.max_seconds) * u64::from(rate) {
            return Err(AudioError::TooLong { limit: self.max_seconds });
        }
        if frames.saturating_mul(channels as u64 * 4) > self.max_pcm_bytes {
            return Err(AudioError::TooManySamples { limit: self.max_pcm_bytes });
        }
        Ok(())
    }
}
