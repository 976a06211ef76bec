//! Codes of languages as people write them, and as models list them.

/// The place in a list of codes that an asked one means: as it is written; whatever its case, with `_` for `-`; for a code
/// without a region, the first one of that language; for one with a region, the same language without any.
pub fn position<'a>(known: impl Iterator<Item = &'a str> + Clone, asked: &str) -> Option<usize> {
    let asked = asked.trim().replace('_', "-");
    let find = |is_it: &dyn Fn(&str) -> bool| known.clone().position(is_it);
    let base = asked.split('-').next().unwrap_or_default();
    let has_region = base.len() < asked.len();
    let of_language = |code: &str| {
        let code = if has_region { Some(code) } else { code.split(['-', '_']).next() };
        code.is_some_and(|code| code.eq_ignore_ascii_case(base))
    };
    find(&|code| code == asked)
        .or_else(|| find(&|code| code.eq_ignore_ascii_case(&asked)))
        .or_else(|| find(&of_language))
}

/// The code of a list that an asked one means, as [`position`] finds it.
pub fn known<'a>(list: &'a [String], asked: &str) -> Option<&'a str> {
    position(list.iter().map(String::as_str), asked).map(|at| list[at].as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_every_spelling() {
        let list =
            ["auto", "de-DE", "en-GB", "en-US", "en", "ja-JP", "pt-BR", "pt-PT", "fr"].map(str::to_owned);
        for (asked, found) in [
            ("en", Some("en")),
            ("EN", Some("en")),
            ("en-us", Some("en-US")),
            ("en_GB", Some("en-GB")),
            ("en-AU", Some("en")),
            ("ja", Some("ja-JP")),
            ("pt", Some("pt-BR")),
            ("pt_pt", Some("pt-PT")),
            ("fr-CA", Some("fr")),
            (" de ", Some("de-DE")),
            ("Auto", Some("auto")),
            ("de-AT", None),
            ("zh", None),
            ("multi", None),
            ("e", None),
            ("", None),
        ] {
            assert_eq!(known(&list, asked), found, "{asked}");
        }
    }
}
