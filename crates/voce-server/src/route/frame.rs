//! Frames of a WebSocket as they are on the wire (RFC 6455, section 5.2): heads, masks and short words of the router's own.

use bytes::{BufMut as _, Bytes, BytesMut};

/// Longest payload of a frame that says something of the connection.
pub(super) const MAX_CONTROL: usize = 125;
/// Longest head of a frame.
pub(super) const MAX_HEAD: usize = 14;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Continue = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Kind {
    fn new(opcode: u8) -> Option<Self> {
        let all = [Self::Continue, Self::Text, Self::Binary, Self::Close, Self::Ping, Self::Pong];
        all.into_iter().find(|kind| *kind as u8 == opcode)
    }

    fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

/// Why a peer is not listened to any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// It breaks the rules of WebSockets.
    Protocol,
    /// A message is longer than one may be.
    TooLong,
    /// A text is no UTF-8.
    NotText,
}

/// Four bytes that a client's payload is mixed with; zeros where it is not.
pub(super) type Mask = [u8; 4];

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// Whether a message ends with this frame.
    pub(super) is_last: bool,
    pub(super) mask: Option<Mask>,
    /// Bytes of the payload.
    pub(super) length: u64,
}

impl Head {
    /// The head that the bytes begin with, and its length; `None` where there is only a part of it.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, Bad> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        let kind = Kind::new(first & OPCODE).filter(|_| first & RESERVED == 0).ok_or(Bad::Protocol)?;
        let is_last = first & FIN != 0;
        let short = second & !MASKED;
        if kind.is_control() && (!is_last || usize::from(short) > MAX_CONTROL) {
            return Err(Bad::Protocol);
        }
        let (length, rest) = match short {
            126 => {
                let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (u64::from(u16::from_be_bytes(*length)), rest)
            }
            127 => {
                let Some((length, rest)) = rest.split_first_chunk() else { return Ok(None) };
                (u64::from_be_bytes(*length), rest)
            }
            short => (u64::from(short), rest),
        };
        let (mask, rest) = if second & MASKED == 0 {
            (None, rest)
        } else {
            let Some((mask, rest)) = rest.split_first_chunk() else { return Ok(None) };
            (Some(*mask), rest)
        };
        Ok(Some((Self { kind, is_last, mask, length }, bytes.len() - rest.len())))
    }

    /// Writes the head.
    pub(super) fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.kind as u8 | if self.is_last { FIN } else { 0 });
        let bit = if self.mask.is_some() { MASKED } else { 0 };
        match self.length {
            n @ 0..=125 => out.put_u8(bit | n as u8),
            n @ 126..=0xffff => {
                out.put_u8(bit | 126);
                out.put_u16(n as u16);
            }
            n => {
                out.put_u8(bit | 127);
                out.put_u64(n);
            }
        }
        if let Some(mask) = self.mask {
            out.put_slice(&mask);
        }
    }
}

/// Mixes bytes with a mask, or takes it off.
pub(super) fn apply(mask: Mask, bytes: &mut [u8]) {
    let whole = u32::from_ne_bytes(mask);
    let (words, rest) = bytes.as_chunks_mut();
    for word in words {
        *word = (u32::from_ne_bytes(*word) ^ whole).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask) {
        *byte ^= mask;
    }
}

/// Whether a masked payload is UTF-8. The payload stays as it is: blocks of it are looked at in turn.
pub(super) fn is_text(mask: Mask, payload: &[u8]) -> bool {
    /// A multiple of the mask's length; the rest of a character may stand before a block.
    const BLOCK: usize = 1020;
    let (mut block, mut carried) = ([0; BLOCK + 4], 0);
    for piece in payload.chunks(BLOCK) {
        let end = carried + piece.len();
        block[carried..end].copy_from_slice(piece);
        apply(mask, &mut block[carried..end]);
        match std::str::from_utf8(&block[..end]) {
            Ok(_) => carried = 0,
            Err(error) if error.error_len().is_none() => {
                let good = error.valid_up_to();
                block.copy_within(good..end, 0);
                carried = end - good;
            }
            Err(_) => return false,
        }
    }
    carried == 0
}

/// A frame of at most [`MAX_CONTROL`] bytes that says something of the connection; masked where a client says it.
pub(super) fn control(kind: Kind, payload: &[u8], is_client: bool) -> Bytes {
    let payload = &payload[..payload.len().min(MAX_CONTROL)];
    let mask = is_client.then(|| {
        let mut mask = [0; 4];
        // Without random numbers the mask is zeros: what a router says itself needs no hiding.
        let _ = getrandom::fill(&mut mask);
        mask
    });
    let mut out = BytesMut::with_capacity(MAX_HEAD + payload.len());
    Head { kind, is_last: true, mask, length: payload.len() as u64 }.put(&mut out);
    let at = out.len();
    out.put_slice(payload);
    apply(mask.unwrap_or_default(), &mut out[at..]);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_every_length_are_read_as_they_are_written() {
        for length in [0, 1, 125, 126, 127, 0xffff, 0x1_0000, 21 << 20, u64::MAX] {
            for mask in [None, Some([1, 2, 3, 4])] {
                for (kind, is_last) in [(Kind::Binary, true), (Kind::Text, false), (Kind::Continue, true)] {
                    let head = Head { kind, is_last, mask, length };
                    let mut bytes = BytesMut::new();
                    head.put(&mut bytes);
                    let whole = bytes.len();
                    assert!(whole <= MAX_HEAD);
                    for part in 0..whole {
                        assert_eq!(Head::parse(&bytes[..part]), Ok(None), "{head:?} {part}");
                    }
                    bytes.extend_from_slice(b"payload");
                    assert_eq!(Head::parse(&bytes), Ok(Some((head, whole))));
                }
            }
        }
    }

    #[test]
    fn what_the_rules_forbid_is_refused() {
        for reserved in [0x40, 0x20, 0x10] {
            assert_eq!(Head::parse(&[0x82 | reserved, 0x81]), Err(Bad::Protocol));
        }
        for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
            assert_eq!(Head::parse(&[0x80 | opcode, 0x81]), Err(Bad::Protocol));
        }
        for opcode in [8, 9, 10] {
            assert_eq!(Head::parse(&[opcode, 0x80]), Err(Bad::Protocol), "in parts");
            assert_eq!(Head::parse(&[0x80 | opcode, 0x80 | 126]), Err(Bad::Protocol), "too long");
            assert_eq!(Head::parse(&[0x80 | opcode, 127]), Err(Bad::Protocol), "too long");
            assert!(Head::parse(&[0x80 | opcode, 125]).unwrap().is_some());
        }
    }

    #[test]
    fn a_mask_is_put_on_and_taken_off() {
        for length in 0..20 {
            let plain: Vec<u8> = (0..length).collect();
            let mut masked = plain.clone();
            apply([7, 80, 200, 255], &mut masked);
            for (i, byte) in masked.iter().enumerate() {
                assert_eq!(*byte, plain[i] ^ [7, 80, 200, 255][i % 4]);
            }
            apply([7, 80, 200, 255], &mut masked);
            assert_eq!(masked, plain);
        }
    }

    #[test]
    fn texts_are_checked_under_their_mask_wherever_a_character_is_cut() {
        let mask = [9, 1, 77, 254];
        let check = |plain: &[u8]| {
            let mut masked = plain.to_vec();
            apply(mask, &mut masked);
            is_text(mask, &masked)
        };
        for before in 1000..1030 {
            for good in ["", "a", "é", "€", "🦀"] {
                let text = format!("{}{good}{}", "x".repeat(before), "y".repeat(2000));
                assert!(check(text.as_bytes()));
                let cut = &text.as_bytes()[..before + good.len().saturating_sub(1)];
                assert_eq!(check(cut), good.len() < 2, "{before} {good}");
            }
            let mut bad = "x".repeat(3000).into_bytes();
            bad[before] = 0xff;
            assert!(!check(&bad));
            bad[before] = 0xc3;
            assert!(!check(&bad));
        }
        assert!(check("🦀".repeat(5000).as_bytes()));
    }

    #[test]
    fn words_of_the_router_are_frames() {
        let bytes = control(Kind::Ping, b"abc", false);
        assert_eq!(&bytes[..], b"\x89\x03abc");
        let mut bytes = control(Kind::Pong, b"abc", true).to_vec();
        let (head, at) = Head::parse(&bytes).unwrap().unwrap();
        assert_eq!((head.kind, head.length, at), (Kind::Pong, 3, 6));
        apply(head.mask.unwrap(), &mut bytes[at..]);
        assert_eq!(&bytes[at..], b"abc");
        assert_eq!(control(Kind::Close, &[0; 200], false).len(), 2 + MAX_CONTROL);
    }
}
