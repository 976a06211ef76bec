//! Codecs by themselves: whole recordings to codes and back, whatever family the model is of.

use voce_runtime::Exec;

use crate::speech::{Vocoder, VocoderRoom};

/// What a codec is.
#[derive(Clone, Debug, PartialEq)]
pub struct CodecInfo {
    /// What such codecs are called.
    pub title: &'static str,
    /// Samples per second that are encoded.
    pub input_rate: usize,
    /// Samples that are encoded at most.
    pub most_samples: usize,
    /// Samples per second that are decoded.
    pub output_rate: usize,
    /// Samples of a decoded frame.
    pub frame_size: usize,
    /// Codes of a frame.
    pub codebooks: usize,
    /// Codes of a frame that can be decoded, the first ones, without the others.
    pub fewest: usize,
    /// Codes are below this.
    pub entries: usize,
}

/// Codes of a recording: a list per codebook, all of one length.
pub type Codes = Vec<Vec<u32>>;

/// What a codec refuses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// Samples that it cannot encode.
    #[error("{0}")]
    Samples(String),
    /// Not as many codebooks, or lists of different lengths.
    #[error(
        "codes of {got} codebooks with {frames} frames: this codec has {want} codebooks, with a code of each in every frame"
    )]
    Shape {
        /// Codebooks found.
        got: usize,
        /// Frames of the first.
        frames: usize,
        /// Codebooks that it has.
        want: usize,
    },
    /// No frames.
    #[error("there are no codes to decode: give at least one frame")]
    Empty,
    /// A code that no entry has.
    #[error(
        "code {code} of codebook {codebook} in frame {frame} is out of range: this codec's codes are below {entries}"
    )]
    Range {
        /// The code.
        code: u32,
        /// Where it is.
        codebook: usize,
        /// Where it is.
        frame: usize,
        /// Entries of a codebook.
        entries: usize,
    },
}

impl CodecInfo {
    /// Whether codes can be decoded; the error says what is wrong with them.
    pub fn check(&self, codes: &Codes) -> Result<(), CodecError> {
        let frames = codes.first().map_or(0, Vec::len);
        let fits = (self.fewest..=self.codebooks).contains(&codes.len());
        if !fits || codes.iter().any(|book| book.len() != frames) {
            return Err(CodecError::Shape { got: codes.len(), frames, want: self.codebooks });
        }
        if frames == 0 {
            return Err(CodecError::Empty);
        }
        for (codebook, book) in codes.iter().enumerate() {
            if let Some(frame) = book.iter().position(|&code| code as usize >= self.entries) {
                let (code, entries) = (book[frame], self.entries);
                return Err(CodecError::Range { code, codebook, frame, entries });
            }
        }
        Ok(())
    }
}

/// Weights between samples and codes.
pub trait Codec: Send + Sync {
    /// What the codec is.
    fn info(&self) -> &CodecInfo;

    /// The codes of a recording at the codec's rate.
    fn encode(&self, exec: &mut Exec, samples: &[f32]) -> Result<Codes, CodecError>;

    /// As [`Codec::encode`], of a recording that comes in blocks: `more` appends the next one, and returns false when
    /// there are none.
    fn encode_from(
        &self,
        exec: &mut Exec,
        more: &mut dyn FnMut(&mut Vec<f32>) -> bool,
    ) -> Result<Codes, CodecError> {
        let mut samples = Vec::new();
        // One block more than the codec takes is enough for it to say so.
        while samples.len() <= self.info().most_samples && more(&mut samples) {}
        self.encode(exec, &samples)
    }

    /// The samples of codes, given in order and in pieces until `give` returns false.
    fn decode(
        &self,
        exec: &mut Exec,
        codes: &Codes,
        give: &mut dyn FnMut(&[f32]) -> bool,
    ) -> Result<(), CodecError>;

    /// Slots that decode frames as they come; none where it takes whole recordings alone.
    fn vocoder(&self, _room: VocoderRoom) -> Option<Box<dyn Vocoder>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_that_cannot_be_decoded_are_named() {
        let info = CodecInfo {
            title: "codec",
            input_rate: 1,
            most_samples: 1,
            output_rate: 1,
            frame_size: 1,
            codebooks: 2,
            fewest: 2,
            entries: 4,
        };
        assert_eq!(info.check(&vec![vec![0, 3], vec![1, 2]]), Ok(()));
        assert_eq!(info.check(&vec![vec![], vec![]]), Err(CodecError::Empty));
        let shape = |got, frames| Err(CodecError::Shape { got, frames, want: 2 });
        assert_eq!(info.check(&vec![vec![0]]), shape(1, 1));
        assert_eq!(info.check(&vec![vec![0], vec![0, 1]]), shape(2, 1));
        let range = info.check(&vec![vec![0, 1], vec![1, 4]]).unwrap_err().to_string();
        let fewer = CodecInfo { fewest: 1, ..info };
        assert_eq!(fewer.check(&vec![vec![0]]), Ok(()));
        assert!(fewer.check(&vec![]).is_err() && fewer.check(&vec![vec![0]; 3]).is_err());
        assert!(range.contains("code 4 of codebook 1 in frame 1") && range.contains("below 4"), "{range}");
    }
}
