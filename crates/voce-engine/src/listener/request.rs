//! What a caller asks of a listener.

use std::sync::Arc;

use voce_models::hearing::TrackRequest;
use voce_models::transducer::Ngram;

use crate::EngineError;

pub use voce_models::hearing::{Hotword, MAX_BEAM, MAX_HOTWORDS};

/// One stream of audio to listen to.
#[derive(Clone)]
#[non_exhaustive]
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
    /// Language, one of [`super::ListenerInfo::languages`] in any spelling.
    pub language: Option<String>,
    /// When utterances end.
    pub endpoint: Endpointing,
    /// Whether to tell what is not yet certain.
    pub partials: bool,
    /// Whether to tell after each step how much was decoded.
    pub progress: bool,
    /// Whether to tell how probable pauses are, where the model knows.
    pub pauses: bool,
    /// Whether to tell where words end, apart from the words, where the model knows.
    pub word_ends: bool,
    /// Whether to tell every token that was drawn, of models that draw one in every step.
    pub drawn: bool,
    /// How freely tokens are drawn, for models that draw them; 0 takes the best, and the model's own where absent.
    pub temperature: Option<f32>,
    /// Of the random numbers they are drawn by.
    pub seed: Option<u64>,
    /// Whether soft speech is raised, by up to 40 dB, before it is heard; the [listener's](super::ListenerOptions::gain)
    /// choice where absent. Speech that is as loud as usual is left as it is, bit for bit.
    pub gain: Option<bool>,
    /// Chunks that one step may take where more than one waits: 0 chooses what is fastest. The result is the
    /// same either way.
    pub chunks_per_step: usize,
}

voce_models::setters! { ListenRequest {
    with_chunk_ms(chunk_ms: Option<u32>),
    with_beam(beam: usize),
    with_nbest(nbest: usize),
    with_hotwords(hotwords: Vec<Hotword>),
    with_lm(lm: Option<Arc<Ngram>>),
    with_lm_weight(lm_weight: f32),
    with_language(language: Option<String>),
    with_endpoint(endpoint: Endpointing),
    with_partials(partials: bool),
    with_progress(progress: bool),
    with_pauses(pauses: bool),
    with_word_ends(word_ends: bool),
    with_drawn(drawn: bool),
    with_temperature(temperature: Option<f32>),
    with_seed(seed: Option<u64>),
    with_gain(gain: Option<bool>),
    with_chunks_per_step(chunks_per_step: usize),
} }

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
            pauses: false,
            word_ends: false,
            drawn: false,
            temperature: None,
            seed: None,
            gain: None,
            chunks_per_step: 0,
        }
    }
}

/// When utterances end, besides where the sender or the model ends them. Time is that of the decoded audio, never
/// the clock's. An end is a report: what is heard after it is what would have been heard without it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Endpointing {
    /// After speech and then so much silence, in tokens and in the signal: 320 ms at least with models whose tokens come after
    /// their audio.
    pub silence_ms: Option<u32>,
    /// After so long an utterance.
    pub max_ms: Option<u32>,
    /// Where the model foresees a pause of at least so long after a word; of models that foresee none, after so much
    /// silence.
    pub pause_ms: Option<u32>,
}

voce_models::setters! { Endpointing {
    with_silence_ms(silence_ms: Option<u32>),
    with_max_ms(max_ms: Option<u32>),
    with_pause_ms(pause_ms: Option<u32>),
} }

impl Endpointing {
    /// What suits live speech: 800 ms of silence, 30 s at most.
    pub fn live() -> Self {
        Self { silence_ms: Some(800), max_ms: Some(30_000), pause_ms: None }
    }
}

impl ListenRequest {
    /// What of it the model decides.
    pub(super) fn track(&self) -> TrackRequest<'_> {
        TrackRequest {
            chunk_ms: self.chunk_ms,
            language: self.language.as_deref(),
            beam: self.beam,
            nbest: self.nbest,
            hotwords: &self.hotwords,
            lm: self.lm.as_ref(),
            lm_weight: self.lm_weight,
            temperature: self.temperature,
            seed: self.seed,
        }
    }

    /// Refuses numbers of what the engine decides that make no sense, naming them.
    pub(super) fn check(&self) -> Result<(), EngineError> {
        let bad = |what, value: String, rule| Err(EngineError::BadRequest { what, value, rule });
        if self.endpoint.silence_ms.is_some_and(|ms| !(80..=60_000).contains(&ms)) {
            let value = self.endpoint.silence_ms.unwrap_or_default();
            return bad("endpoint silence", format!("{value} ms"), "use 80 to 60000");
        }
        if self.endpoint.pause_ms.is_some_and(|ms| !(80..=60_000).contains(&ms)) {
            let value = self.endpoint.pause_ms.unwrap_or_default();
            return bad("endpoint pause", format!("{value} ms"), "use 80 to 60000");
        }
        if self.endpoint.max_ms.is_some_and(|ms| !(1_000..=3_600_000).contains(&ms)) {
            let value = self.endpoint.max_ms.unwrap_or_default();
            return bad("longest utterance", format!("{value} ms"), "use 1000 to 3600000");
        }
        Ok(())
    }
}
