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

    /// The values of a tensor of 32-bit or 64-bit integers.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<i64>>, WeightError> {
        let Some(e) = self.entries.get(name) else { return Ok(None) };
        Ok(Some(match e.dtype {
            Dtype::I64 => self.read(e)?.as_chunks::<8>().0.iter().map(|w| i64::from_le_bytes(*w)).collect(),
            Dtype::I32 => {
                let words = self.read(e)?;
                words.as_chunks::<4>().0.iter().map(|w| i32::from_le_bytes(*w).into()).collect()
            }
            _ => {
                return Err(WeightError::Type { name: name.to_owned(), dtype: format!("{:?}", e.dtype) });
            }
        }))
    }
}

impl SafetensorsFile {
    /// A weight of 8-bit integers with the scales that lie beside it: one for the tensor, for each row, or for each of
    /// several equal stretches of a row. `None` where there are none.
    fn dequantised(&self, name: &str, e: &Entry) -> Result<Option<Tensor>, WeightError> {
        let Some(scale) = self.get(&format!("{name}_scale"), &[])? else { return Ok(None) };
        let rows = e.shape.first().copied().unwrap_or(1).max(1);
        let (count, scales) = (e.bytes, scale.values.len());
        // A scale for everything is a scale for every row.
        let fits = scales == 1 || (scales.is_multiple_of(rows) && scales > 0 && count.is_multiple_of(scales));
        if !fits {
            let got = scale.shape;
            let expected = vec![rows, 1];
            return Err(WeightError::Shape { name: format!("{name}_scale"), expected, got });
        }
        let zeros = match self.entries.get(&format!("{name}_zero_point")) {
            None => None,
            Some(z) if z.dtype == Dtype::I8 && z.bytes == scales => Some(self.read(z)?),
            Some(z) => {
                let dtype = format!("{:?} of shape {:?}", z.dtype, z.shape);
                return Err(WeightError::Type { name: format!("{name}_zero_point"), dtype });
            }
        };
        let stretch = (count / scales).max(1);
        let bytes = self.read(e)?;
        let values = bytes.chunks(stretch).enumerate().flat_map(|(i, stretch)| {
            let zero = zeros.as_ref().map_or(0.0, |z| f32::from(z[i] as i8));
            let scale = scale.values[i];
            stretch.iter().map(move |&q| (f32::from(q as i8) - zero) * scale)
        });
        Ok(Some(Tensor { shape: e.shape.clone(), values: values.collect() }))
    }
}

impl Weights for SafetensorsFile {
    fn get(&self, name: &str, _: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let Some(e) = self.entries.get(name) else { return Ok(None) };
        if e.dtype == Dtype::I8
            && name.ends_with(".weight")
            && let Some(tensor) = self.dequantised(name, e)?
        {
            return Ok(Some(tensor));
        }
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

    /// A file of tensors given as name, type, shape and bytes.
    fn made(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        let mut data = Vec::new();
        for (name, dtype, shape, bytes) in tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            data.extend_from_slice(bytes);
            header.insert(
                (*name).to_owned(),
                serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
            );
        }
        let header = serde_json::Value::Object(header).to_string();
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.extend(data);
        out
    }

    #[test]
    fn integer_weights_are_read_by_their_scales() {
        let q: &[u8] = &[1, 2, 0xff, 0x80, 127, 0];
        let per_row: Vec<u8> = [0.5f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let one = 0x3f80u16.to_le_bytes();
        let groups: Vec<u8> = [1f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let f = file(&made(&[
            ("a.weight", "I8", &[2, 3], q),
            ("a.weight_scale", "F32", &[2, 1], &per_row),
            ("b.weight", "I8", &[2, 3], q),
            ("b.weight_scale", "BF16", &[], &one),
            ("c.weight", "I8", &[2, 3], q),
            ("c.weight_scale", "F32", &[2], &per_row),
            ("c.weight_zero_point", "I8", &[2, 1], &[1, 0xff]),
            ("d.weight", "I8", &[2, 3], q),
            ("d.weight_scale", "F32", &[2, 3], &groups),
        ]));
        let s = SafetensorsFile::open(f.path()).unwrap();
        let get = |name: &str| s.get(name, &[]).unwrap().unwrap();
        assert_eq!(get("a.weight").values, [0.5, 1.0, -0.5, -256.0, 254.0, 0.0]);
        assert_eq!(get("a.weight").shape, [2, 3]);
        assert_eq!(get("b.weight").values, [1.0, 2.0, -1.0, -128.0, 127.0, 0.0]);
        assert_eq!(get("c.weight").values, [0.0, 0.5, -1.0, -254.0, 256.0, 2.0]);
        assert_eq!(get("d.weight").values, [1.0, 4.0, -3.0, -512.0, 635.0, 0.0]);
    }

    #[test]
    fn integer_weights_without_fitting_scales_are_refused() {
        let f = file(&made(&[
            ("a.weight", "I8", &[2, 3], &[0; 6]),
            ("b.weight", "I8", &[2, 3], &[0; 6]),
            ("b.weight_scale", "F32", &[5], &[0; 20]),
            ("c.weight", "I8", &[2, 3], &[0; 6]),
            ("c.weight_scale", "F32", &[0], &[]),
            ("d.weight", "I8", &[0, 3], &[]),
            ("d.weight_scale", "F32", &[1], &[0; 4]),
        ]));
        let s = SafetensorsFile::open(f.path()).unwrap();
        assert!(matches!(s.get("a.weight", &[]), Err(WeightError::Type { .. })));
        assert!(matches!(s.get("b.weight", &[]), Err(WeightError::Shape { .. })));
        assert!(matches!(s.get("c.weight", &[]), Err(WeightError::Shape { .. })));
        assert!(s.get("d.weight", &[]).unwrap().unwrap().values.is_empty());
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
