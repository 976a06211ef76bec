//! The built-in catalogue: short names for published models, with the exact files and revisions they stand for.
//!
//! An entry pins every file to a commit, so that a name means the same bytes tomorrow, and carries the model's
//! shape, so that its size is known before a download.

use std::fmt::Write as _;

use super::pocket_catalogue::POCKET;
use super::pocket_shape::PocketShape;
use super::recognisers::RECOGNISERS;
use super::reference::RepoId;

/// A model family the engine knows how to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Pocket TTS.
    Pocket,
    /// Mimi, Kyutai STT and TTS, Moshi.
    Kyutai,
    /// Qwen3-TTS.
    Qwen,
    /// NVIDIA Parakeet and Nemotron.
    FastConformer,
}

impl Family {
    /// The family's short name.
    pub fn name(self) -> &'static str {
        match self {
            Family::Pocket => "pocket",
            Family::Kyutai => "kyutai",
            Family::Qwen => "qwen",
            Family::FastConformer => "fastconformer",
        }
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// One file of a hub repository at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// The repository.
    pub repo: RepoId,
    /// A branch, a tag or a full commit id.
    pub revision: String,
    /// The file's path inside the repository, with `/` between its parts.
    pub path: String,
}

/// How a model wants its text prepared before tokenisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextRules {
    /// Characters and what stands in for them.
    pub replace_characters: &'static [(&'static str, &'static str)],
    /// Whether semicolons become commas.
    pub remove_semicolons: bool,
    /// Whether short inputs get leading spaces.
    pub pad_with_spaces_for_short_inputs: bool,
}

/// One model of the catalogue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// The entry's name, as in `voce pull NAME`.
    pub alias: &'static str,
    /// Shorter names for the same entry.
    pub also: &'static [&'static str],
    /// The family that runs it.
    pub family: Family,
    /// The published configuration's name, which is also its folder in the repositories.
    pub config: &'static str,
    /// The language spoken, in lower-case English.
    pub language: &'static str,
    /// The voice used when none is named.
    pub default_voice: &'static str,
    /// Commit of the gated weights, which can clone voices.
    pub cloning_revision: &'static str,
    /// Commit of the ungated weights.
    pub plain_revision: &'static str,
    /// Path of the tokeniser in the ungated repository.
    pub tokenizer: &'static str,
    /// Commit of the tokeniser.
    pub tokenizer_revision: &'static str,
    /// Logit above which speech ends.
    pub eos_threshold: f32,
    /// How text is prepared.
    pub text: TextRules,
    /// The architecture.
    pub shape: PocketShape,
}

/// Names of the ready-made voices that every catalogue entry has.
pub const VOICES: [&str; 27] = [
    "alba",
    "anna",
    "azelma",
    "bill_boerst",
    "caro_davy",
    "charles",
    "cosette",
    "daan",
    "eponine",
    "estelle",
    "eve",
    "fantine",
    "george",
    "giovanni",
    "jane",
    "javert",
    "jean",
    "juergen",
    "lola",
    "marius",
    "mary",
    "michael",
    "paul",
    "peter_yearsley",
    "rafael",
    "stuart_bell",
    "vera",
];

const OWNER: &str = "kyutai";
const GATED: &str = "pocket-tts";
const UNGATED: &str = "pocket-tts-without-voice-cloning";
const VOICES_REVISION: &str = "a7056f505a4a8ca72d8b5fb1440071d6f1a35739";

/// Every speaker of the catalogue; [`RECOGNISERS`] are known by name as well.
pub fn entries() -> &'static [Entry] {
    POCKET
}

/// The entry with this alias or short name.
pub fn find(name: &str) -> Option<&'static Entry> {
    entries().iter().find(|entry| entry.alias == name || entry.also.contains(&name))
}

/// Up to three catalogue names near to `name`, for an error message.
pub fn near(name: &str) -> Vec<&'static str> {
    let speakers = entries().iter().map(|entry| (entry.alias, entry.also));
    let recognisers = RECOGNISERS.iter().map(|known| (known.alias, known.also));
    let mut scored: Vec<(usize, &'static str)> = speakers
        .chain(recognisers)
        .flat_map(|(alias, also)| std::iter::once(alias).chain(also.iter().copied()))
        .map(|alias| (distance(name, alias), alias))
        .filter(|(d, alias)| *d <= 3 || alias.contains(name))
        .collect();
    scored.sort_unstable();
    scored.into_iter().take(3).map(|(_, alias)| alias).collect()
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let best = (diagonal + usize::from(ca != *cb)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()]
}

impl Entry {
    fn file(repo: &str, revision: &str, path: String) -> HubFile {
        HubFile { repo: RepoId::fixed(OWNER, repo), revision: revision.to_owned(), path }
    }

    /// The weight file: gated and able to clone voices, or ungated.
    pub fn weights(&self, cloning: bool) -> HubFile {
        let path = format!("languages/{}/model.safetensors", self.config);
        if cloning {
            Self::file(GATED, self.cloning_revision, path)
        } else {
            Self::file(UNGATED, self.plain_revision, path)
        }
    }

    /// The tokeniser's file.
    pub fn tokenizer(&self) -> HubFile {
        Self::file(UNGATED, self.tokenizer_revision, self.tokenizer.to_owned())
    }

    /// The file of a ready-made voice.
    pub fn voice(&self, name: &str) -> HubFile {
        Self::file(
            UNGATED,
            VOICES_REVISION,
            format!("languages/{}/embeddings/{name}.safetensors", self.config),
        )
    }

    /// Parameters in the weight file.
    pub fn parameters(&self) -> u64 {
        self.shape.parameters()
    }

    /// About how many bytes the weight file has: two a parameter.
    pub fn weight_bytes(&self) -> u64 {
        2 * self.parameters()
    }

    /// The model's configuration as YAML, in the layout in which Pocket TTS configurations are published.
    pub fn config_yaml(&self) -> String {
        let mut out = String::with_capacity(2048);
        for (key, file) in [
            ("weights_path", self.weights(true)),
            ("weights_path_without_voice_cloning", self.weights(false)),
        ] {
            let _ = writeln!(out, "{key}: {}", file.url());
        }
        let _ = writeln!(out, "default_temperature: 0.3\ndefault_eos_threshold: {:.1}", self.eos_threshold);
        let _ = writeln!(out, "remove_semicolons: {}", self.text.remove_semicolons);
        let pad = self.text.pad_with_spaces_for_short_inputs;
        let _ = writeln!(out, "pad_with_spaces_for_short_inputs: {pad}\nreplace_characters:");
        for (from, to) in self.text.replace_characters {
            let quote = |text: &str| text.replace('\'', "''");
            let _ = writeln!(out, "  '{}': '{}'", quote(from), quote(to));
        }
        let kind = if self.tokenizer.ends_with(".model") { "sentencepiece" } else { "tokenizers" };
        self.shape.write_yaml(&mut out, kind, &self.tokenizer().url());
        out
    }
}

impl HubFile {
    /// The file as an `hf://` reference.
    pub fn url(&self) -> String {
        format!("hf://{}/{}@{}", self.repo, self.path, self.revision)
    }
}
