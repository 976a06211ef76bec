//! Who speaks: one of the model's speakers, or a recording's speaker, with or without the recording itself.

use std::fmt;

use voce_nn::weights::SafetensorsFile;
use voce_nn::{WeightError, Weights as _};

use super::config::QwenConfig;
use super::prompt::{Clip, Who};
use crate::speech::{VoiceData, VoiceError, VoiceTensor};

/// Frames of a recording that a voice may keep: two minutes.
pub const MAX_CLIP_FRAMES: usize = 1_500;
/// Tokens of what is said in it.
pub const MAX_CLIP_TOKENS: usize = 2_000;

/// Names of the tensors of a saved voice.
const EMBEDDING: &str = "qwen3_tts.speaker_embedding";
const CODES: &str = "qwen3_tts.codes";
const TEXT: &str = "qwen3_tts.text";

/// A voice ready to speak with.
pub struct Voice(Kind);

enum Kind {
    Speaker { name: String, id: u32 },
    Cloned { embedding: Vec<f32>, clip: Option<Recording> },
}

struct Recording {
    text: Vec<u32>,
    codes: Vec<u32>,
    groups: usize,
}

impl fmt::Debug for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Speaker { name, .. } => write!(f, "speaker {name}"),
            Kind::Cloned { clip: None, .. } => f.write_str("a cloned speaker"),
            Kind::Cloned { clip: Some(clip), .. } => {
                write!(f, "a recording of {} frames", clip.codes.len() / clip.groups)
            }
        }
    }
}

impl Voice {
    /// One of the model's speakers, whatever the case of the name.
    pub fn speaker(config: &QwenConfig, name: &str) -> Result<Self, VoiceError> {
        let speakers = config.speakers();
        let found = speakers.iter().find(|known| known.eq_ignore_ascii_case(name));
        match found.and_then(|name| Some((name, *config.talker_config.spk_id.get(name)?))) {
            Some((name, id)) => Ok(Self(Kind::Speaker { name: name.clone(), id })),
            None if speakers.is_empty() => Err(VoiceError::Other(format!(
                "{} has no speakers of its own, and so no '{name}'",
                config.variant().name()
            ))),
            None => {
                let known = speakers.join(", ");
                Err(VoiceError::Other(format!("it has no speaker '{name}', but {known}")))
            }
        }
    }

    /// The speaker of a recording; `clip` has the tokens of what is said in it and its codes, frame by frame.
    pub fn cloned(
        config: &QwenConfig,
        embedding: Vec<f32>,
        clip: Option<(Vec<u32>, Vec<u32>)>,
    ) -> Result<Self, VoiceError> {
        let groups = config.talker_config.num_code_groups;
        let clip = clip.map(|(text, codes)| Recording { text, codes, groups });
        let voice = Self(Kind::Cloned { embedding, clip });
        voice.check(config)?;
        Ok(voice)
    }

    /// Reads a saved voice.
    pub fn read(config: &QwenConfig, file: &SafetensorsFile) -> Result<Self, VoiceError> {
        let hidden = config.hidden();
        let Some(tensor) = file.get(EMBEDDING, &[hidden])? else {
            let names: Vec<&str> = file.tensors().map(|(n, _)| n).take(3).collect();
            let found = names.join(", ");
            return Err(VoiceError::Other(format!("no tensor '{EMBEDDING}' (it holds {found})")));
        };
        if tensor.shape != [hidden] {
            let (name, expected) = (EMBEDDING.into(), vec![hidden]);
            return Err(WeightError::Shape { name, expected, got: tensor.shape }.into());
        }
        let ids = |name| -> Result<Option<Vec<u32>>, VoiceError> {
            let ids = file.integers(name)?;
            let whole = |ids: Vec<i64>| -> Option<Vec<u32>> {
                ids.into_iter().map(|id| u32::try_from(id).ok()).collect()
            };
            let bad = || VoiceError::Other(format!("'{name}' has numbers that are no tokens"));
            ids.map(|ids| whole(ids).ok_or_else(bad)).transpose()
        };
        let clip = match (ids(TEXT)?, ids(CODES)?) {
            (Some(text), Some(codes)) => Some((text, codes)),
            (None, None) => None,
            _ => return Err(VoiceError::Other(format!("only one of '{TEXT}' and '{CODES}' is there"))),
        };
        Self::cloned(config, tensor.values, clip)
    }

    /// The tensors that [`Voice::read`] reads.
    pub fn export(&self) -> Result<Vec<VoiceTensor>, VoiceError> {
        let (embedding, clip) = match &self.0 {
            Kind::Speaker { name, .. } => {
                return Err(VoiceError::Other(format!(
                    "speaker '{name}' is part of the weights: it is used by its name"
                )));
            }
            Kind::Cloned { embedding, clip } => (embedding, clip),
        };
        let floats = VoiceData::Floats(embedding.clone());
        let mut tensors =
            vec![VoiceTensor { name: EMBEDDING.into(), shape: vec![embedding.len()], data: floats }];
        if let Some(clip) = clip {
            let tensor = |name: &str, ids: &[u32], shape| VoiceTensor {
                name: name.into(),
                shape,
                data: VoiceData::Integers(ids.iter().map(|&id| i64::from(id)).collect()),
            };
            let frames = clip.codes.len() / clip.groups;
            tensors.push(tensor(CODES, &clip.codes, vec![frames, clip.groups]));
            tensors.push(tensor(TEXT, &clip.text, vec![clip.text.len()]));
        }
        Ok(tensors)
    }

    /// Whether it was made for a model of this configuration; the error says what is different.
    pub fn check(&self, config: &QwenConfig) -> Result<(), VoiceError> {
        let other = |what: String| Err(VoiceError::Other(what));
        let (embedding, clip) = match &self.0 {
            Kind::Speaker { name, id } => {
                let own = config.talker_config.spk_id.get(name) == Some(id);
                return if own { Ok(()) } else { other(format!("speaker '{name}' is of another model")) };
            }
            Kind::Cloned { embedding, clip } => (embedding, clip),
        };
        if embedding.len() != config.hidden() || embedding.iter().any(|v| !v.is_finite()) {
            let (own, has) = (config.hidden(), embedding.len());
            return other(format!("its embedding has {has} values, and this model takes {own} finite ones"));
        }
        let Some(clip) = clip else { return Ok(()) };
        let (groups, frames) = (config.talker_config.num_code_groups, clip.codes.len() / clip.groups.max(1));
        if clip.groups != groups || clip.codes.is_empty() || clip.codes.len() != frames * groups {
            return other(format!("its {} codes are no frames of {groups}", clip.codes.len()));
        }
        if frames > MAX_CLIP_FRAMES {
            return Err(VoiceError::TooLong { positions: frames, most: MAX_CLIP_FRAMES });
        }
        if clip.text.is_empty() || clip.text.len() > MAX_CLIP_TOKENS {
            let has = clip.text.len();
            return other(format!("its text has {has} tokens: 1 to {MAX_CLIP_TOKENS} are possible"));
        }
        let (first, rest) = config.codebook_sizes();
        let beyond = |(i, code): (usize, &u32)| *code as usize >= if i % groups == 0 { first } else { rest };
        let text = config.talker_config.text_vocab_size;
        if clip.codes.iter().enumerate().any(beyond) || clip.text.iter().any(|&t| t as usize >= text) {
            return other("its codes or its text are beyond this model's vocabularies".into());
        }
        Ok(())
    }

    /// The codes of its recording, frame by frame, where it brings one.
    pub fn clip_codes(&self) -> Option<&[u32]> {
        match &self.0 {
            Kind::Cloned { clip: Some(clip), .. } => Some(&clip.codes),
            _ => None,
        }
    }

    /// The embedding of a cloned speaker.
    pub fn embedding(&self) -> Option<&[f32]> {
        match &self.0 {
            Kind::Cloned { embedding, .. } => Some(embedding),
            Kind::Speaker { .. } => None,
        }
    }

    /// Its place in a prompt.
    pub fn who(&self) -> Who<'_> {
        match &self.0 {
            Kind::Speaker { id, .. } => Who::Speaker(*id),
            Kind::Cloned { clip, .. } => {
                Who::Cloned(clip.as_ref().map(|clip| Clip { text: &clip.text, codes: &clip.codes }))
            }
        }
    }

    /// The language that it is spoken to with, where `asked` leaves room: speakers of a dialect speak it where Chinese or
    /// nothing is asked for.
    pub fn language(&self, config: &QwenConfig, asked: Option<&str>) -> Option<u32> {
        let ids = &config.talker_config.codec_language_id;
        let dialect = match &self.0 {
            Kind::Speaker { name, .. } if asked.is_none_or(|asked| asked == CHINESE) => {
                config.talker_config.spk_is_dialect.get(name).and_then(|dialect| dialect.as_str())
            }
            _ => None,
        };
        dialect.or(asked).and_then(|name| ids.get(name)).copied()
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let ids = self.clip_codes().map_or(0, <[u32]>::len);
        4 * (self.embedding().map_or(0, <[f32]>::len) + ids)
    }
}

/// The language whose dialects some speakers speak.
const CHINESE: &str = "chinese";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qwen::named;

    #[test]
    fn recordings_are_kept_up_to_their_limits() {
        let config = named("qwen3-tts-0.6b").unwrap();
        let embedding = vec![0.5; config.hidden()];
        let make = |tokens: usize, frames: usize, code: u32| {
            let clip = (vec![5; tokens], vec![code; 16 * frames]);
            Voice::cloned(&config, embedding.clone(), Some(clip)).map(drop).map_err(|e| e.to_string())
        };
        make(MAX_CLIP_TOKENS, MAX_CLIP_FRAMES, 2047).unwrap();
        for (made, says) in [
            (make(MAX_CLIP_TOKENS + 1, 1, 0), "2001 tokens"),
            (make(0, 1, 0), "0 tokens"),
            (make(1, MAX_CLIP_FRAMES + 1, 0), "1501 positions"),
            (make(1, 0, 0), "no frames"),
            (make(1, 1, 2048), "beyond"),
        ] {
            assert!(made.clone().unwrap_err().contains(says), "{made:?} should say {says}");
        }
        let short = Voice::cloned(&config, vec![0.5; 7], None).map(drop).unwrap_err().to_string();
        assert!(short.contains("7 values"), "{short}");
        assert!(Voice::cloned(&config, vec![f32::NAN; config.hidden()], None).is_err());
    }

    #[test]
    fn speakers_are_found_whatever_their_case_and_are_not_saved() {
        let config = named("qwen3-tts-1.7b").unwrap();
        let voice = Voice::speaker(&config, "VIVIAN").unwrap();
        assert_eq!((voice.who(), voice.clip_codes()), (Who::Speaker(3065), None));
        assert!(voice.export().is_err());
        let told = Voice::speaker(&config, "nobody").unwrap_err().to_string();
        assert!(told.contains("nobody") && told.contains("vivian"), "{told}");
    }
}
