//! Published checkpoints of Qwen3-TTS 12Hz: repositories of the hub, as they are.

use super::super::reference::DEFAULT_REVISION;
use super::{Entry, Extra, Family, Repo, Shape, Source, Task, Voices};

const LANGUAGES: &[&str] = &[
    "chinese",
    "english",
    "french",
    "german",
    "italian",
    "japanese",
    "korean",
    "portuguese",
    "russian",
    "spanish",
];

/// Speakers of CustomVoice, which are part of the weights.
const SPEAKERS: Voices = Voices {
    default: "vivian",
    names: &["aiden", "dylan", "eric", "ono_anna", "ryan", "serena", "sohee", "uncle_fu", "vivian"],
    files: None,
};

/// Parameters of the codec that every repository brings along, in thousands; they are stored as f32.
const CODEC: u64 = 170_600;

/// A model of `thousands` thousand parameters stored as bf16, its codec not counted.
const fn entry(
    alias: &'static str,
    also: &'static [&'static str],
    name: &'static str,
    thousands: u64,
    voices: Option<Voices>,
) -> Entry {
    Entry {
        alias,
        also,
        task: Task::Speech,
        family: Family::Qwen,
        languages: LANGUAGES,
        parameters: (thousands + CODEC) * 1_000,
        bytes: thousands * 2_000 + CODEC * 4_000,
        source: Source::Repo(Repo { owner: "Qwen", name, revision: DEFAULT_REVISION }),
        voices,
        extra: Extra::None,
    }
}

/// Every checkpoint known by name.
pub(super) const ENTRIES: &[Entry] = &[
    entry(
        "qwen3-tts-1.7b-customvoice",
        &["qwen3-tts"],
        "Qwen3-TTS-12Hz-1.7B-CustomVoice",
        1_916_500,
        Some(SPEAKERS),
    ),
    entry("qwen3-tts-1.7b-voicedesign", &[], "Qwen3-TTS-12Hz-1.7B-VoiceDesign", 1_916_500, None),
    entry("qwen3-tts-1.7b-base", &[], "Qwen3-TTS-12Hz-1.7B-Base", 1_928_500, None),
    entry("qwen3-tts-0.6b-customvoice", &[], "Qwen3-TTS-12Hz-0.6B-CustomVoice", 905_700, Some(SPEAKERS)),
    entry("qwen3-tts-0.6b-base", &[], "Qwen3-TTS-12Hz-0.6B-Base", 914_600, None),
];

/// Sizes that can be had with random weights.
pub(super) const SHAPES: &[Shape] = &[shape("qwen3-tts-0.6b"), shape("qwen3-tts-1.7b")];

const fn shape(name: &'static str) -> Shape {
    Shape { name, also: &[], task: Task::Speech, family: Family::Qwen, like: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_the_models() {
        assert!(SHAPES.iter().map(|shape| shape.name).eq(voce_models::qwen::SHAPES));
    }
}
