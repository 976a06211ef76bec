//! Kyutai's recognisers from files, and with random weights.

use std::sync::Arc;

use voce_models::kyutai::stt::{self, Stt, SttParts};
use voce_models::mimi;
use voce_nn::{Loader, Precision};

use super::Files;
use crate::EngineError;
use crate::device::Place;
use crate::family::{OpenedHearing, plain_tokenizer};
use crate::lane::default_threads;
use crate::store::catalogue::Shape;
use crate::store::{Store, Task};

/// Opens a recogniser all of whose files are here.
pub(in crate::family) fn open(
    store: &Store,
    reference: &str,
    place: &Place,
    precision: Precision,
) -> Result<OpenedHearing, EngineError> {
    let files = Files::find(store, reference)?;
    files.check_hearing()?;
    let tokenizer = files.tokenizer()?;
    let formats = place.formats(precision)?;
    let from = files.sources(store, place, formats, files.config.n_q)?;
    let parts = SttParts {
        config: files.config,
        mimi: from.mimi,
        tokenizer,
        delay: None,
        temperature: None,
        precision,
        formats,
        languages: files.languages,
    };
    let model = Stt::load(parts, &from.lm, &from.codec, &mut place.exec(default_threads())?)?;
    Ok(OpenedHearing { hearing: Arc::new(model), packed: from.packed })
}

/// A recogniser of a published size with random weights, its codec included.
pub(in crate::family) fn random(
    shape: &Shape,
    seed: u64,
    place: &Place,
    precision: Precision,
) -> Result<OpenedHearing, EngineError> {
    let (config, mimi) =
        stt::shape(shape.name).ok_or_else(|| crate::unknown_shape(Task::Hearing, shape.name))?;
    let loader = |source| place.loader(Loader::new(source));
    let parts = SttParts {
        tokenizer: plain_tokenizer(config.text_out()),
        config,
        mimi,
        delay: None,
        temperature: None,
        precision,
        formats: place.formats(precision)?,
        languages: Vec::new(),
    };
    let (lm, codec) = (loader(stt::random_weights(seed)), loader(mimi::random_weights(seed)));
    let model = Stt::load(parts, &lm, &codec, &mut place.exec(default_threads())?)?;
    Ok(OpenedHearing { hearing: Arc::new(model), packed: None })
}
