//! Byte-level BPE as Qwen's tokenisers are published: `vocab.json`, `merges.txt` and `tokenizer_config.json`.
//!
//! Text is composed (NFC), cut into words by one pattern, and every byte of a word stands as a letter of its own, of which
//! merges make pieces. Any text has ids, and its ids are exactly that text.

use regex::Regex;
use serde_json::{Value, json};

use super::byte_run::ByteRun;
use crate::TokenizerError;

/// The published pattern, less what looks ahead: [`Words::split`] does that.
const PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
);
/// What [`Words::settled`] looks for. Added tokens begin with `<`, which ends a word as well.
const WORD_END: &str = r"[\p{L}\p{N}][^\p{L}\p{N}\p{M}]";
/// The only class whose pattern this is.
const CLASS: &str = "Qwen2Tokenizer";
/// Bytes that no printable letter stands for have letters from here on.
const ODD: u32 = 256;

/// Cuts text into words and spells their bytes.
#[derive(Debug)]
pub(crate) struct Words {
    pattern: Regex,
    /// A letter or number and what ends its word.
    end: Regex,
    letters: [char; 256],
}

impl Words {
    pub(crate) fn new() -> Result<Self, TokenizerError> {
        let regex = |text| Regex::new(text).map_err(|_| TokenizerError::unsupported("regex", text));
        Ok(Self { pattern: regex(PATTERN)?, end: regex(WORD_END)?, letters: letters() })
    }

    /// Where the last word starts that a following text may still change. A word of letters has ended where something comes
    /// that is neither letter, number nor a mark that could join the last letter.
    pub(crate) fn settled(&self, text: &str) -> usize {
        let last = self.end.find_iter(text).last();
        last.and_then(|found| Some(found.end() - found.as_str().chars().next_back()?.len_utf8())).unwrap_or(0)
    }

    /// Hands the letters of each word's bytes to `emit`.
    pub(crate) fn split(&self, text: &str, emit: &mut dyn FnMut(&str)) {
        let mut spelled = String::new();
        let mut at = 0;
        while let Some(found) = self.pattern.find_at(text, at) {
            let mut word = found.as_str();
            // Of several spaces before a word, the last belongs to the word.
            let spaces = word.chars().all(char::is_whitespace) && !word.ends_with(['\r', '\n']);
            if spaces
                && found.end() < text.len()
                && let Some((last, _)) = word.char_indices().next_back().filter(|(i, _)| *i > 0)
            {
                word = &word[..last];
            }
            at = found.start() + word.len();
            spelled.clear();
            spelled.extend(word.bytes().map(|byte| self.letters[usize::from(byte)]));
            emit(&spelled);
        }
    }
}

/// The letter of every byte: itself where it is printable in Latin-1, else the next one from [`ODD`] on.
fn letters() -> [char; 256] {
    let mut odd = ODD;
    std::array::from_fn(|byte| {
        let byte = byte as u32;
        let letter = match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => byte,
            _ => {
                odd += 1;
                odd - 1
            }
        };
        char::from_u32(letter).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

/// The byte that a letter of a piece stands for.
fn byte_of(letter: char) -> Option<u8> {
    let code = letter as u32;
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Appends the text of a piece; added tokens are no bytes and are taken as they are.
pub(crate) fn decode_piece(piece: &str, run: &mut ByteRun, text: &mut String) {
    match piece.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
        Some(bytes) => bytes.into_iter().for_each(|byte| run.push(byte, text)),
        None => {
            run.finish(text);
            text.push_str(piece);
        }
    }
}

/// The published files as the parts of a `tokenizer.json`: its model and its added tokens.
pub(crate) fn parts(vocab: &[u8], merges: &[u8], config: &[u8]) -> Result<(Value, Value), TokenizerError> {
    let config: Value = serde_json::from_slice(config)?;
    match config.get("tokenizer_class").and_then(Value::as_str) {
        Some(CLASS | "Qwen2TokenizerFast") => {}
        other => return Err(TokenizerError::unsupported("class", other.unwrap_or("(none)"))),
    }
    if config.get("add_prefix_space") == Some(&Value::Bool(true)) {
        return Err(TokenizerError::unsupported("setting", "add_prefix_space"));
    }
    let vocab: Value = serde_json::from_slice(vocab)?;
    let known = vocab.as_object().ok_or_else(|| TokenizerError::broken("vocab.json is no map"))?;
    if let Some(missing) =
        letters().iter().find(|letter| !known.contains_key(letter.encode_utf8(&mut [0; 4]) as &str))
    {
        return Err(TokenizerError::broken(format!(
            "vocab.json has no piece `{missing}` for one of the bytes"
        )));
    }
    let merges =
        std::str::from_utf8(merges).map_err(|_| TokenizerError::broken("merges.txt is not UTF-8"))?;
    let lines = merges.lines().enumerate();
    let merges: Vec<Value> = lines
        .filter(|(at, line)| !(line.is_empty() || *at == 0 && line.starts_with("#version:")))
        .map(|(_, line)| Value::String(line.to_owned()))
        .collect();
    let mut added = Vec::new();
    for (id, token) in config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten() {
        let id: u32 =
            id.parse().map_err(|_| TokenizerError::broken(format!("an added token has the id `{id}`")))?;
        let mut token = token.clone();
        let fields = token
            .as_object_mut()
            .ok_or_else(|| TokenizerError::broken(format!("added token {id} is no map")))?;
        fields.insert("id".into(), id.into());
        added.push(token);
    }
    Ok((json!({ "type": "BPE", "vocab": vocab, "merges": merges }), Value::Array(added)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_letter_of_its_own() {
        let letters = letters();
        for (byte, letter) in letters.iter().enumerate() {
            assert_eq!(byte_of(*letter), Some(byte as u8), "{letter:?}");
        }
        assert_eq!((letters[usize::from(b' ')], letters[usize::from(b'\n')]), ('Ġ', 'Ċ'));
        assert_eq!(byte_of('语'), None);
    }

    #[test]
    fn what_is_settled_keeps_its_words() {
        let words = Words::new().unwrap();
        let cut = |text: &str| {
            let mut out = Vec::new();
            words.split(text, &mut |word| out.push(word.to_owned()));
            out
        };
        let text = "It's  naïve, 42 cafés; 你好，世界。\n\n Then... कि, e\u{301}x \u{301}end";
        let at: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let mut seen = 0;
        for &end in &at {
            let settled = words.settled(&text[..end]);
            let whole = [cut(&text[..settled]), cut(&text[settled..])].concat();
            assert_eq!(whole, cut(text), "{:?} of {:?}", &text[..settled], &text[..end]);
            assert!(settled >= seen && settled <= end);
            seen = settled;
        }
        assert!(seen > 40, "{seen}");
    }

    #[test]
    fn words_are_cut_as_the_pattern_says() {
        let words = Words::new().unwrap();
        let cut = |text: &str| {
            let mut out = Vec::new();
            words.split(text, &mut |word| {
                let bytes: Vec<u8> = word.chars().filter_map(byte_of).collect();
                out.push(String::from_utf8(bytes).unwrap());
            });
            assert_eq!(out.concat(), text);
            out
        };
        assert_eq!(cut("it's  a 42!\n\n x"), ["it", "'s", " ", " a", " ", "4", "2", "!\n\n", " x"]);
        assert_eq!(cut("a   \n  b  "), ["a", "   \n", " ", " b", "  "]);
        assert_eq!(cut(" \t你好,...ok"), [" ", "\t你好", ",...", "ok"]);
        assert!(cut("").is_empty());
    }
}
