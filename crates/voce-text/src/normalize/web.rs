//! Web and mail addresses, read out sign by sign.

use std::borrow::Cow;

use super::rewrite::{Found, pattern, rewrite};

const DOMAINS: &str =
    "com|org|net|edu|gov|mil|int|io|ai|dev|app|co|info|biz|me|tv|uk|us|de|fr|eu|ca|au|nz|ie|in|jp|ch|nl";

/// Mail addresses, then web addresses with or without a scheme.
pub(super) fn addresses(text: Cow<'_, str>) -> Cow<'_, str> {
    let mail = pattern!(r"[A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}");
    let text = rewrite(text, mail, |found| Some(read(found.text(0), "")));
    let scheme = pattern!(r"(?i)\b(?:https?://|ftp://|www\.)[^\s<>\x22]+");
    let text = rewrite(text, scheme, say);
    let bare =
        pattern!(r"(?i)\b[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*\.(?:", DOMAINS, r")(?:/[^\s<>\x22]*)?\b/?");
    rewrite(text, bare, |found| if is_bare_address(found) { say(found) } else { None })
}

/// `Yes.In` is a missing space, and `U.S.` is no host: a bare address is lower case, with a name of some length.
fn is_bare_address(found: &Found<'_>) -> bool {
    let host = found.text(0).split('/').next().unwrap_or_default();
    let (name, domain) = host.rsplit_once('.').unwrap_or_default();
    let lower = domain.chars().all(|letter| letter.is_ascii_lowercase());
    let named = name.chars().filter(|letter| letter.is_ascii_alphabetic()).count() >= 2;
    lower && named && found.previous() != Some('@') && !found.next().is_some_and(char::is_alphanumeric)
}

fn say(found: &Found<'_>) -> Option<String> {
    let whole = found.text(0);
    let address =
        whole.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '\'', '\u{201d}', '\u{2019}']);
    let rest = &whole[address.len()..];
    let bare = address.split_once("://").map_or(address, |(_, bare)| bare);
    Some(read(bare.trim_end_matches('/'), rest))
}

fn read(address: &str, rest: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    for letter in address.chars() {
        let name = match letter {
            '.' => "dot",
            '/' => "slash",
            '-' => "dash",
            '_' => "underscore",
            '?' => "question mark",
            '=' => "equals",
            '&' => "and",
            '#' => "hash",
            '%' => "percent",
            ':' => "colon",
            '@' => "at",
            '~' => "tilde",
            '+' => "plus",
            _ => {
                word.push(letter);
                continue;
            }
        };
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        words.push(name.to_owned());
    }
    if !word.is_empty() {
        words.push(word);
    }
    for word in &mut words {
        if word.eq_ignore_ascii_case("www") {
            *word = "w w w".to_owned();
        }
    }
    words.join(" ") + rest
}
