//! Published recognisers: short names for repositories of the hub.
//!
//! A name stands for the repository's main branch. A pull takes the safetensors layout where the repository has it, and
//! the `.nemo` archive where not.

use super::reference::{DEFAULT_REVISION, HubRef, RepoId};

/// A published recogniser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recogniser {
    /// The name, as in `voce pull NAME`.
    pub alias: &'static str,
    /// Shorter names.
    pub also: &'static [&'static str],
    owner: &'static str,
    repo: &'static str,
    /// Languages heard, in lower-case English.
    pub languages: &'static str,
    /// What turns frames into labels.
    pub head: &'static str,
    /// Whether it hears chunk by chunk.
    pub streaming: bool,
    /// Millions of parameters.
    pub millions: u64,
}

const fn nvidia(
    alias: &'static str,
    also: &'static [&'static str],
    languages: &'static str,
    head: &'static str,
    streaming: bool,
    millions: u64,
) -> Recogniser {
    Recogniser { alias, also, owner: "nvidia", repo: alias, languages, head, streaming, millions }
}

const EUROPEAN: &str = "25 european languages";
const LOCALES: &str = "40 locales";

/// Every recogniser known by name.
pub const RECOGNISERS: [Recogniser; 16] = [
    nvidia("parakeet-tdt-0.6b-v3", &["parakeet"], EUROPEAN, "tdt", false, 627),
    nvidia("parakeet-tdt-0.6b-v2", &["parakeet-en"], "english", "tdt", false, 618),
    nvidia("parakeet-tdt-1.1b", &[], "english", "tdt", false, 1062),
    nvidia("parakeet-rnnt-0.6b", &[], "english", "rnnt", false, 618),
    nvidia("parakeet-rnnt-1.1b", &[], "english", "rnnt", false, 1062),
    nvidia("parakeet-ctc-0.6b", &[], "english", "ctc", false, 609),
    nvidia("parakeet-ctc-1.1b", &[], "english", "ctc", false, 1062),
    nvidia("parakeet-tdt_ctc-110m", &["parakeet-110m"], "english", "tdt and ctc", false, 114),
    nvidia("parakeet-tdt_ctc-0.6b-ja", &[], "japanese", "tdt and ctc", false, 620),
    nvidia("parakeet-tdt_ctc-1.1b", &[], "english", "tdt and ctc", false, 1064),
    nvidia("parakeet_realtime_eou_120m-v1", &["parakeet-eou"], "english", "rnnt", true, 120),
    nvidia("nemotron-speech-streaming-en-0.6b", &["nemotron"], "english", "rnnt", true, 618),
    nvidia("nemotron-3.5-asr-streaming-0.6b", &["nemotron-3.5"], LOCALES, "rnnt", true, 641),
    nvidia(
        "stt_en_fastconformer_hybrid_large_streaming_multi",
        &["fastconformer-multi"],
        "english",
        "rnnt and ctc",
        true,
        114,
    ),
    nvidia(
        "stt_en_fastconformer_hybrid_large_streaming_80ms",
        &["fastconformer-80ms"],
        "english",
        "rnnt and ctc",
        true,
        114,
    ),
    nvidia(
        "stt_en_fastconformer_hybrid_large_streaming_480ms",
        &["fastconformer-480ms"],
        "english",
        "rnnt and ctc",
        true,
        114,
    ),
];

impl Recogniser {
    /// The recogniser with this alias or short name.
    pub fn find(name: &str) -> Option<&'static Self> {
        RECOGNISERS.iter().find(|known| known.alias == name || known.also.contains(&name))
    }

    /// Its repository.
    pub fn repo(&self) -> RepoId {
        RepoId::fixed(self.owner, self.repo)
    }

    /// Where it is on the hub.
    pub fn place(&self) -> HubRef {
        HubRef { repo: self.repo(), path: None, revision: DEFAULT_REVISION.to_owned() }
    }

    /// About how many bytes its weights have: four a parameter.
    pub fn weight_bytes(&self) -> u64 {
        4_000_000 * self.millions
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Reference, catalogue};
    use super::*;

    #[test]
    fn names_are_unique_and_lead_to_repositories() {
        let mut names: Vec<&str> =
            RECOGNISERS.iter().flat_map(|r| std::iter::once(r.alias).chain(r.also.iter().copied())).collect();
        for name in &names {
            let found = Recogniser::find(name).unwrap();
            assert!(RepoId::new(found.owner, found.repo).is_some(), "{name}");
            assert!(catalogue::find(name).is_none(), "{name}");
            assert_eq!(Reference::parse(name).unwrap(), Reference::Hub(found.place()), "{name}");
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(catalogue::near("parakeet-tdt-0.6b-v4")[0], "parakeet-tdt-0.6b-v2");
    }
}
