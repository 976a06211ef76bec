//! A run of byte-fallback pieces on its way to being text.

/// Bytes of a character that is not complete yet: at most three.
#[derive(Debug, Default)]
pub(crate) struct ByteRun(Vec<u8>);

impl ByteRun {
    /// Adds a byte and appends every character that is now complete; a byte that fits nowhere becomes U+FFFD.
    pub(crate) fn push(&mut self, byte: u8, text: &mut String) {
        self.0.push(byte);
        while !self.0.is_empty() {
            match std::str::from_utf8(&self.0) {
                Ok(whole) => {
                    text.push_str(whole);
                    self.0.clear();
                }
                Err(error) if error.error_len().is_none() => return,
                Err(_) => {
                    text.push(char::REPLACEMENT_CHARACTER);
                    self.0.remove(0);
                }
            }
        }
    }

    /// Ends the run: bytes still held are each U+FFFD.
    pub(crate) fn finish(&mut self, text: &mut String) {
        for _ in self.0.drain(..) {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> String {
        let (mut run, mut text) = (ByteRun::default(), String::new());
        for &byte in bytes {
            run.push(byte, &mut text);
        }
        run.finish(&mut text);
        text
    }

    #[test]
    fn joins_characters_and_marks_bad_bytes() {
        assert_eq!(decode("é😀a".as_bytes()), "é😀a");
        assert_eq!(decode(b"\xf0\x9f\x98"), "\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(decode(b"\xf0\x9fa"), "\u{fffd}\u{fffd}a");
        assert_eq!(decode(b"\x80\xe9\xc3\xa9"), "\u{fffd}\u{fffd}é");
    }
}
