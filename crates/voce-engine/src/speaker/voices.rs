//! Voices of a speaker: ready-made ones, the user's own, files, and audio to clone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use voce_audio::voice_prompt::{LongPrompt, MAX_PROMPT_SECONDS, as_it_is, from_decoder};
use voce_audio::{DecodeLimits, Decoder, Source};
use voce_models::speech::{ClipRules, Voice, VoiceChoice, VoiceData, VoiceError, VoiceSource, VoiceTensor};
use voce_nn::weights::SafetensorsFile;
use voce_runtime::Exec;

use super::Speaker;
use crate::EngineError;
use crate::fault::FaultPoint;
use crate::wake::lock;

/// Stands between the names of voices that take turns.
const VOICES_JOINED: char = '+';

/// Voices that come with a model and were asked for by name: their files do not change while it is open.
pub(super) type Known = Mutex<HashMap<String, Voice>>;

impl Speaker {
    /// Names of the voices that come with the model and of those in the store.
    pub fn voice_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.shelf.files.keys().cloned().collect();
        names.extend(self.speech.info().speakers.iter().cloned());
        names.extend(self.store.iter().flat_map(|s| s.voices().list()).map(|v| v.name));
        names.sort();
        names.dedup();
        names
    }

    /// The voice to use when none is asked for: the model's default if it is here, else its first.
    pub fn default_voice(&self) -> Option<String> {
        let own = self.shelf.files.keys().chain(&self.speech.info().speakers);
        let default = self.shelf.default.iter().find(|name| own.clone().any(|n| n == *name));
        default.or_else(|| own.clone().next()).cloned()
    }

    /// A voice by name, by `.safetensors` file, or cloned from an audio file.
    pub fn voice(&self, name: &str) -> Result<Voice, EngineError> {
        if let Some(voice) = lock(&self.known).get(name) {
            return Ok(voice.clone());
        }
        if let Some(path) = self.shelf.files.get(name) {
            let voice = self.voice_at(path, name)?;
            lock(&self.known).insert(name.to_owned(), voice.clone());
            return Ok(voice);
        }
        if self.speech.info().speakers.iter().any(|s| s.eq_ignore_ascii_case(name)) {
            return self.make_voice(name, VoiceSource::Name(name));
        }
        if let Some(voices) = self.voices_together(name)? {
            return Ok(voices);
        }
        let kept = self.store.as_ref().and_then(|store| store.voices().find(name).ok());
        let path = kept.or_else(|| looks_like_path(name).then(|| PathBuf::from(name)));
        let unknown = || EngineError::UnknownVoice { name: name.to_owned(), known: self.voice_names() };
        self.voice_at(&path.ok_or_else(unknown)?, name)
    }

    /// Several voices that take turns: names with `+` between them.
    fn voices_together(&self, names: &str) -> Result<Option<Voice>, EngineError> {
        if !names.contains(VOICES_JOINED) || Path::new(names).exists() {
            return Ok(None);
        }
        let voices =
            names.split(VOICES_JOINED).map(|name| self.voice(name.trim())).collect::<Result<Vec<_>, _>>()?;
        self.together(names, &voices).map(Some)
    }

    /// Several voices as one, called `name` in errors, whose speakers take turns; one may be there several times.
    pub fn together(&self, name: &str, voices: &[Voice]) -> Result<Voice, EngineError> {
        let wrap = |source| EngineError::Voice { name: name.to_owned(), source };
        self.speech.together(&mut self.exec()?, voices).map_err(wrap)
    }

    /// The voice of a file, exported or to be cloned.
    fn voice_at(&self, path: &Path, name: &str) -> Result<Voice, EngineError> {
        if path.extension().is_none_or(|e| e != "safetensors") {
            return self.clone_voice(path, None);
        }
        let wrap = |source| EngineError::Voice { name: name.to_owned(), source };
        let file = SafetensorsFile::open(path).map_err(|e| wrap(e.into()))?;
        self.make_voice(name, VoiceSource::Tensors(&file))
    }

    /// Clones a voice from an audio file of up to 30 s; longer ones are cut at a pause, or refused where `text`, what is
    /// said in it, would not fit a part of it.
    pub fn clone_voice(&self, path: &Path, text: Option<&str>) -> Result<Voice, EngineError> {
        let name = path.display().to_string();
        // A model that cannot clone says so before anybody reads audio.
        self.can_clone(text, &name)?;
        let wrap = |source| EngineError::Audio { path: path.to_owned(), source };
        let extension = path.extension().and_then(|e| e.to_str());
        let source = Source::file(path).map_err(wrap)?;
        let decoder = Decoder::open(source, extension, &DecodeLimits::default()).map_err(wrap)?;
        let rate = self.info.sample_rate as u32;
        let samples = match self.speech.clip_rules(text) {
            ClipRules::EndOnPause => from_decoder(decoder, rate, LongPrompt::CutOnPause).map_err(wrap)?,
            rules => {
                let samples = as_it_is(decoder, rate, rules == ClipRules::AsItIs).map_err(wrap)?;
                samples.ok_or_else(|| EngineError::BadRequest {
                    what: "recording",
                    value: format!("longer than {MAX_PROMPT_SECONDS} s"),
                    rule: "cut it and its text, or leave the text out",
                })?
            }
        };
        self.faults.pass(FaultPoint::Clone);
        self.make_voice(&name, VoiceSource::Clip { samples: &samples, text })
    }

    /// Clones a voice from samples, mono, at the model's [sample rate](super::SpeakerInfo::sample_rate).
    pub fn clone_samples(&self, samples: &[f32], text: Option<&str>) -> Result<Voice, EngineError> {
        if samples.is_empty() || samples.iter().any(|s| !s.is_finite()) {
            return Err(EngineError::BadRequest {
                what: "recording",
                value: format!("{} samples", samples.len()),
                rule: "give samples from -1 to 1, and some of them",
            });
        }
        self.can_clone(text, "of samples")?;
        self.make_voice("of samples", VoiceSource::Clip { samples, text })
    }

    /// Whether the model makes voices of recordings.
    pub fn clones(&self) -> bool {
        self.speech.can_clone(None).is_ok()
    }

    fn can_clone(&self, text: Option<&str>, name: &str) -> Result<(), EngineError> {
        self.speech.can_clone(text).map_err(|source| match source {
            VoiceError::NoEncoder => self.no_cloning(),
            VoiceError::Unsupported { .. } if !self.clones() => self.no_cloning(),
            source => EngineError::Voice { name: name.to_owned(), source },
        })
    }

    fn no_cloning(&self) -> EngineError {
        EngineError::NoCloning { id: self.info.id.clone(), voices: self.voice_names() }
    }

    /// One of its voices as the bytes of a safetensors file in the published layout.
    pub fn voice_bytes(&self, voice: &Voice) -> Result<Vec<u8>, EngineError> {
        let wrap = |source| EngineError::Voice { name: "export".into(), source };
        file_bytes(self.speech.export(&mut self.exec()?, voice).map_err(wrap)?)
    }

    /// The voice that a request asks for.
    pub(super) fn chosen(&self, choice: &VoiceChoice) -> Result<Option<Voice>, EngineError> {
        match choice {
            VoiceChoice::Nobody => Ok(None),
            VoiceChoice::Ready(voice) => Ok(Some(voice.clone())),
            VoiceChoice::Named(name) => self.voice(name).map(Some),
            VoiceChoice::Default => self.default_voice().map(|name| self.voice(&name)).transpose(),
        }
    }

    fn make_voice(&self, name: &str, from: VoiceSource<'_>) -> Result<Voice, EngineError> {
        let wrap = |source| EngineError::Voice { name: name.to_owned(), source };
        self.speech.voice(&mut self.exec()?, from).map_err(wrap)
    }

    fn exec(&self) -> Result<Exec, EngineError> {
        self.place.exec(self.info.threads)
    }
}

/// Whether a path names an audio or voice file rather than a voice by name.
fn looks_like_path(name: &str) -> bool {
    name.contains(['/', '\\', '.']) || Path::new(name).exists()
}

fn file_bytes(tensors: Vec<VoiceTensor>) -> Result<Vec<u8>, EngineError> {
    let bytes: Vec<(String, safetensors::Dtype, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|t| match t.data {
            VoiceData::Floats(v) => {
                (t.name, safetensors::Dtype::F32, t.shape, v.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
            VoiceData::Integers(v) => {
                (t.name, safetensors::Dtype::I64, t.shape, v.iter().flat_map(|x| x.to_le_bytes()).collect())
            }
        })
        .collect();
    let failed = |e: safetensors::SafeTensorError| EngineError::Voice {
        name: "export".into(),
        source: VoiceError::Other(e.to_string()),
    };
    let views = bytes
        .iter()
        .map(|(name, dtype, shape, data)| {
            let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).map_err(failed)?;
            Ok((name.clone(), view))
        })
        .collect::<Result<HashMap<_, _>, EngineError>>()?;
    safetensors::serialize(views, None).map_err(failed)
}
