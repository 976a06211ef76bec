//! Tensors of safetensors files, read one at a time so that memory holds no second copy.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::{Tensor, WeightError, Weights};

/// Largest header read: the format's own limit.
const MAX_HEADER: u64 = 100_000_000;

struct Entry {
    dtype: Dtype,
    shape: Vec<usize>,
    offset: u64,
    bytes: usize,
}

/// One safetensors file.
pub struct SafetensorsFile {
    path: PathBuf,
    file: Mutex<File>,
    entries: HashMap<String, Entry>,
}

impl SafetensorsFile {
    /// Opens a file and checks its header against its length.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        let io = |source| WeightError::Io { path: path.to_owned(), source };
        let bad = |reason: String| WeightError::Format { path: path.to_owned(), reason };
        let mut file = File::open(path).map_err(io)?;
        let len = file.metadata().map_err(io)?.len();
        if len < 8 {
            return Err(bad(format!("{len} bytes")));
        }
        let mut size = [0u8; 8];
        file.read_exact(&mut size).map_err(io)?;
        let header = u64::from_le_bytes(size);
        if header > MAX_HEADER || header + 8 > len {
            return Err(bad(format!("a header of {header} bytes in a file of {len}")));
        }
        let mut head = vec![0u8; header as usize];
        file.read_exact(&mut head).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&head).map_err(|e| bad(e.to_string()))?;
        let mut entries = HashMap::new();
        for (name, info) in metadata.tensors() {
            let (start, end) = info.data_offsets;
            let values = info.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
            let bits = values.and_then(|n| n.checked_mul(info.dtype.bitsize()));
            if start > end || bits.is_none_or(|b| b.div_ceil(8) != end - start) {
                return Err(bad(format!("tensor '{name}' has shape {:?} in {start}..{end}", info.shape)));
            }
            let limit = len - header - 8;
            if end as u64 > limit {
                return Err(bad(format!("tensor '{name}' ends {} bytes past the end", end as u64 - limit)));
            }
            let entry = Entry {
                dtype: info.dtype,
                shape: info.shape.clone(),
                offset: header + 8 + start as u64,
                bytes: end - start,
            };
            entries.insert(name, entry);
        }
        Ok(Self { path: path.to_owned(), file: Mutex::new(file), entries })
    }

    /// Names and shapes of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries.iter().map(|(n, e)| (n.as_str(), e.shape.as_slice()))
    }

    fn read(&self, e: &Entry) -> Result<Vec<u8>, WeightError> {
        let mut bytes = vec![0u8; e.bytes];
        let mut file = self.file.lock().unwrap_or_else(|p| p.into_inner());
        file.seek(SeekFrom::Start(e.offset))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|source| WeightError::Io { path: self.path.clone(), source })?;
        Ok(bytes)
    }

    /// The values of a tensor of 64-bit integers.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, WeightError> {
        let Some(e) = self.entries.get(name) else { return Ok(None) };
        if e.dtype != Dtype::I64 {
            return Err(WeightError::Type { name: name.to_owned(), dtype: format!("{:?}", e.dtype) });
        }
        let words = self.read(e)?.as_chunks::<8>().0.iter().map(|w| i64::from_le_bytes(*w)).collect();
        Ok(Some(words))
    }
}

impl Weights for SafetensorsFile {
    fn get(&self, name: &str, _: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let Some(e) = self.entries.get(name) else { return Ok(None) };
        let bytes = self.read(e)?;
        let values = match e.dtype {
            Dtype::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Dtype::BF16 => {
                bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
            Dtype::F16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            Dtype::F64 => bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
            other => {
                return Err(WeightError::Type { name: name.to_owned(), dtype: format!("{other:?}") });
            }
        };
        Ok(Some(Tensor { shape: e.shape.clone(), values }))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.entries.get(name).map(|e| e.shape.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut f = tempfile::NamedTempFile::new().unwrap();
        f.write_all(bytes).unwrap();
        f
    }

    fn sample() -> Vec<u8> {
        let header = br#"{"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[16,18]},"n":{"dtype":"I64","shape":[1],"data_offsets":[18,26]}}"#;
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header);
        [1f32, -2.0, 0.5, 4.0].iter().for_each(|v| out.extend(v.to_le_bytes()));
        out.extend([0x80, 0x3f]);
        out.extend(7i64.to_le_bytes());
        out
    }

    #[test]
    fn values_of_every_type_come_back() {
        let f = file(&sample());
        let s = SafetensorsFile::open(f.path()).unwrap();
        let a = s.get("a", &[]).unwrap().unwrap();
        assert_eq!((a.shape, a.values), (vec![2, 2], vec![1.0, -2.0, 0.5, 4.0]));
        assert_eq!(s.get("b", &[]).unwrap().unwrap().values, [1.0]);
        assert_eq!(s.integers("n").unwrap().unwrap(), [7]);
        assert!(s.get("zzz", &[]).unwrap().is_none());
        assert!(matches!(s.get("n", &[]), Err(WeightError::Type { .. })));
    }

    #[test]
    fn every_truncation_is_an_error_that_names_the_file() {
        let whole = sample();
        for cut in 0..whole.len() {
            let f = file(&whole[..cut]);
            let Err(e) = SafetensorsFile::open(f.path()) else { panic!("cut at {cut} was accepted") };
            assert!(e.to_string().contains("fetch it again"), "{e}");
        }
    }

    proptest! {
        #[test]
        fn damaged_headers_never_panic(at in 0usize..180, byte in any::<u8>()) {
            let mut bytes = sample();
            bytes[at] = byte;
            let f = file(&bytes);
            if let Ok(s) = SafetensorsFile::open(f.path()) {
                for name in ["a", "b", "n"] {
                    let _ = s.get(name, &[]);
                }
            }
        }
    }
}
