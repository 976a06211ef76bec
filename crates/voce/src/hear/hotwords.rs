//! A file of phrases to prefer: one a line, a tab and a weight where it is not 1.

use std::path::Path;

use voce_engine::listener::Hotword;

use crate::failure::{Failure, Outcome};

/// The largest file that is read.
const MAX_BYTES: u64 = 4 << 20;

/// Reads the phrases; empty lines and those that begin with `#` are left out.
pub(crate) fn read(path: &Path) -> Outcome<Vec<Hotword>> {
    let name = path.display();
    let size = std::fs::metadata(path).map_err(|e| Failure::failed(format!("{name}: {e}")))?.len();
    if size > MAX_BYTES {
        return Err(Failure::usage(format!("{name}: larger than {MAX_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| Failure::failed(format!("{name}: {e}")))?;
    parse(&text).map_err(|(line, e)| Failure::usage(format!("{name}, line {line}: {e}")))
}

fn parse(text: &str) -> Result<Vec<Hotword>, (usize, &'static str)> {
    let mut phrases = Vec::new();
    for (i, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (phrase, weight) = match line.rsplit_once('\t') {
            Some((phrase, weight)) => {
                let weight =
                    weight.trim().parse().map_err(|_| (i + 1, "the weight after the tab is no number"))?;
                (phrase.trim(), weight)
            }
            None => (line, 1.0),
        };
        phrases.push(Hotword { phrase: phrase.to_owned(), weight });
    }
    Ok(phrases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_and_weights() {
        let got = parse("# names\nAda Lovelace\n\nBabbage\t2.5\n").unwrap();
        let want = [("Ada Lovelace", 1.0), ("Babbage", 2.5)];
        let want = want.map(|(phrase, weight)| Hotword { phrase: phrase.into(), weight });
        assert_eq!(got, want);
        assert_eq!(parse("a\nb\tc").unwrap_err().0, 2);
    }
}
