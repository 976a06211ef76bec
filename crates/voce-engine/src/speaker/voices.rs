//! Voices of a speaker: ready-made ones, the user's own, files, and audio to clone.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use voce_audio::voice_prompt::{LongPrompt, from_decoder};
use voce_audio::{DecodeLimits, Decoder, Source};
use voce_models::pocket::{Voice, VoiceData, VoiceEncoder, VoiceError, VoiceTensor};
use voce_nn::Loader;
use voce_nn::weights::SafetensorsFile;
use voce_runtime::Exec;

use super::{Speaker, looks_like_path};
use crate::EngineError;
use crate::store::Store;

impl Speaker {
    /// Names of the voices that come with the model and of those in the store.
    pub fn voice_names(&self, store: &Store) -> Vec<String> {
        let mut names: Vec<String> = self.files.iter().flat_map(|f| f.voices.keys().cloned()).collect();
        names.extend(store.voices().list().into_iter().map(|v| v.name));
        names.sort();
        names.dedup();
        names
    }

    /// The voice to use when none is asked for: the model's default if it is here, else its first.
    pub fn default_voice(&self) -> Option<String> {
        let files = self.files.as_ref()?;
        let default = files.default_voice.clone().filter(|v| files.voices.contains_key(v));
        default.or_else(|| files.voices.keys().next().cloned())
    }

    /// A voice by name, by `.safetensors` file, or cloned from an audio file.
    pub fn voice(&self, store: &Store, name: &str) -> Result<Arc<Voice>, EngineError> {
        let ready = self.files.as_ref().and_then(|f| f.voices.get(name).cloned());
        let path = match ready {
            Some(path) => path,
            None => match store.voices().find(name) {
                Ok(path) => path,
                Err(_) if looks_like_path(name) => PathBuf::from(name),
                Err(_) => {
                    return Err(EngineError::UnknownVoice {
                        name: name.to_owned(),
                        known: self.voice_names(store),
                    });
                }
            },
        };
        if path.extension().is_some_and(|e| e == "safetensors") {
            let mut exec = self.exec()?;
            let wrap = |source| EngineError::Voice { name: name.to_owned(), source };
            let file = SafetensorsFile::open(&path).map_err(|e| wrap(e.into()))?;
            return Voice::read(&file, &mut exec, &self.lm).map(Arc::new).map_err(wrap);
        }
        self.clone_voice(&path)
    }

    /// Clones a voice from an audio file of up to 30 s; longer ones are cut at a pause.
    pub fn clone_voice(&self, path: &Path) -> Result<Arc<Voice>, EngineError> {
        // Ask for the encoder first: audio is of no use without it.
        let encoder = self.encoder(&path.display().to_string())?;
        let wrap = |source| EngineError::Audio { path: path.to_owned(), source };
        let extension = path.extension().and_then(|e| e.to_str());
        let source = Source::file(path).map_err(wrap)?;
        let decoder = Decoder::open(source, extension, &DecodeLimits::default()).map_err(wrap)?;
        let rate = self.info.sample_rate as u32;
        let samples = from_decoder(decoder, rate, LongPrompt::CutOnPause).map_err(wrap)?;
        let mut exec = self.exec()?;
        let rows = encoder.rows(&mut exec, &samples);
        Voice::from_rows(&mut exec, &self.lm, &rows)
            .map(Arc::new)
            .map_err(|source| EngineError::Voice { name: path.display().to_string(), source })
    }

    fn exec(&self) -> Result<Exec, EngineError> {
        self.place.exec(self.info.threads)
    }

    /// The voice encoder, loaded when first asked for.
    fn encoder(&self, name: &str) -> Result<Arc<VoiceEncoder>, EngineError> {
        let mut held = crate::wake::lock(&self.encoder);
        if let Some(encoder) = &*held {
            return Ok(encoder.clone());
        }
        let loader = self.place.loader(Loader::new(self.source.clone()));
        let encoder = VoiceEncoder::load(&loader, &self.config, self.formats)
            .map_err(|source| EngineError::Voice { name: name.to_owned(), source })?;
        Ok(held.insert(Arc::new(encoder)).clone())
    }
}

impl Speaker {
    /// One of its voices as the bytes of a safetensors file in the published layout.
    pub fn voice_bytes(&self, voice: &Voice) -> Result<Vec<u8>, EngineError> {
        file_bytes(voice.export(&mut self.exec()?))
    }
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
