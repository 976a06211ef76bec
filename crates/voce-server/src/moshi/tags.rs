//! The older messages of Moshi's clients, rooms and dialogues: a byte says what follows.

/// What a message is, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    /// The server is ready; followed by the versions of protocol and model.
    Handshake,
    /// Ogg Opus, 24 kHz, mono.
    Audio,
    /// UTF-8.
    Text,
    Control,
    /// JSON.
    Metadata,
    /// UTF-8: why the connection ends.
    Error,
    Ping,
    ColoredText,
    Image,
    /// A code of each codebook, 32 bits each.
    Codes,
}

impl Tag {
    const ALL: [Self; 10] = [
        Self::Handshake,
        Self::Audio,
        Self::Text,
        Self::Control,
        Self::Metadata,
        Self::Error,
        Self::Ping,
        Self::ColoredText,
        Self::Image,
        Self::Codes,
    ];

    /// A message of this kind.
    pub(super) fn message(self, rest: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(1 + rest.len());
        message.push(self as u8);
        message.extend_from_slice(rest);
        message
    }

    /// What a message is, and what follows; none where it has no or an unknown first byte.
    pub(super) fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let (&first, rest) = message.split_first()?;
        Some((*Self::ALL.get(usize::from(first))?, rest))
    }
}

/// The first message of the server: version 0 of protocol and model.
pub(super) fn handshake() -> Vec<u8> {
    Tag::Handshake.message(&[0; 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_first_byte_is_read_or_refused() {
        assert_eq!(handshake(), [0; 9]);
        assert_eq!(Tag::Audio.message(b"OggS"), b"\x01OggS");
        assert_eq!(Tag::Text.message("é".as_bytes()), [2, 0xc3, 0xa9]);
        for (byte, tag) in Tag::ALL.into_iter().enumerate() {
            assert_eq!(Tag::read(&[byte as u8, 7]), Some((tag, &[7][..])));
            assert_eq!(tag.message(&[7]), [byte as u8, 7]);
        }
        for message in [&[][..], &[10], &[255, 1]] {
            assert_eq!(Tag::read(message), None);
        }
    }
}
