//! Both halves of the speech tokenizer as a codec by itself.

use std::sync::Arc;

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::{Exec, Span};

use super::{CodecCodes, CodecConfig, CodecDecoder, CodecEncoder, MAX_ENCODED_SECONDS};
use crate::codec::{Codec, CodecError, CodecInfo, Codes};
use crate::speech::{SlotVocoder, Vocoder, VocoderRoom};

/// Frames that are decoded at a time.
const GROUP: usize = 8;

/// A whole speech tokenizer.
pub struct SpeechTokenizer {
    encoder: CodecEncoder,
    decoder: Arc<CodecDecoder>,
    info: CodecInfo,
}

impl SpeechTokenizer {
    /// Loads `encoder.*` and `decoder.*`.
    pub fn load(l: &Loader, config: &CodecConfig, f: Formats) -> Result<Self, WeightError> {
        let decoder = Arc::new(CodecDecoder::load(l, config, f)?);
        let info = CodecInfo {
            title: "Qwen3-TTS codec",
            input_rate: config.input_sample_rate,
            most_samples: MAX_ENCODED_SECONDS * config.input_sample_rate,
            output_rate: decoder.sample_rate(),
            frame_size: decoder.frame_size(),
            codebooks: decoder.codebooks(),
            fewest: decoder.codebooks(),
            entries: decoder.codebook_size(),
        };
        Ok(Self { encoder: CodecEncoder::load(l, config, f)?, decoder, info })
    }
}

impl Codec for SpeechTokenizer {
    fn info(&self) -> &CodecInfo {
        &self.info
    }

    fn encode(&self, exec: &mut Exec, samples: &[f32]) -> Result<Codes, CodecError> {
        self.encoder.encode(exec, samples).map_err(|e| CodecError::Samples(e.to_string()))
    }

    fn decode(
        &self,
        exec: &mut Exec,
        codes: &Codes,
        give: &mut dyn FnMut(&[f32]) -> bool,
    ) -> Result<(), CodecError> {
        self.info.check(codes)?;
        let frames = codes.first().map_or(0, Vec::len);
        let mut state = self.decoder.state(1, GROUP.min(frames));
        let mut piece = Vec::with_capacity(GROUP * codes.len());
        for first in (0..frames).step_by(GROUP) {
            let rows = GROUP.min(frames - first);
            piece.clear();
            piece.extend((first..first + rows).flat_map(|frame| codes.iter().map(move |book| book[frame])));
            if !give(self.decoder.decode(exec, &mut state, &[Span { slot: 0, rows }], &piece)) {
                break;
            }
        }
        Ok(())
    }

    fn vocoder(&self, room: VocoderRoom) -> Option<Box<dyn Vocoder>> {
        Some(Box::new(SlotVocoder::new(CodecCodes(self.decoder.clone()), room)))
    }
}
