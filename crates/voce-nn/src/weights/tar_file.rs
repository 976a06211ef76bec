//! Tar archives (`.nemo`), plain or gzip'd: an index of their members, which are then read in place.
//!
//! Plain files only: links, devices and names that lead out of the archive are refused.

use std::collections::BTreeMap;
use std::io::{Read, Seek, Write};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::WeightError;
use super::span::FileSpan;

/// Most members of an archive.
pub const MAX_MEMBERS: usize = 4096;
/// Longest name of a member, and most bytes of an extended header.
pub const MAX_HEADER_BYTES: u64 = 64 << 10;
/// Most bytes that a gzip'd archive may unpack to.
pub const MAX_UNPACKED: u64 = 32 << 30;
/// Most bytes unpacked for each packed one, beyond the first 64 MiB; weights pack by less than four.
pub const MAX_RATIO: u64 = 16;

const BLOCK: u64 = 512;

/// An archive, by the names of its members.
pub struct TarFile {
    members: BTreeMap<String, FileSpan>,
    span: FileSpan,
}

impl TarFile {
    /// Opens an archive and reads its index.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        let span = FileSpan::open(path)?;
        let magic = if span.len() >= 2 { span.read(0, 2)? } else { Vec::new() };
        let span = if magic == [0x1f, 0x8b] { unpacked(&span)? } else { span };
        let members = index(&span)?;
        Ok(Self { members, span })
    }

    /// Names of all members, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// A member by name.
    pub fn member(&self, name: &str) -> Option<&FileSpan> {
        self.members.get(name)
    }

    /// A member that has to be there.
    pub fn required(&self, name: &str) -> Result<&FileSpan, WeightError> {
        self.member(name).ok_or_else(|| self.span.bad(format!("the archive has no '{name}'")))
    }
}

/// Unpacks into a file without a name, which goes with the process.
fn unpacked(packed: &FileSpan) -> Result<FileSpan, WeightError> {
    let io = |source| WeightError::Io { path: packed.path().to_owned(), source };
    let limit = (packed.len().saturating_mul(MAX_RATIO).saturating_add(64 << 20)).min(MAX_UNPACKED);
    let source = std::fs::File::open(packed.path()).map_err(io)?;
    let mut from = MultiGzDecoder::new(std::io::BufReader::with_capacity(1 << 20, source));
    let mut to = tempfile::tempfile().map_err(io)?;
    let mut buffer = vec![0u8; 1 << 20];
    let mut total = 0u64;
    loop {
        let n = from.read(&mut buffer).map_err(|e| packed.bad(format!("gzip: {e}")))?;
        if n == 0 {
            break;
        }
        total += n as u64;
        if total > limit {
            return Err(packed.bad(format!("it unpacks to more than {limit} bytes")));
        }
        to.write_all(&buffer[..n]).map_err(io)?;
    }
    to.rewind().map_err(io)?;
    FileSpan::whole(packed.path(), to)
}

fn index(span: &FileSpan) -> Result<BTreeMap<String, FileSpan>, WeightError> {
    let mut members = BTreeMap::new();
    let (mut at, mut count) = (0u64, 0usize);
    // What extended headers say about the next member.
    let (mut long_name, mut long_size) = (None, None);
    while at + BLOCK <= span.len() {
        let header = span.read(at, BLOCK as usize)?;
        if header.iter().all(|&b| b == 0) {
            return Ok(members);
        }
        let sum = octal(&header[148..156]).ok_or_else(|| span.bad("not a tar archive"))?;
        let real: u64 = header
            .iter()
            .enumerate()
            .map(|(i, &b)| if (148..156).contains(&i) { 32 } else { u64::from(b) })
            .sum();
        if sum != real {
            return Err(span.bad(format!("not a tar archive (checksum at byte {at})")));
        }
        count += 1;
        if count > MAX_MEMBERS {
            return Err(span.bad(format!("more than {MAX_MEMBERS} members")));
        }
        let stated = number(&header[124..136]).ok_or_else(|| span.bad("a member without a size"))?;
        let kind = header[156];
        let extended = matches!(kind, b'x' | b'g' | b'L' | b'K');
        let size = if extended { stated } else { long_size.take().unwrap_or(stated) };
        let body = span.part(at + BLOCK, size)?;
        if extended {
            let text = body.bytes(MAX_HEADER_BYTES)?;
            match kind {
                b'x' => {
                    let (name, size) = pax(&text).ok_or_else(|| span.bad("a damaged extended header"))?;
                    long_name = name.or(long_name);
                    long_size = size.or(long_size);
                }
                b'L' => long_name = Some(String::from_utf8_lossy(cut(&text)).into_owned()),
                _ => {}
            }
        } else {
            let name = long_name.take().unwrap_or_else(|| short_name(&header));
            match kind {
                b'0' | 0 | b'7' => {
                    let name = safe(&name).ok_or_else(|| {
                        span.bad(format!("member '{}' would leave the archive's folder", name.escape_debug()))
                    })?;
                    if members.insert(name.clone(), body).is_some() {
                        return Err(span.bad(format!("member '{}' is there twice", name.escape_debug())));
                    }
                }
                b'5' => {}
                b'1' | b'2' => {
                    return Err(span.bad(format!("member '{}' is a link", name.escape_debug())));
                }
                other => {
                    return Err(span.bad(format!("member '{}' is of kind {other}", name.escape_debug())));
                }
            }
        }
        let next = size.div_ceil(BLOCK).checked_mul(BLOCK).and_then(|n| n.checked_add(at + BLOCK));
        at = next.ok_or_else(|| span.bad("a member past all sizes"))?;
    }
    if members.is_empty() {
        return Err(span.bad(format!("not a tar archive ({} bytes)", span.len())));
    }
    Ok(members)
}

fn cut(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|&b| b == 0).unwrap_or(field.len())]
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(cut(field)).ok()?.trim_matches(' ');
    u64::from_str_radix(text, 8).ok()
}

/// A size: octal digits, or binary where the first bit is set.
fn number(field: &[u8]) -> Option<u64> {
    match field.split_first() {
        Some((0x80, rest)) => {
            let (high, low) = rest.split_at(rest.len() - 8);
            let low = u64::from_be_bytes(low.try_into().ok()?);
            high.iter().all(|&b| b == 0).then_some(low)
        }
        _ => octal(field),
    }
}

fn short_name(header: &[u8]) -> String {
    let name = String::from_utf8_lossy(cut(&header[..100]));
    let prefix = String::from_utf8_lossy(cut(&header[345..500]));
    // Other flavours of tar keep times where the prefix is.
    if &header[257..263] == b"ustar\0" && !prefix.is_empty() {
        format!("{prefix}/{name}")
    } else {
        name.into_owned()
    }
}

/// Name and size from the records `LENGTH KEY=VALUE\n` of an extended header.
fn pax(mut text: &[u8]) -> Option<(Option<String>, Option<u64>)> {
    let (mut name, mut size) = (None, None);
    while !text.is_empty() && text[0] != 0 {
        let space = text.iter().position(|&b| b == b' ')?;
        let length: usize = std::str::from_utf8(&text[..space]).ok()?.parse().ok()?;
        let record = text.get(space + 1..length)?;
        let record = std::str::from_utf8(record.strip_suffix(b"\n")?).ok()?;
        match record.split_once('=')? {
            ("path", value) => name = Some(value.to_owned()),
            ("size", value) => size = Some(value.parse().ok()?),
            _ => {}
        }
        text = &text[length..];
    }
    Some((name, size))
}

/// The name without a leading `./`, if it stays inside the archive on every system.
fn safe(name: &str) -> Option<String> {
    let name = name.trim_start_matches("./");
    let fine = !name.is_empty()
        && !name.chars().any(|c| c.is_control() || c == '\\' || c == ':')
        && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    fine.then(|| name.to_owned())
}
