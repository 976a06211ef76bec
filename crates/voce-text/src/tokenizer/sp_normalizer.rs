//! SentencePiece's own normaliser: character map, white space rules and the space symbol.

use super::SPACE_SYMBOL;
use super::charsmap::CharsMap;
use super::trie::Trie;

/// The normaliser settings of a SentencePiece model.
#[derive(Debug)]
pub(crate) struct SpNormalizer {
    pub(crate) map: Option<CharsMap>,
    pub(crate) add_dummy_prefix: bool,
    pub(crate) remove_extra_whitespaces: bool,
    pub(crate) escape_whitespaces: bool,
    pub(crate) whitespace_as_suffix: bool,
}

impl SpNormalizer {
    /// Normalises `text`; user-defined symbols pass through untouched.
    pub(crate) fn normalize(&self, mut text: &str, defined: &Trie) -> String {
        if self.remove_extra_whitespaces {
            while !text.is_empty() {
                let (replacement, length) = self.prefix(text, defined);
                if replacement != " " {
                    break;
                }
                text = &text[length..];
            }
        }
        if text.is_empty() {
            return String::new();
        }
        let space = if self.escape_whitespaces { SPACE_SYMBOL } else { ' ' };
        let mut out = String::with_capacity(text.len() + text.len() / 2 + space.len_utf8());
        if self.add_dummy_prefix && !self.whitespace_as_suffix {
            out.push(space);
        }
        let mut after_space = self.remove_extra_whitespaces;
        while !text.is_empty() {
            let (mut replacement, length) = self.prefix(text, defined);
            text = &text[length..];
            if after_space {
                replacement = replacement.trim_start_matches(' ');
            }
            if !replacement.is_empty() {
                out.extend(replacement.chars().map(|letter| if letter == ' ' { space } else { letter }));
                after_space = self.remove_extra_whitespaces && replacement.ends_with(' ');
            }
        }
        if self.remove_extra_whitespaces {
            out.truncate(out.trim_end_matches(space).len());
        }
        if self.add_dummy_prefix && self.whitespace_as_suffix {
            out.push(space);
        }
        out
    }

    /// What the start of `text` becomes, and how many bytes of it that took.
    fn prefix<'a>(&'a self, text: &'a str, defined: &Trie) -> (&'a str, usize) {
        let bytes = text.as_bytes();
        if let Some((length, _)) = defined.longest(bytes) {
            return (&text[..length], length);
        }
        // A map that ends inside a character is broken; such a rule is passed over.
        let rule = self
            .map
            .as_ref()
            .and_then(|map| map.prefixes(bytes).filter(|(length, _)| text.is_char_boundary(*length)).last());
        if let Some((length, replacement)) = rule {
            return (replacement, length);
        }
        let width = text.chars().next().map_or(text.len(), char::len_utf8);
        (&text[..width], width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalizer(remove: bool, suffix: bool) -> SpNormalizer {
        SpNormalizer {
            map: None,
            add_dummy_prefix: true,
            remove_extra_whitespaces: remove,
            escape_whitespaces: true,
            whitespace_as_suffix: suffix,
        }
    }

    #[test]
    fn white_space_rules() {
        let none = Trie::default();
        assert_eq!(normalizer(true, false).normalize("  a   b ", &none), "▁a▁b");
        assert_eq!(normalizer(false, false).normalize(" a  b ", &none), "▁▁a▁▁b▁");
        assert_eq!(normalizer(true, true).normalize("a b", &none), "a▁b▁");
        assert_eq!(normalizer(true, false).normalize("   ", &none), "");
        assert_eq!(normalizer(false, false).normalize("", &none), "");
        let keep = Trie::new([("  x  ", 0)]);
        assert_eq!(normalizer(true, false).normalize("a  x  b", &keep), "▁a▁▁x▁▁b");
    }
}
