//! What a caller asks of a model that hears, as far as the model has a say in it.

use std::sync::Arc;

use crate::transducer::Ngram;

pub use crate::transducer::MAX_BEAM;

/// Most phrases to be preferred.
pub const MAX_HOTWORDS: usize = 10_000;
/// Weights of language models and phrases are no larger.
const MAX_WEIGHT: f32 = 100.0;
/// Tokens are drawn no more freely.
const MAX_TEMPERATURE: f32 = 2.0;

/// A phrase to prefer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hotword {
    /// The phrase.
    pub phrase: String,
    /// How much; 1 is usual.
    pub weight: f32,
}

/// What a stream asks of a model.
#[derive(Clone, Copy)]
pub struct TrackRequest<'a> {
    /// Milliseconds of audio per chunk; the model's own where absent.
    pub chunk_ms: Option<u32>,
    /// Language, one of those that the model [hears](super::HearingInfo::languages).
    pub language: Option<&'a str>,
    /// Hypotheses kept; 1 takes the best token at each step.
    pub beam: usize,
    /// Readings of each utterance to tell, up to `beam`; 0 and 1 tell the best one only.
    pub nbest: usize,
    /// Phrases to prefer.
    pub hotwords: &'a [Hotword],
    /// Language model over tokens.
    pub lm: Option<&'a Arc<Ngram>>,
    /// Its weight.
    pub lm_weight: f32,
    /// How freely tokens are drawn, for models that draw them; 0 takes the best, and the model's own where absent.
    pub temperature: Option<f32>,
    /// Of the random numbers they are drawn by.
    pub seed: Option<u64>,
}

impl TrackRequest<'_> {
    /// Refuses numbers that make no sense to any model, naming them.
    pub fn check(&self) -> Result<(), HearingError> {
        let bad = |what, value: String, rule| Err(HearingError::Value { what, value, rule });
        if self.beam == 0 || self.beam > MAX_BEAM {
            return bad("beam", self.beam.to_string(), "use 1 to 32");
        }
        if self.nbest > self.beam {
            return bad("nbest", self.nbest.to_string(), "use no more than the beam");
        }
        if !(0.0..=MAX_WEIGHT).contains(&self.lm_weight) {
            return bad("lm weight", self.lm_weight.to_string(), "use 0 to 100");
        }
        if self.hotwords.len() > MAX_HOTWORDS {
            return bad("hotwords", self.hotwords.len().to_string(), "use at most 10000 phrases");
        }
        if self.temperature.is_some_and(|t| !(0.0..=MAX_TEMPERATURE).contains(&t)) {
            let value = self.temperature.unwrap_or_default().to_string();
            return bad("temperature", value, "use 0 to 2");
        }
        let heavy = |h: &&Hotword| !h.weight.is_finite() || h.weight.abs() > MAX_WEIGHT;
        if let Some(h) = self.hotwords.iter().find(heavy) {
            return bad("hotword weight", format!("{} ({})", h.weight, h.phrase), "use -100 to 100");
        }
        Ok(())
    }
}

/// What a model that hears cannot do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HearingError {
    /// A number or a phrase is out of range.
    #[error("{what} is {value}: {rule}")]
    Value {
        /// Which.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        rule: &'static str,
    },
    /// The family has no such option.
    #[error("{family} takes no {option}: leave it out, or use a model that has it")]
    Unsupported {
        /// The family.
        family: &'static str,
        /// The option.
        option: &'static str,
    },
    /// The model cannot step in chunks of this length.
    #[error("chunks of {asked} ms: this model has {has:?}")]
    Chunk {
        /// Milliseconds asked for.
        asked: u32,
        /// Those it can do; none if it takes whole utterances.
        has: Vec<u32>,
    },
    /// The model does not hear this language.
    #[error("language '{asked}': this model knows {}", .has.join(", "))]
    Language {
        /// As asked for.
        asked: String,
        /// Those it hears; none where that is not known.
        has: Vec<String>,
    },
    /// Phrases or a language model cannot be used.
    #[error("{0}")]
    Search(String),
    /// A stream's saved state does not fit.
    #[error("{0}")]
    Snapshot(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_checked_at_their_limits() {
        let plain = TrackRequest {
            chunk_ms: None,
            language: None,
            beam: 1,
            nbest: 0,
            hotwords: &[],
            lm: None,
            lm_weight: 0.3,
            temperature: None,
            seed: None,
        };
        let widest = TrackRequest { beam: MAX_BEAM, nbest: MAX_BEAM, lm_weight: 100.0, ..plain };
        assert!(widest.check().is_ok());
        fn refused(r: TrackRequest<'_>, word: &str) {
            let text = r.check().unwrap_err().to_string();
            assert!(text.contains(word), "{text}");
        }
        refused(TrackRequest { beam: 0, ..plain }, "beam");
        refused(TrackRequest { beam: MAX_BEAM + 1, ..plain }, "beam");
        refused(TrackRequest { nbest: 2, ..plain }, "nbest");
        refused(TrackRequest { lm_weight: 100.5, ..plain }, "lm weight");
        refused(TrackRequest { lm_weight: f32::NAN, ..plain }, "lm weight");
        assert!(TrackRequest { temperature: Some(2.0), ..plain }.check().is_ok());
        refused(TrackRequest { temperature: Some(2.1), ..plain }, "temperature");
        refused(TrackRequest { temperature: Some(f32::NAN), ..plain }, "temperature");
        let words = |weight, count| vec![Hotword { phrase: "rain".into(), weight }; count];
        assert!(TrackRequest { hotwords: &words(-100.0, MAX_HOTWORDS), ..plain }.check().is_ok());
        refused(TrackRequest { hotwords: &words(1.0, MAX_HOTWORDS + 1), ..plain }, "hotwords");
        refused(TrackRequest { hotwords: &words(100.5, 1), ..plain }, "rain");
        refused(TrackRequest { hotwords: &words(f32::INFINITY, 1), ..plain }, "rain");
    }
}
