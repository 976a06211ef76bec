//! Letters written as others: without their marks, and in the plain form of those that have a sign of their own.

use unicode_normalization_alignments::UnicodeNormalization as _;
use unicode_normalization_alignments::char::is_combining_mark;

/// Letters that Unicode does not take apart, and what people write who do not have them.
const PLAIN: [(char, &str); 18] = [
    ('ß', "ss"),
    ('ẞ', "SS"),
    ('æ', "ae"),
    ('Æ', "AE"),
    ('œ', "oe"),
    ('Œ', "OE"),
    ('ø', "o"),
    ('Ø', "O"),
    ('đ', "d"),
    ('Đ', "D"),
    ('ð', "d"),
    ('Ð', "D"),
    ('þ', "th"),
    ('Þ', "Th"),
    ('ł', "l"),
    ('Ł', "L"),
    ('ı', "i"),
    ('\u{2019}', "'"),
];

/// A text with its marks joined to their letters, as keyboards write it.
pub fn composed(text: &str) -> String {
    text.nfc().map(|(letter, _)| letter).collect()
}

/// A character without its marks (`é` is `e`, `ß` is `ss`); empty for a mark by itself, and the character where there is no
/// plainer one.
pub fn plain(letter: char) -> String {
    if let Some((_, plain)) = PLAIN.iter().find(|(known, _)| *known == letter) {
        return (*plain).to_owned();
    }
    let parts = std::iter::once(letter).nfkd().map(|(part, _)| part);
    parts.filter(|part| !is_combining_mark(*part)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_off() {
        for (letter, without) in [
            ('é', "e"),
            ('Ü', "U"),
            ('ñ', "n"),
            ('ß', "ss"),
            ('ø', "o"),
            ('ﬁ', "fi"),
            ('\u{2019}', "'"),
            ('\u{301}', ""),
            ('a', "a"),
            ('你', "你"),
        ] {
            assert_eq!(plain(letter), without, "{letter}");
        }
        assert_eq!(composed("cafe\u{301}"), "café");
    }
}
