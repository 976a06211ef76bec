//! SentencePiece's `precompiled_charsmap`: a double-array trie from character sequences to their replacement.
//! The blob is a length, the trie's 32-bit units, then the replacements, each ended by a zero byte.

use crate::TokenizerError;

/// A parsed `precompiled_charsmap`.
#[derive(Debug)]
pub(crate) struct CharsMap {
    units: Vec<u32>,
    replacements: String,
}

impl CharsMap {
    pub(crate) fn parse(blob: &[u8]) -> Result<Self, TokenizerError> {
        let broken = || TokenizerError::broken("the precompiled character map is cut or malformed");
        let (length, rest) = blob.split_first_chunk::<4>().ok_or_else(broken)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| broken())?;
        let (trie, replacements) = rest.split_at_checked(length).ok_or_else(broken)?;
        if trie.is_empty() || !trie.len().is_multiple_of(4) {
            return Err(broken());
        }
        let units = trie
            .chunks_exact(4)
            .map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]))
            .collect();
        let replacements = String::from_utf8(replacements.to_vec()).map_err(|_| broken())?;
        Ok(Self { units, replacements })
    }

    /// Every rule whose left side is a prefix of `text`, shortest first, as (length in bytes, replacement).
    pub(crate) fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (usize, &'a str)> + 'a {
        let mut at = self.units.first().map_or(0, |&root| offset(root));
        let mut depth = 0;
        std::iter::from_fn(move || {
            while depth < text.len() {
                let label = text[depth];
                at ^= usize::from(label);
                let unit = *self.units.get(at)?;
                if unit & 0x8000_00ff != u32::from(label) {
                    depth = text.len();
                    return None;
                }
                depth += 1;
                at ^= offset(unit);
                if unit & 0x100 != 0 {
                    let value = *self.units.get(at)? & 0x7fff_ffff;
                    return Some((depth, self.replacement(value as usize)?));
                }
            }
            None
        })
    }

    fn replacement(&self, start: usize) -> Option<&str> {
        let rest = self.replacements.get(start..)?;
        Some(&rest[..rest.find('\0').unwrap_or(rest.len())])
    }
}

fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & 0x200) >> 6)) as usize
}

/// Decodes standard base64, as `tokenizer.json` stores the map.
pub(crate) fn base64(text: &str) -> Result<Vec<u8>, TokenizerError> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.trim_end_matches('=').bytes() {
        let six = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(TokenizerError::broken("the precompiled character map is not base64")),
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_decodes() {
        assert_eq!(base64("aGVsbG8gd29ybGQ=").unwrap(), b"hello world");
        assert_eq!(base64("").unwrap(), b"");
        assert!(base64("a b").is_err());
    }

    #[test]
    fn broken_blobs_are_errors() {
        for blob in [
            &b""[..],
            b"\x04",
            b"\xff\xff\xff\xffabc",
            b"\x03\0\0\0abcdef",
            b"\0\0\0\0abc",
            b"\x04\0\0\0abcd\xff",
        ] {
            assert!(CharsMap::parse(blob).is_err(), "{blob:?}");
        }
    }
}
