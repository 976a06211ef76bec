//! The files that a configuration names: on this disk, with variables in their paths, or on the hub, fetched if need be.

use std::path::PathBuf;

use voce_engine::store::{PullOptions, Reference, Store, StoreError};

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::{interrupt, pull};

/// Replaces `$NAME` by what the environment has; nothing where it has none, as moshi-server does.
pub(crate) fn with_variables(text: &str, variable: impl Fn(&str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find('$') {
        out += &rest[..at];
        let after = &rest[at + 1..];
        let is_name =
            |(i, c): &(usize, char)| *c == '_' || c.is_ascii_alphabetic() || (*i > 0 && c.is_ascii_digit());
        let length = after.char_indices().take_while(is_name).count();
        if length == 0 {
            out.push('$');
        } else {
            out += &variable(&after[..length]).unwrap_or_default();
        }
        rest = &after[length..];
    }
    out + rest
}

/// Fetches what is missing.
pub(crate) struct Fetcher<'a> {
    pub(crate) console: Console,
    pub(crate) store: &'a Store,
}

impl Fetcher<'_> {
    /// The file that a configuration names.
    pub(crate) fn file(&self, text: &str) -> Outcome<PathBuf> {
        let path = match text.strip_prefix("hf://") {
            Some(rest) if rest.split('/').count() < 3 => {
                return Err(Failure::usage(format!("'{text}' names no file: use hf://owner/repo/path")));
            }
            Some(_) => self.hub(text)?,
            None => PathBuf::from(with_variables(text, |name| std::env::var(name).ok())),
        };
        match path.is_file() {
            true => Ok(path),
            false => Err(Failure::usage(format!("{}: no such file", path.display()))),
        }
    }

    /// A file or a folder of the hub.
    pub(crate) fn hub(&self, text: &str) -> Outcome<PathBuf> {
        let reference = Reference::parse(text)?;
        match self.here(&reference) {
            Ok(path) => return Ok(path),
            Err(StoreError::NotPulled { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.console.note(&format!("fetching {text}"));
        pull::fetch(self.console, self.store, &reference, &PullOptions::default())?;
        interrupt::check()?;
        Ok(self.here(&reference)?)
    }

    fn here(&self, reference: &Reference) -> Result<PathBuf, StoreError> {
        let located = self.store.locate(reference)?;
        let names_file = matches!(reference, Reference::Hub(place) if place.path.is_some());
        Ok(match located.weights.first().filter(|_| names_file) {
            Some(file) => file.clone(),
            None => located.root,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_paths() {
        let of = |text: &str| {
            with_variables(text, |name| match name {
                "HOME" => Some("/i/live/here".into()),
                "A_1" => Some("é".into()),
                _ => None,
            })
        };
        assert_eq!(of("$HOME/x"), "/i/live/here/x");
        assert_eq!(of("/a/$A_1/$NOT/b$HOME"), "/a/é//b/i/live/here");
        assert_eq!(of("no $ and $1 and $"), "no $ and $1 and $");
    }
}
