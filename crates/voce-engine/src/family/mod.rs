//! Families: how the files of each become a model of a kind. One file a family; nothing else of the engine names one.

mod fastconformer;
mod plain_tokenizer;
mod pocket;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use voce_models::hearing::Hearing;
use voce_models::speech::Speech;
use voce_nn::{PackedCache, Precision};

use crate::EngineError;
use crate::device::Place;
use crate::store::catalogue::Shape;
use crate::store::{Family, Identity, Store, Task};

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

/// Opens a model that speaks; one that does not says what it is.
pub(crate) fn open_speech(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    let identity = store.identify(reference)?;
    identity.require(Task::Speech)?;
    match identity.family {
        Family::Pocket => pocket::open(store, reference, place, precision),
        Family::Kyutai | Family::Qwen | Family::FastConformer => Err(identity.not_yet()),
    }
}

/// A model that speaks, of a published size, with random weights.
pub(crate) fn random_speech(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedSpeech, EngineError> {
    match shape.family {
        Family::Pocket => pocket::random(shape, seed, place, precision),
        Family::Kyutai | Family::Qwen | Family::FastConformer => Err(Identity::of_shape(shape).not_yet()),
    }
}

/// A model that hears, as its files gave it.
pub(crate) struct OpenedHearing {
    pub hearing: Arc<dyn Hearing>,
    /// Packed weights that are to be kept.
    pub packed: Option<Arc<PackedCache>>,
}

/// Opens a model that hears; one that does not says what it is.
pub(crate) fn open_hearing(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedHearing, EngineError> {
    let identity = store.identify(reference)?;
    identity.require(Task::Hearing)?;
    match identity.family {
        Family::FastConformer => fastconformer::open(store, reference, place, precision),
        Family::Kyutai | Family::Qwen | Family::Pocket => Err(identity.not_yet()),
    }
}

/// A model that hears, of a published size, with random weights.
pub(crate) fn random_hearing(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedHearing, EngineError> {
    match shape.family {
        Family::FastConformer => fastconformer::random(shape, seed, place, precision),
        Family::Kyutai | Family::Qwen | Family::Pocket => Err(Identity::of_shape(shape).not_yet()),
    }
}

/// What a model that hears is, without weights.
pub fn describe_hearing(
    store: &Store,
    reference: &str,
) -> Result<voce_models::fastconformer::FastConformerConfig, EngineError> {
    fastconformer::describe(store, reference)
}

/// What a model that speaks is, without weights.
pub fn describe_speech(
    store: &Store,
    reference: &str,
) -> Result<voce_models::pocket::PocketConfig, EngineError> {
    pocket::describe(store, reference)
}
