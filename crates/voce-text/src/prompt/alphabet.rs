//! What of a text a model has letters for, and whether there is anything to say in it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use unicode_normalization_alignments::UnicodeNormalization;

use super::PromptRules;
use crate::{TextError, Tokenizer};

/// Marks that nobody says, beside ASCII punctuation that stands for a word.
const SILENT: &str =
    ".,!?;:'\"`-_*/\\|~^#()[]{}<>‐‑‒–—―…⋯·•‘’‚“”„‹›«»¡¿、。！？，．：；「」『』（）【】〈〉《》〜～";

/// Whether a text has more in it than white space and punctuation.
pub fn says_something(text: &str) -> bool {
    text.chars().any(|letter| !letter.is_whitespace() && !letter.is_control() && !SILENT.contains(letter))
}

/// The text in letters that the tokeniser has pieces for: what it lacks becomes the letter it was made from, as `ő` an `o`.
/// A letter of another script has none, and is an error that names it. Marks, digits and symbols stay as they are, and so
/// does what the rules replace.
pub fn in_alphabet<'t>(
    tokenizer: &Tokenizer,
    rules: &PromptRules,
    text: &'t str,
    speaks: Option<&str>,
) -> Result<Cow<'t, str>, TextError> {
    let mut seen = BTreeMap::new();
    let mut missing = Vec::new();
    for letter in text.chars().filter(|letter| !letter.is_ascii() && letter.is_alphabetic()) {
        seen.entry(letter).or_insert_with(|| {
            let stands = rules.replace_characters.contains_key(&letter) || tokenizer.has_letter(letter);
            let plain = if stands { None } else { Some(plain(letter)) };
            let known = |c: char| c.is_ascii() || tokenizer.has_letter(c);
            if plain.as_ref().is_some_and(|plain| plain.is_empty() || !plain.chars().all(known)) {
                missing.push(letter);
            }
            plain
        });
    }
    if !missing.is_empty() {
        return Err(TextError::Letters { letters: missing, speaks: speaks.map(str::to_owned) });
    }
    if seen.values().all(Option::is_none) {
        return Ok(text.into());
    }
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match seen.get(&letter) {
            Some(Some(plain)) => out.push_str(plain),
            _ => out.push(letter),
        }
    }
    Ok(out.into())
}

/// A letter without its accents and strokes, a ligature as its letters.
fn plain(letter: char) -> String {
    let stroked = match letter {
        'ł' => "l",
        'Ł' => "L",
        'đ' | 'ð' => "d",
        'Đ' | 'Ð' => "D",
        'ħ' => "h",
        'Ħ' => "H",
        'ø' => "o",
        'Ø' => "O",
        'ı' => "i",
        'ŧ' => "t",
        'Ŧ' => "T",
        'þ' => "th",
        'Þ' => "Th",
        'ŋ' => "ng",
        'Ŋ' => "Ng",
        'æ' => "ae",
        'Æ' => "Ae",
        'œ' => "oe",
        'Œ' => "Oe",
        'ß' => "ss",
        'ẞ' => "SS",
        'ə' => "e",
        'Ə' => "E",
        _ => "",
    };
    if !stroked.is_empty() {
        return stroked.to_owned();
    }
    let parts = letter.encode_utf8(&mut [0; 4]).nfkd().collect::<Vec<_>>().into_iter();
    parts.map(|(part, _)| part).filter(|part| part.is_alphanumeric()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nano() -> (Tokenizer, PromptRules) {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nano-voice/tokenizer.model");
        let small = ('A'..='Z').map(|letter| (letter, letter.to_lowercase().to_string()));
        let rules = PromptRules { replace_characters: small.collect(), ..PromptRules::default() };
        (Tokenizer::from_file(file).unwrap(), rules)
    }

    #[test]
    fn letters_of_other_scripts_are_named_and_accents_are_not() {
        let (tokenizer, rules) = nano();
        let letters = |text: &str| match in_alphabet(&tokenizer, &rules, text, Some("english")) {
            Err(TextError::Letters { letters, .. }) => Err(letters.into_iter().collect::<String>()),
            other => Ok(other.unwrap().into_owned()),
        };
        for (text, missing) in [
            ("Привет, как дела?", "Приветкадл"),
            ("Hello Мир world", "Мир"),
            ("你好，世界", "你好世界"),
            ("مرحبا", "مرحبا"),
            ("こんにちは", "こんにちは"),
            ("Γειά σου", "Γειάσου"),
        ] {
            assert_eq!(letters(text), Err(missing.to_owned()), "{text}");
        }
        for (text, read) in [
            (
                "Plain words, 42 of them: “quoted” – £5 or 5 €! ☺",
                "Plain words, 42 of them: “quoted” – £5 or 5 €! ☺",
            ),
            ("Erdős in Łódź", "Erdos in Lodz"),
            ("Ｗｉｄｅ ﬁsh", "Wide fish"),
            ("cafe\u{301}", "cafe\u{301}"),
        ] {
            assert_eq!(letters(text), Ok(read.to_owned()));
        }
    }

    #[test]
    fn the_error_names_language_and_letters() {
        let (tokenizer, rules) = nano();
        let said =
            in_alphabet(&tokenizer, &rules, "Мир, мир", Some("english_2026-01")).unwrap_err().to_string();
        assert!(said.contains("speaks English and does not know the letters М и р м:"), "{said}");
        let many: String = ('а'..='я').collect();
        let said = in_alphabet(&tokenizer, &rules, &many, None).unwrap_err().to_string();
        assert!(
            said.starts_with("this voice does not know the letters а б") && said.contains("л ...:"),
            "{said}"
        );
    }

    #[test]
    fn marks_alone_say_nothing() {
        for text in ["", " \n", "!!!", "...", "…", "?!", "— –", "«»", "。。", "***", "# ##"] {
            assert!(!says_something(text), "{text}");
        }
        for text in ["a", "5", "!a", "€", "&", "50 %", "你", "♥"] {
            assert!(says_something(text), "{text}");
        }
    }
}
