//! Tensors of GGUF files: plain floats, and blocks of 8-bit integers with a scale each (`Q8_0`), read one at a time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use half::{bf16, f16};

use super::gguf_head::{GgufError, Head};
use super::{FileSpan, Tensor, WeightError, Weights};

/// What a GGUF file begins with.
pub(super) const MAGIC: [u8; 4] = *b"GGUF";
/// Values of a block of `Q8_0`.
const BLOCK: usize = 32;
/// Bytes of a block of `Q8_0`: a 16-bit scale and the values.
const BLOCK_BYTES: usize = 2 + BLOCK;

/// How the values of a tensor lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    F32,
    F16,
    Bf16,
    F64,
    Q8,
    /// A type of this number, which is not read.
    Other(u32),
}

impl Layout {
    fn of(number: u32) -> Self {
        match number {
            0 => Self::F32,
            1 => Self::F16,
            8 => Self::Q8,
            28 => Self::F64,
            30 => Self::Bf16,
            other => Self::Other(other),
        }
    }

    /// Bytes of this many values in rows of `row`; none where that is no whole number of blocks, or too many.
    fn bytes(self, values: usize, row: usize) -> Option<usize> {
        match self {
            Self::F32 => values.checked_mul(4),
            Self::F16 | Self::Bf16 => values.checked_mul(2),
            Self::F64 => values.checked_mul(8),
            Self::Q8 if row.is_multiple_of(BLOCK) => (values / BLOCK).checked_mul(BLOCK_BYTES),
            Self::Q8 => None,
            Self::Other(_) => Some(0),
        }
    }

    fn values(self, bytes: &[u8]) -> Vec<f32> {
        let words = bytes.as_chunks::<2>().0;
        match self {
            Self::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Self::F16 => words.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Self::Bf16 => words.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            Self::F64 => bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
            Self::Q8 => {
                let block = |block: &[u8; BLOCK_BYTES]| {
                    let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
                    std::array::from_fn::<f32, BLOCK, _>(|i| f32::from(block[2 + i] as i8) * scale)
                };
                bytes.as_chunks::<BLOCK_BYTES>().0.iter().flat_map(block).collect()
            }
            Self::Other(_) => Vec::new(),
        }
    }
}

struct Entry {
    layout: Layout,
    shape: Vec<usize>,
    start: u64,
    bytes: usize,
}

/// One GGUF file.
pub struct GgufFile {
    span: FileSpan,
    entries: HashMap<String, Entry>,
}

impl GgufFile {
    /// Opens a file and checks its head against its length.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        let io = |source| WeightError::Io { path: path.to_owned(), source };
        let bad = |reason: String| WeightError::Gguf { path: path.to_owned(), reason };
        let file = File::open(path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let head = Head::read(BufReader::new(&file), length).map_err(|error| match error {
            GgufError::Io(source) => io(source),
            GgufError::Bad(reason) => bad(reason),
        })?;
        let mut entries = HashMap::new();
        for tensor in head.tensors {
            let layout = Layout::of(tensor.kind);
            // The first dimension of the file is the innermost one.
            let shape: Vec<usize> = tensor.dimensions.iter().rev().copied().collect();
            let row = shape.last().copied().unwrap_or(1);
            let values = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            let bytes = values.and_then(|n| layout.bytes(n, row));
            let start = head.data.checked_add(tensor.offset);
            let (Some(bytes), Some(start)) = (bytes, start) else {
                return Err(bad(format!(
                    "tensor '{}' has shape {shape:?} at {}",
                    tensor.name, tensor.offset
                )));
            };
            if start.checked_add(bytes as u64).is_none_or(|end| end > length) {
                return Err(bad(format!("tensor '{}' ends past the end of the file", tensor.name)));
            }
            if entries.insert(tensor.name.clone(), Entry { layout, shape, start, bytes }).is_some() {
                return Err(bad(format!("tensor '{}' is there twice", tensor.name)));
            }
        }
        Ok(Self { span: FileSpan::whole(path, file)?, entries })
    }

    /// Names and shapes of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries.iter().map(|(n, e)| (n.as_str(), e.shape.as_slice()))
    }
}

impl Weights for GgufFile {
    fn get(&self, name: &str, _: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let Some(entry) = self.entries.get(name) else { return Ok(None) };
        if let Layout::Other(number) = entry.layout {
            let dtype = format!("{number} of GGUF, of which F32, F16, BF16, F64 and Q8_0 are read");
            return Err(WeightError::Type { name: name.to_owned(), dtype });
        }
        let values = entry.layout.values(&self.span.read(entry.start, entry.bytes)?);
        Ok(Some(Tensor { shape: entry.shape.clone(), values }))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.entries.get(name).map(|e| e.shape.clone())
    }
}

/// Whether a file begins as GGUF files do.
pub(super) fn is_gguf(path: &Path) -> Result<bool, WeightError> {
    let io = |source| WeightError::Io { path: path.to_owned(), source };
    let mut start = Vec::new();
    File::open(path).map_err(io)?.take(MAGIC.len() as u64).read_to_end(&mut start).map_err(io)?;
    Ok(start == MAGIC)
}
