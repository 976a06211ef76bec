//! The head of a GGUF file: what it says of itself, which is passed over, and the table of its tensors.

use std::io::{self, Read};

use super::gguf_file::MAGIC;

/// Most tensors of a GGUF file.
pub const MAX_GGUF_TENSORS: u64 = 1 << 16;
/// Most entries that a GGUF file has about itself.
pub const MAX_GGUF_ENTRIES: u64 = 1 << 16;
/// Most bytes of a tensor's or an entry's name.
pub const MAX_GGUF_NAME: u64 = 1 << 10;
/// Most dimensions of a tensor.
pub const MAX_GGUF_DIMENSIONS: u32 = 8;
/// How deep arrays of arrays may be nested.
const MAX_DEPTH: usize = 4;
/// Where tensors begin when a file does not say: at a multiple of this.
const ALIGNMENT: u64 = 32;
/// The largest such multiple.
const MAX_ALIGNMENT: u64 = 1 << 20;
/// The entry that says another one.
const ALIGNMENT_NAME: &str = "general.alignment";

/// Why a head cannot be read.
pub(super) enum GgufError {
    Io(io::Error),
    Bad(String),
}

impl From<io::Error> for GgufError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Bad("it is cut short".into()),
            _ => Self::Io(error),
        }
    }
}

fn bad<T>(reason: impl Into<String>) -> Result<T, GgufError> {
    Err(GgufError::Bad(reason.into()))
}

/// A tensor as the table has it.
pub(super) struct Listed {
    pub(super) name: String,
    /// The innermost first.
    pub(super) dimensions: Vec<usize>,
    pub(super) kind: u32,
    /// From the start of the data.
    pub(super) offset: u64,
}

/// What a file holds, and where.
pub(super) struct Head {
    pub(super) tensors: Vec<Listed>,
    /// Where the data begin.
    pub(super) data: u64,
}

impl Head {
    /// Reads the head of a file of `length` bytes.
    pub(super) fn read(source: impl Read, length: u64) -> Result<Self, GgufError> {
        let mut reader = Reader { source, at: 0, length };
        if reader.array::<4>()? != MAGIC {
            return bad("it does not begin with GGUF");
        }
        match reader.u32()? {
            2 | 3 => {}
            other => return bad(format!("it has version {other}, of which 2 and 3 are read")),
        }
        let (tensors, entries) = (reader.u64()?, reader.u64()?);
        if tensors > MAX_GGUF_TENSORS || entries > MAX_GGUF_ENTRIES {
            return bad(format!("it claims {tensors} tensors and {entries} entries"));
        }
        let mut alignment = ALIGNMENT;
        for _ in 0..entries {
            let name = reader.name()?;
            let kind = reader.u32()?;
            if name == ALIGNMENT_NAME && kind == 4 {
                alignment = u64::from(reader.u32()?);
            } else {
                reader.pass(kind, 0)?;
            }
        }
        if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
            return bad(format!("{ALIGNMENT_NAME} is {alignment}"));
        }
        let mut listed = Vec::new();
        for _ in 0..tensors {
            listed.push(reader.tensor(alignment)?);
        }
        Ok(Self { tensors: listed, data: reader.at.next_multiple_of(alignment) })
    }
}

/// Reads on, and never past the end of the file.
struct Reader<R> {
    source: R,
    at: u64,
    length: u64,
}

impl<R: Read> Reader<R> {
    fn take(&mut self, bytes: u64) -> Result<(), GgufError> {
        match self.at.checked_add(bytes).filter(|end| *end <= self.length) {
            Some(end) => {
                self.at = end;
                Ok(())
            }
            None => bad("it is cut short"),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], GgufError> {
        self.take(N as u64)?;
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn skip(&mut self, bytes: u64) -> Result<(), GgufError> {
        self.take(bytes)?;
        let passed = io::copy(&mut self.source.by_ref().take(bytes), &mut io::sink())?;
        if passed == bytes { Ok(()) } else { bad("it is cut short") }
    }

    fn name(&mut self) -> Result<String, GgufError> {
        let length = self.u64()?;
        if length > MAX_GGUF_NAME {
            return bad(format!("a name has {length} bytes, at most {MAX_GGUF_NAME} are read"));
        }
        self.take(length)?;
        let mut bytes = vec![0; length as usize];
        self.source.read_exact(&mut bytes)?;
        String::from_utf8(bytes).or_else(|_| bad("a name is not UTF-8"))
    }

    /// Passes over a value of a type.
    fn pass(&mut self, kind: u32, depth: usize) -> Result<(), GgufError> {
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            8 => self.u64()?,
            9 if depth < MAX_DEPTH => return self.pass_array(depth),
            9 => return bad("its arrays are nested too deep"),
            other => return bad(format!("an entry has the unknown type {other}")),
        };
        self.skip(size)
    }

    fn pass_array(&mut self, depth: usize) -> Result<(), GgufError> {
        let (kind, count) = (self.u32()?, self.u64()?);
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            // Strings and arrays have a length each, so that there are no more of them than bytes.
            _ => {
                for _ in 0..count {
                    self.pass(kind, depth + 1)?;
                }
                return Ok(());
            }
        };
        match count.checked_mul(size) {
            Some(bytes) => self.skip(bytes),
            None => bad("it is cut short"),
        }
    }

    fn tensor(&mut self, alignment: u64) -> Result<Listed, GgufError> {
        let name = self.name()?;
        let count = self.u32()?;
        if count > MAX_GGUF_DIMENSIONS {
            return bad(format!("tensor '{name}' has {count} dimensions"));
        }
        let mut dimensions = Vec::new();
        for _ in 0..count {
            let size = self.u64()?;
            dimensions
                .push(usize::try_from(size).or_else(|_| bad(format!("tensor '{name}' has {size} rows")))?);
        }
        let (kind, offset) = (self.u32()?, self.u64()?);
        if !offset.is_multiple_of(alignment) {
            return bad(format!("tensor '{name}' begins at {offset}, which is no multiple of {alignment}"));
        }
        Ok(Listed { name, dimensions, kind, offset })
    }
}
