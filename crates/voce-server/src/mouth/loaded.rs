//! A speaker with the voices that it has ready.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use voce_engine::store::Store;
use voce_engine::{EngineError, Pulse, SpeakRequest, Speaker};
use voce_models::pocket::Voice;

use super::{Ask, MouthOptions, OPENAI_VOICES};
use crate::core::limits;
use crate::core::models::Model;
use crate::core::query::short;

/// What all replicas of a voice model are asked in the same way.
pub(super) struct Manner {
    /// What requests start from.
    pub(super) request: SpeakRequest,
    /// The voice when none is asked for; the model's own when absent.
    pub(super) voice: Option<String>,
    /// Other names of voices.
    pub(super) aliases: Vec<(String, String)>,
    pub(super) store: Store,
}

impl Manner {
    pub(super) fn new(options: &MouthOptions, store: Store) -> Self {
        Self {
            request: options.request.clone(),
            voice: options.voice.clone(),
            aliases: options.voice_aliases.clone(),
            store,
        }
    }
}

/// An opened voice model.
pub(super) struct Loaded {
    pub(super) speaker: Speaker,
    manner: Arc<Manner>,
    voices: Mutex<HashMap<String, Arc<Voice>>>,
}

impl Loaded {
    pub(super) fn new(speaker: Speaker, manner: Arc<Manner>) -> Self {
        Self { speaker, manner, voices: Mutex::default() }
    }

    fn voices(&self) -> MutexGuard<'_, HashMap<String, Arc<Voice>>> {
        self.voices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the voice when none is asked for.
    pub(super) fn default_voice(&self) -> Option<String> {
        self.manner.voice.clone().or_else(|| self.speaker.default_voice())
    }

    /// Names of the voices.
    pub(super) fn voice_names(&self) -> Vec<String> {
        self.speaker.voice_names(&self.manner.store)
    }

    /// A request as the engine takes it.
    pub(super) fn request(&self, ask: &Ask) -> Result<SpeakRequest, EngineError> {
        let mut request = self.manner.request.clone();
        request.voice = self.voice(ask)?;
        request.seed = ask.seed.unwrap_or_else(random_seed);
        request.temperature = ask.temperature.or(request.temperature);
        request.normalize &= self.speaker.info().language.as_deref().is_none_or(|l| l == "english");
        Ok(request)
    }

    /// The voice of a request. Only names are taken, never paths: clients have no business with files.
    fn voice(&self, ask: &Ask) -> Result<Option<Arc<Voice>>, EngineError> {
        let asked = ask.voice.as_deref().filter(|v| !v.is_empty() && *v != "default");
        let alias = |v| self.manner.aliases.iter().find(|(alias, _)| alias == v);
        let asked = asked.map(|v| alias(v).map_or(v, |(_, name)| name.as_str()));
        let known = self.voice_names();
        let name = match asked {
            Some(name) if known.iter().any(|k| k == name) => Some(name.to_owned()),
            Some(name) if !ask.any_voice && !OPENAI_VOICES.contains(&name) => {
                return Err(EngineError::UnknownVoice { name: short(name), known });
            }
            _ => self.default_voice(),
        };
        let Some(name) = name else { return Ok(None) };
        if let Some(voice) = self.voices().get(&name) {
            return Ok(Some(voice.clone()));
        }
        let voice = self.speaker.voice(&self.manner.store, &name)?;
        let mut cache = self.voices();
        if cache.len() >= limits::VOICE_CACHE {
            cache.clear();
        }
        cache.insert(name, voice.clone());
        Ok(Some(voice))
    }

    /// Forgets a voice whose file has changed.
    pub(super) fn forget(&self, name: &str) {
        self.voices().remove(name);
    }
}

impl Model for Loaded {
    fn pulse(&self) -> &Arc<Pulse> {
        self.speaker.pulse()
    }

    fn bytes(&self) -> usize {
        let info = self.speaker.info();
        info.backbone_bytes + info.head_bytes + info.codec_bytes
    }

    fn is_on_device(&self) -> bool {
        self.speaker.info().device.is_some()
    }

    fn warm(&self) -> Result<(), EngineError> {
        let ask = Ask { any_voice: true, ..Ask::default() };
        let request = SpeakRequest { max_frames: Some(2), ..self.request(&ask)? };
        self.speaker.speak("Hello.", &request)?.try_for_each(|chunk| chunk.map(drop))
    }
}

fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}
