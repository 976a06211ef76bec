//! Streams that grow what a decoder keeps: packets over pages without end, blocks that claim gigabytes, streams
//! without number, tables in a few bytes. Each is refused after the bytes that the limits allow, and not later.

mod common;

use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use ogg::writing::{PacketWriteEndInfo, PacketWriter};
use voce_audio::decode::{LIVE_MAX_GAP_BYTES, MAX_PACKET_BYTES};
use voce_audio::*;

const HEAD: &[u8] = b"OpusHead\x01\x01\x00\x00\x80\xbb\x00\x00\x00\x00\x00";
const TAGS: &[u8] = b"OpusTags\x00\x00\x00\x00\x00\x00\x00\x00";
/// What may be read ahead of what is looked at.
const AHEAD: u64 = 256 * 1024;

/// A source that counts what is taken from it.
struct Counted<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.0.read(buf)?;
        self.1.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// How a stream ends and how many bytes of it were taken.
fn outcome(stream: impl Read + Send + 'static, limits: &DecodeLimits) -> (&'static str, u64) {
    let taken = Arc::new(AtomicU64::new(0));
    let source = Source::reader(Counted(stream, taken.clone()));
    let code = decode(source, None, limits).map_or_else(|e| e.code(), |_| "ok");
    (code, taken.load(Ordering::Relaxed))
}

fn code(file: &[u8]) -> &'static str {
    decode_bytes(file, None, &DecodeLimits::default()).map_or_else(|e| e.code(), |_| "ok")
}

/// An Ogg page with its checksum.
fn page(flags: u8, serial: u32, number: u32, lacing: &[u8], body: &[u8]) -> Vec<u8> {
    let mut page = b"OggS\0".to_vec();
    page.push(flags);
    page.extend(0u64.to_le_bytes());
    page.extend(serial.to_le_bytes());
    page.extend(number.to_le_bytes());
    page.extend([0; 4]);
    page.push(lacing.len() as u8);
    page.extend(lacing);
    page.extend(body);
    let mut crc = 0u32;
    for &byte in &page {
        crc ^= u32::from(byte) << 24;
        for _ in 0..8 {
            crc = if crc & 0x8000_0000 != 0 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 };
        }
    }
    page[22..26].copy_from_slice(&crc.to_le_bytes());
    page
}

/// Pages of a stream that one packet fills, without end.
struct Endless {
    serial: u32,
    number: u32,
    lacing: Vec<u8>,
    now: Cursor<Vec<u8>>,
}

impl Endless {
    fn new(serial: u32, number: u32, lacing: &[u8]) -> Self {
        Self { serial, number, lacing: lacing.to_vec(), now: Cursor::default() }
    }
}

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.now.position() as usize == self.now.get_ref().len() {
            let body = vec![0; self.lacing.iter().map(|&n| usize::from(n)).sum()];
            self.now = Cursor::new(page(1, self.serial, self.number, &self.lacing, &body));
            self.number += 1;
        }
        self.now.read(buf)
    }
}

fn opus_start(body: &[u8]) -> Vec<u8> {
    let mut start = page(2, 1, 0, &[HEAD.len() as u8], HEAD);
    start.extend(page(0, 1, 1, &[TAGS.len() as u8], TAGS));
    start.extend(page(0, 1, 2, &[255], body));
    start
}

#[test]
fn an_opus_packet_without_end_is_refused_after_a_mebibyte() {
    for lacing in [&[255; 255][..], &[255], &[]] {
        for limits in [DecodeLimits::default(), DecodeLimits::live()] {
            let stream = Cursor::new(opus_start(&[0; 255])).chain(Endless::new(1, 3, lacing));
            let (code, taken) = outcome(stream, &limits);
            assert_eq!(code, "packet_too_large", "{} a page", lacing.len());
            assert!(taken < MAX_PACKET_BYTES + AHEAD, "{taken}");
        }
    }
}

#[test]
fn an_opus_packet_at_the_limit_and_one_past_it() {
    let file = |extra: usize| {
        let limit = MAX_PACKET_BYTES as usize;
        let mut file = opus_start(&[0; 255]);
        let mut kept = 27 + 1 + 255;
        let mut number = 3;
        while kept + 27 + 255 * 256 < limit {
            file.extend(page(1, 1, number, &[255; 255], &[0; 255 * 255]));
            kept += 27 + 255 + 255 * 255;
            number += 1;
        }
        // The last page ends the packet: whole segments, then what is left.
        let left = limit - kept - 27;
        let segments = (left - 1) / 256;
        let rest = left - segments * 256 - 1;
        assert!(rest < 254);
        let mut lacing = vec![255; segments];
        lacing.push((rest + extra) as u8);
        file.extend(page(5, 1, number, &lacing, &vec![0; segments * 255 + rest + extra]));
        file
    };
    // No codec takes such a packet, but the page reader does.
    assert_eq!(code(&file(0)), "corrupt");
    assert_eq!(code(&file(1)), "packet_too_large");
}

#[test]
fn comment_headers_of_opus_are_not_kept() {
    let file = |size: usize| {
        let mut tags = TAGS.to_vec();
        tags.resize(size, 0);
        let mut writer = PacketWriter::new(Vec::new());
        writer.write_packet(HEAD.to_vec(), 1, PacketWriteEndInfo::EndPage, 0).unwrap();
        writer.write_packet(tags, 1, PacketWriteEndInfo::EndPage, 0).unwrap();
        for i in 1..=10 {
            let end = if i == 10 { PacketWriteEndInfo::EndStream } else { PacketWriteEndInfo::NormalPacket };
            writer.write_packet(vec![0x1b, 0x02], 1, end, i * 5760).unwrap();
        }
        writer.into_inner()
    };
    // A picture of three times what a packet may have, and sound after it.
    for size in [100, 3 << 20] {
        let audio = decode_bytes(&file(size), None, &DecodeLimits::default()).unwrap();
        assert_eq!(audio.samples.len(), 10 * 5760, "{size}");
    }
    // Live, no header lasts for ever.
    let start =
        [page(2, 1, 0, &[HEAD.len() as u8], HEAD), page(0, 1, 1, &[255], &[TAGS, &[0; 239]].concat())];
    let stream = Cursor::new(start.concat()).chain(Endless::new(1, 2, &[255; 255]));
    let (code, taken) = outcome(stream, &DecodeLimits::live());
    assert_eq!(code, "no_sound");
    assert!(taken < LIVE_MAX_GAP_BYTES + AHEAD, "{taken}");
}

#[test]
fn pages_of_other_streams_are_not_kept() {
    // Serials without number, each with a packet that does not end.
    let start = opus_start(&[0; 255]);
    let others = (100..).flat_map(|serial| page(2, serial, 0, &[255; 255], &[0; 255 * 255]));
    let mut others = others.into_iter();
    let endless = std::io::repeat(0).take(0).chain(FromIter(Box::new(move || others.next())));
    let (code, taken) = outcome(Cursor::new(start).chain(endless), &DecodeLimits::live());
    assert_eq!(code, "no_sound");
    assert!(taken < LIVE_MAX_GAP_BYTES + AHEAD, "{taken}");
}

struct FromIter(Box<dyn FnMut() -> Option<u8> + Send>);

impl Read for FromIter {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let mut n = 0;
        for (place, byte) in buf.iter_mut().zip(std::iter::from_fn(&mut self.0)) {
            *place = byte;
            n += 1;
        }
        Ok(n)
    }
}

/// Serial number and count of the pages of an Ogg file.
fn pages_of(file: &[u8]) -> (u32, u32) {
    let last = file.windows(4).rposition(|w| w == b"OggS").unwrap();
    let at = |i: usize| u32::from_le_bytes(file[last + i..last + i + 4].try_into().unwrap());
    (at(14), at(18))
}

#[test]
fn a_vorbis_packet_without_end_is_refused_after_a_mebibyte() {
    let file = fixture("tone_24k_vorbis.ogg");
    let (serial, last) = pages_of(&file);
    // The last page says that it is the last, and the next begins a packet.
    let begin = page(0, serial, last + 1, &[255], &[0; 255]);
    let stream = Cursor::new([file.clone(), begin.clone()].concat()).chain(Endless::new(
        serial,
        last + 2,
        &[255; 255],
    ));
    let (code_of_stream, taken) = outcome(stream, &DecodeLimits::live());
    assert_eq!(code_of_stream, "packet_too_large");
    assert!(taken < file.len() as u64 + MAX_PACKET_BYTES + AHEAD, "{taken}");
    // The same as a file.
    let mut whole = [file, begin].concat();
    Endless::new(serial, last + 2, &[255; 255]).take(2 << 20).read_to_end(&mut whole).unwrap();
    assert_eq!(code(&whole), "packet_too_large");
}

#[test]
fn streams_without_number_in_one_ogg() {
    let vorbis = fixture("tone_24k_vorbis.ogg");
    let ident = &vorbis[28..58];
    assert!(ident.starts_with(b"\x01vorbis"));
    let begins =
        |n: u32| (0..n).flat_map(|serial| page(2, serial + 7_000_000, 0, &[30], ident)).collect::<Vec<_>>();
    assert_eq!(code(&[begins(257), vorbis.clone()].concat()), "unsupported_format");
    // As a stream, they end where a packet would.
    let mut serial = 0;
    let mut now = Vec::new().into_iter();
    let ident = ident.to_vec();
    let endless = FromIter(Box::new(move || {
        now.next().or_else(|| {
            serial += 1;
            now = page(2, serial, 0, &[30], &ident).into_iter();
            now.next()
        })
    }));
    let (code, taken) = outcome(endless, &DecodeLimits::live());
    assert_eq!(code, "packet_too_large");
    assert!(taken < MAX_PACKET_BYTES + AHEAD, "{taken}");
}

/// The head of a webm file up to its first cluster, as if it were streamed.
fn webm_head() -> Vec<u8> {
    let file = fixture("tone_48k_opus.webm");
    let find = |id: &[u8]| file.windows(id.len()).position(|w| w == id).unwrap();
    let cluster = find(&[0x1f, 0x43, 0xb6, 0x75]);
    let segment = find(&[0x18, 0x53, 0x80, 0x67]) + 4;
    let mut head = file[..cluster].to_vec();
    assert_eq!(head[segment], 1, "a size of eight bytes");
    head[segment + 1..segment + 8].fill(0xff);
    // The index of what comes later becomes a void: it is not there.
    let index = find(&[0x11, 0x4d, 0x9b, 0x74]);
    let size = head[index + 4] & 0x7f;
    head[index..index + 5].copy_from_slice(&[0xec, 0x10, 0, 0, size]);
    head
}

#[test]
fn a_block_of_matroska_that_claims_gigabytes() {
    let mut stream = webm_head();
    // A cluster of unknown size, its time, and a block of 64 GiB.
    stream.extend([0x1f, 0x43, 0xb6, 0x75, 0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    stream.extend([0xe7, 0x81, 0x00, 0xa3, 0x01, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00]);
    let (code_of_stream, taken) =
        outcome(Cursor::new(stream.clone()).chain(std::io::repeat(0)), &DecodeLimits::live());
    assert_eq!(code_of_stream, "packet_too_large");
    assert!(taken < MAX_PACKET_BYTES + 2 * AHEAD, "{taken}");
    // In a file, whose end is known, it may claim what there is.
    let size = stream.len();
    stream[size - 8..].copy_from_slice(&[0x01, 0, 0, 0, 0, 0x20, 0, 0]);
    stream.resize(size + (2 << 20), 0);
    assert_eq!(code(&stream), "packet_too_large");
}

#[test]
fn headers_of_matroska_without_end() {
    // Tags of many small elements would take many times their bytes.
    let mut stream = webm_head();
    stream.extend([0x12, 0x54, 0xc3, 0x67, 0x01, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00]);
    stream.extend([0x73, 0x73, 0x01, 0x00, 0x00, 0x0f, 0x00, 0x00, 0x00, 0x00]);
    let mut tags = [0x67, 0xc8, 0x84, 0x45, 0xa3, 0x81, b'a'].into_iter().cycle();
    let endless = FromIter(Box::new(move || tags.next()));
    let (code, taken) = outcome(Cursor::new(stream).chain(endless), &DecodeLimits::live());
    assert_eq!(code, "packet_too_large");
    assert!(taken < MAX_PACKET_BYTES + 2 * AHEAD, "{taken}");
}

/// A Vorbis setup header of 256 codebooks with 128 Ki entries in 31 dimensions: 4 GB of tables in 9 kB.
fn books() -> Vec<u8> {
    let (mut bytes, mut filled) = (b"\x05vorbis".to_vec(), 0);
    let mut put = |value: u64, n: u32| {
        for i in 0..n {
            if filled % 8 == 0 {
                bytes.push(0);
            }
            *bytes.last_mut().unwrap() |= ((value >> i & 1) as u8) << (filled % 8);
            filled += 1;
        }
    };
    put(255, 8);
    for _ in 0..256 {
        put(0x56_4342, 24);
        put(31, 16);
        put(128 * 1024, 24);
        // All of length 17, in order; a lookup of the first kind with one value.
        put(1, 1);
        put(16, 5);
        put(128 * 1024, 18);
        put(1, 4);
        put(0, 32);
        put(0, 32);
        put(0, 4);
        put(0, 1);
        put(0, 1);
    }
    bytes
}

#[test]
fn tables_of_vorbis_that_claim_gigabytes() {
    let vorbis = fixture("tone_24k_vorbis.ogg");
    let ident = vorbis[28..58].to_vec();
    let setup = books();
    assert!(setup.len() < 8_000, "{}", setup.len());
    let mut writer = PacketWriter::new(Vec::new());
    let comment = b"\x03vorbis\x00\x00\x00\x00\x00\x00\x00\x00\x01".to_vec();
    for (packet, end) in [
        (ident, PacketWriteEndInfo::EndPage),
        (comment, PacketWriteEndInfo::NormalPacket),
        (setup, PacketWriteEndInfo::EndPage),
        (vec![0; 50], PacketWriteEndInfo::EndStream),
    ] {
        writer.write_packet(packet, 1, end, 0).unwrap();
    }
    let file = writer.into_inner();
    let error = decode_bytes(&file, None, &DecodeLimits::default()).unwrap_err();
    assert_eq!(error.code(), "corrupt");
    assert!(error.to_string().contains("codebooks"), "{error}");
    assert_eq!(outcome(Cursor::new(file), &DecodeLimits::live()).0, "corrupt");
}

#[test]
fn pictures_in_uploads_are_skipped() {
    let picture = vec![0x55; 3 << 20];
    // FLAC: a block after the stream's description.
    let flac = encode(&noise(5000, 1), 16000, AudioFormat::Flac);
    let mut with = flac[..42].to_vec();
    let is_last = with[4] & 0x80;
    with[4] &= 0x7f;
    with.push(6 | is_last);
    with.extend(&(picture.len() as u32).to_be_bytes()[1..]);
    with.extend(&picture);
    with.extend(&flac[42..]);
    let plain = decode_bytes(&flac, None, &DecodeLimits::default()).unwrap();
    assert_eq!(decode_bytes(&with, None, &DecodeLimits::default()).unwrap(), plain);
    // m4a: user data at the end of the movie, which is the last box of this file.
    let m4a = fixture("tone_24k_mono.m4a");
    let moov = m4a.windows(4).rposition(|w| w == b"moov").unwrap() - 4;
    let size = u32::from_be_bytes(m4a[moov..moov + 4].try_into().unwrap());
    assert_eq!(moov + size as usize, m4a.len());
    let mut udta = (picture.len() as u32 + 8).to_be_bytes().to_vec();
    udta.extend(b"udta");
    udta.extend(&picture);
    let mut with = [m4a.clone(), udta.clone()].concat();
    with[moov..moov + 4].copy_from_slice(&(size + udta.len() as u32).to_be_bytes());
    let plain = decode_bytes(&m4a, None, &DecodeLimits::default()).unwrap();
    assert_eq!(decode_bytes(&with, None, &DecodeLimits::default()).unwrap(), plain);
}

#[test]
fn an_mp4_stream_has_a_limit_of_its_own() {
    let file = fixture("tone_24k_faststart.m4a");
    let size = file.len() as u64;
    let at = |max| DecodeLimits { max_mp4_stream_bytes: max, ..DecodeLimits::live() };
    assert_eq!(outcome(Cursor::new(file.clone()), &at(size)).0, "ok");
    assert_eq!(outcome(Cursor::new(file.clone()), &at(size - 1)).0, "too_large");
    // A file that is held is bounded already.
    assert!(decode_bytes(&file, None, &at(size - 1)).is_ok());
}

#[test]
fn a_stream_without_sound_at_the_limit_and_one_past_it() {
    // A chunk that nobody asks for, then a frame of sound.
    let file = |junk: u32| {
        let mut file = b"RIFF\xff\xff\xff\xffWAVEjunk".to_vec();
        file.extend(junk.to_le_bytes());
        file.resize(file.len() + junk as usize, 0);
        file.extend(&wav_bytes(1, 16, 1, 16000, &[0; 2])[12..]);
        file
    };
    let fits = LIVE_MAX_GAP_BYTES as u32 - file(0).len() as u32;
    assert_eq!(outcome(Cursor::new(file(fits)), &DecodeLimits::live()).0, "ok");
    assert_eq!(outcome(Cursor::new(file(fits + 2)), &DecodeLimits::live()).0, "no_sound");
    assert_eq!(outcome(Cursor::new(file(fits + 2)), &DecodeLimits::default()).0, "ok");
}
