//! Search for the labels of a recogniser's frames: transducers (RNN-T, TDT) and CTC, greedy and by beams, for
//! many streams at once.
//!
//! A [`Decoder`] is the weights, a [`SearchState`] what a stream knows (a value that the session owns), a
//! [`Search`] what steps many streams together: their predictors and joints run as batches, and what predictors
//! know stays with it, on its device. What a stream gives never depends on which others run beside it, nor on how
//! its frames are cut into steps.

mod arpa;
mod bank;
mod beam;
mod boost;
mod ctc_beam;
mod ctc_greedy;
mod decoder;
mod device_beam;
mod device_greedy;
mod fusion;
mod greedy;
mod hypothesis;
mod malsd;
mod modified_beam;
mod ngram;
mod options;
mod prune;
mod repeats;
mod search;
mod snapshot;
mod state;

pub use crate::hearing::Token;
pub use arpa::ArpaError;
pub use boost::{Boost, BoostError, BoostRule, Completion, MAX_BOOST_TOKENS};
pub use decoder::Decoder;
pub(crate) use device_greedy::LOGITS;
pub use ngram::Ngram;
pub use options::{BlankScore, MAX_BEAM, Method, Pruning, RepeatGuard, SearchError, SearchOptions};
pub use search::Search;
pub use snapshot::SearchSnapshotError;
pub use state::SearchState;
pub use voce_runtime::Confidence;

/// One reading of an utterance.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// Its labels.
    pub tokens: Vec<Token>,
    /// Logarithm of its probability, with what phrases and language model added.
    pub score: f64,
    /// The score per label (and the end), by which a transducer's readings are ranked; CTC's are by score.
    pub normalized: f64,
}
