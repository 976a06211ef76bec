//! Which recogniser is used when none is named.

use voce_engine::store::{Store, Task, catalogue};

use crate::embedded;
use crate::failure::{Failure, Outcome};

/// The catalogue's recogniser to use when none is named.
pub(super) fn best() -> &'static str {
    catalogue::preferred(Task::Hearing).first().copied().unwrap_or_default()
}

/// The recogniser's reference: the one asked for, else the first that is here. The built-in one is laid out.
pub(crate) fn reference(store: &Store, asked: Option<&str>) -> Outcome<String> {
    if let Some(model) = asked {
        embedded::provide(store, model)?;
        return Ok(model.to_owned());
    }
    choose(store)?.ok_or_else(|| {
        Failure::usage(format!(
            "no recogniser is here: fetch one with `voce pull {}`, give --model DIR|FILE.nemo, or build with `--features nano`",
            best()
        ))
    })
}

/// The best recogniser that was pulled, else the built-in one, where there is one.
pub(crate) fn choose(store: &Store) -> Outcome<Option<String>> {
    let Some(name) = store.preferred(Task::Hearing).or_else(|| embedded::find(embedded::EAR).map(|m| m.name))
    else {
        return Ok(None);
    };
    embedded::provide(store, name)?;
    Ok(Some(name.to_owned()))
}
