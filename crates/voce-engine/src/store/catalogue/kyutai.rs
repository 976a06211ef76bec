//! Published models of Kyutai's: repositories of the hub, as they are.

use super::super::reference::DEFAULT_REVISION;
use super::{Entry, Extra, Family, Repo, Shape, Source, Task};

/// Parameters of the codec that every repository brings along, in thousands; they are stored as f32.
const MIMI: u64 = 96_150;

/// A recogniser of `thousands` thousand parameters stored as bf16, its codec not counted.
const fn hearing(
    alias: &'static str,
    also: &'static [&'static str],
    languages: &'static [&'static str],
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
        extra: Extra::Hearing { head: "text", streaming: true },
    }
}

/// Every checkpoint known by name.
pub(super) const ENTRIES: &[Entry] = &[
    hearing("stt-1b-en_fr", &["kyutai-stt"], &["english", "french"], 989_800),
    hearing("stt-2.6b-en", &[], &["english"], 2_617_600),
];

/// Sizes that can be had with random weights.
pub(super) const SHAPES: &[Shape] = &[ear("stt-1b"), ear("stt-2.6b")];

const fn ear(name: &'static str) -> Shape {
    Shape { name, also: &[], task: Task::Hearing, family: Family::Kyutai, like: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_of_recognisers_are_known() {
        for shape in SHAPES.iter().filter(|s| s.task == Task::Hearing) {
            assert!(voce_models::kyutai::stt::shape(shape.name).is_some(), "{}", shape.name);
        }
    }
}
