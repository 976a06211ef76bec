//! The models that come inside the program and the libraries, so that a fresh installation speaks and hears without a
//! download.
//!
//! They are ordinary models: at its first use each is laid out as a folder among the user's own.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use voce_audio::AudioError;
use voce_audio::output::{Output as _, open_output};
use voce_engine::store::{Family, Installed, Origin, Store, Task, catalogue};

/// The name of the embedded voice.
pub const VOICE: &str = "nano-voice";
/// The name of the embedded recogniser.
pub const EAR: &str = "nano-ear";

/// Bytes at either end of a file that tell one version of a model from another: weights of one shape have one size.
const ENDS: usize = 64 << 10;

/// Why a model cannot be laid out.
#[derive(Debug, thiserror::Error)]
pub enum NanoError {
    /// The build carries no such model.
    #[error(
        "this build was made without {0}: build with `--features nano`, or fetch a model with `voce pull`"
    )]
    Without(String),
    /// No model was named, none was pulled, and the build carries none.
    #[error("no model that {} is here: fetch one with `voce pull {best}`, or build with `--features nano`", does(*.task))]
    Nothing {
        /// What it was to do.
        task: Task,
        /// One that can be pulled.
        best: &'static str,
    },
    /// The folder of models cannot be made.
    #[error("{}: {source}: set VOCE_HOME to a folder that can be written", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error(transparent)]
    File(#[from] AudioError),
}

fn does(task: Task) -> &'static str {
    match task {
        Task::Speech => "speaks",
        Task::Hearing => "hears",
        Task::Dialogue => "holds conversations",
    }
}

/// A model inside the program, with what its card says in a line each.
#[derive(Debug)]
pub struct Embedded {
    /// Its name.
    pub name: &'static str,
    /// Its family.
    pub family: Family,
    /// What it does.
    pub task: Task,
    /// Its language, in lower-case English.
    pub language: &'static str,
    /// The licence of its weights.
    pub licence: &'static str,
    /// What it was trained on.
    pub data: &'static str,
    /// What was measured.
    pub quality: &'static str,
    files: &'static [(&'static str, &'static [u8])],
}

/// Files of a model by name.
#[cfg(feature = "models")]
macro_rules! files {
    ($model:literal: $($file:literal),+ $(,)?) => {
        &[$(($file, include_bytes!(concat!("../../../models/", $model, "/", $file)))),+]
    };
}

#[cfg(feature = "models")]
static MODELS: [Embedded; 2] = [
    Embedded {
        name: VOICE,
        family: Family::Pocket,
        task: Task::Speech,
        language: "english",
        licence: "MIT OR Apache-2.0",
        data: "352 h of synthetic speech (hibari-tts, Apache-2.0) of free texts",
        quality: "4.8 % word error rate by Whisper base on 100 unseen sentences, DNSMOS 3.17",
        files: files!("nano-voice": "config.yaml", "voce.yaml", "model.safetensors", "tokenizer.model", "voice.safetensors", "MODEL_CARD.md"),
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
#[cfg(not(feature = "models"))]
static MODELS: [Embedded; 0] = [];

/// The models that this build carries.
pub fn all() -> &'static [Embedded] {
    &MODELS
}

/// The one of this name, if this build carries it.
pub fn find(name: &str) -> Option<&'static Embedded> {
    MODELS.iter().find(|m| m.name == name)
}

/// The one that a model on this machine was laid out from.
pub fn behind(model: &Installed) -> Option<&'static Embedded> {
    if matches!(model.origin, Origin::Local) { find(&model.id) } else { None }
}

/// The reference to open for a task: the one asked for, else the best that was pulled, else the built-in one. A built-in
/// model is laid out.
pub fn reference(store: &Store, task: Task, asked: Option<&str>) -> Result<String, NanoError> {
    let built_in = || MODELS.iter().find(|m| m.task == task).map(|m| m.name);
    let best = catalogue::preferred(task).first().copied().unwrap_or_default();
    let chosen = asked.or_else(|| store.preferred(task)).or_else(built_in);
    let chosen = chosen.ok_or(NanoError::Nothing { task, best })?;
    provide(store, chosen)?;
    Ok(chosen.to_owned())
}

/// Lays the model out if `reference` names one of the build's and its folder is not yet whole.
pub fn provide(store: &Store, reference: &str) -> Result<(), NanoError> {
    match find(reference) {
        Some(model) => model.lay_out(&store.models_dir().join(model.name)),
        None if [VOICE, EAR].contains(&reference) && store.find(reference).is_err() => {
            Err(NanoError::Without(reference.to_owned()))
        }
        None => Ok(()),
    }
}

impl Embedded {
    /// Bytes of its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, data)| data.len() as u64).sum()
    }

    /// Its language as a name in a sentence.
    pub fn language_name(&self) -> String {
        let mut letters = self.language.chars();
        letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
    }

    fn lay_out(&self, dir: &Path) -> Result<(), NanoError> {
        if self.files.iter().all(|(name, data)| is(&dir.join(name), data).unwrap_or(false)) {
            return Ok(());
        }
        std::fs::create_dir_all(dir).map_err(|source| NanoError::Folder { path: dir.to_owned(), source })?;
        self.files.iter().try_for_each(|(name, data)| {
            let mut output = open_output(&dir.join(name))?;
            output.put(data)?;
            Ok(output.commit()?)
        })
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

#[cfg(all(test, feature = "models"))]
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
