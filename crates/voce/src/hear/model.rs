//! Which recogniser is used when none is named.

use voce_engine::store::Store;

use crate::embedded;
use crate::failure::{Failure, Outcome};

/// Recognisers that are looked for, best first.
const PREFERRED: [&str; 3] = ["nemotron", "parakeet", "fastconformer-multi"];

/// The recogniser's reference: the one asked for, else the first that is here. The built-in one is laid out.
pub(crate) fn reference(store: &Store, asked: Option<&str>) -> Outcome<String> {
    if let Some(model) = asked {
        embedded::provide(store, model)?;
        return Ok(model.to_owned());
    }
    choose(store)?.ok_or_else(|| {
        Failure::usage(
            "no recogniser is here: fetch one with `voce pull nemotron`, give --model DIR|FILE.nemo, or build with `--features nano`",
        )
    })
}

/// The best recogniser that was pulled, else the built-in one, where there is one.
pub(crate) fn choose(store: &Store) -> Outcome<Option<String>> {
    let pulled = PREFERRED.into_iter().find(|name| store.find(name).is_ok());
    let Some(name) = pulled.or_else(|| embedded::find(embedded::EAR).map(|m| m.name)) else {
        return Ok(None);
    };
    embedded::provide(store, name)?;
    Ok(Some(name.to_owned()))
}
