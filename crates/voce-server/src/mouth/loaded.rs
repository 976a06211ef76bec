//! A speaker with the voices that it has ready.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use voce_engine::stage::weight_bytes;
use voce_engine::store::Store;
use voce_engine::{EngineError, Pulse, SpeakRequest, Speaker, Voice, VoiceChoice};

use super::{Ask, Clip, Embedding, MouthOptions, OPENAI_VOICES, languages};
use crate::core::caller::Caller;
use crate::core::limits;
use crate::core::models::Model;
use crate::core::owners::Owners;
use crate::core::query::short;

/// What all replicas of a voice model are asked in the same way.
pub(super) struct Manner {
    /// What requests start from.
    pub(super) request: SpeakRequest,
    /// The voice when none is asked for; the model's own when absent.
    pub(super) voice: Option<String>,
    /// Other names of voices.
    pub(super) aliases: Vec<(String, String)>,
    /// Voices beside the model's own, by name, in files.
    pub(super) files: BTreeMap<String, PathBuf>,
    /// Whether a voice of these files stands in the places of two speakers.
    pub(super) twice: bool,
    pub(super) owners: Owners,
}

impl Manner {
    pub(super) fn new(options: &MouthOptions, store: &Store) -> Self {
        Self {
            request: options.request.clone(),
            voice: options.voice.clone(),
            aliases: options.voice_aliases.clone(),
            files: options.voice_files.clone(),
            twice: options.voice_files_twice,
            owners: Owners::new(store.clone()),
        }
    }
}

/// An opened voice model.
pub(super) struct Loaded {
    pub(super) speaker: Speaker,
    manner: Arc<Manner>,
    voices: Mutex<HashMap<String, Voice>>,
}

impl Loaded {
    pub(super) fn new(speaker: Speaker, manner: Arc<Manner>) -> Self {
        Self { speaker, manner, voices: Mutex::default() }
    }

    fn voices(&self) -> MutexGuard<'_, HashMap<String, Voice>> {
        self.voices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the voice when none is asked for.
    pub(super) fn default_voice(&self) -> Option<String> {
        self.manner.voice.clone().or_else(|| self.speaker.default_voice())
    }

    /// Names of the voices that a caller may use.
    pub(super) fn voice_names(&self, caller: &Caller) -> Vec<String> {
        let mut names = self.speaker.voice_names();
        names.retain(|name| self.manner.owners.may_use(name, caller));
        names.extend(self.manner.files.keys().cloned());
        names
    }

    /// A caller's request as the engine takes it.
    pub(super) fn request(&self, ask: &Ask, caller: &Caller) -> Result<SpeakRequest, EngineError> {
        let mut request = self.manner.request.clone();
        request.voice = match ask.embedding.as_ref().and_then(|e| self.embedded(e)) {
            Some(voice) => voice.into(),
            None => self.voice(ask, caller)?,
        };
        request.seed = ask.seed.unwrap_or_else(random_seed);
        request.temperature = ask.temperature.or(request.temperature);
        request.normalize = ask.normalize.unwrap_or(request.normalize);
        let asked = match &ask.language {
            Some(asked) if ask.any_language => {
                languages::named(asked, &self.speaker.info().languages).map(str::to_owned)
            }
            asked => asked.clone(),
        };
        request.language = asked.or(request.language);
        if self.speaker.info().instructions {
            request.instruct = ask.instructions.clone().or(request.instruct);
        }
        Ok(request)
    }

    /// The voice of numbers, where they are one of this model's.
    fn embedded(&self, embedding: &Embedding) -> Option<Voice> {
        let bytes = embedding.file()?;
        let clip = Clip::write(&std::env::temp_dir(), "safetensors", &bytes);
        let voice = clip.ok().map(|clip| self.speaker.voice(&clip.path().display().to_string()));
        match voice {
            Some(Ok(voice)) => Some(voice),
            other => {
                let why = other.and_then(Result::err).map(|e| e.to_string());
                tracing::debug!(shape = ?embedding.shape, why, "a voice of another model was sent");
                None
            }
        }
    }

    /// The voice of a request. Only names are taken, never paths: clients have no business with files.
    fn voice(&self, ask: &Ask, caller: &Caller) -> Result<VoiceChoice, EngineError> {
        let asked = ask.voice.as_deref().filter(|v| !v.is_empty() && *v != "default");
        let alias = |v| self.manner.aliases.iter().find(|(alias, _)| alias == v);
        let asked = asked.map(|v| alias(v).map_or(v, |(_, name)| name.as_str()));
        let known = self.speaker.voice_names();
        let is_known = |name: &str| {
            self.manner.files.contains_key(name)
                || (known.iter().any(|k| k == name) && self.manner.owners.may_use(name, caller))
        };
        // Voices of a model's own are found whatever the case of their names.
        let lower = asked.map(str::to_lowercase).filter(|lower| is_known(lower));
        let name = match asked {
            Some(name) if is_known(name) => Some(name.to_owned()),
            Some(_) if lower.is_some() => lower,
            Some(name) if !ask.any_voice && !OPENAI_VOICES.contains(&name) => {
                let known = self.voice_names(caller);
                return Err(EngineError::UnknownVoice { name: short(name), known });
            }
            _ => self.default_voice(),
        };
        let Some(name) = name else { return Ok(VoiceChoice::Default) };
        if let Some(voice) = self.voices().get(&name) {
            return Ok(voice.clone().into());
        }
        let voice = match self.manner.files.get(&name) {
            None => self.speaker.voice(&name)?,
            Some(path) => {
                let voice = self.speaker.voice(&path.display().to_string())?;
                if self.manner.twice { self.speaker.together(&name, &[voice.clone(), voice])? } else { voice }
            }
        };
        let mut cache = self.voices();
        if cache.len() >= limits::VOICE_CACHE {
            cache.clear();
        }
        cache.insert(name, voice.clone());
        Ok(voice.into())
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
        weight_bytes(&self.speaker.info().stages)
    }

    fn is_on_device(&self) -> bool {
        self.speaker.info().device.is_some()
    }

    fn warm(&self) -> Result<(), EngineError> {
        self.voice(&Ask { any_voice: true, ..Ask::default() }, &Caller::default())?;
        self.speaker.warm()
    }
}

/// The tensor of Kyutai's files of voices.
const EMBEDDING: &str = "speaker_wavs";

impl Embedding {
    /// The numbers as such a file; none where they do not have the shape that they claim.
    fn file(&self) -> Option<Vec<u8>> {
        let count = self.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        if count != self.values.len() || count == 0 || self.values.iter().any(|v| !v.is_finite()) {
            return None;
        }
        // One, two or three dimensions mean the same: those of the file.
        let shape: Vec<usize> = match self.shape[..] {
            [rows, width] => vec![1, rows, width],
            _ => self.shape.clone(),
        };
        let offsets = [0, 4 * count];
        let header =
            serde_json::json!({EMBEDDING: {"dtype": "F32", "shape": shape, "data_offsets": offsets}});
        let mut header = header.to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header);
        out.extend(self.values.iter().flat_map(|v| v.to_le_bytes()));
        Some(out)
    }
}

/// A seed short enough to type; the standard library's hash keys are random in every process.
pub(crate) fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish() & 0xffff_ffff
}
