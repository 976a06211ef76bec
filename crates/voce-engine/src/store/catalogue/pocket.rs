//! The published Pocket TTS models: their sizes, their text rules, and the commits of their files.

mod shape;
mod sizes;
mod text;

use std::fmt::Write as _;

pub use shape::{CodecSide, HeadType, LATENT_DIM, PocketShape, SAMPLE_RATE};
pub use text::TextRules;

use super::{Entry, Extra, Family, Files, Pinned, Shape, Source, Task, VoiceFiles, Voices};
use sizes::{BIG, BIG_24L, BIG_2026_01, BIG_DRIFTING, M2, M7, M18};
use text::{
    ENGLISH_2026_01_TEXT, ENGLISH_TEXT, FRENCH_TEXT, GERMAN_TEXT, QUOTES_TEXT, SMALL_TEXT, SPANISH_TEXT,
};

const OWNER: &str = "kyutai";
/// The repository whose weights can clone voices, for those who have accepted its licence.
const GATED: &str = "pocket-tts";
const UNGATED: &str = "pocket-tts-without-voice-cloning";
const VOICES_REVISION: &str = "a7056f505a4a8ca72d8b5fb1440071d6f1a35739";

/// Names of the ready-made voices that every Pocket TTS model has.
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

/// What sets one published Pocket TTS model apart, besides its files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pocket {
    /// The published configuration's name, which is also its folder in the repositories.
    pub config: &'static str,
    /// Logit above which speech ends.
    pub eos_threshold: f32,
    /// How text is prepared.
    pub text: TextRules,
    /// The architecture.
    pub shape: PocketShape,
}

impl Pocket {
    /// The model's configuration as YAML, in the layout in which Pocket TTS configurations are published.
    pub fn config_yaml(&self, files: &Files) -> String {
        let mut out = String::with_capacity(2048);
        let named = [
            ("weights_path", files.cloning.as_ref()),
            ("weights_path_without_voice_cloning", Some(&files.weights)),
        ];
        for (key, file) in named {
            let _ = file.map(|file| writeln!(out, "{key}: {}", file.hub_file().url()));
        }
        let _ = writeln!(out, "default_temperature: 0.3\ndefault_eos_threshold: {:.1}", self.eos_threshold);
        let _ = writeln!(out, "remove_semicolons: {}", self.text.remove_semicolons);
        let pad = self.text.pad_with_spaces_for_short_inputs;
        let _ = writeln!(out, "pad_with_spaces_for_short_inputs: {pad}\nreplace_characters:");
        for (from, to) in self.text.replace_characters {
            let quote = |text: &str| text.replace('\'', "''");
            let _ = writeln!(out, "  '{}': '{}'", quote(from), quote(to));
        }
        let kind = if files.tokenizer.path.ends_with(".model") { "sentencepiece" } else { "tokenizers" };
        self.shape.write_yaml(&mut out, kind, &files.tokenizer.hub_file().url());
        out
    }
}

/// What models of one language and size share.
#[derive(Clone, Copy)]
struct Kind {
    languages: &'static [&'static str],
    /// The voice used when none is named.
    voice: &'static str,
    eos_threshold: f32,
    text: TextRules,
    shape: PocketShape,
}

const ENGLISH: Kind =
    Kind { languages: &["english"], voice: "alba", eos_threshold: -4.0, text: ENGLISH_TEXT, shape: BIG };
const SMALL: Kind = Kind { eos_threshold: -1.0, text: SMALL_TEXT, shape: M18, ..ENGLISH };
const DUTCH: Kind = Kind { languages: &["dutch"], voice: "daan", text: QUOTES_TEXT, ..ENGLISH };
const FRENCH: Kind = Kind { languages: &["french"], voice: "estelle", text: FRENCH_TEXT, ..ENGLISH };
const GERMAN: Kind = Kind { languages: &["german"], voice: "juergen", text: GERMAN_TEXT, ..ENGLISH };
const ITALIAN: Kind = Kind { languages: &["italian"], voice: "giovanni", text: QUOTES_TEXT, ..ENGLISH };
const PORTUGUESE: Kind = Kind { languages: &["portuguese"], voice: "rafael", text: QUOTES_TEXT, ..ENGLISH };
const SPANISH: Kind = Kind { languages: &["spanish"], voice: "lola", text: SPANISH_TEXT, ..ENGLISH };

/// An entry; paths in the repositories follow from the name of its configuration.
macro_rules! entry {
    {
        alias: $alias:literal,
        also: [$($also:literal),*],
        config: $config:literal,
        kind: $kind:expr,
        cloning: $cloning:literal,
        plain: $plain:literal,
        tokenizer: $tokenizer:literal @ $tokenizer_revision:literal,
    } => {{
        const KIND: Kind = $kind;
        const WEIGHTS: &str = concat!("languages/", $config, "/model.safetensors");
        Entry {
            alias: $alias,
            also: &[$($also),*],
            task: Task::Speech,
            family: Family::Pocket,
            languages: KIND.languages,
            parameters: KIND.shape.parameters(),
            bytes: 2 * KIND.shape.parameters(),
            source: Source::Files(Files {
                weights: Pinned { owner: OWNER, repo: UNGATED, revision: $plain, path: WEIGHTS },
                cloning: Some(Pinned { owner: OWNER, repo: GATED, revision: $cloning, path: WEIGHTS }),
                tokenizer: Pinned {
                    owner: OWNER,
                    repo: UNGATED,
                    revision: $tokenizer_revision,
                    path: $tokenizer,
                },
            }),
            voices: Some(Voices {
                default: KIND.voice,
                names: &VOICES,
                files: Some(VoiceFiles {
                    owner: OWNER,
                    repo: UNGATED,
                    revision: VOICES_REVISION,
                    folder: concat!("languages/", $config, "/embeddings"),
                    suffix: ".safetensors",
                }),
            }),
            extra: Extra::Pocket(&Pocket {
                config: $config,
                eos_threshold: KIND.eos_threshold,
                text: KIND.text,
                shape: KIND.shape,
            }),
        }
    }};
}

const fn shape(name: &'static str, short: &'static [&'static str], like: &'static str) -> Shape {
    Shape { name, also: short, task: Task::Speech, family: Family::Pocket, like: Some(like) }
}

/// Sizes that can be had with random weights.
pub(super) const SHAPES: &[Shape] = &[
    shape("pocket-100m", &["100m"], "pocket"),
    shape("pocket-24l", &["24l"], "pocket-24l"),
    shape("pocket-18m", &["18m"], "pocket-18m"),
    shape("pocket-7m", &["7m"], "pocket-7m"),
    shape("pocket-2m", &["2m"], "pocket-2m"),
];

/// Every published model.
pub(super) const ENTRIES: &[Entry] = &[
    entry! {
        alias: "pocket-english",
        also: ["pocket"],
        config: "english",
        kind: ENGLISH,
        cloning: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english/tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-english-18m-2026-10",
        also: ["pocket-18m"],
        config: "english_18m_2026-10",
        kind: SMALL,
        cloning: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_18m_2026-10/tokenizer.model" @ "08ffc58775e62aad9409511b9591c9af626270f3",
    },
    entry! {
        alias: "pocket-english-18m-refl-2026-10",
        also: ["pocket-18m-refl"],
        config: "english_18m_refl_2026-10",
        kind: SMALL,
        cloning: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_18m_refl_2026-10/tokenizer.model" @ "08ffc58775e62aad9409511b9591c9af626270f3",
    },
    entry! {
        alias: "pocket-english-2026-01",
        also: [],
        config: "english_2026-01",
        kind: Kind { text: ENGLISH_2026_01_TEXT, shape: BIG_2026_01, ..ENGLISH },
        cloning: "39592ff23c9ef80098bb74895d104c26275fe2c9",
        plain: "d29db7978e464fb90cb3359ee0c69a273b9142cc",
        tokenizer: "tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-english-2026-04",
        also: [],
        config: "english_2026-04",
        kind: ENGLISH,
        cloning: "19f95fe2df36e79fbd9f10008595cc4c977a0fcc",
        plain: "d29db7978e464fb90cb3359ee0c69a273b9142cc",
        tokenizer: "languages/english_2026-04/tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-english-2026-04-24l",
        also: [],
        config: "english_2026-04_24l",
        kind: Kind { shape: BIG_24L, ..ENGLISH },
        cloning: "492522650173a0653b7575cdc25ae09810e5d741",
        plain: "e81d79e8194ad4c7ce879c87a4258ef20cbf2487",
        tokenizer: "languages/english_2026-04_24l/tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-english-2026-09",
        also: [],
        config: "english_2026-09",
        kind: ENGLISH,
        cloning: "983151f13aaeab1b13c1e5e3c2c383d49a9edf3f",
        plain: "e7205b6ee50e654a5ea19f0e9df2b0813b05e921",
        tokenizer: "languages/english_2026-09/tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-english-2026-09-2",
        also: [],
        config: "english_2026-09_2",
        kind: ENGLISH,
        cloning: "7f364c05d1be3faf2b234cdbe4cbb68a026d4218",
        plain: "575d14372df89a4534bcb989870a34e77544b09f",
        tokenizer: "languages/english_2026-09/tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-english-2026-09-24l",
        also: ["pocket-24l", "pocket-english-24l"],
        config: "english_2026-09_24l",
        kind: Kind { shape: BIG_24L, ..ENGLISH },
        cloning: "983151f13aaeab1b13c1e5e3c2c383d49a9edf3f",
        plain: "e7205b6ee50e654a5ea19f0e9df2b0813b05e921",
        tokenizer: "languages/english_2026-09_24l/tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-english-2026-10",
        also: [],
        config: "english_2026-10",
        kind: ENGLISH,
        cloning: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_2026-09/tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-english-2m-2026-10",
        also: ["pocket-2m"],
        config: "english_2m_2026-10",
        kind: Kind { shape: M2, ..SMALL },
        cloning: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_2m_2026-10/tokenizer.model" @ "08ffc58775e62aad9409511b9591c9af626270f3",
    },
    entry! {
        alias: "pocket-english-2m-refl-2026-10",
        also: ["pocket-2m-refl"],
        config: "english_2m_refl_2026-10",
        kind: Kind { shape: M2, ..SMALL },
        cloning: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_2m_refl_2026-10/tokenizer.model" @ "08ffc58775e62aad9409511b9591c9af626270f3",
    },
    entry! {
        alias: "pocket-english-7m-2026-10",
        also: ["pocket-7m"],
        config: "english_7m_2026-10",
        kind: Kind { shape: M7, ..SMALL },
        cloning: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_7m_2026-10/tokenizer.model" @ "08ffc58775e62aad9409511b9591c9af626270f3",
    },
    entry! {
        alias: "pocket-english-7m-refl-2026-10",
        also: ["pocket-7m-refl"],
        config: "english_7m_refl_2026-10",
        kind: Kind { shape: M7, ..SMALL },
        cloning: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_7m_refl_2026-10/tokenizer.model" @ "08ffc58775e62aad9409511b9591c9af626270f3",
    },
    entry! {
        alias: "pocket-english-drifting-26-09",
        also: ["pocket-drifting"],
        config: "english_drifting_26-09",
        kind: Kind { shape: BIG_DRIFTING, ..ENGLISH },
        cloning: "75cfe24e3142233bb81887fed3482e9652bb4a6e",
        plain: "a5ce31f3eba7a3b0cb9c24ba2015b098f278eaae",
        tokenizer: "languages/english_2026-09/tokenizer.json" @ "00eac05ed3d16bdc3f6b5d598874019c34a89214",
    },
    entry! {
        alias: "pocket-dutch",
        also: [],
        config: "dutch",
        kind: DUTCH,
        cloning: "3e82814a68665eec246ff649b14c71331f955c06",
        plain: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/dutch/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-dutch-24l",
        also: [],
        config: "dutch_24l",
        kind: Kind { shape: BIG_24L, ..DUTCH },
        cloning: "2dd944b099d06bb9edbd221fef138685711d9bf0",
        plain: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        tokenizer: "languages/dutch_24l/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-french",
        also: [],
        config: "french",
        kind: FRENCH,
        cloning: "3e82814a68665eec246ff649b14c71331f955c06",
        plain: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/french/tokenizer.json" @ "8843db76457a91db32077edf8dfcd1c0e3e755fd",
    },
    entry! {
        alias: "pocket-french-24l",
        also: [],
        config: "french_24l",
        kind: Kind { shape: BIG_24L, ..FRENCH },
        cloning: "3e82814a68665eec246ff649b14c71331f955c06",
        plain: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/french_24l/tokenizer.json" @ "8843db76457a91db32077edf8dfcd1c0e3e755fd",
    },
    entry! {
        alias: "pocket-german",
        also: [],
        config: "german",
        kind: GERMAN,
        cloning: "3e82814a68665eec246ff649b14c71331f955c06",
        plain: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/german/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-german-24l",
        also: [],
        config: "german_24l",
        kind: Kind { shape: BIG_24L, ..GERMAN },
        cloning: "2dd944b099d06bb9edbd221fef138685711d9bf0",
        plain: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        tokenizer: "languages/german_24l/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-italian",
        also: [],
        config: "italian",
        kind: ITALIAN,
        cloning: "3e82814a68665eec246ff649b14c71331f955c06",
        plain: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/italian/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-italian-24l",
        also: [],
        config: "italian_24l",
        kind: Kind { shape: BIG_24L, ..ITALIAN },
        cloning: "3e82814a68665eec246ff649b14c71331f955c06",
        plain: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/italian_24l/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-portuguese",
        also: [],
        config: "portuguese",
        kind: PORTUGUESE,
        cloning: "3e82814a68665eec246ff649b14c71331f955c06",
        plain: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/portuguese/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-portuguese-24l",
        also: [],
        config: "portuguese_24l",
        kind: Kind { shape: BIG_24L, ..PORTUGUESE },
        cloning: "2dd944b099d06bb9edbd221fef138685711d9bf0",
        plain: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        tokenizer: "languages/portuguese_24l/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-spanish",
        also: [],
        config: "spanish",
        kind: SPANISH,
        cloning: "3e82814a68665eec246ff649b14c71331f955c06",
        plain: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/spanish/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
    entry! {
        alias: "pocket-spanish-24l",
        also: [],
        config: "spanish_24l",
        kind: Kind { shape: BIG_24L, ..SPANISH },
        cloning: "2dd944b099d06bb9edbd221fef138685711d9bf0",
        plain: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        tokenizer: "languages/spanish_24l/tokenizer.json" @ "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
    },
];
