//! Tensors of a torch checkpoint (`torch.save` of a state dict), read one at a time from where they lie.

use std::collections::HashMap;
use std::path::Path;

use half::{bf16, f16};

use super::span::FileSpan;
use super::torch_pickle::{self, Element, MAX_PICKLE, PickleError, PickledTensor};
use super::zip_index::ZipIndex;
use super::{Tensor, WeightError, Weights};

struct Entry {
    element: Element,
    shape: Vec<usize>,
    strides: Vec<usize>,
    /// First element in the storage.
    offset: usize,
    /// One past the last element in the storage.
    end: usize,
    storage: FileSpan,
}

/// A torch checkpoint.
pub struct TorchFile {
    entries: HashMap<String, Entry>,
}

impl TorchFile {
    /// Opens a checkpoint file.
    pub fn open(path: &Path) -> Result<Self, WeightError> {
        Self::read(&FileSpan::open(path)?)
    }

    /// Opens a checkpoint that lies inside another file.
    pub fn read(span: &FileSpan) -> Result<Self, WeightError> {
        let zip = ZipIndex::read(span)?;
        let mut pickles =
            zip.names().filter_map(|n| n.strip_suffix("/data.pkl")).filter(|n| !n.contains('/'));
        let (Some(root), None) = (pickles.next().map(str::to_owned), pickles.next()) else {
            return Err(span.bad("the checkpoint has no data.pkl: save it with torch 1.6 or newer"));
        };
        if let Some(order) = zip.member(&format!("{root}/byteorder"))?
            && order.bytes(16)? != b"little"
        {
            return Err(span.bad("the checkpoint has big-endian numbers, which are not read"));
        }
        let Some(pickle) = zip.member(&format!("{root}/data.pkl"))? else {
            return Err(span.bad("the checkpoint has no data.pkl"));
        };
        let pickle = pickle.bytes(MAX_PICKLE)?;
        let tensors = torch_pickle::read(&pickle).map_err(|e| match e {
            PickleError::Code(what) => WeightError::Code { path: span.path().to_owned(), what },
            PickleError::Broken(what) => span.bad(format!("the checkpoint's pickle is damaged ({what})")),
        })?;
        let mut storages = HashMap::new();
        let mut entries = HashMap::with_capacity(tensors.len());
        for (name, tensor) in tensors {
            let storage = match storages.get(tensor.key) {
                Some(storage) => FileSpan::clone(storage),
                None => {
                    let place = zip.member(&format!("{root}/data/{}", tensor.key))?;
                    let storage =
                        place.ok_or_else(|| span.bad(format!("the data of tensor '{name}' is missing")))?;
                    storages.insert(tensor.key, storage.clone());
                    storage
                }
            };
            let shape = tensor.shape.clone();
            let entry = entry(tensor, storage).ok_or_else(|| {
                span.bad(format!("tensor '{name}' of shape {shape:?} reaches outside its storage"))
            })?;
            entries.insert(name.to_owned(), entry);
        }
        Ok(Self { entries })
    }

    /// Names and shapes of all tensors.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries.iter().map(|(n, e)| (n.as_str(), e.shape.as_slice()))
    }
}

/// A tensor that lies wholly inside its storage and repeats nothing.
fn entry(t: PickledTensor<'_>, storage: FileSpan) -> Option<Entry> {
    let bytes = t.stored.checked_mul(t.element.bytes())?;
    let count = t.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    if bytes as u64 > storage.len() || count > t.stored {
        return None;
    }
    let mut end = t.offset;
    if count > 0 {
        for (&size, &stride) in t.shape.iter().zip(&t.strides) {
            end = end.checked_add((size - 1).checked_mul(stride)?)?;
        }
        end = end.checked_add(1)?;
    }
    (end <= t.stored).then_some(Entry {
        element: t.element,
        shape: t.shape,
        strides: t.strides,
        offset: t.offset,
        end,
        storage,
    })
}

impl Entry {
    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected *= size;
            fits
        })
    }

    fn values(&self, bytes: &[u8]) -> Option<Vec<f32>> {
        Some(match self.element {
            Element::F32 => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            Element::F16 => {
                bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
            }
            Element::Bf16 => {
                bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
            Element::F64 => bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b) as f32).collect(),
            Element::Integer(_) => return None,
        })
    }

    /// Values in row-major order from those between the first and the last one.
    fn gathered(&self, values: &[f32]) -> Vec<f32> {
        let count: usize = self.shape.iter().product();
        let mut index = vec![0usize; self.shape.len()];
        let mut at = 0usize;
        let mut out = Vec::with_capacity(count);
        for _ in 0..count {
            out.push(values[at]);
            // An axis of one element may have any stride.
            for axis in (0..index.len()).rev().filter(|&axis| self.shape[axis] > 1) {
                index[axis] += 1;
                at += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                at -= self.strides[axis] * self.shape[axis];
                index[axis] = 0;
            }
        }
        out
    }
}

impl Weights for TorchFile {
    fn get(&self, name: &str, _: &[usize]) -> Result<Option<Tensor>, WeightError> {
        let Some(e) = self.entries.get(name) else { return Ok(None) };
        let size = e.element.bytes();
        let bytes = e.storage.read((e.offset * size) as u64, (e.end - e.offset) * size)?;
        let Some(values) = e.values(&bytes) else {
            return Err(WeightError::Type {
                name: name.to_owned(),
                dtype: format!("integer of {size} bytes"),
            });
        };
        let values = if e.is_contiguous() { values } else { e.gathered(&values) };
        Ok(Some(Tensor { shape: e.shape.clone(), values }))
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.entries.get(name).map(|e| e.shape.clone())
    }
}
