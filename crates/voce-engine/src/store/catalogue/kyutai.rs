//! Published models of Kyutai's: repositories of the hub, as they are.

use super::super::reference::DEFAULT_REVISION;
use super::{Entry, Extra, Family, Repo, Shape, Source, Task, VoiceFiles, Voices};

/// Parameters of the codec that every repository brings along, in thousands; they are stored as f32.
const MIMI: u64 = 96_150;

/// A recogniser of `thousands` thousand parameters stored as bf16, its codec not counted.
const fn hearing(
    alias: &'static str,
    also: &'static [&'static str],
    (languages, codes): (&'static [&'static str], &'static [&'static str]),
    thousands: u64,
) -> Entry {
    Entry {
        alias,
        also,
        task: Task::Hearing,
        family: Family::Kyutai,
        languages,
        parameters: (thousands + MIMI) * 1_000,
        bytes: thousands * 2_000 + MIMI * 4_000,
        source: Source::Repo(Repo { owner: "kyutai", name: alias, revision: DEFAULT_REVISION }),
        voices: None,
        extra: Extra::Hearing { head: "text", streaming: true, codes },
    }
}

/// A model of `thousands` thousand parameters stored as bf16 that makes audio, its codec not counted.
const fn speaking(
    alias: &'static str,
    also: &'static [&'static str],
    name: &'static str,
    languages: &'static [&'static str],
    thousands: u64,
    (task, voices): (Task, Option<Voices>),
) -> Entry {
    Entry {
        alias,
        also,
        task,
        family: Family::Kyutai,
        languages,
        parameters: (thousands + MIMI) * 1_000,
        bytes: thousands * 2_000 + MIMI * 4_000,
        source: Source::Repo(Repo { owner: "kyutai", name, revision: DEFAULT_REVISION }),
        voices,
        extra: Extra::None,
    }
}

/// Voices of the repository `kyutai/tts-voices` by their paths there: one of several tempers for each speaker. Its other
/// files are voices, too, once they lie in a `voices` folder beside the model's.
const VOICES: Voices = Voices {
    default: "expresso/ex03-ex01_happy_001_channel1_334s.wav",
    names: &[
        "expresso/ex01-ex02_default_001_channel2_198s.wav",
        "expresso/ex03-ex01_happy_001_channel1_334s.wav",
        "expresso/ex03-ex02_narration_001_channel1_674s.wav",
        "expresso/ex04-ex02_happy_001_channel1_118s.wav",
        "vctk/p226_023_mic1.wav",
    ],
    files: Some(VoiceFiles {
        owner: "kyutai",
        repo: "tts-voices",
        revision: DEFAULT_REVISION,
        folder: "",
        suffix: ".1e68beda@240.safetensors",
    }),
};

/// Every checkpoint known by name.
pub(super) const ENTRIES: &[Entry] = &[
    hearing("stt-1b-en_fr", &["kyutai-stt"], (&["english", "french"], &["en", "fr"]), 989_800),
    hearing("stt-2.6b-en", &[], (&["english"], &["en"]), 2_617_600),
    speaking(
        "tts-1.6b-en_fr",
        &["kyutai-tts"],
        "tts-1.6b-en_fr",
        &["english", "french"],
        1_836_600,
        (Task::Speech, Some(VOICES)),
    ),
    speaking("tts-0.75b-en-public", &[], "tts-0.75b-en-public", &["english"], 750_000, (Task::Speech, None)),
    speaking("moshiko", &["moshi"], "moshiko-pytorch-bf16", &["english"], 7_687_700, (Task::Dialogue, None)),
    speaking("moshika", &[], "moshika-pytorch-bf16", &["english"], 7_687_700, (Task::Dialogue, None)),
];

/// Sizes that can be had with random weights.
pub(super) const SHAPES: &[Shape] = &[
    shape("stt-1b", Task::Hearing),
    shape("stt-2.6b", Task::Hearing),
    shape("tts-1.6b", Task::Speech),
    shape("moshi-7b", Task::Dialogue),
];

const fn shape(name: &'static str, task: Task) -> Shape {
    Shape { name, also: &[], task, family: Family::Kyutai, like: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_recognisers_are_known() {
        for shape in SHAPES.iter().filter(|s| s.task == Task::Hearing) {
            assert!(voce_models::kyutai::stt::shape(shape.name).is_some(), "{}", shape.name);
        }
        let of = |task: Task| SHAPES.iter().filter(move |s| s.task == task).map(|s| s.name);
        assert!(of(Task::Speech).eq(voce_models::kyutai::SPEECH_SHAPES));
        assert!(of(Task::Dialogue).eq(voce_models::kyutai::DIALOGUE_SHAPES));
    }
}
