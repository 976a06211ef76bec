//! The models that come inside the binary, with failures as commands tell them.

use voce_engine::store::Store;
pub(crate) use voce_nano::{EAR, Embedded, VOICE, all, behind, find};

use voce_nano::NanoError;

use crate::failure::{Failure, Outcome};

/// Lays the model out if `reference` names one of the binary's and its folder is not yet whole.
pub(crate) fn provide(store: &Store, reference: &str) -> Outcome {
    voce_nano::provide(store, reference).map_err(|error| match error {
        NanoError::Without(_) | NanoError::Nothing { .. } => Failure::usage(error.to_string()),
        NanoError::File(error) => error.into(),
        NanoError::Folder { .. } => Failure::failed(error.to_string()),
    })
}
