//! Kyutai's text to speech from files, and with random weights.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use voce_models::kyutai::tts::{KyutaiTts, TtsParts};
use voce_models::kyutai::{ModelId, random_weights, speech_shape};
use voce_models::mimi::{self, Mimi};
use voce_nn::{Loader, Precision};

use super::Files;
use crate::EngineError;
use crate::device::Place;
use crate::family::{OpenedSpeech, Shelf, plain_tokenizer};
use crate::lane::default_threads;
use crate::store::catalogue::Shape;
use crate::store::{Store, Task};

/// The folder beside a model's files that voices are looked for in, how deep, and how many.
const VOICES: &str = "voices";
const MAX_DEPTH: usize = 4;
const MAX_VOICES: usize = 4096;

/// Opens a model all of whose files are here.
pub(in crate::family) fn open(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    let files = Files::find(store, reference)?;
    let located = store.find(reference)?;
    let tokenizer = files.tokenizer()?;
    let codebooks = files.config.n_q;
    let formats = place.formats(precision)?;
    let from = files.sources(store, place, formats, codebooks)?;
    let mut shelf =
        Shelf { default: located.entry.and_then(|e| Some(e.voices?.default.to_owned())), ..Shelf::default() };
    voices_in(&files.folder.join(VOICES), "", files.config.model_id.as_ref(), 0, &mut shelf.files);
    if let Some(entry) = located.entry {
        let named = entry.voice_files().filter_map(|(name, _)| {
            let path = located.voices.get(name)?;
            Some((name.to_owned(), path.clone()))
        });
        shelf.files.extend(named);
    }
    let languages =
        located.entry.map_or_else(Vec::new, |e| e.languages.iter().map(|l| (*l).to_owned()).collect());
    let mimi = Mimi::load(&from.codec, &from.mimi, codebooks, formats)?;
    let parts = TtsParts { config: files.config, tokenizer, mimi, formats, languages };
    let silent = || EngineError::NotYet { id: reference.to_owned(), title: "speech model without a voice" };
    let model = KyutaiTts::load(&mut place.exec(default_threads())?, &from.lm, parts)?.ok_or_else(silent)?;
    Ok(OpenedSpeech { speech: Arc::new(model), shelf, packed: from.packed })
}

/// A model of a published size with random weights, its codec included.
pub(in crate::family) fn random(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    let unknown = || crate::unknown_shape(Task::Speech, shape.name);
    let (config, mimi) = speech_shape(shape.name).ok_or_else(unknown)?;
    let formats = place.formats(precision)?;
    let loader = |source| place.loader(Loader::new(source));
    let lm = loader(random_weights(&config, seed));
    let mimi = Mimi::load(&loader(mimi::random_weights(seed)), &mimi, config.n_q, formats)?;
    let tokenizer = plain_tokenizer(config.text_out());
    let parts = TtsParts { config, tokenizer, mimi, formats, languages: Vec::new() };
    let model = KyutaiTts::load(&mut place.exec(default_threads())?, &lm, parts)?.ok_or_else(unknown)?;
    Ok(OpenedSpeech { speech: Arc::new(model), shelf: Shelf::default(), packed: None })
}

/// Voices below a folder, by their paths in it; what follows a name is the checkpoint that they were made for.
fn voices_in(
    folder: &Path,
    prefix: &str,
    model: Option<&ModelId>,
    depth: usize,
    found: &mut BTreeMap<String, PathBuf>,
) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = entry.path();
        if path.is_dir() {
            if depth < MAX_DEPTH {
                voices_in(&path, &format!("{prefix}{name}/"), model, depth + 1, found);
            }
        } else if let Some(name) = name.strip_suffix(".safetensors")
            && found.len() < MAX_VOICES
        {
            let own = model.map(|m| format!(".{}@{}", m.sig, m.epoch));
            let name = own
                .and_then(|own| name.strip_suffix(&own).map(str::to_owned))
                .unwrap_or_else(|| name.to_owned());
            found.insert(format!("{prefix}{name}"), path);
        }
    }
}
