//! The models that come inside the binary, so that a fresh installation speaks and hears without a download.
//!
//! They are ordinary models: at its first use each is laid out as a folder among the user's own.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use voce_engine::store::{Family, Installed, Origin, Store, Task};

use crate::failure::{Failure, Outcome};
use crate::whole_file;

/// The name of the embedded voice.
pub(crate) const VOICE: &str = "nano-voice";
/// The name of the embedded recogniser.
pub(crate) const EAR: &str = "nano-ear";

/// Bytes at either end of a file that tell one version of a model from another: weights of one shape have one size.
const ENDS: usize = 64 << 10;

/// A model inside the binary, with what its card says in a line each.
pub(crate) struct Embedded {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) task: Task,
    pub(crate) language: &'static str,
    pub(crate) licence: &'static str,
    /// What it was trained on.
    pub(crate) data: &'static str,
    /// What was measured.
    pub(crate) quality: &'static str,
    files: &'static [(&'static str, &'static [u8])],
}

/// Files of a model by name.
#[cfg(feature = "nano")]
macro_rules! files {
    ($model:literal: $($file:literal),+ $(,)?) => {
        &[$(($file, include_bytes!(concat!("../../../models/", $model, "/", $file)))),+]
    };
}

#[cfg(feature = "nano")]
static MODELS: [Embedded; 2] = [
    Embedded {
        name: VOICE,
        family: Family::Pocket,
        task: Task::Speech,
        language: "english",
        licence: "MIT OR Apache-2.0",
        data: "352 h of synthetic speech (hibari-tts, Apache-2.0) of free texts",
        quality: "4.8 % word error rate by Whisper base on 100 unseen sentences, DNSMOS 3.17",
        files: files!("nano-voice": "config.yaml", "model.safetensors", "tokenizer.model", "voice.safetensors", "MODEL_CARD.md"),
    },
    Embedded {
        name: EAR,
        family: Family::FastConformer,
        task: Task::Hearing,
        language: "english",
        licence: "MIT OR Apache-2.0",
        data: "11.4 h of recorded speech (LibriSpeech, speechocean762, AN4, LJ Speech) and 104.6 h of synthetic speech (Kokoro-82M, nano-voice)",
        quality: "a demonstration: 18 to 49 % of a stranger's words are wrong (LibriSpeech at 560 ms: 17.8 and 24.7 % for two \
                  sets of unseen speakers, 48.7 % on test-other), 6.2 % on nano-voice; `voce pull nemotron` for real work",
        files: files!(
            "nano-ear": "config.json", "processor_config.json", "model.safetensors", "tokenizer.json",
            "tokenizer_config.json", "MODEL_CARD.md",
        ),
    },
];
#[cfg(not(feature = "nano"))]
static MODELS: [Embedded; 0] = [];

/// The models that this build carries.
pub(crate) fn all() -> &'static [Embedded] {
    &MODELS
}

/// The one of this name, if this build carries it.
pub(crate) fn find(name: &str) -> Option<&'static Embedded> {
    MODELS.iter().find(|m| m.name == name)
}

/// The one that a model on this machine was laid out from.
pub(crate) fn behind(model: &Installed) -> Option<&'static Embedded> {
    if matches!(model.origin, Origin::Local) { find(&model.id) } else { None }
}

/// Lays the model out if `reference` names one of the binary's and its folder is not yet whole.
pub(crate) fn provide(store: &Store, reference: &str) -> Outcome {
    match find(reference) {
        Some(model) => model.lay_out(&store.models_dir().join(model.name)),
        None if [VOICE, EAR].contains(&reference) && store.find(reference).is_err() => {
            Err(Failure::usage(format!(
                "this build was made without {reference}: build with `--features nano`, or fetch a model with `voce pull`"
            )))
        }
        None => Ok(()),
    }
}

impl Embedded {
    /// Bytes of its files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, data)| data.len() as u64).sum()
    }

    /// Its language as a name in a sentence.
    pub(crate) fn language_name(&self) -> String {
        let mut letters = self.language.chars();
        letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    }

    fn lay_out(&self, dir: &Path) -> Outcome {
        if self.files.iter().all(|(name, data)| is(&dir.join(name), data).unwrap_or(false)) {
            return Ok(());
        }
        std::fs::create_dir_all(dir).map_err(|e| {
            Failure::failed(format!("{}: {e}: set VOCE_HOME to a folder that can be written", dir.display()))
        })?;
        self.files.iter().try_for_each(|(name, data)| whole_file::write(&dir.join(name), data))
    }
}

/// Whether a file has this size and these ends.
fn is(path: &Path, data: &[u8]) -> io::Result<bool> {
    let mut file = File::open(path)?;
    if file.metadata()?.len() != data.len() as u64 {
        return Ok(false);
    }
    let mut end = vec![0; data.len().min(ENDS)];
    file.read_exact(&mut end)?;
    if !data.starts_with(&end) {
        return Ok(false);
    }
    file.seek(SeekFrom::Start((data.len() - end.len()) as u64))?;
    file.read_exact(&mut end)?;
    Ok(data.ends_with(&end))
}

#[cfg(all(test, feature = "nano"))]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_stays_and_what_differs_is_laid_out_anew() {
        let dir = tempfile::tempdir().unwrap();
        for model in all() {
            let folder = dir.path().join(model.name);
            model.lay_out(&folder).unwrap();
            let weights = folder.join("model.safetensors");
            let made = std::fs::metadata(&weights).unwrap().modified().unwrap();
            model.lay_out(&folder).unwrap();
            assert_eq!(std::fs::metadata(&weights).unwrap().modified().unwrap(), made);
            // Weights that were trained anew have the size of the old ones.
            let mut other = std::fs::read(&weights).unwrap();
            let (whole, last) = (other.clone(), other.len() - 1);
            other[last] ^= 1;
            std::fs::write(&weights, other).unwrap();
            model.lay_out(&folder).unwrap();
            assert!(std::fs::read(&weights).unwrap() == whole);
        }
    }
}
