//! Mimi by itself, from files: its own file, a folder with it, or the codec of a Kyutai model.

use std::sync::Arc;

use voce_models::codec::Codec;
use voce_models::mimi::{KyutaiMimiConfig, Mimi, random_weights};
use voce_nn::{Loader, Precision};

use super::{Files, MimiFile};
use crate::EngineError;
use crate::device::Place;
use crate::store::{Identity, Store};

/// Opens a codec all of whose files are here, with its first `codebooks` codebooks or all of them.
pub(in crate::family) fn open(
    store: &Store,
    reference: &str,
    identity: &Identity,
    place: &Place,
    precision: Precision,
    codebooks: Option<usize>,
) -> Result<Arc<dyn Codec>, EngineError> {
    let file = match identity.task {
        None => MimiFile::find(store, reference)?,
        Some(_) => Files::find(store, reference)?.mimi,
    };
    let (weights, config) = file.open()?;
    let codebooks = check(codebooks, &config)?;
    let loader = place.loader(Loader::new(weights));
    Ok(Arc::new(Mimi::load(&loader, &config, codebooks, place.formats(precision)?)?))
}

/// The published codec with random weights.
pub(in crate::family) fn random(
    seed: u64,
    place: &Place,
    precision: Precision,
    codebooks: Option<usize>,
) -> Result<Arc<dyn Codec>, EngineError> {
    let config = KyutaiMimiConfig::published();
    let codebooks = check(codebooks, &config)?;
    let loader = place.loader(Loader::new(random_weights(seed)));
    Ok(Arc::new(Mimi::load(&loader, &config, codebooks, place.formats(precision)?)?))
}

fn check(codebooks: Option<usize>, config: &KyutaiMimiConfig) -> Result<usize, EngineError> {
    let has = config.quantizer.n_q;
    match codebooks {
        Some(n) if n == 0 || n > has => Err(EngineError::Codebooks { asked: n, has }),
        Some(n) => Ok(n),
        None => Ok(has),
    }
}
