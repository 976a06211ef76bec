//! Families: how the files of each become a model of a kind. One file a family; nothing else of the engine names one.

mod plain_tokenizer;
mod pocket;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use voce_models::speech::Speech;
use voce_nn::{PackedCache, Precision};

use crate::EngineError;
use crate::device::Place;
use crate::store::Store;

pub(crate) use plain_tokenizer::plain_tokenizer;

/// A model that speaks, as its files gave it.
pub(crate) struct OpenedSpeech {
    pub speech: Arc<dyn Speech>,
    pub shelf: Shelf,
    /// Packed weights that are to be kept.
    pub packed: Option<Arc<PackedCache>>,
}

/// Voices that come with a model as files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    pub files: BTreeMap<String, PathBuf>,
    /// The voice of requests that name none; it may not be here.
    pub default: Option<String>,
}

/// Opens a model that speaks.
pub(crate) fn open_speech(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    pocket::open(store, reference, place, precision)
}

/// A model that speaks, of a published size, with random weights.
pub(crate) fn random_speech(
    shape: &str,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    pocket::random(shape, seed, place, precision).unwrap_or_else(|| {
        Err(EngineError::BadShape { asked: shape.to_owned(), has: speech_shapes().collect() })
    })
}

/// Names of [`random_speech`]'s shapes.
pub(crate) fn speech_shapes() -> impl Iterator<Item = &'static str> {
    pocket::SHAPES.iter().map(|(name, _)| *name)
}

/// What a model that speaks is, without weights.
pub fn describe_speech(
    store: &Store,
    reference: &str,
) -> Result<voce_models::pocket::PocketConfig, EngineError> {
    pocket::describe(store, reference)
}
