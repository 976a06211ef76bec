//! How each published Pocket TTS model wants its text: characters its training text never held are replaced.

/// How a model wants its text prepared before tokenisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TextRules {
    /// Characters and what stands in for them.
    pub replace_characters: &'static [(&'static str, &'static str)],
    /// Whether semicolons become commas.
    pub remove_semicolons: bool,
    /// Whether short inputs get leading spaces.
    pub pad_with_spaces_for_short_inputs: bool,
}

const fn rules(replace_characters: &'static [(&'static str, &'static str)]) -> TextRules {
    TextRules { replace_characters, remove_semicolons: false, pad_with_spaces_for_short_inputs: false }
}

pub(super) const ENGLISH_TEXT: TextRules = rules(&[("’", "'"), ("‘", "'")]);
pub(super) const ENGLISH_2026_01_TEXT: TextRules =
    TextRules { pad_with_spaces_for_short_inputs: true, ..ENGLISH_TEXT };
pub(super) const SMALL_TEXT: TextRules = rules(&[("–", ","), ("—", ","), ("’", "'"), ("‘", "'")]);
pub(super) const QUOTES_TEXT: TextRules = rules(&[
    ("\"", ""),
    ("“", ""),
    ("”", ""),
    ("„", ""),
    ("«", ""),
    ("»", ""),
    ("’", "'"),
    ("‘", "'"),
    ("(", ""),
    (")", ""),
    ("[", ""),
    ("]", ""),
    ("–", ","),
]);
pub(super) const SPANISH_TEXT: TextRules = rules(&[
    ("\"", ""),
    ("“", ""),
    ("”", ""),
    ("„", ""),
    ("«", ""),
    ("»", ""),
    ("’", "'"),
    ("‘", "'"),
    ("(", ""),
    (")", ""),
    ("[", ""),
    ("]", ""),
    ("¡", ""),
    ("¿", ""),
    ("–", ","),
]);
pub(super) const GERMAN_TEXT: TextRules = TextRules {
    remove_semicolons: true,
    ..rules(&[
        ("\"", ""),
        ("“", ""),
        ("”", ""),
        ("„", ""),
        ("«", ""),
        ("»", ""),
        ("’", "'"),
        ("‘", "'"),
        ("(", ""),
        (")", ""),
        ("[", ""),
        ("]", ""),
        ("–", ","),
        ("—", ","),
    ])
};
pub(super) const FRENCH_TEXT: TextRules = TextRules {
    remove_semicolons: true,
    ..rules(&[
        ("\"", ""),
        ("“", ""),
        ("”", ""),
        ("„", ""),
        ("«", ""),
        ("»", ""),
        ("’", "'"),
        ("‘", "'"),
        (":", ","),
        ("(", ""),
        (")", ""),
        ("[", ""),
        ("]", ""),
        ("–", ","),
    ])
};
