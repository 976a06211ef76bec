//! What a model is: its family and its task, as the catalogue has it or as its files tell.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::catalogue::{Family, Shape, Task};
use super::error::StoreError;
use super::folder::Parts;
use super::reference::Reference;
use super::{Located, Store};
use crate::EngineError;

/// How much of a configuration or a weight file's header is read.
const MAX_PEEK: u64 = 4 << 20;
/// How much of a name that a file gives is repeated in a message.
const MAX_NAME: usize = 40;

/// What this build can run; each family adds its line.
const RUNS: [(Family, Task); 6] = [
    (Family::Pocket, Task::Speech),
    (Family::Qwen, Task::Speech),
    (Family::FastConformer, Task::Hearing),
    (Family::Kyutai, Task::Hearing),
    (Family::Kyutai, Task::Speech),
    (Family::Kyutai, Task::Dialogue),
];

/// A kind of model that is known by name, whether it can be run or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) family: Family,
    /// None for a part of other models, such as a codec.
    pub(super) task: Option<Task>,
    pub(super) title: &'static str,
}

const fn kind(family: Family, task: Task, title: &'static str) -> Kind {
    Kind { family, task: Some(task), title }
}

const POCKET: Kind = kind(Family::Pocket, Task::Speech, "Pocket TTS");
const FASTCONFORMER: Kind = kind(Family::FastConformer, Task::Hearing, "FastConformer");
const QWEN: Kind = kind(Family::Qwen, Task::Speech, "Qwen3-TTS");
const QWEN_CODEC: Kind = Kind { task: None, title: "Qwen3-TTS codec", ..QWEN };
const KYUTAI_STT: Kind = kind(Family::Kyutai, Task::Hearing, "Kyutai STT");
const KYUTAI_TTS: Kind = kind(Family::Kyutai, Task::Speech, "Kyutai TTS");
const MOSHI: Kind = kind(Family::Kyutai, Task::Dialogue, "Moshi");
const MIMI: Kind = Kind { family: Family::Kyutai, task: None, title: "Mimi codec" };

/// What a model is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The reference in its shortest form.
    pub id: String,
    /// The family.
    pub family: Family,
    /// What it is for; none for a part of other models, such as a codec.
    pub task: Option<Task>,
    /// What such models are called.
    pub title: &'static str,
}

impl Identity {
    fn new(id: String, kind: Kind) -> Self {
        Self { id, family: kind.family, task: kind.task, title: kind.title }
    }

    /// What random weights of a shape are.
    pub(crate) fn of_shape(shape: &Shape) -> Self {
        Self::new(shape.name.to_owned(), entry_kind(shape.family, shape.task))
    }

    /// Whether this build can run it.
    pub fn runs(&self) -> bool {
        self.task.is_some_and(|task| RUNS.contains(&(self.family, task)))
    }

    /// An error that says what the model is, unless this build can run it and it is for `wanted`.
    pub fn require(&self, wanted: Task) -> Result<(), EngineError> {
        let (id, title) = (self.id.clone(), self.title);
        match self.task {
            Some(task) if task == wanted && self.runs() => Ok(()),
            Some(task) if self.runs() => Err(EngineError::OtherTask { id, task }),
            Some(_) => Err(self.not_yet()),
            None => Err(EngineError::OnlyAPart { id, title }),
        }
    }
}

impl Identity {
    /// That this build cannot run it.
    pub(crate) fn not_yet(&self) -> EngineError {
        EngineError::NotYet { id: self.id.clone(), title: self.title }
    }
}

impl Store {
    /// Says what a reference (a folder, a `.nemo` file, a catalogue name, `owner/repo`) is: by its catalogue entry,
    /// whether it was pulled or not, else by its files.
    pub fn identify(&self, reference: &str) -> Result<Identity, StoreError> {
        let reference = Reference::parse(reference)?;
        let id = reference.to_string();
        if let Reference::Catalogue { entry, .. } = reference {
            return Ok(Identity::new(id, entry_kind(entry.family, entry.task)));
        }
        self.locate(&reference)?.identify()
    }
}

impl Located {
    /// Says what the files are.
    pub fn identify(&self) -> Result<Identity, StoreError> {
        let unknown = |said| StoreError::UnknownFamily { id: self.id.clone(), said };
        let kind = match self.entry {
            Some(entry) => Ok(entry_kind(entry.family, entry.task)),
            None => of_files(self.config.as_deref(), &self.weights),
        };
        kind.map(|kind| Identity::new(self.id.clone(), kind)).map_err(unknown)
    }
}

fn entry_kind(family: Family, task: Task) -> Kind {
    match (family, task) {
        (Family::Pocket, _) => POCKET,
        (Family::FastConformer, _) => FASTCONFORMER,
        (Family::Qwen, _) => QWEN,
        (Family::Kyutai, Task::Hearing) => KYUTAI_STT,
        (Family::Kyutai, Task::Speech) => KYUTAI_TTS,
        (Family::Kyutai, Task::Dialogue) => MOSHI,
    }
}

/// What the files of a folder look like.
pub(super) fn of_parts(parts: &Parts) -> Option<Kind> {
    of_files(parts.config.as_deref(), &parts.weights).ok()
}

/// What a configuration says, else what the weights look like; the error is the unknown name that the files give, if any.
fn of_files(config: Option<&Path>, weights: &[impl AsRef<Path>]) -> Result<Kind, Option<String>> {
    if weights.iter().any(|path| path.as_ref().extension().is_some_and(|end| end == "nemo")) {
        return Ok(FASTCONFORMER);
    }
    if let Some(path) = config
        && let Some(text) = peek_text(path)
    {
        let known = match serde_json::from_str(&text) {
            Ok(json) => by_json(&json),
            Err(_) => Ok(by_marks(&text)),
        };
        if let Some(kind) = known.map_err(Some)? {
            return Ok(kind);
        }
    }
    weights.iter().find_map(|path| by_marks(&peek_header(path.as_ref())?)).ok_or(None)
}

/// What a `config.json` says of itself; the error is a type that is not known.
fn by_json(json: &Value) -> Result<Option<Kind>, String> {
    let named = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default();
    let class = json.pointer("/architectures/0").and_then(Value::as_str).unwrap_or_default();
    let has = |key: &str| json.get(key).is_some_and(|value| !value.is_null());
    // Configurations of the moshi packages: the language model's numbers, with the codec beside it.
    if has("mimi_name") || (has("n_q") && has("dep_q") && has("text_card")) {
        let generates = json.get("dep_q").and_then(Value::as_u64) != Some(0);
        return Ok(Some(match (has("stt_config"), has("tts_config")) {
            (_, true) => KYUTAI_TTS,
            (true, _) => KYUTAI_STT,
            _ if named("model_type") == "stt" || !generates => KYUTAI_STT,
            _ if named("model_type") == "tts" => KYUTAI_TTS,
            _ => MOSHI,
        }));
    }
    for name in [class, named("model_type")] {
        let lower = name.to_ascii_lowercase().replace(['_', '-'], "");
        let is = |marks: &[&str]| marks.iter().any(|mark| lower.starts_with(mark));
        let found = match () {
            () if is(&["qwen3ttstokenizer"]) => QWEN_CODEC,
            () if is(&["qwen3tts"]) => QWEN,
            () if is(&["parakeet", "fastconformer"]) => FASTCONFORMER,
            // Language models are called Nemotron, too.
            () if is(&["nemotron"]) && lower.contains("asr") => FASTCONFORMER,
            () if is(&["kyutaispeechtotext"]) => KYUTAI_STT,
            () if is(&["moshi"]) => MOSHI,
            () if is(&["mimi"]) => MIMI,
            () => continue,
        };
        return Ok(Some(found));
    }
    match [named("model_type"), class].into_iter().find(|name| !name.is_empty()) {
        Some(name) => Err(name.chars().filter(|c| !c.is_control()).take(MAX_NAME).collect()),
        None => Ok(None),
    }
}

/// Marks in a YAML configuration or in tensors' names that give a kind of model away.
const MARKS: [(&str, Kind); 10] = [
    ("flow_lm", POCKET),
    ("\"talker.", QWEN),
    ("qwen3_tts", QWEN),
    ("parakeet", FASTCONFORMER),
    ("fastconformer", FASTCONFORMER),
    ("\"encoder.subsampling.", FASTCONFORMER),
    ("\"depformer", MOSHI),
    ("moshi", MOSHI),
    ("\"text_emb.weight\"", KYUTAI_STT),
    ("\"quantizer.rvq_first.", MIMI),
];

fn by_marks(text: &str) -> Option<Kind> {
    let text = text.to_ascii_lowercase();
    MARKS.iter().find(|(mark, _)| text.contains(mark)).map(|(_, kind)| *kind)
}

/// The start of a text file.
pub(super) fn peek_text(path: &Path) -> Option<String> {
    start(File::open(path).ok()?, MAX_PEEK)
}

/// The start of a safetensors file's header, which its length precedes.
fn peek_header(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    start(file, u64::from_le_bytes(length).min(MAX_PEEK))
}

fn start(file: File, length: u64) -> Option<String> {
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}
