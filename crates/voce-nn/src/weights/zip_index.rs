//! The index of a zip archive of stored members, which is what torch writes; 64-bit sizes included.

use std::collections::HashMap;

use super::WeightError;
use super::span::FileSpan;

/// Most members.
pub(super) const MAX_MEMBERS: u64 = 1 << 18;
/// Most bytes of the central directory.
const MAX_DIRECTORY: u64 = 64 << 20;

/// Members by name.
pub(super) struct ZipIndex {
    span: FileSpan,
    members: HashMap<String, Member>,
}

struct Member {
    header: u64,
    size: u64,
    stored: bool,
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 2).map(|b| u64::from(b[0]) | u64::from(b[1]) << 8)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u16_at(bytes, at)? | u16_at(bytes, at + 2)? << 16)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u32_at(bytes, at)? | u32_at(bytes, at + 4)? << 32)
}

struct Directory {
    count: u64,
    size: u64,
    start: u64,
}

/// Finds the central directory by the record at the end.
fn directory(span: &FileSpan) -> Result<Directory, WeightError> {
    let bad = || span.bad("the checkpoint is not a whole zip archive: fetch it again");
    let tail_len = span.len().min(22 + 0xffff);
    let tail = span.read(span.len() - tail_len, tail_len as usize)?;
    let ends = |at: usize| u16_at(&tail, at + 20).is_some_and(|comment| at as u64 + 22 + comment == tail_len);
    let at = (0..tail.len().saturating_sub(21))
        .rev()
        .find(|&at| tail[at..].starts_with(b"PK\x05\x06") && ends(at))
        .ok_or_else(bad)?;
    let field = |offset| u32_at(&tail, at + offset).ok_or_else(bad);
    let mut found =
        Directory { count: u16_at(&tail, at + 10).ok_or_else(bad)?, size: field(12)?, start: field(16)? };
    let large = found.count == 0xffff || found.size == 0xffff_ffff || found.start == 0xffff_ffff;
    if let Some(locator) = at.checked_sub(20).filter(|&l| tail[l..].starts_with(b"PK\x06\x07")) {
        let record = u64_at(&tail, locator + 8).ok_or_else(bad)?;
        let record = span.read(record, 56).map_err(|_| bad())?;
        if !record.starts_with(b"PK\x06\x06") {
            return Err(bad());
        }
        let field = |offset| u64_at(&record, offset).ok_or_else(bad);
        found = Directory { count: field(32)?, size: field(40)?, start: field(48)? };
    } else if large {
        return Err(bad());
    }
    if found.count > MAX_MEMBERS || found.size > MAX_DIRECTORY {
        return Err(span.bad(format!("a zip index of {} members in {} bytes", found.count, found.size)));
    }
    Ok(found)
}

impl ZipIndex {
    pub(super) fn read(span: &FileSpan) -> Result<Self, WeightError> {
        let place = directory(span)?;
        let bytes = span.read(place.start, place.size as usize)?;
        let mut members = HashMap::new();
        let mut at = 0usize;
        for _ in 0..place.count {
            let (name, member, next) =
                entry(&bytes, at).ok_or_else(|| span.bad("the checkpoint's zip index is damaged"))?;
            // The local header has 30 bytes, the name and extra fields.
            let least = member.header.checked_add(30).and_then(|n| n.checked_add(member.size));
            if least.is_none_or(|end| end > span.len()) {
                return Err(
                    span.bad(format!("'{}' ends past the end of the checkpoint", name.escape_debug()))
                );
            }
            if members.insert(name.clone(), member).is_some() {
                return Err(span.bad(format!("'{}' is in the checkpoint twice", name.escape_debug())));
            }
            at = next;
        }
        Ok(Self { span: span.clone(), members })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// The bytes of a member, where they lie.
    pub(super) fn member(&self, name: &str) -> Result<Option<FileSpan>, WeightError> {
        let Some(member) = self.members.get(name) else { return Ok(None) };
        if !member.stored {
            return Err(self.span.bad(format!("'{}' is compressed or encrypted", name.escape_debug())));
        }
        let header = self.span.read(member.header, 30)?;
        let lengths =
            u16_at(&header, 26).zip(u16_at(&header, 28)).filter(|_| header.starts_with(b"PK\x03\x04"));
        let Some((name_len, extra)) = lengths else {
            return Err(self.span.bad(format!("'{}' is not where the zip index says", name.escape_debug())));
        };
        self.span.part(member.header + 30 + name_len + extra, member.size).map(Some)
    }
}

/// One entry of the central directory and where the next begins.
fn entry(bytes: &[u8], at: usize) -> Option<(String, Member, usize)> {
    let head = bytes.get(at..at.checked_add(46)?)?;
    if !head.starts_with(b"PK\x01\x02") {
        return None;
    }
    let (flags, method) = (u16_at(head, 8)?, u16_at(head, 10)?);
    let (packed, size, header) = (u32_at(head, 20)?, u32_at(head, 24)?, u32_at(head, 42)?);
    let (name_len, extra_len, comment) =
        (u16_at(head, 28)? as usize, u16_at(head, 30)? as usize, u16_at(head, 32)? as usize);
    let name = bytes.get(at + 46..at + 46 + name_len)?;
    let extra = bytes.get(at + 46 + name_len..at + 46 + name_len + extra_len)?;
    let [size, packed, header] = large_fields(extra, [size, packed, header])?;
    let stored = method == 0 && packed == size && flags & 1 == 0;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    Some((name, Member { header, size, stored }, at + 46 + name_len + extra_len + comment))
}

/// The 64-bit values of those fields that are all ones, in their order.
fn large_fields(mut extra: &[u8], mut fields: [u64; 3]) -> Option<[u64; 3]> {
    if !fields.contains(&0xffff_ffff) {
        return Some(fields);
    }
    while extra.len() >= 4 {
        let (id, len) = (u16_at(extra, 0)?, u16_at(extra, 2)? as usize);
        let body = extra.get(4..4 + len)?;
        if id == 1 {
            let mut at = 0;
            for field in fields.iter_mut().filter(|f| **f == 0xffff_ffff) {
                *field = u64_at(body, at)?;
                at += 8;
            }
            return Some(fields);
        }
        extra = &extra[4 + len..];
    }
    None
}
