//! Which recogniser is used when none is named.

use voce_engine::store::Store;

use crate::failure::{Failure, Outcome};

/// Recognisers that are looked for, best first.
const PREFERRED: [&str; 3] = ["nemotron", "parakeet", "fastconformer-multi"];

/// The recogniser's reference: the one asked for, else the first that is here.
pub(crate) fn reference(store: &Store, asked: Option<&str>) -> Outcome<String> {
    if let Some(model) = asked {
        return Ok(model.to_owned());
    }
    let here = PREFERRED.into_iter().find(|name| store.find(name).is_ok());
    here.map(str::to_owned).ok_or_else(|| {
        Failure::usage(
            "no recogniser is here: fetch one with `voce pull nemotron`, or give --model DIR|FILE.nemo",
        )
    })
}
