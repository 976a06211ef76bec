//! Decoding UTF-8 that arrives in pieces, with the place of the first bad byte.

use crate::TextError;

/// Decodes bytes as they arrive; a character cut by a piece's end waits for the rest of it.
#[derive(Debug, Default)]
pub struct Utf8Stream {
    /// The start of an unfinished character: at most three bytes.
    pending: Vec<u8>,
    /// Bytes decoded so far, so the offset of `pending`.
    offset: u64,
}

impl Utf8Stream {
    /// A stream at its start.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next bytes and returns all text that is complete. After an error the stream must not be used again.
    pub fn push(&mut self, bytes: &[u8]) -> Result<String, TextError> {
        let mut all = std::mem::take(&mut self.pending);
        all.extend_from_slice(bytes);
        let valid = match std::str::from_utf8(&all) {
            Ok(_) => all.len(),
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(error) => {
                return Err(TextError::InvalidUtf8 { offset: self.offset + error.valid_up_to() as u64 });
            }
        };
        self.pending = all.split_off(valid);
        self.offset += valid as u64;
        String::from_utf8(all).map_err(|_| TextError::InvalidUtf8 { offset: self.offset })
    }

    /// Ends the stream: an error when it ends inside a character.
    pub fn finish(self) -> Result<(), TextError> {
        if self.pending.is_empty() { Ok(()) } else { Err(TextError::TruncatedUtf8 { offset: self.offset }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_the_bad_byte() {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"ab\xc3").unwrap(), "ab");
        assert_eq!(stream.push(b"\xa9").unwrap(), "é");
        assert_eq!(stream.push(b"x\xff").unwrap_err(), TextError::InvalidUtf8 { offset: 5 });
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(b"ok\xf0\x9f").unwrap(), "ok");
        assert_eq!(stream.finish().unwrap_err(), TextError::TruncatedUtf8 { offset: 2 });
        let mut stream = Utf8Stream::new();
        stream.push(b"a\xe2\x82").unwrap();
        assert_eq!(stream.push(b"a").unwrap_err(), TextError::InvalidUtf8 { offset: 1 });
    }

    proptest! {
        #[test]
        fn any_split_decodes_the_same(text in "\\PC{0,40}", cuts in prop::collection::vec(0usize..160, 0..8)) {
            let mut stream = Utf8Stream::new();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut out = String::new();
            for pair in cuts.windows(2) {
                out += &stream.push(&text.as_bytes()[pair[0]..pair[1]]).unwrap();
            }
            prop_assert!(stream.finish().is_ok());
            prop_assert_eq!(out, text);
        }

        #[test]
        fn agrees_with_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..30)) {
            let mut stream = Utf8Stream::new();
            let streamed: Result<Vec<String>, _> = bytes.iter().map(|byte| stream.push(&[*byte])).collect();
            let streamed = streamed.map(|parts| parts.concat()).and_then(|text| stream.finish().map(|()| text));
            match (std::str::from_utf8(&bytes), streamed) {
                (Ok(whole), Ok(text)) => prop_assert_eq!(whole, text),
                (Err(error), Err(TextError::InvalidUtf8 { offset } | TextError::TruncatedUtf8 { offset })) => {
                    prop_assert_eq!(error.valid_up_to() as u64, offset);
                }
                (whole, streamed) => prop_assert!(false, "{whole:?} {streamed:?}"),
            }
        }
    }
}
