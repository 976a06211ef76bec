//! Ogg Opus (RFC 7845) page by page: pre-skip, output gain, end trimming by granule position, chained links.
//! It never seeks, so pipes work; damaged pages are skipped and counted, those of other streams are not kept.

use std::io::{BufReader, Read};

use ogg::reading::{BasePacketReader, PageParser};

use super::ogg_pages::{BEGINS, HEAD, Unfinished};
use super::opus::{OPUS_RATE, OpusHead, OpusPackets};
use super::source::Input;
use super::{Backend, DecodeReport, Spec};
use crate::AudioError;

/// Whether a stream starts with an Ogg page that holds an Opus header.
pub(super) fn is_ogg_opus(head: &[u8]) -> bool {
    head.starts_with(b"OggS")
        && head
            .get(26)
            .is_some_and(|&n| head[27..].get(usize::from(n)..).is_some_and(|p| p.starts_with(b"OpusHead")))
}

/// One logical stream of the file.
struct Link {
    serial: u32,
    packets: OpusPackets,
    tags_seen: bool,
    /// Granule position of the first decoded frame, known after the first audio page.
    start: Option<u64>,
    /// Frames decoded so far, pre-skip included.
    decoded: u64,
    pre_skip: u64,
    /// Frames decoded since the last page end.
    in_page: u64,
}

impl Link {
    fn new(serial: u32, head: OpusHead) -> Result<Self, AudioError> {
        let pre_skip = u64::from(head.pre_skip);
        let packets = OpusPackets::new(head)?;
        Ok(Self { serial, packets, tags_seen: false, start: None, decoded: 0, pre_skip, in_page: 0 })
    }
}

pub(super) struct OggOpus {
    input: BufReader<Input>,
    pages: BasePacketReader,
    /// The one stream whose pages are kept.
    serial: Option<u32>,
    unfinished: Unfinished,
    /// A comment header that goes on over pages; nobody asks for it, so none of it is kept.
    in_tags: bool,
    max_packet: u64,
    link: Option<Link>,
    channels: usize,
    ended: bool,
}

enum Page {
    Read,
    End,
    Cut,
}

impl OggOpus {
    pub(super) fn open(input: Input, max_packet: u64) -> Result<Self, AudioError> {
        let mut this = Self {
            input: BufReader::new(input),
            pages: BasePacketReader::new(),
            serial: None,
            unfinished: Unfinished::default(),
            in_tags: false,
            max_packet,
            link: None,
            channels: 0,
            ended: false,
        };
        let mut report = DecodeReport::default();
        let first = loop {
            if let Some(packet) = this.pages.read_packet() {
                break packet;
            }
            match this.read_page(&mut report)? {
                Page::Read => {}
                Page::End | Page::Cut => return Err(AudioError::Truncated),
            }
        };
        let head = OpusHead::parse(&first.data)?;
        this.channels = head.channels;
        this.link = Some(Link::new(first.stream_serial(), head)?);
        Ok(this)
    }

    fn spec_now(&self) -> Spec {
        Spec { rate: OPUS_RATE, channels: self.channels }
    }

    /// Reads and checks one page, scanning forward to the next capture pattern where needed.
    fn read_page(&mut self, report: &mut DecodeReport) -> Result<Page, AudioError> {
        let mut header = [0; HEAD];
        let mut have = 0;
        loop {
            let got = self.fill(&mut header[have..])?;
            if have + got < header.len() {
                return Ok(if have + got == 0 { Page::End } else { Page::Cut });
            }
            if header.starts_with(b"OggS") {
                break;
            }
            let next = (1..header.len())
                .find(|&i| b"OggS".starts_with(&header[i..header.len().min(i + 4)]))
                .unwrap_or(header.len());
            header.copy_within(next.., 0);
            have = header.len() - next;
        }
        let Ok((mut parser, segments)) = PageParser::new(header) else {
            report.bad_packets += 1;
            return Ok(Page::Read);
        };
        let mut lacing = vec![0; segments];
        if self.fill(&mut lacing)? < segments {
            return Ok(Page::Cut);
        }
        let ends = lacing.iter().any(|&n| n < 255);
        let mut body = vec![0; parser.parse_segments(lacing.clone())];
        if self.fill(&mut body)? < body.len() {
            return Ok(Page::Cut);
        }
        let serial = u32::from_le_bytes([header[14], header[15], header[16], header[17]]);
        let begins = header[5] & BEGINS != 0;
        // A chained link may bear the same serial number as the one that has just ended.
        if self.link.is_none() && begins {
            self.pages = BasePacketReader::new();
            self.unfinished = Unfinished::default();
            self.serial = Some(serial);
        }
        if self.serial != Some(serial) {
            return Ok(Page::Read);
        }
        if self.skips_tags(&body, ends) {
            return Ok(Page::Read);
        }
        match parser.parse_packet_data(body).and_then(|page| self.pages.push_page(page)) {
            Ok(()) => self.unfinished.page(&lacing, self.max_packet)?,
            Err(_) => report.bad_packets += 1,
        }
        Ok(Page::Read)
    }

    /// Whether a page is part of a comment header that one page does not hold. Such a header ends with its page.
    fn skips_tags(&mut self, body: &[u8], ends: bool) -> bool {
        let Some(link) = self.link.as_mut().filter(|l| !l.tags_seen) else { return false };
        let skips = self.in_tags || (!ends && body.starts_with(b"OpusTags"));
        self.in_tags = skips && !ends;
        link.tags_seen = skips && ends;
        skips
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, AudioError> {
        let mut have = 0;
        while have < buf.len() {
            match self.input.read(&mut buf[have..]) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(AudioError::reading("the audio", e)),
            }
        }
        Ok(have)
    }

    fn take_packet(
        &mut self,
        packet: &ogg::Packet,
        out: &mut Vec<f32>,
        report: &mut DecodeReport,
    ) -> Result<(), AudioError> {
        if packet.first_in_stream() && self.link.is_none() && packet.data.starts_with(b"OpusHead") {
            let head = OpusHead::parse(&packet.data)?;
            if head.channels != self.channels {
                return Err(AudioError::FormatChanged);
            }
            self.link = Some(Link::new(packet.stream_serial(), head)?);
            return Ok(());
        }
        let Some(link) = self.link.as_mut().filter(|l| l.serial == packet.stream_serial()) else {
            return Ok(());
        };
        if !link.tags_seen {
            link.tags_seen = true;
            if packet.data.starts_with(b"OpusTags") {
                return Ok(());
            }
        }
        let frames = link.packets.decode(&packet.data, out, report) as u64;
        link.decoded += frames;
        link.in_page += frames;
        if packet.last_in_page() {
            let granule = packet.absgp_page();
            let page_frames = std::mem::take(&mut link.in_page);
            let start = *link.start.get_or_insert_with(|| granule.saturating_sub(page_frames));
            if packet.last_in_stream() {
                let wanted = granule.saturating_sub(start);
                let extra = link.decoded.saturating_sub(wanted.max(link.pre_skip));
                let cut = (extra.min(page_frames) as usize * self.channels).min(out.len());
                out.truncate(out.len() - cut);
                self.link = None;
            }
        }
        Ok(())
    }
}

impl Backend for OggOpus {
    fn spec(&self) -> Option<Spec> {
        Some(self.spec_now())
    }

    fn next(&mut self, out: &mut Vec<f32>, report: &mut DecodeReport) -> Result<Option<Spec>, AudioError> {
        if self.ended {
            return Ok(None);
        }
        // A block is what one page completes, so that the last page can be trimmed as a whole.
        loop {
            while let Some(packet) = self.pages.read_packet() {
                self.take_packet(&packet, out, report)?;
            }
            if !out.is_empty() {
                return Ok(Some(self.spec_now()));
            }
            match self.read_page(report)? {
                Page::Read => {}
                end => {
                    self.ended = true;
                    // A live recording may lack its last page; only a torn page counts as cut off.
                    report.truncated |= matches!(end, Page::Cut);
                    return Ok(None);
                }
            }
        }
    }
}
