//! Tags and pictures in the heads of FLAC and mp4 files in memory, blanked so that the demuxer skips them unread:
//! nobody here asks for them, and they may be larger than the sound.

/// Most places that are blanked; what follows them counts as a header.
const MAX_BLANKS: usize = 64;
/// Most boxes looked at in an mp4.
const MAX_BOXES: usize = 4096;

/// Bytes that replace those of a source at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Blank {
    at: u64,
    bytes: [u8; 4],
    len: usize,
}

impl Blank {
    /// Replaces what of it lies in `buf`, which was read at `pos`.
    pub(super) fn apply(&self, pos: u64, buf: &mut [u8]) {
        for (i, &byte) in self.bytes[..self.len].iter().enumerate() {
            let at = (self.at + i as u64).checked_sub(pos).and_then(|at| usize::try_from(at).ok());
            if let Some(place) = at.and_then(|at| buf.get_mut(at)) {
                *place = byte;
            }
        }
    }
}

/// The places to blank in a whole file.
pub(super) fn find(file: &[u8]) -> Vec<Blank> {
    let mut blanks = Vec::new();
    if file.starts_with(b"fLaC") {
        flac(file, &mut blanks);
    } else if file.get(4..8) == Some(b"ftyp") {
        let mut boxes = MAX_BOXES;
        mp4(file, 0, file.len(), 0, &mut boxes, &mut blanks);
    }
    blanks
}

/// Every block but the stream's description becomes padding.
fn flac(file: &[u8], blanks: &mut Vec<Blank>) {
    const LAST: u8 = 0x80;
    const PADDING: u8 = 1;
    let mut at = 4;
    while let Some(&[kind, a, b, c]) = file.get(at..).and_then(|rest| rest.first_chunk()) {
        if kind & !LAST > PADDING && blanks.len() < MAX_BLANKS {
            blanks.push(Blank { at: at as u64, bytes: [kind & LAST | PADDING, 0, 0, 0], len: 1 });
        }
        if kind & LAST != 0 || blanks.len() >= MAX_BLANKS {
            return;
        }
        at += 4 + u32::from_be_bytes([0, a, b, c]) as usize;
    }
}

/// User data of the movie and of its tracks becomes free space.
fn mp4(file: &[u8], start: usize, end: usize, depth: usize, boxes: &mut usize, blanks: &mut Vec<Blank>) {
    let mut at = start;
    while at < end && *boxes > 0 && blanks.len() < MAX_BLANKS {
        *boxes -= 1;
        let Some(&head) = file.get(at..end).and_then(|rest| rest.first_chunk::<8>()) else { return };
        let [s0, s1, s2, s3, kind @ ..] = head;
        let (body, size) = match u32::from_be_bytes([s0, s1, s2, s3]) {
            0 => (8, end - at),
            1 => {
                let Some(&long) = file.get(at + 8..end).and_then(|rest| rest.first_chunk::<8>()) else {
                    return;
                };
                (16, usize::try_from(u64::from_be_bytes(long)).unwrap_or(usize::MAX))
            }
            n => (8, n as usize),
        };
        let Some(next) = at.checked_add(size).filter(|next| size >= body && *next <= end) else { return };
        match &kind {
            b"udta" | b"meta" => blanks.push(Blank { at: at as u64 + 4, bytes: *b"free", len: 4 }),
            b"moov" if depth == 0 => mp4(file, at + body, next, 1, boxes, blanks),
            b"trak" if depth == 1 => mp4(file, at + body, next, 2, boxes, blanks),
            _ => {}
        }
        at = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(file: &[u8], piece: usize) -> Vec<u8> {
        let blanks = find(file);
        let mut out = Vec::new();
        for (i, part) in file.chunks(piece).enumerate() {
            let mut part = part.to_vec();
            blanks.iter().for_each(|b| b.apply((i * piece) as u64, &mut part));
            out.extend(part);
        }
        out
    }

    fn atom(kind: &[u8; 4], body: &[u8]) -> Vec<u8> {
        [&(body.len() as u32 + 8).to_be_bytes()[..], kind, body].concat()
    }

    #[test]
    fn user_data_of_movies_and_tracks_is_blanked_and_nothing_else() {
        let trak = atom(b"trak", &[atom(b"tkhd", b"udta"), atom(b"udta", b"name")].concat());
        let moov = atom(b"moov", &[trak, atom(b"udta", &[7; 100]), atom(b"mvhd", b"meta")].concat());
        let file =
            [atom(b"ftyp", b"M4A "), moov, atom(b"mdat", b"moovudtameta"), atom(b"meta", b"x")].concat();
        for piece in [1, 3, 7, 1000] {
            let got = seen(&file, piece);
            let text = String::from_utf8_lossy(&got).into_owned();
            assert_eq!(text.matches("free").count(), 3, "{piece}");
            assert_eq!(got.len(), file.len());
            assert!(text.contains("moovudtameta"), "samples are left alone");
        }
    }

    #[test]
    fn blocks_of_flac_become_padding() {
        let file = b"fLaC\x00\x00\x00\x02ab\x06\x00\x00\x03abc\x84\x00\x00\x01x\xff\xf8\x06\x04".to_vec();
        let got = seen(&file, 2);
        assert_eq!(got, b"fLaC\x00\x00\x00\x02ab\x01\x00\x00\x03abc\x81\x00\x00\x01x\xff\xf8\x06\x04");
    }

    #[test]
    fn lies_end_the_search() {
        for file in [
            &b"fLaC"[..],
            b"fLaC\x06\xff\xff\xff",
            b"\0\0\0\x08ftyp\0\0\0\x07moov",
            b"\0\0\0\x08ftyp\0\0\0\x01moov\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\0\0\0\x08ftyp\0\0\0\0moov\0\0\0\0udta",
        ] {
            assert!(find(file).len() <= 1, "{file:?}");
        }
        let many = [b"fLaC".to_vec(), [4, 0, 0, 0].repeat(MAX_BLANKS + 1)].concat();
        assert_eq!(find(&many).len(), MAX_BLANKS);
    }
}
