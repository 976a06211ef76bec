//! What a reader of Ogg pages must keep: packets that go on over pages without end, and streams without number, are
//! seen here before a demuxer stores them.

use std::collections::HashMap;

use crate::AudioError;

/// Bytes of a page's head, without its lacing values.
pub(super) const HEAD: usize = 27;
/// Flag of a page that begins a stream.
pub(super) const BEGINS: u8 = 0x02;
/// Most streams in one file, side by side or one after the other.
pub(super) const MAX_STREAMS: usize = 256;

/// The packet that goes on in the next page.
#[derive(Debug, Default)]
pub(super) struct Unfinished {
    /// Bytes of it, with those of the pages that brought them.
    kept: u64,
}

impl Unfinished {
    /// Takes the lacing of the stream's next page; an error where a packet and what is kept for it pass the limit.
    pub(super) fn page(&mut self, lacing: &[u8], limit: u64) -> Result<(), AudioError> {
        let sum = |part: &[u8]| part.iter().map(|&n| u64::from(n)).sum::<u64>();
        let ends = lacing.iter().position(|&n| n < 255);
        let first = ends.map_or(lacing, |end| &lacing[..=end]);
        let longest = self.kept + (HEAD + lacing.len()) as u64 + sum(first);
        self.kept = match lacing.iter().rposition(|&n| n < 255) {
            None => longest,
            Some(end) => sum(&lacing[end + 1..]),
        };
        if longest > limit { Err(AudioError::PacketTooLarge { limit }) } else { Ok(()) }
    }
}

/// Looks through the pages of a whole file, which are not checked otherwise.
pub(super) fn check(file: &[u8], limit: u64) -> Result<(), AudioError> {
    let mut streams: HashMap<u32, Unfinished> = HashMap::new();
    let mut begun = 0;
    let mut at = 0;
    while let Some(head) = file.get(at..at + HEAD) {
        if !head.starts_with(b"OggS") {
            at += file[at + 1..].windows(4).position(|w| w == b"OggS").map_or(file.len(), |n| n + 1);
            continue;
        }
        let Some(lacing) = file.get(at + HEAD..at + HEAD + usize::from(head[26])) else { break };
        let serial = u32::from_le_bytes([head[14], head[15], head[16], head[17]]);
        if head[5] & BEGINS != 0 {
            begun += 1;
            if begun > MAX_STREAMS {
                return Err(AudioError::unsupported(format!(
                    "more than {MAX_STREAMS} streams in one ogg file"
                )));
            }
            streams.insert(serial, Unfinished::default());
        }
        if let Some(stream) = streams.get_mut(&serial) {
            stream.page(lacing, limit)?;
        }
        at += HEAD + lacing.len() + lacing.iter().map(|&n| usize::from(n)).sum::<usize>();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(flags: u8, serial: u32, lacing: &[u8]) -> Vec<u8> {
        let mut page = b"OggS\0".to_vec();
        page.push(flags);
        page.extend([0; 8]);
        page.extend(serial.to_le_bytes());
        page.extend([0; 8]);
        page.push(lacing.len() as u8);
        page.extend(lacing);
        page.resize(page.len() + lacing.iter().map(|&n| usize::from(n)).sum::<usize>(), 7);
        page
    }

    fn code(result: Result<(), AudioError>) -> &'static str {
        result.map_or_else(|e| e.code(), |()| "ok")
    }

    #[test]
    fn a_packet_at_the_limit_and_one_past_it() {
        // Two pages, with their heads and lacing: 2 * (27 + 1) + 255 + 5.
        let file = |last: u8| [page(BEGINS, 1, &[255]), page(1, 1, &[last, 4])].concat();
        let limit = 27 + 1 + 255 + 27 + 2 + 5;
        assert_eq!(code(check(&file(5), limit)), "ok");
        assert_eq!(code(check(&file(6), limit)), "packet_too_large");
    }

    #[test]
    fn pages_without_bytes_are_kept_as_well() {
        let mut unfinished = Unfinished::default();
        unfinished.page(&[255], 1000).unwrap();
        let pages = (0..).take_while(|_| unfinished.page(&[], 1000).is_ok()).count();
        assert_eq!(pages, (1000 - 283) / 27);
    }

    #[test]
    fn a_packet_that_ended_is_forgotten() {
        let mut unfinished = Unfinished::default();
        for _ in 0..100 {
            unfinished.page(&[255; 255], 70_000).unwrap();
            unfinished.page(&[1, 255], 70_000).unwrap();
            unfinished.page(&[0], 70_000).unwrap();
        }
    }

    #[test]
    fn streams_without_number() {
        let file = |n: u32| (0..n).flat_map(|serial| page(BEGINS, serial, &[3])).collect::<Vec<_>>();
        assert_eq!(code(check(&file(MAX_STREAMS as u32), 1000)), "ok");
        assert_eq!(code(check(&file(MAX_STREAMS as u32 + 1), 1000)), "unsupported_format");
    }

    #[test]
    fn junk_between_pages_and_torn_pages() {
        let good = page(BEGINS, 1, &[3]);
        for file in [
            [b"OggOggS".to_vec(), good.clone()].concat(),
            [good.clone(), vec![b'O'; 100], good[..20].to_vec()].concat(),
            [good, page(0, 2, &[255; 255])].concat(),
            b"OggS".to_vec(),
            Vec::new(),
        ] {
            assert_eq!(code(check(&file, 300)), "ok");
        }
    }
}
