//! Languages as people ask for them (`en`, `EN`, `en-US`, `zh_CN`, `English`) and as models name them (`english`).

/// Codes of languages, and their names in lower-case English.
const CODES: [(&str, &str); 15] = [
    ("ar", "arabic"),
    ("de", "german"),
    ("en", "english"),
    ("es", "spanish"),
    ("fr", "french"),
    ("hi", "hindi"),
    ("it", "italian"),
    ("ja", "japanese"),
    ("ko", "korean"),
    ("nl", "dutch"),
    ("pl", "polish"),
    ("pt", "portuguese"),
    ("ru", "russian"),
    ("tr", "turkish"),
    ("zh", "chinese"),
];

/// The name of a language that was asked for by its code, with or without a country, or by its name in any case. What is
/// neither a known code nor followed by a country stays as it is, in lower case.
pub fn language_name(asked: &str) -> String {
    let lower = asked.trim().to_lowercase();
    let first = lower.split(['-', '_']).next().unwrap_or_default();
    let known = |(code, name): &&(&str, &str)| *code == first || *name == lower;
    CODES.iter().find(known).map_or(lower.clone(), |(_, name)| (*name).to_owned())
}

/// Which of a model's languages was asked for.
pub fn spoken<'a>(asked: &str, has: &'a [String]) -> Option<&'a str> {
    let name = language_name(asked);
    has.iter().map(String::as_str).find(|own| own.eq_ignore_ascii_case(&name) || language_name(own) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_countries_and_names_mean_a_language() {
        for (asked, name) in [
            ("en", "english"),
            ("EN", "english"),
            ("en-US", "english"),
            ("en_GB", "english"),
            (" English ", "english"),
            ("zh_CN", "chinese"),
            ("klingon", "klingon"),
            ("english_2026-01", "english_2026-01"),
            ("", ""),
        ] {
            assert_eq!(language_name(asked), name, "{asked}");
        }
        let has = ["english".to_owned(), "Dutch".to_owned()];
        assert_eq!(spoken("en-GB", &has), Some("english"));
        assert_eq!(spoken("NL", &has), Some("Dutch"));
        assert_eq!((spoken("de", &has), spoken("", &has), spoken("-", &has)), (None, None, None));
    }
}
