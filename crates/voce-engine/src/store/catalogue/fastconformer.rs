//! Published recognisers of NVIDIA's FastConformer family: short names for repositories of the hub.
//!
//! A name stands for the repository's main branch. A pull takes the safetensors layout where the repository has it, and
//! the `.nemo` archive where not.

use voce_models::fastconformer;

use super::super::reference::DEFAULT_REVISION;
use super::{Entry, Extra, Family, Repo, Shape, Source, Task};

/// Languages by name, and by their codes where a model is not told which of them it hears.
struct Languages(&'static [&'static str], &'static [&'static str]);

const ENGLISH: Languages = Languages(&["english"], &["en"]);
const JAPANESE: Languages = Languages(&["japanese"], &["ja"]);
const EUROPEAN: Languages = Languages(
    &["25 european languages"],
    &[
        "en", "bg", "cs", "da", "de", "el", "es", "et", "fi", "fr", "hr", "hu", "it", "lt", "lv", "mt", "nl",
        "pl", "pt", "ro", "ru", "sk", "sl", "sv", "uk",
    ],
);
/// Of a model that is told one: its files list them.
const LOCALES: Languages = Languages(&["40 locales"], &[]);

/// What turns frames into labels.
const TDT: &str = "tdt";
const RNNT: &str = "rnnt";
const CTC: &str = "ctc";
const TDT_CTC: &str = "tdt and ctc";
const RNNT_CTC: &str = "rnnt and ctc";

/// A model whose repository has its name, with this many millions of parameters.
const fn offline(
    alias: &'static str,
    also: &'static [&'static str],
    languages: Languages,
    head: &'static str,
    millions: u64,
) -> Entry {
    Entry {
        alias,
        also,
        task: Task::Hearing,
        family: Family::FastConformer,
        languages: languages.0,
        parameters: millions * 1_000_000,
        bytes: millions * 4_000_000,
        source: Source::Repo(Repo { owner: "nvidia", name: alias, revision: DEFAULT_REVISION }),
        voices: None,
        extra: Extra::Hearing { head, streaming: false, codes: languages.1 },
    }
}

/// The same of a model that hears chunk by chunk.
const fn streaming(
    alias: &'static str,
    also: &'static [&'static str],
    languages: Languages,
    head: &'static str,
    millions: u64,
) -> Entry {
    Entry {
        extra: Extra::Hearing { head, streaming: true, codes: languages.1 },
        ..offline(alias, also, languages, head, millions)
    }
}

/// Every recogniser known by name.
pub(super) const ENTRIES: &[Entry] = &[
    offline("parakeet-tdt-0.6b-v3", &["parakeet"], EUROPEAN, TDT, 627),
    offline("parakeet-tdt-0.6b-v2", &["parakeet-en"], ENGLISH, TDT, 618),
    offline("parakeet-tdt-1.1b", &[], ENGLISH, TDT, 1062),
    offline("parakeet-rnnt-0.6b", &[], ENGLISH, RNNT, 618),
    offline("parakeet-rnnt-1.1b", &[], ENGLISH, RNNT, 1062),
    offline("parakeet-ctc-0.6b", &[], ENGLISH, CTC, 609),
    offline("parakeet-ctc-1.1b", &[], ENGLISH, CTC, 1062),
    offline("parakeet-tdt_ctc-110m", &["parakeet-110m"], ENGLISH, TDT_CTC, 114),
    offline("parakeet-tdt_ctc-0.6b-ja", &[], JAPANESE, TDT_CTC, 620),
    offline("parakeet-tdt_ctc-1.1b", &[], ENGLISH, TDT_CTC, 1064),
    streaming("parakeet_realtime_eou_120m-v1", &["parakeet-eou"], ENGLISH, RNNT, 120),
    streaming("nemotron-speech-streaming-en-0.6b", &["nemotron"], ENGLISH, RNNT, 618),
    streaming("nemotron-3.5-asr-streaming-0.6b", &["nemotron-3.5"], LOCALES, RNNT, 641),
    streaming(
        "stt_en_fastconformer_hybrid_large_streaming_multi",
        &["fastconformer-multi"],
        ENGLISH,
        RNNT_CTC,
        114,
    ),
    streaming(
        "stt_en_fastconformer_hybrid_large_streaming_80ms",
        &["fastconformer-80ms"],
        ENGLISH,
        RNNT_CTC,
        114,
    ),
    streaming(
        "stt_en_fastconformer_hybrid_large_streaming_480ms",
        &["fastconformer-480ms"],
        ENGLISH,
        RNNT_CTC,
        114,
    ),
];

/// Sizes that can be had with random weights.
pub(super) const SHAPES: [Shape; fastconformer::SHAPES.len()] = shapes();

const fn shapes() -> [Shape; fastconformer::SHAPES.len()] {
    const FIRST: Shape =
        Shape { name: "", also: &[], task: Task::Hearing, family: Family::FastConformer, like: None };
    let mut shapes = [FIRST; fastconformer::SHAPES.len()];
    let mut i = 0;
    while i < shapes.len() {
        shapes[i].name = fastconformer::SHAPES[i];
        i += 1;
    }
    shapes
}
