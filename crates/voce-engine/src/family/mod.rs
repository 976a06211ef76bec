//! Families: how the files of each become a model of a kind. One file a family; nothing else of the engine names one.

mod fastconformer;
mod kyutai;
mod languages;
mod plain_tokenizer;
mod pocket;
mod qwen;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use voce_models::codec::Codec;
use voce_models::dialogue::Dialogue;
use voce_models::hearing::Hearing;
use voce_models::speech::Speech;
use voce_nn::{PackedCache, Precision};

use crate::EngineError;
use crate::describe::Description;
use crate::device::Place;
use crate::store::catalogue::Shape;
use crate::store::{Entry, Family, Identity, Store, Task};

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
        Family::Qwen => qwen::open(store, reference, place, precision),
        Family::Kyutai => kyutai::speech::open(store, reference, place, precision),
        Family::FastConformer => Err(identity.not_yet()),
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
        Family::Qwen => qwen::random(shape, seed, place, precision),
        Family::Kyutai => kyutai::speech::random(shape, seed, place, precision),
        Family::FastConformer => Err(Identity::of_shape(shape).not_yet()),
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
        Family::Kyutai => kyutai::hearing::open(store, reference, place, precision),
        Family::Qwen | Family::Pocket => Err(identity.not_yet()),
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
        Family::Kyutai => kyutai::hearing::random(shape, seed, place, precision),
        Family::Qwen | Family::Pocket => Err(Identity::of_shape(shape).not_yet()),
    }
}

/// A model that holds conversations, as its files gave it.
pub(crate) struct OpenedDialogue {
    pub dialogue: Arc<dyn Dialogue>,
    /// Packed weights that are to be kept.
    pub packed: Option<Arc<PackedCache>>,
}

/// Opens a model that holds conversations; one that does not says what it is.
pub(crate) fn open_dialogue(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedDialogue, EngineError> {
    let identity = store.identify(reference)?;
    identity.require(Task::Dialogue)?;
    match identity.family {
        Family::Kyutai => kyutai::dialogue::open(store, reference, place, precision),
        Family::FastConformer | Family::Qwen | Family::Pocket => Err(identity.not_yet()),
    }
}

/// A model that holds conversations, of a published size, with random weights.
pub(crate) fn random_dialogue(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedDialogue, EngineError> {
    match shape.family {
        Family::Kyutai => kyutai::dialogue::random(shape, seed, place, precision),
        Family::FastConformer | Family::Qwen | Family::Pocket => Err(Identity::of_shape(shape).not_yet()),
    }
}

/// Opens the codec of a model, or a codec by itself; a model without one says what it is.
pub(crate) fn open_codec(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
    codebooks: Option<usize>,
) -> Result<Arc<dyn Codec>, EngineError> {
    let identity = store.identify(reference)?;
    match identity.family {
        Family::Qwen => {
            let codec = qwen::speech_tokenizer::open(store, reference, place, precision)?;
            let has = codec.info().codebooks;
            match codebooks {
                Some(asked) if asked != has => Err(EngineError::Codebooks { asked, has }),
                _ => Ok(codec),
            }
        }
        Family::Kyutai => kyutai::codec::open(store, reference, &identity, place, precision, codebooks),
        Family::Pocket | Family::FastConformer => {
            Err(EngineError::NoCodec { id: identity.id, title: identity.title })
        }
    }
}

/// The codec of a published size with random weights; only Mimi's has one.
pub(crate) fn random_codec(
    seed: u64,
    place: &Place,
    precision: Precision,
    codebooks: Option<usize>,
) -> Result<Arc<dyn Codec>, EngineError> {
    kyutai::codec::random(seed, place, precision, codebooks)
}

/// Tells what a model on this machine is, without loading its weights.
pub(crate) fn describe_files(
    description: &mut Description,
    store: &Store,
    reference: &str,
) -> Result<(), EngineError> {
    match description.identity.family {
        Family::Pocket => pocket::describe::of_files(description, store, reference),
        Family::FastConformer => fastconformer::describe::of_files(description, store, reference),
        Family::Qwen => qwen::describe::of_files(description, store, reference),
        Family::Kyutai => kyutai::describe::of_files(description, store, reference),
    }
}

/// Tells what the catalogue knows of a model whose entry has more than its name.
pub(crate) fn describe_entry(description: &mut Description, entry: &Entry) -> Result<(), EngineError> {
    match entry.family {
        Family::Pocket => pocket::describe::of_entry(description, entry),
        Family::Qwen => {
            qwen::describe::of_entry(description, entry);
            Ok(())
        }
        Family::Kyutai => {
            kyutai::describe::of_entry(description, entry);
            Ok(())
        }
        Family::FastConformer => Ok(()),
    }
}

/// Tells what random weights of a shape would be.
pub(crate) fn describe_shape(description: &mut Description, shape: &Shape) -> Result<(), EngineError> {
    match (shape.family, description.entry) {
        (Family::FastConformer, _) => fastconformer::describe::of_shape(description, shape.name),
        (Family::Qwen, _) => {
            qwen::describe::of_shape(description, shape.name);
            Ok(())
        }
        (Family::Kyutai, _) => {
            kyutai::describe::of_shape(description, shape);
            Ok(())
        }
        (_, Some(entry)) => describe_entry(description, entry),
        (_, None) => Ok(()),
    }
}
