//! Languages as clients write them (`en`, `en-GB`, `zh_CN`) and as models name them (`english`).

/// Tags of the languages that models name in English.
const TAGS: [(&str, &str); 15] = [
    ("arabic", "ar"),
    ("chinese", "zh"),
    ("dutch", "nl"),
    ("english", "en"),
    ("french", "fr"),
    ("german", "de"),
    ("hindi", "hi"),
    ("italian", "it"),
    ("japanese", "ja"),
    ("korean", "ko"),
    ("polish", "pl"),
    ("portuguese", "pt"),
    ("russian", "ru"),
    ("spanish", "es"),
    ("turkish", "tr"),
];

/// The tag of a model's language; its name where none is known.
pub(crate) fn tag(name: &str) -> &str {
    TAGS.iter().find(|(known, _)| *known == name).map_or(name, |(_, tag)| tag)
}

/// Which of a model's languages a tag or a name means, whatever country it names.
pub(crate) fn named<'a>(asked: &str, languages: &'a [String]) -> Option<&'a str> {
    let asked = asked.to_lowercase();
    let first = asked.split(['-', '_']).next().unwrap_or_default();
    languages.iter().map(String::as_str).find(|name| *name == asked || *name == first || tag(name) == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_names_mean_languages_of_the_model() {
        let languages = ["chinese", "english", "klingon"].map(str::to_owned);
        for (asked, meant) in [
            ("en", Some("english")),
            ("en-GB", Some("english")),
            ("zh_CN", Some("chinese")),
            ("English", Some("english")),
            ("klingon", Some("klingon")),
            ("de", None),
            ("", None),
            ("-", None),
        ] {
            assert_eq!(named(asked, &languages), meant, "{asked}");
        }
        assert_eq!((tag("chinese"), tag("klingon")), ("zh", "klingon"));
    }
}
