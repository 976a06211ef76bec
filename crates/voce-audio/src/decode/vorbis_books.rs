//! How much memory the codebooks of a Vorbis setup header ask for: a few bytes of it may claim gigabytes, which the
//! decoder would fill before it looks at a packet.

use crate::AudioError;

/// Most values that all codebooks of a stream may hold together; the largest that libvorbis writes stay below a
/// quarter of it.
const MAX_VALUES: u64 = 1 << 20;
/// Most places that look like a setup header.
const MAX_HEADERS: usize = 16;
const SETUP: &[u8] = b"\x05vorbis";

/// Refuses headers whose codebooks are too large; headers that cannot be read are left to the decoder.
pub(super) fn check(headers: &[u8]) -> Result<(), AudioError> {
    let places = headers.windows(SETUP.len()).enumerate().filter(|(_, w)| *w == SETUP);
    for (found, (at, _)) in places.enumerate() {
        let values = values(&mut Bits { bytes: &headers[at + SETUP.len()..], at: 0 }).unwrap_or(0);
        if values > MAX_VALUES || found >= MAX_HEADERS {
            return Err(AudioError::corrupt("vorbis codebooks too large"));
        }
    }
    Ok(())
}

/// Values of all codebooks, or of those up to the first too many; `None` where the header ends early or is none.
fn values(bits: &mut Bits<'_>) -> Option<u64> {
    let books = bits.read(8)? + 1;
    let mut sum = 0;
    for _ in 0..books {
        if bits.read(24)? != 0x56_4342 {
            return None;
        }
        let (dimensions, entries) = (bits.read(16)?, bits.read(24)?);
        sum += u64::from(entries) * u64::from(dimensions.max(1));
        if sum > MAX_VALUES {
            break;
        }
        skip_lengths(bits, entries)?;
        skip_lookup(bits, dimensions, entries)?;
    }
    Some(sum)
}

fn skip_lengths(bits: &mut Bits<'_>, entries: u32) -> Option<()> {
    if bits.read(1)? == 1 {
        // Ordered: how many entries each length has.
        bits.read(5)?;
        let mut left = entries;
        while left > 0 {
            left = left.checked_sub(bits.read(32 - left.leading_zeros())?)?;
        }
        return Some(());
    }
    let is_sparse = bits.read(1)? == 1;
    for _ in 0..entries {
        if !is_sparse || bits.read(1)? == 1 {
            bits.read(5)?;
        }
    }
    Some(())
}

fn skip_lookup(bits: &mut Bits<'_>, dimensions: u32, entries: u32) -> Option<()> {
    let values = match bits.read(4)? {
        0 => return Some(()),
        1 => u64::from((entries as f32).powf(1.0 / dimensions.max(1) as f32).floor() as u32),
        2 => u64::from(entries) * u64::from(dimensions),
        _ => return None,
    };
    bits.read(32)?;
    bits.read(32)?;
    let width = bits.read(4)? + 1;
    bits.read(1)?;
    bits.skip(values * u64::from(width))
}

/// Bits from the lowest of each byte on.
struct Bits<'a> {
    bytes: &'a [u8],
    at: u64,
}

impl Bits<'_> {
    fn read(&mut self, n: u32) -> Option<u32> {
        let mut value = 0;
        for i in 0..n {
            let byte = self.bytes.get((self.at >> 3) as usize)?;
            value |= u32::from(byte >> (self.at & 7) & 1) << i;
            self.at += 1;
        }
        Some(value)
    }

    fn skip(&mut self, n: u64) -> Option<()> {
        self.at = self.at.checked_add(n).filter(|at| *at <= self.bytes.len() as u64 * 8)?;
        Some(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A setup header of `books` codebooks with `entries` of `dimensions`, all of one length, ordered.
    pub(crate) fn header(books: u32, dimensions: u32, entries: u32) -> Vec<u8> {
        let (mut bytes, mut filled) = (SETUP.to_vec(), 0);
        let mut put = |value: u32, n: u32| {
            for i in 0..n {
                if filled % 8 == 0 {
                    bytes.push(0);
                }
                if let Some(last) = bytes.last_mut() {
                    *last |= ((value >> i & 1) as u8) << (filled % 8);
                }
                filled += 1;
            }
        };
        put(books - 1, 8);
        for _ in 0..books {
            put(0x56_4342, 24);
            put(dimensions, 16);
            put(entries, 24);
            put(1, 1);
            put(31 - entries.leading_zeros() - 1, 5);
            put(entries, 32 - entries.leading_zeros());
            put(1, 4);
            put(0, 32);
            put(0, 32);
            put(0, 4);
            put(0, 1);
            let values = (entries as f32).powf(1.0 / dimensions as f32).floor() as u32;
            (0..values).for_each(|_| put(0, 1));
        }
        bytes
    }

    #[test]
    fn the_limit_and_one_past_it() {
        // 32 books of 1,024 entries in 32 dimensions are the limit.
        assert!(check(&header(32, 32, 1024)).is_ok());
        assert!(check(&header(33, 32, 1024)).is_err());
        assert!(check(&header(1, 1, MAX_VALUES as u32)).is_ok());
        assert!(check(&header(1, 2, MAX_VALUES as u32)).is_err());
    }

    #[test]
    fn a_bomb_is_found_behind_others_and_when_cut_off() {
        let bomb = header(256, 32, 128 * 1024);
        assert!(bomb.len() < 20_000, "{}", bomb.len());
        assert!(check(&bomb).is_err());
        assert!(check(&bomb[..SETUP.len() + 10]).is_err());
        assert!(check(&[header(1, 1, 2), bomb].concat()).is_err());
        assert!(check(&SETUP.repeat(MAX_HEADERS)).is_ok());
        assert!(check(&SETUP.repeat(MAX_HEADERS + 1)).is_err());
    }

    #[test]
    fn what_cannot_be_read_is_the_decoders() {
        for headers in [&b""[..], b"\x05vorbis", b"\x05vorbis\x00BCV", b"\x01vorbis\x00"] {
            assert!(check(headers).is_ok());
        }
    }
}
