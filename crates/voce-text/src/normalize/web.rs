//! Web and mail addresses, read out sign by sign.

use std::borrow::Cow;

use super::rewrite::{Found, pattern, rewrite};

const DOMAINS: &str =
    "com|org|net|edu|gov|mil|int|io|ai|dev|app|co|info|biz|me|tv|uk|us|de|fr|eu|ca|au|nz|ie|in|jp|ch|nl";

/// What a language calls the signs of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signs {
    dot: &'static str,
    slash: &'static str,
    dash: &'static str,
    underscore: &'static str,
    at: &'static str,
    colon: &'static str,
    question: &'static str,
    equals: &'static str,
    and: &'static str,
    hash: &'static str,
    percent: &'static str,
    tilde: &'static str,
    plus: &'static str,
    www: &'static str,
}

impl Signs {
    /// English.
    pub const ENGLISH: Signs = Signs {
        dot: "dot",
        slash: "slash",
        dash: "dash",
        underscore: "underscore",
        at: "at",
        colon: "colon",
        question: "question mark",
        equals: "equals",
        and: "and",
        hash: "hash",
        percent: "percent",
        tilde: "tilde",
        plus: "plus",
        www: "w w w",
    };
    const FRENCH: Signs = Signs {
        dot: "point",
        slash: "slash",
        dash: "tiret",
        underscore: "tiret bas",
        at: "arobase",
        colon: "deux points",
        question: "point d'interrogation",
        equals: "égal",
        and: "et",
        hash: "dièse",
        percent: "pour cent",
        tilde: "tilde",
        plus: "plus",
        www: "trois w",
    };
    const GERMAN: Signs = Signs {
        dot: "Punkt",
        slash: "Schrägstrich",
        dash: "Bindestrich",
        underscore: "Unterstrich",
        at: "ät",
        colon: "Doppelpunkt",
        question: "Fragezeichen",
        equals: "gleich",
        and: "und",
        hash: "Raute",
        percent: "Prozent",
        tilde: "Tilde",
        plus: "plus",
        www: "w w w",
    };
    const ITALIAN: Signs = Signs {
        dot: "punto",
        slash: "barra",
        dash: "trattino",
        underscore: "trattino basso",
        at: "chiocciola",
        colon: "due punti",
        question: "punto interrogativo",
        equals: "uguale",
        and: "e",
        hash: "cancelletto",
        percent: "per cento",
        tilde: "tilde",
        plus: "più",
        www: "w w w",
    };
    const SPANISH: Signs = Signs {
        dot: "punto",
        slash: "barra",
        dash: "guion",
        underscore: "guion bajo",
        at: "arroba",
        colon: "dos puntos",
        question: "signo de interrogación",
        equals: "igual",
        and: "y",
        hash: "almohadilla",
        percent: "por ciento",
        tilde: "virgulilla",
        plus: "más",
        www: "w w w",
    };
    const PORTUGUESE: Signs = Signs {
        dot: "ponto",
        slash: "barra",
        dash: "hífen",
        underscore: "sublinhado",
        at: "arroba",
        colon: "dois pontos",
        question: "ponto de interrogação",
        equals: "igual",
        and: "e",
        hash: "cardinal",
        percent: "por cento",
        tilde: "til",
        plus: "mais",
        www: "w w w",
    };

    /// Those of a language, by its name or its code of two letters.
    pub fn of(language: &str) -> Option<Self> {
        // A name may have a version after it, as `french_24l`.
        let name = language.split(['_', '-']).next().unwrap_or_default().to_ascii_lowercase();
        Some(match name.as_str() {
            "english" | "en" => Self::ENGLISH,
            "french" | "fr" => Self::FRENCH,
            "german" | "de" => Self::GERMAN,
            "italian" | "it" => Self::ITALIAN,
            "spanish" | "es" => Self::SPANISH,
            "portuguese" | "pt" => Self::PORTUGUESE,
            _ => return None,
        })
    }

    fn word(&self, sign: char) -> Option<&'static str> {
        Some(match sign {
            '.' => self.dot,
            '/' => self.slash,
            '-' => self.dash,
            '_' => self.underscore,
            '?' => self.question,
            '=' => self.equals,
            '&' => self.and,
            '#' => self.hash,
            '%' => self.percent,
            ':' => self.colon,
            '@' => self.at,
            '~' => self.tilde,
            '+' => self.plus,
            _ => return None,
        })
    }
}

/// Reads mail and web addresses out in a language's words.
///
/// ```
/// use voce_text::normalize::{Signs, read_addresses};
/// let french = Signs::of("fr").unwrap();
/// assert_eq!(read_addresses("Voir https://example.com/aide.", french), "Voir example point com slash aide.");
/// ```
pub fn read_addresses(text: &str, signs: Signs) -> Cow<'_, str> {
    spell(Cow::Borrowed(text), signs)
}

/// The same in English, as a pass.
pub(super) fn addresses(text: Cow<'_, str>) -> Cow<'_, str> {
    spell(text, Signs::ENGLISH)
}

/// Mail addresses, then web addresses with or without a scheme.
fn spell(text: Cow<'_, str>, signs: Signs) -> Cow<'_, str> {
    let mail = pattern!(
        r"(?:\bmailto:)?([A-Za-z0-9][A-Za-z0-9._%+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,})"
    );
    let text = rewrite(text, mail, |found| Some(read(found.text(1), "", signs)));
    let scheme = pattern!(r"(?i)\b(?:https?://|ftp://|www\.)[^\s<>\x22]+");
    let text = rewrite(text, scheme, |found| Some(say(found, signs)));
    let bare =
        pattern!(r"(?i)\b[a-z0-9][a-z0-9-]*(?:\.[a-z0-9-]+)*\.(?:", DOMAINS, r")(?:/[^\s<>\x22]*)?\b/?");
    rewrite(text, bare, |found| is_bare_address(found).then(|| say(found, signs)))
}

/// `Yes.In` is a missing space, and `U.S.` is no host: a bare address is lower case, with a name of some length.
fn is_bare_address(found: &Found<'_>) -> bool {
    let host = found.text(0).split('/').next().unwrap_or_default();
    let (name, domain) = host.rsplit_once('.').unwrap_or_default();
    let lower = domain.chars().all(|letter| letter.is_ascii_lowercase());
    let named = name.chars().filter(|letter| letter.is_ascii_alphabetic()).count() >= 2;
    lower && named && found.previous() != Some('@') && !found.next().is_some_and(char::is_alphanumeric)
}

fn say(found: &Found<'_>, signs: Signs) -> String {
    let whole = found.text(0);
    let address =
        whole.trim_end_matches(['.', ',', ';', ':', '!', '?', ')', ']', '\'', '\u{201d}', '\u{2019}']);
    let rest = &whole[address.len()..];
    let bare = address.split_once("://").map_or(address, |(_, bare)| bare);
    read(bare.trim_end_matches('/'), rest, signs)
}

fn read(address: &str, rest: &str, signs: Signs) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    for letter in address.chars() {
        let Some(name) = signs.word(letter) else {
            word.push(letter);
            continue;
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
            *word = signs.www.to_owned();
        }
    }
    words.join(" ") + rest
}
