//! The half of the model that is sound: frames of codes to samples, and recordings to codes and speaker embeddings.

use std::sync::{Arc, Mutex, PoisonError};

use voce_nn::{Formats, Loader, WeightError};
use voce_runtime::Exec;

use super::codec::{CodecCodes, CodecConfig, CodecDecoder, CodecEncoder};
use super::config::{ConfigError, QwenConfig, Variant};
use super::speaker::{SpeakerConfig, SpeakerEncoder};
use crate::speech::{SlotVocoder, Vocoder, VocoderRoom, VoiceError};

/// A loaded codec, and what cloning needs, which is loaded when somebody first clones a voice.
pub struct Sound {
    decoder: Arc<CodecDecoder>,
    parts: SoundParts,
    encoder: Mutex<Option<Arc<CodecEncoder>>>,
    speaker: Mutex<Option<Arc<SpeakerEncoder>>>,
}

/// What a [`Sound`] is made of.
pub struct SoundParts {
    /// The published configuration of the codec.
    pub config: CodecConfig,
    /// Formats of the weights.
    pub formats: Formats,
    /// Loads the codec's encoder; it may read the same tensors again.
    pub encoder: Loader,
    /// Loads the speaker encoder, which lies with the talker.
    pub speaker: Loader,
}

impl Sound {
    /// Loads the codec's decoder.
    pub fn load(l: &Loader, parts: SoundParts) -> Result<Self, WeightError> {
        let decoder = Arc::new(CodecDecoder::load(l, &parts.config, parts.formats)?);
        Ok(Self { decoder, parts, encoder: Mutex::new(None), speaker: Mutex::new(None) })
    }

    /// Whether a codec takes what a talker makes; the error says what does not fit.
    pub fn check(talker: &QwenConfig, codec: &CodecConfig) -> Result<(), ConfigError> {
        let groups = talker.talker_config.num_code_groups;
        let (first, rest) = talker.codebook_sizes();
        let (books, entries) = (codec.codebooks(), codec.decoder_config.codebook_size);
        let kept = codec.encoder_valid_num_quantizers;
        if books != groups || kept != groups {
            return Err(ConfigError::Unsupported(format!(
                "the talker makes {groups} codes a frame, its codec decodes {books} and encodes {kept}"
            )));
        }
        let speaker = talker.speaker_encoder_config.as_ref().filter(|_| talker.variant() == Variant::Base);
        let (heard, made) = (codec.input_sample_rate, codec.output_sample_rate);
        if let Some(speaker) = speaker.filter(|s| heard != made || s.sample_rate as usize != heard) {
            let rate = speaker.sample_rate;
            return Err(ConfigError::Unsupported(format!(
                "the codec takes {heard} Hz and makes {made} Hz, the speaker encoder takes {rate} Hz"
            )));
        }
        if first.max(rest) > entries {
            return Err(ConfigError::Unsupported(format!(
                "the talker's codes have {first} and {rest} values, its codec's {entries}"
            )));
        }
        Ok(())
    }

    pub(super) fn decoder(&self) -> &CodecDecoder {
        &self.decoder
    }

    pub(super) fn vocoder(&self, room: VocoderRoom) -> Box<dyn Vocoder> {
        Box::new(SlotVocoder::new(CodecCodes(self.decoder.clone()), room))
    }

    /// The codes of a recording, frame by frame.
    pub(super) fn encode(&self, exec: &mut Exec, samples: &[f32]) -> Result<Vec<u32>, VoiceError> {
        let encoder = self.encoder()?;
        let books = encoder.encode(exec, samples).map_err(|e| VoiceError::Other(e.to_string()))?;
        let frames = books.first().map_or(0, Vec::len);
        Ok((0..frames).flat_map(|frame| books.iter().map(move |book| book[frame])).collect())
    }

    /// The codec's encoder, loaded when first asked for.
    fn encoder(&self) -> Result<Arc<CodecEncoder>, VoiceError> {
        let mut held = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(encoder) = &*held {
            return Ok(encoder.clone());
        }
        let SoundParts { config, formats, encoder, .. } = &self.parts;
        Ok(held.insert(Arc::new(CodecEncoder::load(encoder, config, *formats)?)).clone())
    }

    /// The embedding of a recording's speaker.
    pub(super) fn embed(
        &self,
        exec: &mut Exec,
        config: &SpeakerConfig,
        samples: &[f32],
    ) -> Result<Vec<f32>, VoiceError> {
        let mut held = self.speaker.lock().unwrap_or_else(PoisonError::into_inner);
        let speaker = match &*held {
            Some(speaker) => speaker.clone(),
            None => {
                let l = self.parts.speaker.sub("speaker_encoder");
                held.insert(Arc::new(SpeakerEncoder::load(&l, config, self.parts.formats)?)).clone()
            }
        };
        drop(held);
        speaker.embed(exec, samples).map_err(|e| VoiceError::Other(e.to_string()))
    }
}
