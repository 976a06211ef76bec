//! The codec as the family sees it: frames of codes to samples, and recordings to codes and speaker embeddings.

use voce_runtime::Exec;

use crate::speech::{Vocoder, VocoderRoom, VoiceError};

/// The half of the model that is sound.
pub trait Sound: Send + Sync {
    /// Samples per second.
    fn sample_rate(&self) -> usize;

    /// Samples of a frame.
    fn frame_size(&self) -> usize;

    /// Codes of a frame, and entries of the smallest codebook.
    fn codebooks(&self) -> (usize, usize);

    /// Bytes of weights that a call of the decoder reads, and multiply-adds of one frame.
    fn costs(&self) -> (usize, usize);

    /// Slots of the decoder.
    fn vocoder(&self, room: VocoderRoom) -> Box<dyn Vocoder>;

    /// The codes of a recording at the codec's rate, frame by frame.
    fn encode(&self, exec: &mut Exec, samples: &[f32]) -> Result<Vec<u32>, VoiceError>;

    /// The embedding of a recording's speaker; of Base alone.
    fn speaker(&self, exec: &mut Exec, samples: &[f32]) -> Result<Vec<f32>, VoiceError>;
}
