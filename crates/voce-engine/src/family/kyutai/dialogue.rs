//! Moshi from files.

use std::sync::Arc;

use voce_models::kyutai::moshi::{Moshi, MoshiParts};
use voce_models::kyutai::{dialogue_shape, random_weights};
use voce_models::mimi::{self, Mimi};
use voce_nn::{Loader, Precision};

use super::Files;
use crate::EngineError;
use crate::device::Place;
use crate::family::{OpenedDialogue, plain_tokenizer};
use crate::lane::default_threads;
use crate::store::catalogue::Shape;
use crate::store::{Store, Task};

/// Opens a dialogue model all of whose files are here.
pub(in crate::family) fn open(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedDialogue, EngineError> {
    let files = Files::find(store, reference)?;
    let tokenizer = files.tokenizer()?;
    // The codec hears what is given and says what is drawn.
    let codebooks = files.config.given().max(files.config.dep_q);
    let formats = place.formats(precision)?;
    let from = files.sources(store, place, formats, codebooks)?;
    let mimi = Mimi::load(&from.codec, &from.mimi, codebooks, formats)?;
    let parts = MoshiParts { mimi, config: files.config, tokenizer, formats };
    let silent = || EngineError::NotYet { id: reference.to_owned(), title: "dialogue model without a voice" };
    let model = Moshi::load(&mut place.exec(default_threads())?, &from.lm, parts)?.ok_or_else(silent)?;
    Ok(OpenedDialogue { dialogue: Arc::new(model), packed: from.packed })
}

/// A dialogue model of a published size with random weights, its codec included.
pub(in crate::family) fn random(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedDialogue, EngineError> {
    let unknown = || crate::unknown_shape(Task::Dialogue, shape.name);
    let (config, mimi) = dialogue_shape(shape.name).ok_or_else(unknown)?;
    let formats = place.formats(precision)?;
    let loader = |source| place.loader(Loader::new(source));
    let lm = loader(random_weights(&config, seed));
    let codebooks = config.given().max(config.dep_q);
    let mimi = Mimi::load(&loader(mimi::random_weights(seed)), &mimi, codebooks, formats)?;
    let tokenizer = plain_tokenizer(config.text_out());
    let parts = MoshiParts { config, tokenizer, mimi, formats };
    let model = Moshi::load(&mut place.exec(default_threads())?, &lm, parts)?.ok_or_else(unknown)?;
    Ok(OpenedDialogue { dialogue: Arc::new(model), packed: None })
}
