//! What a caller asks of a listener.

use std::sync::Arc;

use voce_models::transducer::Ngram;

use crate::EngineError;

/// The widest beam.
pub const MAX_BEAM: usize = 32;
/// Most phrases to be preferred.
pub const MAX_HOTWORDS: usize = 10_000;

/// One stream of audio to listen to.
#[derive(Clone)]
pub struct ListenRequest {
    /// Milliseconds of audio per step, one of [`super::ListenerInfo::chunks_ms`]. None: whole utterances with
    /// offline models, the model's own chunk with others.
    pub chunk_ms: Option<u32>,
    /// Hypotheses kept; 1 takes the best label at each step.
    pub beam: usize,
    /// Readings of each utterance to tell, up to `beam`; 0 and 1 tell the best one only.
    pub nbest: usize,
    /// Phrases to prefer.
    pub hotwords: Vec<Hotword>,
    /// Language model over tokens.
    pub lm: Option<Arc<Ngram>>,
    /// Its weight.
    pub lm_weight: f32,
    /// Language, for models that take one.
    pub language: Option<String>,
    /// When utterances end.
    pub endpoint: Endpointing,
    /// Whether to tell what is not yet certain.
    pub partials: bool,
    /// Whether to tell after each step how much was decoded.
    pub progress: bool,
    /// Chunks that one step may take where more than one waits: 0 chooses what is fastest. The result is the
    /// same either way.
    pub chunks_per_step: usize,
}

impl Default for ListenRequest {
    fn default() -> Self {
        Self {
            chunk_ms: None,
            beam: 1,
            nbest: 0,
            hotwords: Vec::new(),
            lm: None,
            lm_weight: 0.3,
            language: None,
            endpoint: Endpointing::default(),
            partials: false,
            progress: false,
            chunks_per_step: 0,
        }
    }
}

/// A phrase to prefer.
#[derive(Clone, Debug, PartialEq)]
pub struct Hotword {
    /// The phrase.
    pub phrase: String,
    /// How much; 1 is usual.
    pub weight: f32,
}

/// When utterances end, besides where the sender or the model ends them. Time is that of the decoded audio, never
/// the clock's. The search starts anew after each end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endpointing {
    /// After speech and then so much silence.
    pub silence_ms: Option<u32>,
    /// After so long an utterance.
    pub max_ms: Option<u32>,
}

impl Endpointing {
    /// What suits live speech: 800 ms of silence, 30 s at most.
    pub fn live() -> Self {
        Self { silence_ms: Some(800), max_ms: Some(30_000) }
    }
}

impl ListenRequest {
    /// Refuses numbers that make no sense, naming them.
    pub(super) fn check(&self) -> Result<(), EngineError> {
        let bad = |what, value: String, rule| Err(EngineError::BadRequest { what, value, rule });
        if self.beam == 0 || self.beam > MAX_BEAM {
            return bad("beam", self.beam.to_string(), "use 1 to 32");
        }
        if self.nbest > self.beam {
            return bad("nbest", self.nbest.to_string(), "use no more than the beam");
        }
        if !(0.0..=100.0).contains(&self.lm_weight) {
            return bad("lm weight", self.lm_weight.to_string(), "use 0 to 100");
        }
        if self.hotwords.len() > MAX_HOTWORDS {
            return bad("hotwords", self.hotwords.len().to_string(), "use at most 10000 phrases");
        }
        if let Some(h) = self.hotwords.iter().find(|h| !h.weight.is_finite() || h.weight.abs() > 100.0) {
            return bad("hotword weight", format!("{} ({})", h.weight, h.phrase), "use -100 to 100");
        }
        if self.endpoint.silence_ms.is_some_and(|ms| !(80..=60_000).contains(&ms)) {
            let value = self.endpoint.silence_ms.unwrap_or_default();
            return bad("endpoint silence", format!("{value} ms"), "use 80 to 60000");
        }
        if self.endpoint.max_ms.is_some_and(|ms| !(1_000..=3_600_000).contains(&ms)) {
            let value = self.endpoint.max_ms.unwrap_or_default();
            return bad("longest utterance", format!("{value} ms"), "use 1000 to 3600000");
        }
        Ok(())
    }
}
